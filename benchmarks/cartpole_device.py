"""CartPole-v1 solved in one program: Flatout's whole command, PureJaxRL's training, an import.

Flatout trains the preset ``cartpole-ppo`` on the device until the mean of 100 training returns is
475, with a compilation cache that one run of another seed has filled; the agent then plays 100
episodes greedily. PureJaxRL's program trains its own 500,000 steps. Beside them, what it takes to
import Stable-Baselines3.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics

from harness import (
    HERE,
    NO_CACHE,
    BenchmarkError,
    Command,
    Row,
    Store,
    json_of,
    main,
    parser,
    peers_python,
    run_child,
    train_command,
)
from report import RATIO_HEAD, per_round, provenance, ratio_row, spread, table, write_section

NAME, GOAL, EPISODES = "cartpole_device", 475.0, 100
FLAGS = (
    "--preset", "cartpole-ppo", "--env-backend", "device", "--threshold", str(GOAL),
    "--stop-at-return", str(GOAL), "--steps", "500000",
)  # fmt: skip
PLACEMENT = "sampler=device schedule=fused"
PEER_STEPS = 499_712


def benchmark(args: argparse.Namespace) -> None:
    """Fill the cache, run the sides in turn, write the section."""
    if args.purejaxrl is None:
        raise BenchmarkError("--purejaxrl PATH, a checkout of PureJaxRL, is needed.")
    cache = HERE / "runs" / NAME / "compilation-cache"
    warm = {"JAX_ENABLE_COMPILATION_CACHE": "1", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    store = Store(NAME, {"flags": list(FLAGS)}, args)

    def ours(seed: int) -> Command:
        return train_command(
            args, NAME, "flatout", seed, *FLAGS, env=warm, placement=PLACEMENT, finish=played
        )

    def theirs(seed: int) -> Command:
        argv = [
            args.purejaxrl_python, str(HERE / "peers" / "purejaxrl_ppo.py"), "--purejaxrl",
            str(args.purejaxrl), "--steps", str(PEER_STEPS), "--seed", str(seed),
        ]  # fmt: skip
        return Command(argv, NO_CACHE)

    if any(store.get("flatout", seed) is None for seed in range(args.seeds)):
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        first = ours(1000)
        if first.run_dir is not None:
            shutil.rmtree(first.run_dir, ignore_errors=True)
        json_of(run_child(first.argv, warm, args.timeout), "the run that fills the cache")
    importing = Command([peers_python(args), "-c", "import stable_baselines3; print('{}')"])
    rows = store.alternate(
        {"flatout": ours, "purejaxrl": theirs, "import": lambda seed: importing}, range(args.seeds)
    )
    write_section(args, NAME, section(args, rows))


def played(train: Command, result: Row) -> Row:
    """Adds what 100 greedy episodes return."""
    argv = [train.argv[0], "eval", str(train.run_dir), "--episodes", str(EPISODES), "--seed",
            str(1000 + result["seed"]), "--checkpoint", "final", "--json"]  # fmt: skip
    returns = json.loads(run_child(argv).stdout)["returns"]
    return result | {"eval_mean": statistics.fmean(returns)}


def training(row: Row) -> float:
    """Seconds of training: without imports and compiling."""
    found = row["result"]
    return found["train_s"] if "train_s" in found else found["wall_s"] - found["startup_s"]


def section(args: argparse.Namespace, rows: dict[str, list[Row]]) -> str:
    """The Markdown of this benchmark."""
    ours, theirs = rows["flatout"], rows["purejaxrl"]
    walls = {side: [row["wall_s"] for row in runs] for side, runs in rows.items()}
    evals = [row["result"]["eval_mean"] for row in ours]
    solved = sum(value >= GOAL for value in evals)
    body = [
        [side, spread(walls[side], 1), spread(list(map(training, runs)), 1) if runs else "-",
         spread([row["result"]["steps"] for row in runs], 0)]
        for side, runs in (("flatout", ours), ("purejaxrl", theirs))
    ]  # fmt: skip
    body.append(["import stable_baselines3", spread(walls["import"], 1), "-", "-"])
    ratios = [
        ratio_row("training, flatout / purejaxrl",
                  per_round(list(map(training, ours)), list(map(training, theirs)))),
        ratio_row("whole command, flatout / import of stable_baselines3",
                  per_round(walls["flatout"], walls["import"])),
    ]  # fmt: skip
    return f"""## CartPole-v1 solved, the whole loop on the device

{provenance(args, rows)}
- {solved} of {len(ours)} seeds play {EPISODES} greedy episodes with a mean of at least {GOAL:.0f}
  (means {", ".join(f"{value:.0f}" for value in evals)}). Flatout stops when the last 100 training
  returns have a mean of {GOAL:.0f}; PureJaxRL's program has no such stop and makes
  {PEER_STEPS:,} steps. Seconds of training leave out imports and compiling.

{table(["side", "whole process, s", "training, s", "steps"], body)}

{table(RATIO_HEAD, ratios)}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    options.add_argument("--purejaxrl", default=None, help="a checkout of PureJaxRL")
    options.add_argument(
        "--purejaxrl-python", default=str(HERE / ".venv-purejaxrl" / "bin" / "python")
    )
    main(benchmark, options.parse_args())
