"""What a callback that does nothing costs: PPO on CartPole-v1 with one and without, in turns.

``python benchmarks/callback_cost.py`` prints the ratio of steps per second (with / without, above
1 is faster with it) of each case: its median and the bootstrap's 90 % interval. Both sides run in
this process, with equal seeds and the same compiled programs; the first of a pair is the second of
the next. The bar is 0.99.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from flatout import PPO, Callback, Run
from machine import machine
from report import table
from two_sources import interval

HOST: dict[str, Any] = {"envs": 8, "n_steps": 256, "batch_size": 64, "n_epochs": 10}
DEVICE: dict[str, Any] = {"envs": 4, "n_steps": 128, "batch_size": 128, "n_epochs": 4}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "environments on the host": (102_400, HOST | {"placement": "cpu"}),
    "in one program": (1_024_000, DEVICE | {"env_backend": "device", "placement": "auto"}),
}


class Nothing(Callback):
    """Listens to everything."""

    def on_start(self, run: Run) -> None:
        pass

    def on_iteration(self, run: Run) -> None:
        pass

    def on_episode(self, run: Run) -> None:
        pass

    def on_evaluation(self, run: Run) -> None:
        pass

    def on_checkpoint(self, run: Run) -> None:
        pass

    def on_end(self, run: Run) -> None:
        pass


def rate(steps: int, settings: dict[str, Any], seed: int, callback: Callback | None) -> float:
    """Steps per second after start-up."""
    agent = PPO("CartPole-v1", seed=seed, **settings).learn(steps, callback)
    if agent.summary["steps"] < steps:
        raise SystemExit(f"unequal work: {agent.summary['steps']:,} of {steps:,} steps.")
    return agent.summary["steps_per_s"]


def main() -> None:
    """Run all pairs and print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--pairs", type=int, default=12)
    options.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    options.add_argument("--scale", type=float, default=1.0, help="of the steps of a run")
    args = options.parse_args()
    rows: list[list[str]] = []
    for case in args.only:
        steps, settings = CASES[case]
        steps, ratios = int(args.scale * steps), list[float]()
        for pair in range(-1, args.pairs):  # the first compiles and is not counted
            sides = [None, Nothing()]
            found = {
                callback is None: rate(steps, settings, max(pair, 0), callback)
                for callback in (sides if pair % 2 else sides[::-1])
            }
            if pair >= 0:
                ratios.append(found[False] / found[True])
        low, high = interval(ratios)
        rows.append([case, f"{statistics.median(ratios):.4f}", f"{low:.4f}-{high:.4f}",
                     ", ".join(f"{ratio:.3f}" for ratio in ratios)])  # fmt: skip
    print(machine())
    print(table(["case", "with / without, median", "90 % interval", "each pair"], rows))


if __name__ == "__main__":
    main()
