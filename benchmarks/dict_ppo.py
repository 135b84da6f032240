"""Speed of PPO on Dict observations at equal work: Flatout and Stable-Baselines3 in turn.

Stable-Baselines3 uses MultiInputPolicy with its own features for images (the convolutions of Mnih
et al., 512 features as Flatout has). 8 environments, rollouts of 2048 steps in all, 10 epochs,
minibatches of 64. Every side does the same steps and the same number of gradient updates, which is
checked.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from harness import (
    HERE,
    NO_CACHE,
    BenchmarkError,
    Command,
    Row,
    Store,
    main,
    parser,
    peers_python,
    require_work,
    train_command,
)
from ppo_speed import results
from report import RATIO_HEAD, mean_std, per_round, provenance, ratio_row, spread, table
from report import write_section as write

NAME = "dict_ppo"
ENVS, N_STEPS, BATCH, EPOCHS = 8, 256, 64, 10
ROLLOUT = ENVS * N_STEPS
ENVIRONMENTS = {"SplitCartPole-v0": "two vectors", "Dock-v0": "image 36x36 and vector"}
STEPS = {"SplitCartPole-v0": 51_200, "Dock-v0": 10_240}


def runs_of(
    args: argparse.Namespace, name: str, env: str, steps: int, side: str, *words: str, **more: Any
) -> dict[str, list[Row]]:
    """Flatout's runs on an environment and a peer's, in turn.

    Args:
        name: the name of the rows.
        side: the peer's name.
        words: what its program is told besides the settings of both sides.
        more: what else the rows depend on.
    """
    updates = steps // ROLLOUT * EPOCHS * (ROLLOUT // BATCH)
    flags = (
        "--env", env, "--envs", str(ENVS), "--n-steps", str(N_STEPS), "--batch-size", str(BATCH),
        "--n-epochs", str(EPOCHS), "--steps", str(steps),
    )  # fmt: skip
    settings: Row = {
        "flags": list(flags), "extra": args.flatout_args, "threads": args.peer_threads, **more,
    }  # fmt: skip
    place = NO_CACHE | {"PYTHONPATH": str(HERE)}

    def peer(seed: int) -> Command:
        argv = [
            peers_python(args), str(HERE / "peers" / "sb3_ppo.py"), *flags, "--seed", str(seed),
            *words, "--threads", str(args.peer_threads),
        ]  # fmt: skip
        return Command(argv, place)

    return Store(name, settings, args).alternate(
        {
            "flatout": lambda seed: train_command(args, name, "flatout", seed, *flags, env=place),
            side: peer,
        },
        range(args.seeds),
        check=lambda row: require_work(row, steps, updates),
    )


def benchmark(args: argparse.Namespace) -> None:
    """Run the sides in turn, check their work, write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    body, ratios, every = [], [], dict[str, list[Row]]()
    for env, kind in ENVIRONMENTS.items():
        rows = runs_of(
            args, f"{NAME}_{env}", f"dict_env:{env}", STEPS[env], "sb3", "--policy",
            "MultiInputPolicy",
        )  # fmt: skip
        rates = {side: results(runs, "steps_per_s") for side, runs in rows.items()}
        for side, runs in rows.items():
            every[f"{env} {side}"] = runs
            means = [row["result"].get("return_mean_100") for row in runs]
            body.append([
                env, side, spread(rates[side], 0), spread([row["wall_s"] for row in runs], 1),
                f"{statistics.median(row['cpu_s'] for row in runs):.1f}",
                "-" if None in means else mean_std(means),
            ])  # fmt: skip
        label = f"flatout / sb3, {kind}, after start-up"
        ratios.append(ratio_row(label, per_round(rates["flatout"], rates["sb3"])))
    head = ["environment", "side", "steps/s after start-up", "whole process, s", "CPU s",
            "last 100 returns"]  # fmt: skip
    steps = " and ".join(f"{count:,} steps on {env}" for env, count in STEPS.items())
    write(
        args,
        NAME,
        f"""## PPO on Dict observations: speed at equal work

{provenance(args, every)}
- {steps}; gradient updates are equal on both sides, checked; {ENVS} environments, rollouts of
  {ROLLOUT}, {EPOCHS} epochs, minibatches of {BATCH}; on the CPU, no compilation cache. PyTorch has
  {args.peer_threads or "its default number of"} thread(s).
- Stable-Baselines3's MultiInputPolicy shares the convolutions and has separate 64x64 tanh layers
  for actor and critic; so has Flatout without an image, and with one it shares the layers, too.

{table(head, body)}

{table(RATIO_HEAD, ratios)}
""",
    )


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument(
        "--peer-threads", type=int, default=1, help="PyTorch's threads (0: its default)"
    )
    main(benchmark, options.parse_args())
