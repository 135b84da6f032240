"""Forty scripts of Stable-Baselines3's documentation, with their import changed to `flatout.sb3`.

    python benchmarks/sb3/run.py --sb3-python PYTHON [--only NAME ...] [--no-write]

Each script runs on Stable-Baselines3 and on Flatout; a table in RESULTS.md says which ended without
an error, and why the others did not. `headings.md` lists what the scripts are about.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from machine import machine  # noqa: E402
from report import table, write_section  # noqa: E402

IMPORT = re.compile(r"^(\s*(?:from|import) )(?:stable_baselines3|sb3_contrib)\b", re.M)
ABOUT = """Each script does in our own words what a heading of the documentation of Stable-Baselines3, sb3-contrib or RL Zoo is about.
For Flatout its imports alone are changed: `stable_baselines3` and `sb3_contrib` become `flatout.sb3`. The list in
`benchmarks/sb3/headings.md` was fixed before the translations were written. GOOD scripts run on Flatout**; one that fails shows its last line.
Scripts that import PyTorch get it from the other environment."""  # noqa: E501
CONTRIB = "No module named 'sb3_contrib'"


def headings() -> list[tuple[str, str]]:
    """The scripts' names and their headings, in the list's order."""
    rows = re.findall(
        r"^\| \d+ \| (\w+) \| (.+?) \| (.+?) \|$", (HERE / "headings.md").read_text(), re.M
    )
    return [(name, f"{page}: {heading}") for name, page, heading in rows]


def changed(script: str) -> str:
    """A script with `flatout.sb3` in place of Stable-Baselines3, in its imports alone."""
    return IMPORT.sub(r"\1flatout.sb3", script)


def cause(stderr: str) -> str:
    """The last line of a traceback; Flatout's messages without the exception's name."""
    lines = [line for line in stderr.strip().splitlines() if line and not line.startswith(" ")]
    last = lines[-1] if lines else "it ended without a message"
    return re.sub(r"^flatout\.errors\.\w+: ", "", last).replace("|", "\\|")


def attempt(python: str, text: str, torch: Path | None, limit: float) -> tuple[str, float]:
    """Run a script; return the cause of its failure, or nothing, and the seconds that it took.

    Args:
        torch: a folder of packages that are appended to those of `python`, for scripts that import
            PyTorch.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(text)
        settings = os.environ | {"PYTHONPATH": folder, "PYTHONWARNINGS": "ignore"}
        settings["OMP_NUM_THREADS"] = "1"  # PyTorch's threads would wait for each other
        if torch is not None:
            (Path(folder) / "sitecustomize.py").write_text(
                f"import sys\nsys.path.append({str(torch)!r})\n"
            )
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [python, path],
                cwd=folder,
                env=settings,
                timeout=limit,
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            return f"it ran for longer than {limit:.0f} s", limit
        return cause(done.stderr) if done.returncode else "", time.perf_counter() - start


def main(words: Sequence[str] | None = None) -> None:
    """Run every script on both libraries, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--sb3-python", default="", help="a Python with Stable-Baselines3; without one only Flatout"
    )
    parser.add_argument("--only", nargs="+", help="names of scripts")
    parser.add_argument("--jobs", type=int, default=2, help="scripts at a time")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one script")
    parser.add_argument("--output", default=str(HERE.parent / "RESULTS.md"))
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args(words)
    chosen = [one for one in headings() if not args.only or one[0] in args.only]
    torch = None
    if args.sb3_python:
        asked = [args.sb3_python, "-c", "import torch; print(torch.__path__[0])"]
        torch = Path(subprocess.check_output(asked, text=True).strip()).parent

    def both(one: tuple[str, str]) -> tuple[str, float, str, float]:
        text = (HERE / "scripts" / f"{one[0]}.py").read_text()
        there = (
            attempt(args.sb3_python, text, None, args.limit)
            if args.sb3_python
            else ("not run", 0.0)
        )
        here = attempt(sys.executable, changed(text), torch, args.limit)
        print(
            f"{one[0]}: {there[0] or 'ok'} {there[1]:.1f} s; {here[0] or 'ok'} {here[1]:.1f} s",
            flush=True,
        )
        return *there, *here

    with ThreadPoolExecutor(args.jobs) as pool:
        found = list(pool.map(both, chosen))
    rows = []
    for (name, heading), (there, _, here, _) in zip(chosen, found, strict=True):
        there = "not installed" if CONTRIB in there else there
        rows.append([heading, name, there or "runs", "runs" if not here else "no", here])
    good = sum(not here for _, _, here, _ in found)
    body = [
        "## Scripts of Stable-Baselines3's documentation",
        "",
        ABOUT.replace("GOOD", f"**{good} of {len(chosen)}"),
        "",
        f"- Machine: {machine()}.",
        f"- Date: {time.strftime('%Y-%m-%d')}.",
        "- Command: `python benchmarks/sb3/run.py --sb3-python=PATH`",
        "",
        table(["heading", "script", "Stable-Baselines3", "Flatout", "cause"], rows),
    ]
    write_section(args, "sb3 scripts", "\n".join(body))


if __name__ == "__main__":
    main()
