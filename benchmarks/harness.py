"""What every benchmark here shares: children timed from outside, resumable rows, honest tables.

A benchmark runs *sides* (Flatout, a peer) in turn, seed by seed: A B A B. Each finished child is
one JSON line in ``benchmarks/results/NAME.jsonl``, so that an interrupted benchmark goes on where
it stood; a line counts only while the settings, and the source of Flatout, are still the same.
``report.py`` then rewrites the benchmark's own section of ``benchmarks/RESULTS.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import busy_s, commit, isa, machine

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
MIB = 1024 * 1024
NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "0", "JAX_COMPILATION_CACHE_DIR": None}
"""Environment of a child that compiles everything anew."""

OUR_ENVS = {
    **NO_CACHE,
    "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
}
"""The same for a child that finds this folder's environments by name, such as empty_env:make."""

CLOCK_SLACK_S = 1.5
"""A child's own wall time may be longer than ours by this: boot time has whole seconds only."""

Row = dict[str, Any]


class BenchmarkError(RuntimeError):
    """A child failed, or a comparison would not be honest."""


class OutOfTimeError(BenchmarkError):
    """A child was killed because its time was over."""


# --- One child, measured from outside ---------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """One child to run. `env` adds variables (None removes one); `run_dir` is emptied before."""

    argv: Sequence[str]
    env: Mapping[str, str | None] = field(default_factory=dict)
    run_dir: Path | None = None
    finish: Callable[[Command, Row], Row] | None = None
    """Adds to the child's own result after it ended, outside the measured time."""


@dataclass(frozen=True)
class Child:
    """How a child ended and what it took: seconds, MiB, and load (in cores) that was not its.

    `written_mb` is what it wrote to files on disk, as the system counts it.
    """

    code: int
    timed_out: bool
    wall_s: float
    cpu_s: float
    max_rss_mb: float
    written_mb: float
    other_load: float | None
    stdout: str
    stderr: str


def run_child(
    argv: Sequence[str], env: Mapping[str, str | None] | None = None, timeout_s: float = 3600.0
) -> Child:
    """Run a command to its end in a process group of its own; its whole group dies with us."""
    variables = {**os.environ, **(env or {})}
    variables = {name: value for name, value in variables.items() if value is not None}
    variables["BENCHMARK_BEGAN"] = str(time.time())  # a child reports seconds since then
    busy = busy_s()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        late: list[bool] = []

        def stop() -> None:
            late.append(True)
            _kill_group(child.pid)

        timer = threading.Timer(timeout_s, stop)
        timer.daemon = True  # an interruption may come before the block that cancels it
        start = time.perf_counter()
        child = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=variables,
            start_new_session=True,
        )  # fmt: skip
        try:
            timer.start()
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            _kill_group(child.pid)
            child.wait()
            raise
        finally:
            timer.cancel()
        wall_s = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)  # reaped by us, not by Popen
        cpu_s = usage.ru_utime + usage.ru_stime
        other = None
        if busy is not None and (after := busy_s()) is not None:
            other = max(0.0, (after - busy - cpu_s) / wall_s)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB on Linux
    rss_mb = usage.ru_maxrss * unit / MIB
    written_mb = usage.ru_oublock * 512 / MIB
    return Child(
        child.returncode, bool(late), wall_s, cpu_s, rss_mb, written_mb, other, texts[0], texts[1]
    )


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def json_of(child: Child, what: str) -> Row:
    """The one JSON object that a child printed.

    Raises:
        OutOfTimeError: it was killed.
        BenchmarkError: it failed, or printed something else.
    """
    if child.code != 0 and child.timed_out:
        raise OutOfTimeError(f"{what} was killed: not finished within {child.wall_s:.0f} s.")
    if child.code != 0:
        tail = "\n".join(child.stderr.strip().splitlines()[-15:])
        raise BenchmarkError(f"{what} ended with {child.code} after {child.wall_s:.1f} s:\n{tail}")
    try:
        value = json.loads(child.stdout)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise BenchmarkError(
            f"{what} did not print one JSON object alone, but: {child.stdout[:300]!r}"
        )
    return value


# --- Finished runs, kept so that a benchmark resumes -------------------------------------------


def kept_lines(path: Path) -> list[Row]:
    """The objects of a file of JSON lines; one that an interruption tore is passed over."""
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
    """Add one, on disk at once."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


class Store:
    """The finished runs of one benchmark, one JSON line each, keyed by name, side and seed."""

    def __init__(
        self, name: str, settings: Row, args: argparse.Namespace,
        sources: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.settings = name, settings
        self._sources, self._source = sources or {}, source_id()
        self.any_source: bool = args.any_source
        self.timeout_s: float = args.timeout
        self.path = Path(args.results) / f"{name}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if args.fresh and self.path.exists():
            self.path.replace(self.path.with_suffix(".previous.jsonl"))
        self.rows = kept_lines(self.path)

    def get(self, side: str, seed: int) -> Row | None:
        """The newest finished run of this side and seed under the present settings."""
        for row in reversed(self.rows):
            if (row["name"], row["side"], row["seed"]) != (self.name, side, seed):
                continue
            same_source = self.any_source or row["source"] == self._source_of(side)
            if same_source and row["settings"] == self.settings:
                return row
        return None

    def _source_of(self, side: str) -> str:
        return self._sources.get(side, self._source)

    def run(self, side: str, seed: int, command: Command, timeout_s: float | None = None) -> Row:
        """The stored run, or the run itself, measured and then stored."""
        what = f"{self.name}: {side}, seed {seed}"
        if (row := self.get(side, seed)) is not None:
            print(f"{what}: kept from before ({row['wall_s']:.1f} s)", file=sys.stderr)
            return row
        if command.run_dir is not None:
            shutil.rmtree(command.run_dir, ignore_errors=True)
            command.run_dir.parent.mkdir(parents=True, exist_ok=True)
        print(f"{what} ...", file=sys.stderr, flush=True)
        child = run_child(command.argv, command.env, timeout_s or self.timeout_s)
        result = json_of(child, what)
        inside = float(result.get("wall_s") or 0.0)
        if inside > child.wall_s + CLOCK_SLACK_S:
            raise BenchmarkError(
                f"{what} reports {inside:.1f} s of wall time; it lasted {child.wall_s:.1f} s."
            )
        if command.finish is not None:
            result = command.finish(command, result)
        row = {
            "name": self.name, "side": side, "seed": seed, "settings": self.settings,
            "source": self._source_of(side), "commit": commit(), "machine": machine(), "isa": isa(),
            "when": time.strftime("%Y-%m-%d %H:%M:%S"),
            "wall_s": child.wall_s, "cpu_s": child.cpu_s, "max_rss_mb": child.max_rss_mb,
            "written_mb": child.written_mb, "other_load": child.other_load, "result": result,
        }  # fmt: skip
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
        """All sides for the first seed, then all for the next: A B A B. Rows by side.

        `check` sees each row at once, so that a comparison that must be refused is refused early.
        """
        rows: dict[str, list[Row]] = {side: [] for side in sides}
        for seed in seeds:
            for side, command in sides.items():
                row = self.run(side, seed, command(seed))
                if check is not None:
                    check(row)
                rows[side].append(row)
        return rows


def source_id() -> str:
    """Twelve hex digits over Flatout's source: other code's results are not resumed from."""
    digest = hashlib.sha256()
    for path in sorted([*(REPO / "src").rglob("*"), *(REPO / "explain" / "src").rglob("*")]):
        if path.suffix in (".py", ".toml"):
            digest.update(path.relative_to(REPO).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


# --- Command lines ----------------------------------------------------------------------------


def parser(description: str | None, seeds: int) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    made = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    add = made.add_argument
    add("--seeds", type=int, default=seeds, help="runs of each side (seeds 0, 1, ...)")
    add("--fresh", action="store_true", help="start over instead of resuming")
    add("--any-source", action="store_true", help="resume even from runs of other source code")
    add("--flatout", default=None, help="the flatout command")
    add("--flatout-args", default="", help="more flags for every flatout train, as one text")
    add("--peers", default=None, help="Python that has the peers (or FLATOUT_PEERS_PYTHON)")
    add("--results", default=str(HERE / "results"), help="folder of the raw results")
    add("--output", default=str(HERE / "RESULTS.md"), help="file whose section is rewritten")
    add("--no-write", action="store_true", help="print the section only")
    add("--timeout", type=float, default=3600.0, help="seconds after which a run is killed")
    made.set_defaults(_parser=made)
    return made


def named(known: Mapping[str, Any], names: Iterable[str] | None) -> dict[str, Any]:
    """The entries that a command line names; all of them if it names none.

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
) -> Command:  # fmt: skip
    """`flatout train ALGORITHM` with a run folder of its own."""
    run_dir = HERE / "runs" / name / f"{side}-{seed}"
    more = shlex.split(args.flatout_args)
    where = [] if "--placement" in more else ["--placement", placement]
    argv = [
        flatout(args), "train", algorithm, *flags, "--seed", str(seed), "--run-dir", str(run_dir),
        *where, "--json", *more,
    ]  # fmt: skip
    return Command(argv, env, run_dir, finish)


def flatout(args: argparse.Namespace) -> str:
    """The flatout command: `--flatout`, else beside this Python, else on the PATH."""
    beside = Path(sys.executable).parent / "flatout"
    found = args.flatout or (str(beside) if beside.exists() else shutil.which("flatout"))
    if not found:
        raise BenchmarkError("no flatout command found: install the project or pass --flatout.")
    return found


def peers_python(args: argparse.Namespace) -> str:
    """The peers' Python: `--peers`, else FLATOUT_PEERS_PYTHON, else benchmarks/.venv-sb3."""
    default = HERE / ".venv-sb3" / "bin" / "python"
    found = args.peers or os.environ.get("FLATOUT_PEERS_PYTHON") or str(default)
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
