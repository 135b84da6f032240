"""Planning on a card: predicted speeds and those of runs, for its choice and other placements."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

from gpu_rows.base import Bench, Figures, Row, speed
from gpu_rows.w2 import PRESETS

BY_HAND = ("cpu", "gpu", "cpu+gpu")


@dataclass(frozen=True)
class Training:
    """A training of PPO with hidden layers of these widths. `steps` are its steps, the step from
    which they count, and the steps between two rows; `dry` are the same of a dry run."""

    flags: tuple[str, ...]
    hidden: tuple[str, ...]
    steps: tuple[int, int, int] = (16_000, 4_000, 500)
    dry: tuple[int, int, int] = (1_200, 200, 100)


SMALL = ("--preset", PRESETS["ppo"])
LARGE = ("--env", "CartPole-v1", "--envs", "32", "--batch-size", "1024", "--n-steps", "128",
         "--n-epochs", "4")  # fmt: skip
TRAININGS = {
    "w2-64": Training(SMALL, ("64",)),
    "w2-256x256": Training(SMALL, ("256", "256")),
    "1024x1024": Training(LARGE, ("1024", "1024"), (65_536, 16_384, 4_096), (8_192, 4_096, 4_096)),
}


def planned(name: str, bench: Bench) -> list[Figures]:
    """Plan, then train on the chosen placement and on those that a user writes by hand."""
    from flatout.config.placement import parse

    training, file = TRAININGS[name], bench.folder / "plan.json"
    flags = [*training.flags, "--hidden", "64" if bench.dry else ",".join(training.hidden)]
    virtual = ["--virtual-devices", "3"] if bench.dry else []
    bench.flatout("plan", "ppo", *flags, *virtual, "--seconds", 10, "--out", file, timeout=90)
    plan = json.loads(file.read_text())
    predictions = {str(parse(one["placement"])): one for one in plan["predictions"]}
    by_hand = [str(parse(bench.place(word))) for word in BY_HAND]
    steps, start, every = training.dry if bench.dry else training.steps
    lines = []
    for number, placement in enumerate(dict.fromkeys([plan["chosen"], *by_hand])):
        result = bench.train(
            "ppo", *flags, "--steps", steps, "--log-every", every, placement=placement,
            name=f"run-{number}", window_from=start,
        )  # fmt: skip
        measured, predicted = speed(result), predictions.get(placement)
        lines.append({
            "run": name, "placement": placement,
            "chosen": "yes" if placement == plan["chosen"] else "",
            "predicted steps/s": predicted["rate"] if predicted else "-",
            "interval": "{low:,.0f} - {high:,.0f}".format(**predicted) if predicted else "-",
            "steps/s of a run": measured["steps/s"], "GPU busy": measured["GPU busy"],
        })  # fmt: skip
    return lines


ROWS = [Row(f"plan/{name}", partial(planned, name), limit_s=240) for name in TRAININGS]
