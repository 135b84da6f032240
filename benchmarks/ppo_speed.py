"""Speed of PPO on CartPole-v1 at equal work: Flatout, Stable-Baselines3 and SBX in turn.

8 environments, rollouts of 2048 steps in all, 10 epochs, minibatches of 64: Stable-Baselines3's
settings. Every side does the same steps and the same number of gradient updates, which is checked.
Training writes what each program writes by default: Flatout metrics, TensorBoard events and
checkpoints; the peers nothing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from harness import (
    BenchmarkError,
    Row,
    Store,
    main,
    parser,
    peer_command,
    require_work,
    train_command,
)
from report import (
    RATIO_HEAD,
    mean_std,
    per_round,
    provenance,
    ratio_row,
    spread,
    table,
    write_section,
)

NAME = "ppo_speed"
ENVS, N_STEPS, BATCH, EPOCHS = 8, 256, 64, 10
ROLLOUT = ENVS * N_STEPS


def benchmark(args: argparse.Namespace) -> None:
    """Run the sides in turn, check their work, write the section."""
    if args.steps % ROLLOUT:
        raise BenchmarkError(f"--steps must be a multiple of the rollout, {ROLLOUT}.")
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    updates = args.steps // ROLLOUT * EPOCHS * (ROLLOUT // BATCH)
    flags = (
        "--env", "CartPole-v1", "--envs", str(ENVS), "--n-steps", str(N_STEPS),
        "--batch-size", str(BATCH), "--n-epochs", str(EPOCHS), "--steps", str(args.steps),
    )  # fmt: skip
    settings: Row = {
        "flags": list(flags), "extra": args.flatout_args, "threads": args.peer_threads,
    }  # fmt: skip
    store = Store(NAME, settings, args)
    peer = (*flags, "--threads", str(args.peer_threads))
    rows = store.alternate(
        {
            "flatout": lambda seed: train_command(args, NAME, "flatout", seed, *flags),
            "sb3": lambda seed: peer_command(args, "sb3_ppo.py", seed, "--library", "sb3", *peer),
            "sbx": lambda seed: peer_command(args, "sb3_ppo.py", seed, "--library", "sbx", *peer),
        },
        range(args.seeds),
        check=lambda row: require_work(row, args.steps, updates),
    )
    write_section(args, NAME, section(args, rows, updates))


def results(rows: Sequence[Row], key: str) -> list[float]:
    """One figure of each run's own result.

    Raises:
        BenchmarkError: a run lacks it.
    """
    values = [row["result"].get(key) for row in rows]
    if None in values:
        raise BenchmarkError(f"{rows[0]['name']}: a run of {rows[0]['side']} has no {key}.")
    return values


def section(args: argparse.Namespace, rows: dict[str, list[Row]], updates: int) -> str:
    """The Markdown of this benchmark."""
    ours, sb3, sbx = rows["flatout"], rows["sb3"], rows["sbx"]
    rates = {
        "flatout": results(ours, "steps_per_s"),
        "sb3": results(sb3, "steps_per_s"),
        "sbx": results(sbx, "steps_per_s"),
        "sbx, warm": results(sbx, "warm_steps_per_s"),
    }
    body = []
    for label, rate in rates.items():
        runs = rows[label.split(",")[0]]
        means = [row["result"].get("return_mean_100") for row in runs]
        body.append(
            [
                label, spread(rate, 0), spread([args.steps / row["wall_s"] for row in runs], 0),
                spread([row["wall_s"] for row in runs], 1),
                f"{statistics.median(row['cpu_s'] for row in runs):.1f}",
                f"{statistics.median(row['max_rss_mb'] for row in runs):.0f}",
                "-" if None in means else mean_std(means), f"{updates:,}",
            ]
        )  # fmt: skip
    head = [
        "side", "steps/s after start-up", "steps/s, whole process", "whole process, s",
        "CPU s", "peak RSS, MiB", "last 100 returns", "updates",
    ]  # fmt: skip
    whole = {side: [row["wall_s"] for row in runs] for side, runs in rows.items()}
    ratios = [
        ("flatout / sb3, after start-up", per_round(rates["flatout"], rates["sb3"])),
        ("flatout / sbx warm, after start-up", per_round(rates["flatout"], rates["sbx, warm"])),
        ("flatout / sbx, all of learn()", per_round(rates["flatout"], rates["sbx"])),
        ("sb3 / flatout, whole process time", per_round(whole["sb3"], whole["flatout"])),
        ("sbx / flatout, whole process time", per_round(whole["sbx"], whole["flatout"])),
    ]
    claimed = statistics.median(
        args.steps / (row["result"]["wall_s"] - row["result"]["startup_s"]) for row in ours
    )
    return f"""## PPO on CartPole-v1: speed at equal work

{provenance(args, rows)}
- {args.steps:,} steps and {updates:,} gradient updates on every side, checked; {ENVS}
  environments, rollouts of {ROLLOUT}, {EPOCHS} epochs, minibatches of {BATCH}, networks of 64x64
  tanh; on the CPU, no compilation cache. PyTorch has
  {args.peer_threads or "its default number of"} thread(s).

{table(head, body)}

`sb3` and `sbx` count all of `learn()`; `sbx, warm` leaves out the first rollout and its updates, in
which SBX compiles. (SBX steps its actor's and its critic's optimiser for each minibatch: one
update.) Flatout's rate is its own report; its steps over its wall time after start-up
give {claimed:,.0f} steps/s (median). Times of the whole process are taken from outside.

{table(RATIO_HEAD, [ratio_row(label, values) for label, values in ratios])}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    options.add_argument("--steps", type=int, default=102_400, help="steps of every side")
    options.add_argument(
        "--peer-threads", type=int, default=1, help="PyTorch's threads (0: its default)"
    )
    main(benchmark, options.parse_args())
