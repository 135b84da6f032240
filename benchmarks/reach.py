"""Check ``paths.toml``: do rows of speed and learning call a file that does not count for them?

    python benchmarks/reach.py                             # all rows, 15 min
    python benchmarks/reach.py --row speed/ppo-cartpole    # some of them

Flatout's side of each row trains for the steps of its dry run, and those of learning are evaluated;
each of its processes writes the files whose functions it calls. A file that does not count for the
row is named, and the exit status is 1. Files that are only imported, and never called, may be left
out; a constant that another file takes from one of them is not seen.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from harness import HERE, REPO, BenchmarkError, json_of, main, named, run_child
from learning import greedy
from published import OURS, SOURCE, Json, parts_of_source, rows_of
from sides import side_command

UNCHECKED = ("commands", "speed")
"""Parts that rows call and that may still not count: around training, or only for its speed."""


def check(args: argparse.Namespace) -> None:
    """Check the rows that the command line names; the last line names those that failed."""
    kinds = ("speed", "learning")
    rows = {f"{kind}/{name}": row for kind in kinds for name, row in rows_of(kind).items()}
    wrong = dict[str, str]()
    for name, row in named(rows, args.row).items():
        try:
            called = files_called(args, name.partition("/")[0], row)
        except BenchmarkError as error:
            wrong[name] = "not checked"
            print(f"{name}: not checked. {error}", flush=True)
            continue
        print(f"{name}: {len(row['paths'])} files count, {len(called)} are called", flush=True)
        for path in uncounted(called, row):
            wrong[name] = "name more parts of paths.toml"
            print(f"  {path} is called and does not count", flush=True)
    if wrong:
        raise BenchmarkError("; ".join(f"{name}: {words}" for name, words in wrong.items()) + ".")


def uncounted(called: set[str], row: Json) -> list[str]:
    """The called files that should count for a row and do not."""
    parts = parts_of_source()
    return sorted(called.difference(row["paths"], *(parts[part] for part in UNCHECKED)))


def files_called(args: argparse.Namespace, kind: str, row: Json) -> set[str]:
    """The files of Flatout whose functions a short run of a row calls, in all its processes."""
    steps = row["dry"]["steps"] if kind == "speed" else row["dry"]
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "calls")
        command = side_command(args, Path(scratch), row, OURS, ("--steps", str(steps)))(0)
        command = replace(command, env={
            **command.env, "FLATOUT_CALLS_OF": f"{SOURCE}{os.sep}", "FLATOUT_CALLS_IN": str(log),
            "PYTHONPATH": os.pathsep.join((str(HERE / "calls"), command.env["PYTHONPATH"] or "")),
        })  # fmt: skip
        result = json_of(run_child(command.argv, command.env), row["title"])
        if row.get("score") == "eval":
            greedy(command, result)
        if not log.exists():
            raise BenchmarkError(f"{command.argv[0]} runs no file of {SOURCE}.")
        return {Path(path).relative_to(REPO).as_posix() for path in log.read_text().split()}


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--row", nargs="+", help="only these, as speed/NAME or learning/NAME")
    options.add_argument("--flatout", help="the flatout command")
    main(check, options.parse_args())
