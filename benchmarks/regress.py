"""Does a change make steps dearer? CPU seconds per step of this source and a commit's, in turns.

    make regress BASE=COMMIT

Each workload trains briefly and, for five times as many steps, once more: the difference of their
process trees' CPU seconds is that of steps alone, without imports and compilation. The two sources
take turns, five times (``--pairs``). It prints every pair's ratio (this source / the commit) and
their median; it ends with 1 where a median is above 1.03.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness import REPO, BenchmarkError, at_least, json_of, run_child

LIMIT = 1.03
REPLAY = ("--batch-size", "32", "--learning-starts", "512", "--buffer-size", "20000", "--hidden",
          "64,64")  # fmt: skip
WORKLOADS: dict[str, tuple[int, tuple[str, ...]]] = {
    "ppo": (16384, ("ppo", "--env", "CartPole-v1", "--envs", "8", "--n-steps", "256",
                    "--batch-size", "64", "--n-epochs", "10", "--placement", "sampler=inline")),
    "dqn": (16384, ("dqn", "--env", "CartPole-v1", "--envs", "8", *REPLAY, "--train-freq", "8",
                    "--gradient-steps", "2", "--placement", "sampler=inline")),
    "sac": (1024, ("sac", "--env", "Pendulum-v1", "--envs", "1", "--learning-starts", "128",
                   "--buffer-size", "20000", "--placement", "sampler=inline")),
    "fused": (409_600, ("ppo", "--env", "CartPole-v1", "--env-backend", "device", "--envs", "4",
                        "--n-steps", "128", "--batch-size", "128", "--n-epochs", "4")),
}  # fmt: skip
"""Steps of the shorter run, and the command's words."""


def main() -> int:
    """Run the pairs and print their ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("base", metavar="COMMIT", help="compared with this source: BASE=COMMIT")
    parser.add_argument("--pairs", type=at_least(1), default=5)
    parser.add_argument(
        "--only", nargs="+", default=list(WORKLOADS), choices=WORKLOADS, help="workloads"
    )
    args = parser.parse_args()
    try:
        with source_of_commit(args.base) as base:
            medians = [compare(name, (base, REPO), args.pairs) for name in args.only]
    except BenchmarkError as error:
        sys.exit(f"regress.py: {error}")
    return int(max(medians) > LIMIT)


@contextlib.contextmanager
def source_of_commit(commit: str) -> Iterator[Path]:
    """Yield a folder with the source of a commit; raise `BenchmarkError` if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "-C", str(REPO), "archive", commit, "src", "explain/src"],
            check=False, capture_output=True,
        )  # fmt: skip
        if archive.returncode != 0:
            why = archive.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise BenchmarkError(f"git cannot read commit {commit!r}: {''.join(why)}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def compare(name: str, sources: tuple[Path, Path], pairs: int) -> float:
    """Run one workload of both sources in turns; return the median ratio of their costs."""
    steps, words = WORKLOADS[name]
    costs: tuple[list[float], list[float]] = ([], [])
    for source in sources:  # fills the cache of compiled programs
        cpu_s(source, words, steps)
    for _ in range(pairs):
        for source, found in zip(sources, costs, strict=True):
            short, long = (cpu_s(source, words, count) for count in (steps, 5 * steps))
            found.append((long - short) / (4 * steps) * 1e6)
    ratios = [new / old for old, new in zip(*costs, strict=True)]
    median = statistics.median(ratios)
    before, after = map(statistics.median, costs)
    each = " ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"{name:10} {before:8.1f} -> {after:8.1f} us a step: {median:.3f} ({each})", flush=True)
    return median


def cpu_s(source: Path, words: tuple[str, ...], steps: int) -> float:
    """Return the CPU seconds of one run's process tree."""
    place = os.pathsep.join((str(source / "src"), str(source / "explain" / "src")))
    with tempfile.TemporaryDirectory() as folder:
        child = run_child(
            [sys.executable, "-m", "flatout", "train", *words, "--steps", str(steps), "--seed", "0",
             "--run-dir", folder + "/run", "--json", "--quiet", "--no-tensorboard"],
            {"PYTHONPATH": place},
        )  # fmt: skip
    json_of(child, f"`flatout train {' '.join(words)}`")
    return child.cpu_s


if __name__ == "__main__":
    sys.exit(main())
