"""How well `flatout train classify` reads digits, over several seeds.

- ``digits``: the bundled 8x8 digits, 500 steps of 128 images; the bar is 97 %.
- ``mnist-small``, ``mnist-large``: MNIST with both networks, twelve epochs of 60,000 images; the
  bar is 99 %. Needs its four IDX files: ``--data FOLDER``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import Row, main, parser
from learning import Task, run_tasks
from report import provenance, spread, table, write_section

NAME = "digits"
EPOCHS, IMAGES, MNIST_BATCH = 12, 60_000, 125


def show(what: str, bar: float) -> Callable[[Sequence[Row]], str]:
    """One data set and network over seeds."""

    def text(rows: Sequence[Row]) -> str:
        results = [row["result"] for row in rows]
        found = [100 * result["test_accuracy"] for result in results]
        body = [
            [
                str(row["seed"]), f"{accuracy:.2f} %", f"{result['examples_per_s']:,.0f}",
                f"{row['wall_s']:.1f}",
            ]
            for row, result, accuracy in zip(rows, results, found, strict=True)
        ]  # fmt: skip
        above = sum(accuracy >= bar for accuracy in found)
        return (
            f"{what}: test accuracy **{statistics.median(found):.2f} %** (median; "
            f"{spread(found)}), {bar:g} % or more in {above} of {len(rows)} seeds.\n\n"
            + table(["seed", "test accuracy", "examples/s", "whole process, s"], body)
        )

    return text


def tasks(data: str | None) -> dict[str, Task]:
    """The tasks in the order in which they run."""
    bundled = ("--steps", "500", "--batch-size", "128")
    found = {
        "digits": Task(
            bundled, None, show("8x8 digits, small network, 500 steps of 128", 97.0), "classify"
        )
    }
    if data is not None:
        steps = EPOCHS * IMAGES // MNIST_BATCH
        flags = ("--data", str(Path(data).resolve()), "--steps", str(steps))
        flags = (*flags, "--batch-size", str(MNIST_BATCH), "--learning-rate", "lin_0.002")
        for size in ("small", "large"):
            what = f"MNIST, {size} network, {EPOCHS} epochs, batch {MNIST_BATCH}"
            found[f"mnist-{size}"] = Task(
                (*flags, "--size", size), None, show(what, 99.0), "classify"
            )
    return found


def benchmark(args: argparse.Namespace) -> None:
    """Run what is missing, task by task, and write the section."""
    wanted = tasks(args.data)
    done = run_tasks(args, NAME, wanted, args.minutes)
    parts = [wanted[label].show(rows) for label, rows in done.items() if rows]
    if args.data is None:
        parts.append("MNIST was not there (`--data FOLDER`).")
    args.data = args.data and "FOLDER"  # a path of this machine says nothing to others
    shown = "\n\n".join(parts)
    write_section(args, NAME, f"## Digits\n\n{provenance(args, done)}\n\n{shown}\n")


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument("--data", default=None, help="folder with MNIST's four IDX files")
    options.add_argument("--only", nargs="+", help="only these tasks")
    options.add_argument("--minutes", type=float, default=15.0, help="end after this many minutes")
    main(benchmark, options.parse_args())
