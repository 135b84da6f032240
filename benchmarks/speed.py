"""Speed at equal work: the rows of ``speed.toml``, Flatout and its peers in turn.

    make peers                                        # once: each peer in an environment of its own
    python benchmarks/speed.py                        # all rows; --row NAME... some of them
    python benchmarks/speed.py --dry                  # one short pair each: does everything start?

Each pair runs all sides of a row one after another. A row whose pairs are complete is written to
``results/speed/NAME.json``, from which ``write_results.py`` makes the pages.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

from harness import HERE, BenchmarkError, Command, Row, at_least
from published import Json, median_interval, ratios, settings_of, work_done
from sides import (
    Finish,
    cores,
    end_by_signal,
    finished_runs,
    parser,
    run_rows,
    side_command,
)
from window import windowed


def main() -> int:
    """Run the rows; 1 if one of them was refused or failed."""
    options = parser(__doc__)
    options.add_argument(
        "--pairs", type=at_least(3), help="pairs of runs, at least 3, instead of each row's number"
    )
    args = options.parse_args()
    return run_rows("speed", args, lambda name, row: measure(args, name, row), summary)


def measure(args: argparse.Namespace, name: str, row: Json) -> Json:
    """Run what is missing of a row and return its results.

    Raises:
        BenchmarkError: a side cannot run here, failed, or did other work.
    """
    lengths = row["dry" if args.dry else "full"]
    window_from = lengths["window_from"]
    sides = {
        side: side_command(
            args, HERE / "runs" / "speed" / name, row, side, ("--steps", str(lengths["steps"])),
            finished(window_from), ("--window-from", str(window_from)),
        )
        for side in row["sides"]
    }  # fmt: skip
    pairs = 1 if args.dry else args.pairs or row["pairs"]
    with finished_runs("speed", args, name, row) as store, cores(row.get("cores")):
        rows = store.alternate(sides, range(pairs), check=lambda run: check(run, row, lengths))
    return results(name, row, rows)


def finished(window_from: int) -> Finish:
    """Adds to Flatout's own result what the peers' programs report: `window`, samples, and the
    seconds from the start of the process to the first row of metrics after an update."""
    add_window = windowed(window_from)

    def finish(train: Command, result: Row) -> Row:
        assert train.run_dir is not None
        text = (train.run_dir / "metrics.jsonl").read_text()
        rows = map(json.loads, text.splitlines())
        if (first := next((row for row in rows if row["train/updates"]), None)) is None:
            raise BenchmarkError(f"{train.run_dir} has made no update.")
        settings = json.loads((train.run_dir / "config.json").read_text())["settings"]
        return add_window(train, result) | {
            "samples": result["updates"] * settings["batch_size"],
            "first_update_s": first["time/wall_s"],
        }

    return finish


def check(run: Row, row: Json, lengths: Json) -> None:
    """Refuse a run that did other work, in all or within its window, with a `BenchmarkError`."""
    found = run["result"]
    asked = lengths["steps"], lengths["updates"], lengths["updates"] * row["batch"]
    done = found["steps"], found["updates"], found["samples"]
    slack = row.get("slack_updates", 0)
    allowed = row.get("slack_steps", 0), slack, slack * row["batch"]
    if any(abs(a - b) > c for a, b, c in zip(done, asked, allowed, strict=True)):
        raise BenchmarkError(
            f"unequal work, nothing is published: {run['side']} did {done[0]:,} steps, "
            f"{done[1]:,} updates and {done[2]:,} samples; {asked[0]:,}, {asked[1]:,} and "
            f"{asked[2]:,} were asked for."
        )
    wanted, window = lengths["steps"] - lengths["window_from"], found["window"]
    far = abs(window["steps"] - wanted) > max(wanted // 20, row.get("slack_steps", 0))
    idle = window["updates"] / found["updates"] < 0.9 * window["steps"] / found["steps"]
    if far or idle:
        raise BenchmarkError(
            f"unequal work, nothing is published: {run['side']} counted {window['steps']:,} steps "
            f"and {window['updates']:,} updates from step {lengths['window_from']:,} on; "
            f"{wanted:,} steps and their updates were asked for."
        )


def results(name: str, row: Json, rows: Mapping[str, Sequence[Row]]) -> Json:
    """A row's results: every run, and the sides' versions.

    Raises:
        BenchmarkError: the sides of a pair ran on different machines.
    """
    for number, pair in enumerate(zip(*rows.values(), strict=True)):
        if len(places := {(run["machine"], run["isa"]) for run in pair}) > 1:
            where = " and ".join(sorted(", ".join(place) for place in places))
            raise BenchmarkError(
                f"the sides of pair {number} ran on different machines ({where}): --fresh measures "
                "the row again."
            )
    runs = [one_run(run) for side in rows.values() for run in side]
    versions = {side: made[0]["result"].get("versions", {}) for side, made in rows.items()}
    return {"row": name, "settings": settings_of(row), "runs": runs, "versions": versions}


def one_run(run: Row) -> Json:
    """The figures of a finished run."""
    found = run["result"]
    window = found["window"]
    return {
        "side": run["side"], "pair": run["seed"], "steps_per_s": window["steps"] / window["s"],
        "process_s": run["wall_s"], "first_update_s": found["first_update_s"],
        "peak_mib": run["max_rss_mb"], "cpu_s": run["cpu_s"], "steps": found["steps"],
        "updates": found["updates"], "samples": found["samples"],
        "return_mean_100": found.get("return_mean_100"), "other_load": run["other_load"],
        **{key: run[key] for key in ("machine", "isa", "commit", "source", "when")},
    }  # fmt: skip


def summary(found: Json) -> str:
    """One line about a row."""
    words = []
    for side, kinds in ratios(found).items():
        (middle, low, high), whole = (median_interval(kinds[kind]) for kind in ("steady", "whole"))
        words.append(
            f"{middle:.2f}x {side} ({low:.2f}-{high:.2f}), whole process {whole[0]:.2f}x "
            f"({whole[1]:.2f}-{whole[2]:.2f})"
        )
    words += [f"{done} on {side}" for side, done in work_done(found).items()]
    return "; ".join(words)


if __name__ == "__main__":
    end_by_signal()
    sys.exit(main())
