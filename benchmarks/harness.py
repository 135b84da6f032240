"""Parts that benchmarks share: child processes measured from outside, finished runs, options.

A benchmark runs *sides* (Flatout, a peer) in turn, seed by seed: A B A B. Each finished run is one
JSON line in ``benchmarks/results/NAME.jsonl``, so that the same command resumes. A line counts only
while the settings and the source of Flatout are the same.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from machine import commit, isa, machine
from processes import BenchmarkError, Command, Row, json_of, run_child

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "0", "JAX_COMPILATION_CACHE_DIR": None}
"""Environment of a child that compiles everything itself."""

CACHED = {"PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))}
"""Environment of a child that finds this folder's environments by name: empty_env:make."""

OUR_ENVS = {**NO_CACHE, **CACHED}

CLOCK_SLACK_S = 1.5
"""A child's own wall time may be longer than measured here by this: boot time has whole seconds."""

BEGAN = time.monotonic()

# --- Finished runs ----------------------------------------------------------------------------


def read_lines(path: Path) -> list[Row]:
    """Return the objects of a file of JSON lines, without a line that an interruption tore."""
    text = path.read_text() if path.exists() else ""
    rows: list[Row] = []
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    if text and not text.endswith("\n"):
        with path.open("a") as file:
            file.write("\n")
    return rows


def add_line(path: Path, row: Row) -> None:
    """Add an object to a file of JSON lines, on disk at once."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def lines_file(name: str, args: argparse.Namespace) -> Path:
    """Return the file of a benchmark's finished runs; `--fresh` renames an earlier one."""
    path = Path(args.results) / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    if args.fresh and path.exists():
        path.replace(path.with_suffix(".previous.jsonl"))
    return path


def origin() -> Row:
    """Return where and when a run is made: commit, machine, instruction set and time."""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"commit": commit(), "machine": machine(), "isa": isa(), "when": now}


def refuse_late(args: argparse.Namespace) -> None:
    """Refuse to begin another run after `--minutes`.

    Raises:
        BenchmarkError: they are over.
    """
    if time.monotonic() - BEGAN > 60 * args.end_after:
        raise BenchmarkError("the time is over; the same command continues.")


class Lines:
    """The rows of a benchmark that were measured from the present source, one JSON line each.

    `source` is the digest of that source, if it is not all of Flatout's.
    """

    def __init__(self, name: str, args: argparse.Namespace, source: str | None = None) -> None:
        self._path, self._source = lines_file(name, args), source or source_id()
        rows = read_lines(self._path)
        self.rows = [row for row in rows if args.any_source or row["source"] == self._source]

    def add(self, row: Row) -> None:
        """Store a row with its source and origin."""
        row = row | {"source": self._source, **origin()}
        add_line(self._path, row)
        self.rows.append(row)


class Store:
    """The finished runs of one benchmark, one JSON line each.

    A run counts if its settings are equal, and if the source is the same: `sources` returns the
    digests of sides that do not depend on all of Flatout's source.
    """

    def __init__(
        self, name: str, settings: Row, args: argparse.Namespace,
        sources: Callable[[], Mapping[str, str]] = dict,
    ) -> None:  # fmt: skip
        self.name, self.settings, self._args = name, settings, args
        self._digests, self._source, self._sources = sources, source_id(), sources()
        self.path = lines_file(name, args)
        self.rows = read_lines(self.path)

    def get(self, side: str, seed: int) -> Row | None:
        """Return the newest finished run of a side and seed with these settings, or None."""
        for row in reversed(self.rows):
            if (row["name"], row["side"], row["seed"]) != (self.name, side, seed):
                continue
            same_source = self._args.any_source or row["source"] == self._source_of(side)
            if same_source and row["settings"] == self.settings:
                return row
        return None

    def _source_of(self, side: str) -> str:
        return self._sources.get(side, self._source)

    def keep(self, rows: list[Row]) -> None:
        """Forget all other runs; the file is replaced whole."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(json.dumps(row) + "\n" for row in rows))
        fresh.replace(self.path)
        self.rows = rows

    def run(
        self, side: str, seed: int, command: Command, check: Callable[[Row], None] | None = None
    ) -> Row:
        """Return the finished run of a side and seed; if there is none, run and store it.

        `check` raises if a run does not count, which is not stored then.

        Raises:
            BenchmarkError: the run failed or does not count, the source changed meanwhile, or
                `--minutes` are over.
        """
        what = f"{self.name}: {side}, seed {seed}"
        if (row := self.get(side, seed)) is not None:
            print(f"{what}: finished before ({row['wall_s']:.1f} s)", file=sys.stderr)
            if check is not None:
                check(row)
            return row
        refuse_late(self._args)
        if command.run_dir is not None:
            shutil.rmtree(command.run_dir, ignore_errors=True)
            command.run_dir.parent.mkdir(parents=True, exist_ok=True)
        print(f"{what} ...", file=sys.stderr, flush=True)
        child = run_child(command.argv, command.env, self._args.timeout)
        result = json_of(child, what)
        inside = float(result.get("wall_s") or 0.0)
        if inside > child.wall_s + CLOCK_SLACK_S:
            raise BenchmarkError(
                f"{what} reports {inside:.1f} s of wall time; it lasted {child.wall_s:.1f} s."
            )
        if command.finish is not None:
            try:
                result = command.finish(command, result)
            except (OSError, LookupError, ValueError) as error:
                raise BenchmarkError(f"{what} left no complete results: {error!r}.") from None
        if self._digests().get(side, source_id()) != self._source_of(side):
            raise BenchmarkError(f"{what}: the source changed during the run, which is not kept.")
        row = {
            "name": self.name, "side": side, "seed": seed, "settings": self.settings,
            "source": self._source_of(side), **origin(),
            "wall_s": child.wall_s, "cpu_s": child.cpu_s, "max_rss_mb": child.max_rss_mb,
            "written_mb": child.written_mb, "other_load": child.other_load, "result": result,
        }  # fmt: skip
        if check is not None:
            check(row)
        add_line(self.path, row)
        self.rows.append(row)
        print(f"{what}: {child.wall_s:.1f} s", file=sys.stderr, flush=True)
        return row

    def alternate(
        self,
        sides: Mapping[str, Callable[[int], Command]],
        seeds: Iterable[int],
        check: Callable[[Row], None] | None = None,
    ) -> dict[str, list[Row]]:
        """Run all sides with the first seed, then all with the next; return each side's runs."""
        rows: dict[str, list[Row]] = {side: [] for side in sides}
        for seed in seeds:
            for side, command in sides.items():
                rows[side].append(self.run(side, seed, command(seed), check=check))
        return rows


def source_id() -> str:
    """Return twelve hex digits over Flatout's source."""
    digest = hashlib.sha256()
    for path in sorted([*(REPO / "src").rglob("*"), *(REPO / "explain" / "src").rglob("*")]):
        if path.suffix in (".py", ".toml"):
            digest.update(path.relative_to(REPO).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


# --- Command lines ----------------------------------------------------------------------------


def base_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark that keeps finished runs."""
    made = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    add = made.add_argument
    add("--fresh", action="store_true", help="start over instead of resuming")
    add("--any-source", action="store_true", help="resume from runs of other source code, too")
    add("--flatout", default=None, help="the flatout command")
    add("--results", default=str(HERE / "results"), help="folder of the results")
    add("--timeout", type=float, default=3600.0, help="seconds after which a run is killed")
    made.set_defaults(_parser=made, end_after=math.inf)
    return made


def at_least(fewest: int) -> Callable[[str], int]:
    """Return the type of an option that is a number of runs, at least `fewest`."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < fewest:
            raise argparse.ArgumentTypeError(f"{text} is not a number from {fewest} on.")
        return int(text)

    return number


def parser(
    description: str | None, seeds: int | None = None, fewest: int = 1,
    minutes: float | None = None,
) -> argparse.ArgumentParser:  # fmt: skip
    """Return a parser with the options of every benchmark that writes its section.

    `seeds` is the default number of runs of each side, and `fewest` the least. No run begins later
    than `minutes` after the start.
    """
    made = base_parser(description)
    add = made.add_argument
    if seeds is not None:
        add("--seeds", type=at_least(fewest), default=seeds, help="runs of each side")
    add("--peers", default=None, help="a Python that has the peers")
    add("--no-write", action="store_true", help="print the section only")
    if minutes is not None:
        words = "begin no run after this many minutes"
        add("--minutes", dest="end_after", type=float, default=minutes, help=words)
    return made


def named(known: Mapping[str, Any], names: Iterable[str] | None) -> dict[str, Any]:
    """Return the entries that a command line names; all of them if it names none.

    Raises:
        BenchmarkError: a name is not among them.
    """
    wanted = list(known if names is None else names)
    if unknown := sorted(set(wanted) - set(known)):
        raise BenchmarkError(f"there is no {', '.join(unknown)}, but {', '.join(known)}.")
    return {name: known[name] for name in wanted}


def train_command(
    args: argparse.Namespace, name: str, side: str, seed: int, *flags: str,
    algorithm: str = "ppo", env: Mapping[str, str | None] = NO_CACHE,
    finish: Callable[[Command, Row], Row] | None = None, placement: str = "cpu",
    prefix: Sequence[str] = (),
) -> Command:  # fmt: skip
    """Return a `flatout train ALGORITHM` with its own run folder, as an argument of `prefix`."""
    run_dir = HERE / "runs" / name / f"{side}-{seed}"
    argv = [
        *prefix, flatout(args), "train", algorithm, *flags, "--seed", str(seed), "--run-dir",
        str(run_dir), "--placement", placement, "--json",
    ]  # fmt: skip
    return Command(argv, env, run_dir, finish)


def flatout(args: argparse.Namespace) -> str:
    """Return the flatout command: `--flatout`, the one next to this Python, or that on the PATH."""
    near = Path(sys.executable).parent / "flatout"
    found = args.flatout or (str(near) if near.exists() else shutil.which("flatout"))
    if not found:
        raise BenchmarkError("no flatout command found: install the project or pass --flatout.")
    return found


def peers_python(args: argparse.Namespace) -> str:
    """Return the peers' Python: `--peers`, or that of benchmarks/.venv-sb3."""
    found = args.peers or str(HERE / ".venv-sb3" / "bin" / "python")
    if shutil.which(found) is None:
        raise BenchmarkError(f"no peers at {found}: run make peers PEERS=sb3, or pass --peers.")
    return found


def main(benchmark: Callable[[argparse.Namespace], None], args: argparse.Namespace) -> None:
    """Run a benchmark; a refusal or a failed child is one clear message and exit status 1."""
    try:
        benchmark(args)
    except BenchmarkError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted: the same command resumes after the last finished run.")
