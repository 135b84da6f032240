"""`flatout explain` on programs with causes that Python and the kernel count: its share of each
cause, and the program's own reading of the same counters.

Groups with limits need a writable cgroup file system of version 1, thus root; without one their
programs are listed as not run. A file of a mapped data set lies in the current folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from harness import parser  # noqa: E402
from report import measured_here, table, write_section  # noqa: E402

GROUPS = Path("/sys/fs/cgroup")
NEAR = 0.10  # a share is right within so much of the program's own
PERIOD_US = 100_000


@contextlib.contextmanager
def group(case: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A shell's words that join the case's control group, and the group's folder; empty without."""
    limits = {
        "cpu": [("cpu.cfs_quota_us", int(PERIOD_US * case.get("cores", 0)))],
        "memory": [("memory.limit_in_bytes", case.get("memory_mb", 0) << 20)],
    }
    wanted = [(kind, files) for kind, files in limits.items() if files[0][1]]
    if not wanted:
        yield "", ""
        return
    ((kind, files),) = wanted
    folder = GROUPS / kind / f"flatout-counters-{os.getpid()}"
    folder.mkdir()
    try:
        for name, value in files:
            (folder / name).write_text(str(value))
        yield f"echo $$ > {folder}/cgroup.procs; ", str(folder)
    finally:
        folder.rmdir()


def run(name: str, case: dict[str, Any], seconds: float) -> tuple[float, float, str]:
    """(the share by the program's own counter, by explain, the first finding)."""
    with tempfile.TemporaryDirectory() as kept, group(case) as (join, folder):
        own, said = Path(kept) / "own.json", Path(kept) / "said.json"
        program = [sys.executable, str(HERE / "counters" / f"{name}.py"), "--seconds", str(seconds)]
        command = [sys.executable, "-m", "flatout", "explain", "--seconds", str(seconds + 60),
                   "--json", str(said), "--", *program]  # fmt: skip
        environment = os.environ | {"COUNTS": str(own), "GROUP": folder, "FILES": os.getcwd()}
        subprocess.run(
            ["sh", "-c", f'{join}exec "$@"', "sh", *command],
            env=environment, check=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, timeout=300,
        )  # fmt: skip
        findings = json.loads(said.read_text())["findings"]
        share = sum(one["share"] for one in findings if one["id"] == case["cause"])
        return json.loads(own.read_text())["share"], share, findings[0]["id"]


def main(args: argparse.Namespace) -> None:
    """Run the programs and print a table, which is a section of RESULTS.md if all of them ran; the
    exit code is 1 if a share is wrong."""
    cases = tomllib.loads((HERE / "counters" / "counters.toml").read_text())
    body = list[list[str]]()
    for name in args.cases or cases:
        cause = cases[name]["cause"]
        try:
            own, share, first = run(name, cases[name], args.seconds)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            body.append([name, cause, f"not run: {error}", "", ""])
            continue
        shown = f"{share:.0%}" + ("" if abs(own - share) <= NEAR else " **wrong**")
        body.append([name, cause, f"{own:.0%}", shown, first])
        print(" ".join(body[-1]), file=sys.stderr, flush=True)
    shares = table(["program", "cause", "own counter", "explain", "first finding"], body)
    if args.cases:
        print(shares)
    else:
        text = f"""## Explaining counted causes: the program's own counter and explain's share

{measured_here(args)}
- A share is right within {NEAR:.0%} of the time. Each program runs once, for {args.seconds:.0f} s.

{shares}
"""
        write_section(args, "explain_counters", text)
    sys.exit(any("**wrong**" in row[3] for row in body))


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=12.0, help="that each program runs")
    options.add_argument("--cases", nargs="+", default=None, help="only these; nothing is written")
    main(options.parse_args())
