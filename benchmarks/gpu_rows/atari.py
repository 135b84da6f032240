"""Breakout from pixels: from a card that waits for the emulator to what the emulator allows."""

from __future__ import annotations

from functools import partial

from gpu_rows.base import Bench, Figures, Row, cores, speed

PPO_ENVS, DQN_ENVS = (8, 32, 128, 256), (8, 64)
T = 128


def samplers(envs: int, bench: Bench) -> dict[str, str]:
    """Placements by what they are called; as many workers as cores."""
    count = min(2 if bench.dry else cores(), envs)
    workers = f"act=gpu sampler=processes workers={count}x{envs // count}"
    return {
        "inline, serial": "act=gpu", "processes, serial": workers,
        "processes, overlapped": f"{workers} schedule=overlapped",
    }  # fmt: skip


def ppo(envs: int, bench: Bench) -> list[Figures]:
    """PPO in 4 epochs of 4 minibatches, however many environments."""
    rows, envs = bench.size(T, 8), bench.size(envs, max(2, envs // 32))
    iteration = rows * envs
    iterations = bench.size(max(6, 49_152 // iteration), 3)
    return [
        {"run": f"ppo, {envs} environments", "placement": name} | speed(bench.train(
            "ppo", "--preset", "breakout-ppo", "--envs", envs, "--n-steps", rows, "--batch-size",
            iteration // 4, "--steps", iterations * iteration, "--log-every", iteration,
            "--checkpoint-every", 0, placement=placement, name=name.replace(", ", "-"),
            window_from=2 * iteration if not bench.dry else iteration, timeout=110,
        ))
        for name, placement in samplers(envs, bench).items()
    ]  # fmt: skip


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
    *(Row(f"atari/dqn-{n}", partial(dqn, n), ("ale_py",), 300, free_mb=8_000) for n in DQN_ENVS),
]
