"""The sides of a row: the command of each, and what ``speed.py`` and ``learning.py`` share."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from harness import (
    HERE,
    OUR_ENVS,
    BenchmarkError,
    Command,
    Row,
    Store,
    base_parser,
    flatout,
    named,
)
from images import write_images
from published import ENVIRONMENTS, OURS, Json, load, rows_of, save, settings_of, sources_of

IMAGES = HERE / "runs" / "images"
Finish = Callable[[Command, Row], Row]


class AbsentPeerError(BenchmarkError):
    """A peer of the row is not installed."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of both programs."""
    made = base_parser(description)
    add = made.add_argument
    add("--row", nargs="+", help="only these rows")
    add("--dry", action="store_true", help="one short run of each side; nothing is published")
    add("--environments", default=str(HERE), help="folder with the peers' .venv-NAME")
    made.set_defaults(timeout=36_000.0)
    return made


def end_by_signal() -> None:
    """Let SIGTERM and a closed terminal end this process as Ctrl-C does, with the run that it has
    started."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def end_children() -> None:
    """Kill the runs that this process has started; each leads a process group."""
    children = psutil.Process().children()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    psutil.wait_procs(children, timeout=10)


def run_rows(
    kind: str, args: argparse.Namespace, measure: Callable[[str, Json], Json],
    summary: Callable[[Json], str],
) -> int:  # fmt: skip
    """Measure the rows that the command line names; each that is complete is written at once.

    Returns:
        1 if a row was refused or failed; a row whose peer is not installed is skipped.
    """
    try:
        chosen = named(rows_of(kind), args.row)
        with alone(Path(args.results)):
            done = [run_row(kind, args, name, row, measure, summary)
                    for name, row in chosen.items()]  # fmt: skip
    except BenchmarkError as error:
        sys.exit(f"{kind}.py: {error}")
    except KeyboardInterrupt:
        end_children()
        sys.exit("\ninterrupted: the same command resumes after the last finished run.")
    return int(not all(done))


def run_row(
    kind: str, args: argparse.Namespace, name: str, row: Json,
    measure: Callable[[str, Json], Json], summary: Callable[[Json], str],
) -> bool:  # fmt: skip
    """Measure a row and write it; False if it was refused or failed."""
    try:
        found = measure(name, row)
        if not args.dry:
            folder = Path(args.results) / kind
            unfinished = load(folder, f"{name}.unfinished")
            save(folder, name, found)
            if unfinished is not None and len(unfinished["runs"]) <= len(found["runs"]):
                (folder / f"{name}.unfinished.json").unlink()
    except AbsentPeerError as error:
        print(f"{name}: skipped. {error}", flush=True)
    except BenchmarkError as error:
        print(f"{name}: {error}", flush=True)
        return False
    else:
        print(f"{name}: {summary(found)}", flush=True)
    return True


@contextlib.contextmanager
def alone(results: Path) -> Iterator[None]:
    """Hold a folder of results: two programs would measure each other.

    Raises:
        BenchmarkError: another program holds it.
    """
    results.mkdir(parents=True, exist_ok=True)
    with (results / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            words = f"another benchmark writes to {results}: wait for its end."
            raise BenchmarkError(words) from None
        yield


@contextlib.contextmanager
def finished_runs(kind: str, args: argparse.Namespace, name: str, row: Json) -> Iterator[Store]:
    """Yield the finished runs of a row; a dry run has none, and leaves none. `--fresh` forgets
    them."""
    with tempfile.TemporaryDirectory() as scratch:
        place = scratch if args.dry else args.results
        changed = argparse.Namespace(**vars(args) | {"fresh": False, "results": place})
        settings = {"row": name, **settings_of(row)}
        store = Store(kind, settings, changed, lambda: sources_of(row))
        if args.fresh:  # on disk too, for a command that resumes this one
            store.keep([run for run in store.rows if run["settings"]["row"] != name])
        yield store


def side_command(
    args: argparse.Namespace, folder: Path, row: Json, side: str, more: tuple[str, ...],
    finish: Finish | None = None, peers_only: tuple[str, ...] = (),
) -> Callable[[int], Command]:  # fmt: skip
    """Return a function from a seed to the command that runs one side of a row.

    Flatout's run folders go into `folder`, and `finish` adds to Flatout's result. All sides get the
    words `more`, such as the steps; a peer's program also gets `peers_only`.

    Raises:
        AbsentPeerError: the peer's environment does not exist.
    """
    text: str = row["sides"][side]
    if "{images}" in text:
        write_images(IMAGES)
    words = shlex.split(text.format(images=IMAGES))
    if side == OURS:

        def ours(seed: int) -> Command:
            run_dir = folder / f"{side}-{seed}"
            last = ("--seed", str(seed), "--run-dir", str(run_dir), "--json")
            return Command([flatout(args), *words, *more, *last], OUR_ENVS, run_dir, finish)

        return ours
    name = ENVIRONMENTS[words[0]]
    python = Path(args.environments).resolve() / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        raise AbsentPeerError(f"{side} is not installed: `make peers PEERS={name}` makes {python}.")
    place = OUR_ENVS | {"OMP_NUM_THREADS": str(row["threads"]) if row.get("threads") else None}
    program = str(HERE / "peers" / words[0])
    argv = [str(python), program, *words[1:], *more, *peers_only]
    return lambda seed: Command([*argv, "--seed", str(seed)], place)


@contextlib.contextmanager
def cores(count: int | None, first: int = 0) -> Iterator[None]:
    """Give this thread, and processes that it starts, `count` cores; None leaves them all, and so
    does a system that cannot choose.

    `first` chooses others for another thread.
    """
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = sorted(os.sched_getaffinity(0))
    wanted = count or len(before)
    os.sched_setaffinity(0, {before[-1 - (first + k) % len(before)] for k in range(wanted)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
