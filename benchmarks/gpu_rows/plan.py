"""What planning says of a card: predicted speeds beside those of runs, its choice beside others."""

from __future__ import annotations

import json
from functools import partial

from gpu_rows.base import Bench, Figures, Row, speed
from gpu_rows.w2 import PRESETS, STEPS

BY_HAND = ("cpu", "gpu", "cpu+gpu")
LARGE = ("--env", "CartPole-v1", "--envs", "32", "--batch-size", "1024", "--n-steps", "128",
         "--n-epochs", "4", "--hidden", "1024", "1024")  # fmt: skip
RUNS = {
    "w2-64": ("--preset", PRESETS["ppo"], "--hidden", "64"),
    "w2-256x256": ("--preset", PRESETS["ppo"], "--hidden", "256", "256"),
    "1024x1024": LARGE,
}
"""By name, the flags of PPO."""


def planned(name: str, bench: Bench) -> list[Figures]:
    """Plan, then train on the chosen placement and on those that a user writes by hand."""
    from flatout.config.placement import parse

    flags, file, large = RUNS[name], bench.folder / "plan.json", RUNS[name] is LARGE
    flags = (*flags[: flags.index("--hidden") + 1], "64") if bench.dry else flags
    virtual = ["--virtual-devices", "3"] if bench.dry else []
    bench.flatout("plan", "ppo", *flags, *virtual, "--seconds", 10, "--json", file, timeout=90)
    found = json.loads(file.read_text())
    chosen = found["chosen"]
    predicted = {str(parse(one["placement"])): one for one in found["predictions"]}
    steps, start, few = STEPS["ppo"]
    steps, start = bench.size(steps, few), bench.size(start, 200)
    if large:
        steps, start = bench.size(16, 2) * 4096, bench.size(4, 1) * 4096
    every = 4096 if large else bench.size(500, 100)
    by_hand = [str(parse(bench.place(word))) for word in BY_HAND]
    lines = []
    for number, placement in enumerate(dict.fromkeys([chosen, *by_hand])):
        result = bench.train(
            "ppo", *flags, "--steps", steps, "--log-every", every, placement=placement,
            name=f"run-{number}", window_from=start,
        )  # fmt: skip
        seen = speed(result)
        told = predicted.get(placement)
        lines.append({
            "run": name, "placement": placement, "chosen": "yes" if placement == chosen else "",
            "predicted steps/s": told["rate"] if told else "-",
            "interval": f"{told['low']:,.0f} - {told['high']:,.0f}" if told else "-",
            "steps/s of a run": seen["steps/s"], "GPU busy": seen["GPU busy"],
        })  # fmt: skip
    return lines


ROWS = [Row(f"plan/{name}", partial(planned, name), limit_s=240) for name in RUNS]
