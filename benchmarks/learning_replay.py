"""What the algorithms with replay learn, and how reliably: presets over several seeds.

- ``cartpole``: DQN, 100,000 steps with evaluations; then 100 greedy episodes, of seeds of their
  own, with the best checkpoint by those evaluations.
- ``pendulum-*``: DDPG, TD3 and SAC, 20,000 steps, then 100 greedy episodes with the final
  parameters, beside what RL Baselines3 Zoo states for the same number of steps.
- ``breakout`` (long tier): DQN, the mean score of the last 100 episodes along the run, as far as
  this machine gets.
- ``halfcheetah-*``, ``hopper-*`` (long tier): SAC and TD3 for a few steps, Flatout and
  Stable-Baselines3 with the same settings, 20 greedy episodes each.

``quick`` ends after 15 minutes and runs all tasks with one seed before the next; what is missing
then, the same command adds next time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness import Command, Row, json_of, main, parser, run_child
from learning import Task, curve, run_tasks, show_curve
from report import mean_std, provenance, spread, table, write_section

GOAL = 475.0
EPISODES, MUJOCO_EPISODES = 100, 20
EVAL_SEED = 1000
"""Evaluation episodes have seeds of their own: this plus the run's."""

ZOO = {"ddpg": "-152 ± 94", "td3": "-152 ± 90", "sac": "-157 ± 89"}
"""RL Baselines3 Zoo's benchmark of one agent each on Pendulum-v1 after 20,000 steps."""


@dataclass(frozen=True)
class Tier:
    """How much is run: whether the long tasks are, and minutes after which the tier ends."""

    long: bool
    minutes: float


TIERS = {"quick": Tier(False, 15.0), "long": Tier(True, float("inf"))}

SHARED: dict[str, tuple[str, ...]] = {
    "sac": ("--learning-rate", "3e-4", "--hidden", "256,256"),
    "td3": ("--learning-rate", "1e-3", "--hidden", "400,300", "--action-noise", "0.1"),
}
"""Settings of the comparison with Stable-Baselines3 by algorithm; both sides get all of them."""

MUJOCO = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5"}


# --- What is measured after each run ----------------------------------------------------------


def greedy(checkpoint: str, episodes: int) -> Callable[[Command, Row], Row]:
    """Adds the greedy return of the best or the final parameters."""

    def finish(train: Command, result: Row) -> Row:
        argv = [
            train.argv[0], "eval", str(train.run_dir), "--episodes", str(episodes), "--checkpoint",
            checkpoint, "--seed", str(EVAL_SEED + result["seed"]), "--json",
        ]  # fmt: skip
        found = json_of(run_child(argv), "flatout eval")
        return result | {"eval_mean": found["return_mean"], "eval_std": found["return_std"]}

    return finish


# --- How it is shown --------------------------------------------------------------------------


def returns_table(rows: Sequence[Row]) -> str:
    """Each seed's greedy return."""
    body = [
        [
            str(row["seed"]), f"{row['result']['eval_mean']:.1f} ± {row['result']['eval_std']:.1f}",
            f"{row['result']['updates']:,}", f"{row['result']['steps_per_s']:,.0f}",
            f"{row['wall_s']:.1f}",
        ]
        for row in rows
    ]  # fmt: skip
    head = [
        "seed", "return, mean ± std of episodes", "updates", "steps/s", "training process, s",
    ]  # fmt: skip
    return table(head, body)


def means(rows: Sequence[Row]) -> list[float]:
    """Each seed's mean greedy return."""
    return [row["result"]["eval_mean"] for row in rows]


def show_cartpole(rows: Sequence[Row]) -> str:
    """How many seeds' best checkpoint solves it."""
    solved = sum(mean >= GOAL for mean in means(rows))
    return (
        f"CartPole-v1, DQN (`cartpole-dqn`), {rows[0]['result']['steps']:,} steps: the best "
        f"checkpoint by evaluations during training, {EPISODES} fresh greedy episodes, reaches "
        f"{GOAL:.0f} on **{solved} of {len(rows)} seeds** ({mean_std(means(rows))}).\n\n"
        + returns_table(rows)
    )


def show_pendulum(algorithm: str) -> Callable[[Sequence[Row]], str]:
    """Final parameters beside RL Zoo's figure."""

    def show(rows: Sequence[Row]) -> str:
        return (
            f"Pendulum-v1, {algorithm.upper()} (`pendulum-{algorithm}`), "
            f"{rows[0]['result']['steps']:,} steps, then {EPISODES} greedy episodes with the final "
            f"parameters: **{mean_std(means(rows))}** (mean ± std of {len(rows)} seeds). RL Zoo "
            f"states {ZOO[algorithm]} (one agent, std of its episodes).\n\n" + returns_table(rows)
        )

    return show


def show_mujoco(label: str) -> Callable[[Sequence[Row]], str]:
    """One side of a comparison."""

    def show(rows: Sequence[Row]) -> str:
        return (
            f"`{label}`, {rows[0]['result']['steps']:,} steps, then {MUJOCO_EPISODES} greedy "
            f"episodes with the final parameters: **{mean_std(means(rows))}** (mean ± std of "
            f"{len(rows)} seeds).\n\n" + returns_table(rows)
        )

    return show


# --- The tasks --------------------------------------------------------------------------------


def mujoco(args: argparse.Namespace) -> dict[str, Task]:
    """SAC and TD3 on two robots, Flatout's task beside Stable-Baselines3's."""
    found: dict[str, Task] = {}
    for robot, env in MUJOCO.items():
        for algorithm, own in SHARED.items():
            shared = (
                "--envs", "1", "--steps", str(args.mujoco_steps), "--learning-starts", "1000",
                "--buffer-size", "1000000", "--batch-size", "256", "--train-freq", "1",
                "--gradient-steps", "1", "--gamma", "0.99", "--tau", "0.005", *own,
            )  # fmt: skip
            label = f"{robot}-{algorithm}"
            found[label] = Task(
                ("--preset", label, "--env", env, *shared), greedy("final", MUJOCO_EPISODES),
                show_mujoco(label), algorithm=algorithm,
            )  # fmt: skip
            peer = (
                "--algo", algorithm, "--env", env, *shared,
                "--eval-episodes", str(MUJOCO_EPISODES), "--threads", str(args.peer_threads),
            )  # fmt: skip
            found[f"{label}-sb3"] = Task(
                peer, None, show_mujoco(f"{label}-sb3"), program="sb3_offpolicy.py"
            )
    return found


def tasks(args: argparse.Namespace, tier: Tier) -> dict[str, Task]:
    """The tasks in the order in which they run."""
    found = {
        "cartpole": Task(
            ("--preset", "cartpole-dqn", "--steps", "100000"),
            greedy("best", EPISODES), show_cartpole, algorithm="dqn",
        )
    }  # fmt: skip
    for algorithm in ZOO:
        found[f"pendulum-{algorithm}"] = Task(
            ("--preset", f"pendulum-{algorithm}", "--steps", "20000"), greedy("final", EPISODES),
            show_pendulum(algorithm), algorithm=algorithm,
        )  # fmt: skip
    if not tier.long:
        return found
    found |= mujoco(args)
    fall = str(args.breakout_steps // 4)  # the preset's own lasts longer than this whole run
    found["breakout"] = Task(
        (
            "--preset", "breakout-dqn", "--steps", str(args.breakout_steps), "--learning-starts",
            "10000", "--exploration-steps", fall, "--buffer-size", "200000",
        ),
        curve, show_curve("Breakout, DQN", "breakout-dqn"), algorithm="dqn", seeds=1,
    )  # fmt: skip
    return found


def benchmark(args: argparse.Namespace) -> None:
    """Run what is missing and write the tier's section."""
    tier = TIERS[args.tier]
    minutes = tier.minutes if args.minutes is None else args.minutes
    name = f"learning_replay_{args.tier}"
    wanted = tasks(args, tier)
    done = run_tasks(args, name, wanted, minutes, seeds_first=True)
    write_section(args, name, section(args, wanted, done))


def section(
    args: argparse.Namespace, wanted: Mapping[str, Task], done: dict[str, list[Row]]
) -> str:
    """The Markdown of one tier."""
    parts = [sides] if (sides := beside(done)) else []
    for label, rows in done.items():
        asked = min(args.seeds, wanted[label].seeds or args.seeds)
        note = f"\n\n**{asked - len(rows)} of {asked} seeds still missing.**"
        shown = wanted[label].show(rows) if rows else f"{label}:"
        parts.append(shown + (note if len(rows) < asked else ""))
    done = {label: rows for label, rows in done.items() if rows}
    head = f"## What is learned with replay ({args.tier} tier)"
    return "\n\n".join([head, provenance(args, done), *parts]) + "\n"


def beside(done: dict[str, list[Row]]) -> str:
    """Flatout and Stable-Baselines3 in one table, where both have run."""
    body = []
    for label, ours in done.items():
        theirs = done.get(f"{label}-sb3")
        if ours and theirs:
            seconds = [spread([training_s(row) for row in rows], 0) for rows in (ours, theirs)]
            seeds = f"{len(ours)} and {len(theirs)}"
            body.append([label, mean_std(means(ours)), mean_std(means(theirs)), *seconds, seeds])
    head = ["task", "flatout", "sb3", "flatout, s", "sb3, s", "seeds"]
    if not body:
        return ""
    return (
        "Greedy return of the final parameters at equal settings (mean ± std of seeds), and the "
        f"seconds of training, without start-up and evaluation:\n\n{table(head, body)}"
    )


def training_s(row: Row) -> float:
    """Seconds of training after start-up."""
    return row["result"]["steps"] / row["result"]["steps_per_s"]


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    add = options.add_argument
    add("--tier", choices=tuple(TIERS), default="quick")
    add("--only", nargs="+", default=None, help="names of tasks, such as pendulum-sac")
    add("--minutes", type=float, default=None, help="end after this many minutes")
    add("--mujoco-steps", type=int, default=20_000, help="long tier: HalfCheetah's and Hopper's")
    add("--breakout-steps", type=int, default=400_000, help="long tier: Breakout's, one seed")
    add("--peer-threads", type=int, default=0, help="PyTorch's threads (0: its default)")
    options.set_defaults(timeout=7 * 86_400.0)
    main(benchmark, options.parse_args())
