"""Returns after training: the rows of ``learning.toml``, Flatout and its peers, seed by seed.

    make peers                                       # once: each peer in an environment of its own
    python benchmarks/learning.py                    # all rows; --row NAME... some of them
    python benchmarks/learning.py --seeds-at-once 2  # two processes at a time
    python benchmarks/learning.py --dry              # one short run of each side

A row whose seeds are complete is written to ``results/learning/NAME.json``: the interquartile mean
of each side with its 95 % interval, of a stratified bootstrap, and the test that ``learning.toml``
states. README.md says how an incomplete row resumes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from flatout.reports.statistics import enough, interval, iqm
from flatout_explain.hardware.cores import usable_cores
from harness import HERE, BenchmarkError, Command, Row, Store, at_least, json_of, run_child
from published import Json, load, save, settings_of
from sides import (
    OURS,
    Finish,
    cores,
    end_by_signal,
    end_children,
    finished_runs,
    parser,
    run_rows,
    side_command,
)

EPISODES, EVAL_SEED = 20, 1000
"""Greedy episodes after training; their seed is this plus the run's."""
RUNNING = 10
"""Training episodes in a row whose mean return must reach a goal."""
MARGIN = 0.1
"""Share of the peer's interquartile mean within which a difference counts as none."""


def main() -> int:
    """Run the rows; 1 if one of them failed."""
    options = parser(__doc__)
    options.add_argument(
        "--seeds", type=at_least(1), help="runs of each side, not each row's number"
    )
    options.add_argument("--seeds-at-once", type=at_least(1), default=1, help="processes at a time")
    args = options.parse_args()
    return run_rows("learning", args, lambda name, row: measure(args, name, row), summary)


def measure(args: argparse.Namespace, name: str, row: Json) -> Json:
    """Run what is missing of a row and return its results.

    Raises:
        BenchmarkError: a side cannot run here, failed, or made other steps.
    """
    refuse_shared(args.seeds_at_once, row)
    steps: int = row["dry"] if args.dry else row["steps"]
    goal: float = -math.inf if args.dry else row.get("goal", math.inf)
    finish = {"eval": greedy, "training": training, "goal": reaching(goal)}[row["score"]]
    folder = HERE / "runs" / "learning" / name
    peers_only = (f"--goal={goal}",) if row["score"] == "goal" else ()
    sides = {
        side: side_command(args, folder, row, side, ("--steps", str(steps)), finish, peers_only)
        for side in row["sides"]
    }
    seeds = 1 if args.dry else args.seeds or row["seeds"]
    jobs = [(side, seed) for seed in range(seeds) for side in sides]
    places = Path(args.results) / "learning"

    def save_unfinished() -> None:
        pairs = sorted({(run["side"], run["seed"]) for run in store.rows})
        done = [run for pair in pairs if (run := store.get(*pair)) is not None]
        save(places, f"{name}.unfinished", finished(name, row, done))

    with finished_runs("learning", args, name, row) as store:
        if not (args.dry or args.fresh):
            store.rows[:0] = [run for file in (name, f"{name}.unfinished")
                              for run in committed_runs(places, file)]  # fmt: skip
        runs = run_jobs(
            store, sides, jobs, row.get("cores"), args.seeds_at_once,
            check=lambda run: check_steps(run, steps),
            after_each=(lambda: None) if args.dry else save_unfinished,
        )  # fmt: skip
    for run in runs:
        if run["result"]["score"] is None:
            raise BenchmarkError(
                f"nothing is published: {run['side']}, seed {run['seed']}, did not reach "
                f"{row['goal']:g} in {steps:,} steps."
            )
    return results(finished(name, row, runs), seconds=row["score"] == "goal")


def refuse_shared(at_once: int, row: Json) -> None:
    """Refuse runs at a time that would share cores which each should have for itself.

    Raises:
        BenchmarkError: they would.
    """
    if at_once > 1 and row["score"] == "goal":
        raise BenchmarkError("its score is a time: --seeds-at-once 1.")
    if (needed := at_once * row.get("cores", 0)) > (have := usable_cores()):
        raise BenchmarkError(f"--seeds-at-once {at_once} needs {needed} cores; there are {have}.")


def check_steps(run: Row, steps: int) -> None:
    """Refuse a run with other steps, with a `BenchmarkError`."""
    made = run["result"]["steps"]
    if not steps <= made <= 1.01 * steps:
        raise BenchmarkError(
            f"unequal work, nothing is published: {run['side']}, seed {run['seed']}, made "
            f"{made:,} steps; {steps:,} were asked for."
        )


def run_jobs(
    store: Store, sides: Mapping[str, Callable[[int], Command]], jobs: Sequence[tuple[str, int]],
    count: int | None, at_once: int, check: Callable[[Row], None],
    after_each: Callable[[], None],
) -> list[Row]:  # fmt: skip
    """Run sides with seeds, `at_once` of them at a time, each with `count` cores."""
    places = iter(range(at_once))
    own = threading.local()

    def begin() -> None:
        own.place = next(places)

    def run(job: tuple[str, int]) -> Row:
        side, seed = job
        with cores(count, own.place * (count or 0)):
            return store.run(side, seed, sides[side](seed), check=check)

    with ThreadPoolExecutor(at_once, initializer=begin) as pool:
        futures = [pool.submit(run, job) for job in jobs]
        try:
            for future in as_completed(futures):
                future.result()
                after_each()
            return [future.result() for future in futures]
        except BenchmarkError:  # runs beside it end, and are kept
            pool.shutdown(cancel_futures=True)
            after_each()
            raise
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_children()
            raise


def greedy(train: Command, result: Row) -> Row:
    """Add the mean return of greedy episodes with the final parameters."""
    argv = [
        train.argv[0], "eval", str(train.run_dir), "--episodes", str(EPISODES), "--checkpoint",
        "final", "--seed", str(EVAL_SEED + result["seed"]), "--json",
    ]  # fmt: skip
    return result | {"score": json_of(run_child(argv, train.env), "flatout eval")["return_mean"]}


def training(train: Command, result: Row) -> Row:
    """Add the mean return of the last 100 training episodes; refuse a run with fewer."""
    if result["return_mean_100"] is None:
        raise BenchmarkError(f"{train.run_dir}: fewer than 100 episodes ended.")
    return result | {"score": result["return_mean_100"]}


def reaching(goal: float) -> Finish:
    """Adds the seconds from the start of the process to the first row of metrics after `RUNNING`
    training episodes in a row whose mean return is at least `goal`; None if there are none."""

    def finish(train: Command, result: Row) -> Row:
        assert train.run_dir is not None
        episodes, rows = (
            [json.loads(line) for line in (train.run_dir / name).read_text().splitlines()]
            for name in ("episodes.jsonl", "metrics.jsonl")
        )
        for last in range(RUNNING - 1, len(episodes)):
            returns = [episode["return"] for episode in episodes[last - RUNNING + 1 : last + 1]]
            if statistics.fmean(returns) >= goal:
                later = (row for row in rows if row["step"] >= episodes[last]["step"])
                return result | {"score": next(later)["time/wall_s"]}
        return result | {"score": None}

    return finish


def finished(name: str, row: Json, runs: Sequence[Row]) -> Json:
    """Return the part of a row's results that does not need all of its runs."""
    figures = []
    for run in runs:
        found = run["result"]
        figures.append({
            "side": run["side"], "seed": run["seed"], "score": found["score"],
            "return_mean_100": found["return_mean_100"], "steps": found["steps"],
            "updates": found["updates"], "process_s": run["wall_s"], "peak_mib": run["max_rss_mb"],
            "other_load": run["other_load"],
            **{key: run[key] for key in ("machine", "isa", "commit", "source", "when")},
        })  # fmt: skip
    versions = {run["side"]: run["result"].get("versions", {}) for run in runs}
    return {"row": name, "settings": settings_of(row), "runs": figures, "versions": versions}


def committed_runs(folder: Path, name: str) -> list[Row]:
    """Return the runs of a file with the contents of `finished`, as `Store` has them. Runs whose
    settings were not recorded are not returned: those of the row may be others by now."""
    found = load(folder, name)
    if found is None or found["settings"] is None:
        return []
    return [
        run | {
            "name": "learning", "settings": {"row": found["row"], **found["settings"]},
            "wall_s": run["process_s"], "max_rss_mb": run["peak_mib"],
            "result": run | {"versions": found["versions"].get(run["side"], {})},
        }
        for run in found["runs"]
    ]  # fmt: skip


def results(found: Json, seconds: bool) -> Json:
    """Return a complete row's results: each side's interquartile mean, the test for each peer."""
    scores = {
        side: np.array([run["score"] for run in found["runs"] if run["side"] == side])
        for side in dict.fromkeys(run["side"] for run in found["runs"])
    }
    return found | {
        "iqm": {side: [float(x) for x in interval([made], iqm)] for side, made in scores.items()},
        "tests": {
            side: comparison(scores[OURS], made, seconds)
            for side, made in scores.items() if side != OURS
        },
    }  # fmt: skip


def comparison(ours: np.ndarray, theirs: np.ndarray, seconds: bool = False) -> Json:
    """The difference of interquartile means with its 95 % interval, and what follows from it; with
    `seconds` a score is the time to a goal."""
    found = interval([ours, theirs], lambda both: iqm(both[:1]) - iqm(both[1:]))
    difference, low, high = (float(x) for x in found)
    margin = MARGIN * abs(float(iqm([theirs])))
    if not (enough([ours]) and enough([theirs])):
        verdict = "undecided: too few runs"
    elif -margin <= low and high <= margin:
        verdict = "equal within 10 %"
    elif low > 0:
        verdict = "the peer is sooner" if seconds else "Flatout's agents score more"
    elif high < 0:
        verdict = "Flatout is sooner" if seconds else "the peer's agents score more"
    else:
        verdict = "undecided: too wide an interval"
    return {"difference": [difference, low, high], "margin": margin, "verdict": verdict}


def summary(found: Json) -> str:
    """One line about a row."""
    words = [
        f"{side} {middle:,.1f} ({low:,.1f} to {high:,.1f})"
        for side, (middle, low, high) in found["iqm"].items()
    ]
    words += [f"{test['verdict']} ({side})" for side, test in found["tests"].items()]
    return "; ".join(words)


if __name__ == "__main__":
    end_by_signal()
    sys.exit(main())
