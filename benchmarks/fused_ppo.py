"""PPO on CartPole-v1 with the whole loop on the device: Flatout, PureJaxRL, Stable-Baselines3.

PureJaxRL's own settings: 4 environments, rollouts of 128 steps, 4 epochs, 4 minibatches, its
networks. `--purejaxrl` is a checkout of it, `--purejaxrl-python` a Python that has gymnax 0.0.9
and what else its program imports. Stable-Baselines3 plays its own defaults with 8 environments.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import (
    HERE,
    NO_CACHE,
    BenchmarkError,
    Command,
    Row,
    Store,
    main,
    parser,
    peer_command,
    require_work,
    train_command,
)
from report import RATIO_HEAD, mean_std, per_round, provenance, ratio_row, spread, table
from report import write_section as write

NAME = "fused_ppo"
FLAGS = (
    "--env", "CartPole-v1", "--env-backend", "device", "--envs", "4", "--n-steps", "128",
    "--batch-size", "128", "--n-epochs", "4", "--learning-rate", "lin_2.5e-4_0", "--gamma", "0.99",
    "--gae-lambda", "0.95", "--clip-range", "0.2", "--clip-range-vf", "0.2", "--ent-coef", "0.01",
    "--vf-coef", "0.25", "--max-grad-norm", "0.5",
)  # fmt: skip
SB3_STEPS = 20_480


def benchmark(args: argparse.Namespace) -> None:
    """Run the sides in turn, check their work, write the section."""
    if args.purejaxrl is None:
        raise BenchmarkError("--purejaxrl PATH, a checkout of PureJaxRL, is needed.")
    updates = args.steps // 512 * 16
    store = Store(NAME, {"flags": list(FLAGS), "steps": args.steps}, args)

    def ours(seed: int) -> Command:
        return train_command(
            args, NAME, "flatout", seed, *FLAGS, "--steps", str(args.steps), placement="auto"
        )

    def theirs(seed: int) -> Command:
        argv = [
            args.purejaxrl_python, str(HERE / "peers" / "purejaxrl_ppo.py"), "--purejaxrl",
            str(args.purejaxrl), "--steps", str(args.steps), "--seed", str(seed),
        ]  # fmt: skip
        return Command(argv, NO_CACHE)

    rows = store.alternate(
        {"flatout": ours, "purejaxrl": theirs}, range(args.seeds),
        check=lambda row: require_work(row, args.steps, updates),
    )  # fmt: skip
    sb3 = [
        store.run("sb3", seed, peer_command(
            args, "sb3_ppo.py", seed, "--env", "CartPole-v1", "--envs", "8", "--n-steps", "256",
            "--steps", str(SB3_STEPS)))
        for seed in range(args.seeds)
    ]  # fmt: skip
    write(args, NAME, section(args, rows | {"sb3": sb3}, updates))


def section(args: argparse.Namespace, rows: dict[str, list[Row]], updates: int) -> str:
    """The Markdown of this benchmark."""

    def values(side: str, key: str) -> list[float]:
        return [float(row["result"][key]) for row in rows[side]]

    body = []
    for side in rows:
        compiling = "-" if side == "sb3" else spread(values(side, "compile_s"), 1)
        returns = "-" if side == "sb3" else mean_std(values(side, "return_mean_100"))
        body.append([side, spread(values(side, "steps_per_s"), 0), compiling, returns])
    ratios = {
        "speed, flatout / purejaxrl": ("steps_per_s", "flatout", "purejaxrl"),
        "compiling, flatout / purejaxrl": ("compile_s", "flatout", "purejaxrl"),
        "speed, flatout / sb3": ("steps_per_s", "flatout", "sb3"),
    }
    lines = [
        ratio_row(label, per_round(values(over, key), values(under, key)))
        for label, (key, over, under) in ratios.items()
    ]
    return f"""## PPO on CartPole-v1, the whole loop on the device

{provenance(args, rows)}
- {args.steps:,} steps and {updates:,} gradient updates of Flatout and of PureJaxRL's own program,
  checked; no compilation cache. Flatout logs, saves and reports meanwhile; PureJaxRL's program
  returns arrays at its end. Stable-Baselines3: {SB3_STEPS:,} steps of its defaults, 8 environments.

{table(["side", "steps/s after compiling", "compiling, s", "last 100 returns"], body)}

{table(RATIO_HEAD, lines)}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    options.add_argument("--steps", type=int, default=1_024_000, help="steps of both programs")
    options.add_argument("--purejaxrl", type=Path, default=None, help="a checkout of PureJaxRL")
    options.add_argument(
        "--purejaxrl-python", default=str(HERE / ".venv-purejaxrl" / "bin" / "python")
    )
    main(benchmark, options.parse_args())
