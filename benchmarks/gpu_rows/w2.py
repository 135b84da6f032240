"""Where small networks belong: PPO and DDPG of a teaching program, by width and placement."""

from __future__ import annotations

from functools import partial

from gpu_rows.base import Bench, Figures, Row, speed

PLACEMENTS = ("cpu", "gpu", "cpu+gpu")
PRESETS = {"ppo": "cartpole-ppo-w2", "ddpg": "pendulum-ddpg-w2"}
STEPS = {"ppo": (16_000, 4_000, 1_200), "ddpg": (6_000, 2_000, 1_400)}
"""Steps, the step from which they count, and the steps of a dry run."""


def widths(algorithm: str, hidden: str, bench: Bench) -> list[Figures]:
    """One width on each placement."""
    steps, start, few = STEPS[algorithm]
    steps, start = bench.size(steps, few), bench.size(start, 1_100 if algorithm == "ddpg" else 200)
    lines = []
    for placement in PLACEMENTS:
        result = bench.train(
            algorithm, "--preset", PRESETS[algorithm], "--hidden", hidden.replace("x", ","),
            "--steps", steps, "--log-every", bench.size(500, 100), placement=placement,
            name=placement, window_from=start,
        )  # fmt: skip
        window = result["window"]
        learning = sum(window["phases"].get(span, 0) for span in ("learn", "transfer", "publish"))
        lines.append({
            "algorithm": algorithm, "hidden": hidden, "placement": placement, **speed(result),
            "ms per update": 1000 * learning * window["s"] / max(window["updates"], 1),
        })  # fmt: skip
    return lines


ROWS = [
    Row(f"w2/{algorithm}-{hidden}", partial(widths, algorithm, hidden), limit_s=150)
    for hidden in ("64", "256x256", "128", "64x64", "256", "128x128")
    for algorithm in PRESETS
]
