"""What an import and the first word of the command take: ``import flatout``, ``from flatout import
PPO``, ``flatout --help``, beside ``import stable_baselines3`` and a Python that does nothing.

Every run is a new process, timed from outside; the sides take turns. Bytecode is compiled by one
run before that does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from datetime import date

from harness import BenchmarkError, flatout, main, parser, peers_python, run_child
from machine import machine
from report import spread, table, write_section

NAME = "imports"
BARS = {"import flatout": 0.3, "from flatout import PPO": 1.5}
"""Seconds, less those of a Python that does nothing."""


def benchmark(args: argparse.Namespace) -> None:
    """Import in turns, and write the section."""
    python = [sys.executable, "-c"]
    listing = "import flatout, sys; dir(flatout); assert 'jax' not in sys.modules"
    sides = {
        "nothing": [*python, "pass"],
        "import flatout": [*python, "import flatout"],
        "dir(flatout)": [*python, listing],
        "from flatout import PPO": [*python, "from flatout import PPO"],
        "flatout --help": [flatout(args), "--help"],
    }
    with contextlib.suppress(BenchmarkError):  # where its Python is there
        sides["import stable_baselines3"] = [peers_python(args), "-c", "import stable_baselines3"]
    walls: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(-1, args.seeds):
        for side, argv in sides.items():
            child = run_child(argv)
            if child.code:
                raise BenchmarkError(f"{' '.join(argv)} exited with {child.code}:\n{child.stderr}")
            if number >= 0:
                walls[side].append(child.wall_s)
    write_section(args, NAME, section(walls))


def section(walls: dict[str, list[float]]) -> str:
    """The Markdown of this benchmark."""
    rows: list[list[str]] = []
    for side, times in walls.items():
        beyond = [one - nothing for one, nothing in zip(times, walls["nothing"], strict=True)]
        bar = f"{BARS[side]:g}" if side in BARS else "-"
        rows.append([f"`{side}`", spread(times, 2), spread(beyond, 2), bar])
    return f"""## Imports

- Machine: {machine()}.
- Date: {date.today()}.
- Command: `python benchmarks/imports.py`
- Python {sys.version.split()[0]}; new processes in turns, timed from outside: median
  (lowest-highest) of {len(walls["nothing"])}. `nothing` is a Python that imports nothing; the
  third column leaves out its time, run by run.

{table(["what", "s", "s beyond nothing", "bar, s"], rows)}
"""


if __name__ == "__main__":
    main(benchmark, parser(__doc__, seeds=7).parse_args())
