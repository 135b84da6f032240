"""MinAtar's Breakout on the device: PPO and DQN, beside PureJaxRL's own PPO program.

PPO has PureJaxRL's settings for MinAtar: 64 environments x 128 steps, 4 epochs of 8 minibatches, a
learning rate that falls from 0.005 to 0, two layers of 64. DQN plays 64 environments. The mean of
the last 100 training returns against steps and seconds; ``flatout`` needs the extra ``[gymnax]``.
With one core a seed takes 10 minutes.
"""

from __future__ import annotations

import argparse

from harness import HERE, NO_CACHE, BenchmarkError, Command, Row, Store, main, parser, train_command
from learning import curve
from report import provenance, table, write_section

NAME = "minatar"
ENV = ("--env", "gymnax:Breakout-MinAtar", "--envs", "64", "--hidden", "64,64")
PPO = (
    *ENV, "--network", "mlp", "--n-steps", "128", "--batch-size", "1024", "--n-epochs", "4",
    "--learning-rate", "lin_0.005_0", "--gamma", "0.99", "--gae-lambda", "0.95",
    "--clip-range", "0.2", "--clip-range-vf", "0.2", "--ent-coef", "0.01", "--vf-coef", "0.25",
    "--max-grad-norm", "0.5", "--activation", "tanh",
)  # fmt: skip
DQN = (
    *ENV, "--network", "mlp", "--train-freq", "256", "--gradient-steps", "16", "--batch-size",
    "128", "--learning-rate", "0.0005", "--buffer-size", "200000", "--learning-starts", "5000",
    "--target-update-interval", "2000", "--exploration-fraction", "0.2",
    "--exploration-final-eps", "0.01", "--double",
)  # fmt: skip

PUBLISHED = (
    "- Published: gymnax's table (README of 1.0.1) has a return of 28 for its own PPO agent here; "
    "MinAtar's paper (arXiv:1903.03176) shows DQN in a plot alone."
)


def benchmark(args: argparse.Namespace) -> None:
    """Run the sides in turn and write the section."""
    if args.purejaxrl is None:
        raise BenchmarkError("--purejaxrl PATH, a checkout of PureJaxRL, is needed.")
    size = 64 * 128
    steps = args.steps // size * size
    store = Store(NAME, {"ppo": list(PPO), "dqn": list(DQN), "steps": steps}, args)

    def ours(name: str, flags: tuple[str, ...], most: int, seed: int) -> Command:
        return train_command(
            args, NAME, name, seed, *flags, "--steps", str(most), algorithm=name, finish=curve,
            placement="sampler=device schedule=fused",
        )  # fmt: skip

    def theirs(seed: int) -> Command:
        argv = [
            args.purejaxrl_python, str(HERE / "peers" / "purejaxrl_ppo.py"), "--purejaxrl",
            str(args.purejaxrl), "--steps", str(steps), "--seed", str(seed),
            "--env", "Breakout-MinAtar",
        ]  # fmt: skip
        return Command(argv, NO_CACHE)

    rows = store.alternate(
        {
            "ppo": lambda seed: ours("ppo", PPO, steps, seed),
            "dqn": lambda seed: ours("dqn", DQN, steps // 4, seed),
            "purejaxrl, ppo": theirs,
        },
        range(args.seeds),
    )
    write_section(args, NAME, section(args, rows))


def section(args: argparse.Namespace, rows: dict[str, list[Row]]) -> str:
    """The Markdown of this benchmark."""
    body = [
        [side, str(row["seed"]), f"{point[0]:,}", f"{point[1]:.1f}", f"{point[2]:.0f}"]
        for side, runs in rows.items() for row in runs for point in row["result"]["curve"]
    ]  # fmt: skip
    return f"""## MinAtar's Breakout on the device

{provenance(args, rows)}
- PPO at PureJaxRL's settings for MinAtar, DQN with a quarter of the steps; {args.seeds} seed(s).
{PUBLISHED}

{table(["side", "seed", "steps", "mean of the last 100 returns", "s"], body)}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=1)
    options.add_argument("--steps", type=int, default=10_000_000, help="environment steps of PPO")
    options.add_argument("--purejaxrl", default=None, help="a checkout of PureJaxRL")
    options.add_argument(
        "--purejaxrl-python", default=str(HERE / ".venv-purejaxrl" / "bin" / "python")
    )
    main(benchmark, options.parse_args())
