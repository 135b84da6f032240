"""The whole loop on the card: by number of environments to the knee, and by number of members."""

from __future__ import annotations

import json
import time
from functools import partial

from gpu_rows.base import Bench, Figures, Row, share, speed, usage

GAMES = {
    "cartpole": ("--env", "CartPole-v1"),
    "snake": ("--env", "flatout/Snake-v0", "--network", "centred", "--hidden", "64"),
    "breakout": ("--env", "gymnax:Breakout-MinAtar"),
}
ENVS = (64, 512, 4096, 16_384, 65_536)
MEMBERS = (1, 16, 256, 2048)
T = 64
PLACEMENT = "act=gpu sampler=device schedule=fused"


def alone(game: str, envs: int, bench: Bench) -> list[Figures]:
    """PPO in 4 epochs of 4 minibatches, however many environments."""
    envs = bench.size(envs, max(envs // 1024, 4))
    iteration = T * envs
    iterations = bench.size(max(10, min(200, 2_000_000_000 // iteration)), 4)
    result = bench.train(
        "ppo", *GAMES[game], "--env-backend", "device", "--envs", envs, "--n-steps", T,
        "--batch-size", iteration // 4, "--n-epochs", 4, "--steps", iterations * iteration,
        "--checkpoint-every", 0, "--log-every", iteration, placement=PLACEMENT,
        window_from=iteration, timeout=110,
    )  # fmt: skip
    compiling = {"compiling, s": result["compile_s"]}
    return [{"game": game, "environments": envs} | speed(result) | compiling]


def members(count: int, bench: Bench) -> list[Figures]:
    """So many agents of 64 environments each, one program; steps of all together."""
    count = bench.size(count, min(count, 3))
    envs, iterations = bench.size(64, 4), bench.size(100, 4)
    steps = T * envs * iterations
    words = bench.train_words(
        "ppo", *GAMES["cartpole"], "--env-backend", "device", "--envs", envs, "--n-steps", T,
        "--batch-size", T * envs // 4, "--n-epochs", 4, "--steps", steps, "--checkpoint-every", 0,
        "--log-every", steps, "--seeds", count, placement=PLACEMENT, name=f"{count}",
    )  # fmt: skip
    begin = time.perf_counter()
    summaries = json.loads(bench.flatout(*words, timeout=170).stdout)
    took = time.perf_counter() - begin
    training = max(one["wall_s"] - one["startup_s"] for one in summaries.values())
    busy = usage(bench.folder / f"{count}" / "members" / "seed=0")
    return [{
        "members": count, "steps/s together": count * steps / training, "command, s": took,
        "GPU busy": share(busy["gpu"]), "GPU full": share(busy["full"]),
    }]  # fmt: skip


ROWS = [
    *(
        Row(f"fused/{game}-{envs}", partial(alone, game, envs), limit_s=150,
            needs=("gymnax",) if game == "breakout" else ())
        for game in GAMES for envs in ENVS
    ),
    *(Row(f"population/{count}", partial(members, count), limit_s=180) for count in MEMBERS),
]  # fmt: skip
