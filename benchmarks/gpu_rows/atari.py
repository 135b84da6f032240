"""Breakout from pixels: from a card that waits for the emulator to what the emulator allows."""

from __future__ import annotations

from functools import partial

from flatout_explain.hardware.cores import usable_cores
from gpu_rows.base import Bench, Figures, Row, speed

PPO_ENVS, DQN_ENVS = (8, 32, 128, 256), (8, 64)
T = 128


def samplers(envs: int, bench: Bench) -> dict[str, str]:
    """Placements by what they are called; as many workers as cores."""
    count = min(2 if bench.dry else usable_cores(), envs)
    workers = f"act=gpu sampler=processes workers={count}x{envs // count}"
    return {
        "inline, serial": "act=gpu", "processes, serial": workers,
        "processes, overlapped": f"{workers} schedule=overlapped",
    }  # fmt: skip


def ppo(envs: int, bench: Bench) -> list[Figures]:
    """PPO in 4 epochs of 4 minibatches, however many environments."""
    placements = samplers(bench.size(envs, max(2, envs // 32)), bench)
    return [trained(envs, 49_152, bench, name, placement) for name, placement in placements.items()]


def spares(envs: int, bench: Bench) -> list[Figures]:
    """PPO with a spare for each game, and with none, in turns."""
    return [
        trained(
            envs, 65_536, bench, f"inline, spares {kept}, run {turn}", "act=gpu",
            "--spare-envs", kept,
        )
        for turn in (1, 2) for kept in ("0", "all")
    ]  # fmt: skip


def trained(envs: int, steps: int, bench: Bench, name: str, placement: str, *flags: str) -> Figures:
    """The speed of one run of PPO with about `steps` steps, at least six iterations."""
    rows, envs = bench.size(T, 8), bench.size(envs, max(2, envs // 32))
    iteration = rows * envs
    iterations = bench.size(max(6, steps // iteration), 3)
    run = bench.train(
        "ppo", "--preset", "breakout-ppo", "--envs", envs, "--n-steps", rows, "--batch-size",
        iteration // 4, "--steps", iterations * iteration, "--log-every", iteration,
        "--checkpoint-every", 0, *flags, placement=placement, name=name.replace(", ", "-"),
        window_from=2 * iteration if not bench.dry else iteration, timeout=110,
    )  # fmt: skip
    return {"run": f"ppo, {envs} environments", "placement": name} | speed(run)


def dqn(envs: int, bench: Bench) -> list[Figures]:
    """DQN, an update of 32 for 4 steps; replay in host memory and in the card's."""
    envs = bench.size(envs, 2)
    named = samplers(envs, bench)
    chosen = {
        "inline, serial, replay in host memory": named["inline, serial"],
        "inline, serial, replay on the card": named["inline, serial"] + " replay=gpu",
        "processes, overlapped, replay in host memory": named["processes, overlapped"],
        "processes, overlapped, replay on the card": named["processes, overlapped"] + " replay=gpu",
    }
    steps, starts = bench.size(24_576, 256), bench.size(2_048, 48)
    return [
        {"run": f"dqn, {envs} environments", "placement": name} | speed(bench.train(
            "dqn", "--preset", "breakout-dqn", "--envs", envs, "--steps", steps,
            "--learning-starts", starts, "--buffer-size", bench.size(100_000, 512),
            "--train-freq", 4 * envs, "--gradient-steps", envs, "--log-every", steps // 8,
            "--checkpoint-every", 0, placement=placement, name=name.replace(", ", "-"),
            window_from=steps // 4, timeout=110,
        ))
        for name, placement in chosen.items()
    ]  # fmt: skip


ROWS = [
    *(Row(f"atari/ppo-{n}", partial(ppo, n), ("ale_py",), 240) for n in PPO_ENVS),
    Row("atari/spares-32", partial(spares, 32), ("ale_py",), 240),
    *(Row(f"atari/dqn-{n}", partial(dqn, n), ("ale_py",), 300, free_mb=8_000) for n in DQN_ENVS),
]
