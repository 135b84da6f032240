"""Snake 10x10 as a benchmark: fixed rules, 1,000 greedy episodes, mean score, share of full boards.

The game is `flatout/Snake-v0` with its defaults (docs/environments.md): a score is the number of
fruits eaten, a full board is a score of 99, 100 steps without fruit end an episode. Each preset
trains with the given steps; the agent with the final parameters then plays 1,000 episodes greedily,
with episode seeds of their own. Beside that the mean of the last 100 training scores against steps
and wall time. ``quick`` ends after 15 minutes; ``long`` gives every algorithm more steps;
``device`` plays on the device in one program with learning, many boards at a time; ``device-long``
gives PPO 50M steps there, in which other projects report first full boards.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harness import Command, Row, json_of, main, parser, run_child
from learning import Task, curve, run_tasks
from report import mean_std, provenance, table, write_section

EPISODES, FULL = 1000, 99
EVAL_SEED = 1000
"""Evaluation episodes have seeds of their own: this plus the run's."""


@dataclass(frozen=True)
class Tier:
    """Steps by algorithm, and minutes after which the tier ends.

    Attributes:
        flags: by algorithm, beside the preset's.
    """

    steps: Mapping[str, int]
    minutes: float
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def on_device(words: str) -> tuple[str, ...]:
    """These flags for a run whose environments and learning are one program."""
    return (
        "--env-backend",
        "device",
        "--placement",
        "sampler=device schedule=fused",
        *words.split(),
    )


DEVICE_PPO = on_device(
    "--envs 256 --n-steps 64 --batch-size 2048 --n-epochs 2 --gamma 0.98 --hidden 128,128 "
    "--learning-rate lin_0.001_0.00003"
)

TIERS = {
    "quick": Tier({"ppo": 1_000_000, "a2c": 1_000_000, "dqn": 300_000}, 15.0),
    "long": Tier({"ppo": 10_000_000, "a2c": 10_000_000, "dqn": 2_000_000}, float("inf")),
    "device": Tier(
        {"ppo": 12_000_000, "a2c": 12_000_000, "dqn": 2_000_000, "genetic": 40_000_000},
        float("inf"),
        {
            "ppo": DEVICE_PPO,
            "a2c": on_device("--envs 256 --hidden 128,128 --learning-rate lin_0.001_0.00003"),
            "dqn": on_device("--envs 64 --train-freq 256 --batch-size 512 --hidden 128,128"),
            "genetic": on_device(""),  # the preset's own
        },
    ),
    "device-long": Tier({"ppo": 50_000_000}, float("inf"), {"ppo": DEVICE_PPO}),
}


def evaluated(train: Command, result: Row) -> Row:
    """Adds the learning curve, and what 1,000 greedy episodes score."""
    argv = [
        train.argv[0], "eval", str(train.run_dir), "--episodes", str(EPISODES), "--checkpoint",
        "final", "--seed", str(EVAL_SEED + result["seed"]), "--json",
    ]  # fmt: skip
    scores = json_of(run_child(argv), "flatout eval")["returns"]
    found = {
        "eval_mean": statistics.fmean(scores),
        "eval_std": statistics.stdev(scores),
        "eval_max": max(scores),
        "full_boards": sum(score >= FULL for score in scores) / len(scores),
    }
    return curve(train, result) | found


def show(algorithm: str) -> Callable[[Sequence[Row]], str]:
    """One algorithm's seeds and curve."""

    def shown(rows: Sequence[Row]) -> str:
        results = [row["result"] for row in rows]
        means = [result["eval_mean"] for result in results]
        full = statistics.fmean(result["full_boards"] for result in results)
        body = [
            [
                str(row["seed"]), f"{one['eval_mean']:.2f} ± {one['eval_std']:.2f}",
                f"{one['eval_max']:.0f}", f"{one['full_boards']:.1%}", f"{one['wall_s']:.0f}",
                f"{one['steps_per_s']:,.0f}",
            ]
            for row, one in zip(rows, results, strict=True)
        ]  # fmt: skip
        points = [
            [
                f"{at[0][0]:,}",
                mean_std([point[1] for point in at], 2),
                f"{statistics.fmean(point[2] for point in at):.0f}",
            ]
            for at in zip(*(result["curve"] for result in results), strict=True)
        ]
        seeds = f"mean ± std of {len(rows)} seeds" if len(rows) > 1 else "one seed"
        head = ["seed", "score, mean ± std of episodes", "best", "full boards", "s", "steps/s"]
        return (
            f"`snake-{algorithm}`, {results[0]['steps']:,} steps: mean score "
            f"**{mean_std(means, 2)}** ({seeds}), full boards {full:.1%}."
            f"\n\n{table(head, body)}\n\n"
            + table(["steps", "mean of the last 100 training scores", "s"], points)
        )

    return shown


def tasks(tier: Tier) -> dict[str, Task]:
    """One per algorithm."""
    made: dict[str, Task] = {}
    for name, steps in tier.steps.items():
        flags = ("--preset", f"snake-{name}", "--steps", str(steps), *tier.flags.get(name, ()))
        made[name] = Task(flags, evaluated, show(name), algorithm=name)
    return made


def benchmark(args: argparse.Namespace) -> None:
    """Run what is missing and write the tier's section."""
    tier = TIERS[args.tier]
    minutes = tier.minutes if args.minutes is None else args.minutes
    name = f"snake_{args.tier}".replace("-", "_")
    wanted = tasks(tier)
    done = run_tasks(args, name, wanted, minutes, seeds_first=True)
    parts = []
    for label, rows in done.items():
        missing = args.seeds - len(rows)
        note = f"\n\n**{missing} of {args.seeds} seeds still missing.**" if missing else ""
        parts.append((wanted[label].show(rows) if rows else f"{label}:") + note)
    done = {label: rows for label, rows in done.items() if rows}
    head = f"""## Snake 10x10 ({args.tier} tier)

{provenance(args, done)}
- {EPISODES:,} greedy episodes with the final parameters and seeds of their own; a score is the
  number of fruits eaten, {FULL} a full board. Hobby projects report mean scores around 18."""
    write_section(args, name, "\n\n".join([head, *parts]) + "\n")


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    options.add_argument("--tier", choices=tuple(TIERS), default="quick")
    options.add_argument("--only", nargs="+", choices=("ppo", "a2c", "dqn", "genetic"))
    options.add_argument("--minutes", type=float, default=None, help="end after this many minutes")
    options.set_defaults(timeout=7 * 86_400.0)
    main(benchmark, options.parse_args())
