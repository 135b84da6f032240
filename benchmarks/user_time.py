"""A new user's first minutes: `make install`, `make train` twice, imports and `--help`.

Everything happens in a fresh clone of this repository's HEAD, in a temporary folder that is
removed afterwards. `make train` is measured after installation, with an empty compilation cache
(first) and with the one that the first left (again). Imports take turns with a Python that does
nothing, whose time is left out.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import REPO, BenchmarkError, main, parser
from processes import run_checked
from report import measured_here, spread, table, write_section

NAME = "user_time"
IMPORTS = ("import flatout", "from flatout import PPO")


def benchmark(args: argparse.Namespace) -> None:
    """Clone, install, train, import, and write the section."""
    with tempfile.TemporaryDirectory(prefix="flatout-clone-") as folder:
        clone = Path(folder) / "flatout"
        subprocess.run(["git", "clone", "--quiet", str(REPO), str(clone)], check=True)
        began = time.perf_counter()
        run_checked(["make", "-C", str(clone), "install"])
        install = time.perf_counter() - began
        files = [file for file in (clone / ".venv").rglob("*") if not file.is_dir()]
        size = sum(file.lstat().st_size for file in files)
        first: list[float] = []
        again: list[float] = []
        for _ in range(args.seeds):
            shutil.rmtree(clone / ".cache", ignore_errors=True)
            for times in (first, again):
                child = run_checked(["make", "-C", str(clone), "train"])
                if "return 475.0 reached" not in child.stdout:
                    raise BenchmarkError(f"make train did not solve it:\n{child.stdout}")
                times.append(child.wall_s)
        programs = clone / ".venv" / "bin"
        commands = {line: [str(programs / "python"), "-c", line] for line in ("pass", *IMPORTS)}
        commands["flatout --help"] = [str(programs / "flatout"), "--help"]
        walls: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(5):
            for name, argv in commands.items():
                walls[name].append(run_checked(argv).wall_s)
    idle = statistics.median(walls.pop("pass"))
    rows = [
        ["`make install` (packages downloaded or cached by pip)", f"{install:.0f} s"],
        ["size of `.venv` after it", f"{size / 1e6:.0f} MB"],
        ["`make train` to solved, nothing compiled before", f"{spread(first, 1)} s"],
        ["`make train` again, compiled programs cached", f"{spread(again, 1)} s"],
        *([f"`{name}`", f"{spread([one - idle for one in walls[name]])} s"] for name in walls),
    ]
    write_section(args, NAME, f"""## A new user's first minutes, in a fresh clone

{measured_here(args)}
- Python {sys.version.split()[0]}; whole commands timed from outside, `make` included: median
  (lowest-highest) of {args.seeds} trainings each, and of 5 imports and `--help`, without the time
  of a Python that does nothing. "Solved" is a mean of 100 training returns of at least 475.

{table(["what", "measured"], rows)}
""")  # fmt: skip


if __name__ == "__main__":
    main(benchmark, parser(__doc__, seeds=3).parse_args())
