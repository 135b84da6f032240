"""Runs one script of the zoo, plainly or under `flatout explain`, and prints one JSON object.

The object holds the script's own rate (`work`, `seconds`, both null if it did not say) and, under
explain, what explain found (`explain`: its `--json` file).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TIMEOUT_S = 300
LINE = re.compile(r"^work=(\d+) seconds=([\d.]+)$", re.MULTILINE)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--explain", default=None, help="the flatout command; without it: plainly")
    parser.add_argument("--seconds", default="15", help="that explain samples for")
    parser.add_argument("--save", default=None, help="keep the evidence in this file")
    parser.add_argument(
        "--rate", nargs=2, default=None, metavar=("WORK", "SECONDS"),
        help="dotted keys of these in the JSON object that the script prints",
    )  # fmt: skip
    parser.add_argument("command", nargs="+", help="after --: Python, the script, its arguments")
    return parser.parse_args()


def rate_of(stdout: str, keys: list[str] | None) -> tuple[float | None, float | None]:
    """Work and seconds from the script's last lines; None where it did not print them."""
    if keys is None:
        found = LINE.findall(stdout)
        return (float(found[-1][0]), float(found[-1][1])) if found else (None, None)
    for line in reversed(stdout.splitlines()):
        try:
            printed = json.loads(line)
        except json.JSONDecodeError:
            continue
        work, seconds = (dig(printed, key) for key in keys)
        return work, seconds
    return None, None


def dig(value: Any, dotted: str) -> Any:
    """The value at a dotted key."""
    for key in dotted.split("."):
        value = value[key]
    return value


def main() -> None:
    """Run, and print what came of it; a script that fails fails this program too."""
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "explain.json"
        command = args.command
        if args.explain:
            head = [args.explain, "explain", "--seconds", args.seconds, "--json", str(file)]
            head += ["--save", args.save] if args.save else []
            command = [*head, "--", *command]
        try:
            child = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False,
                timeout=TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            sys.exit(f"{command[-3:]} did not end within {TIMEOUT_S} s")
        if child.returncode:
            print(child.stdout[-2000:], file=sys.stderr)
            sys.exit(child.returncode if child.returncode > 0 else 1)
        work, seconds = rate_of(child.stdout, args.rate)
        explained = json.loads(file.read_text()) if args.explain else None
    print(json.dumps({"work": work, "seconds": seconds, "explain": explained}))


if __name__ == "__main__":
    main()
