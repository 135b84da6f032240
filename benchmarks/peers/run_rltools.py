"""Train SAC with RLtools (C++): prints one JSON object on stdout.

    run_rltools.py sac --env Pendulum-v1 --steps 2600 --learning-starts 100 --batch-size 256

The environment is Gymnasium's, in Python, as its users have it. RLtools compiles its loop for the
sizes of the task when the program starts, in a folder of this run's own. It reports no counts:
steps are those of the loop here, and updates one for each step from `--learning-starts` on.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from typing import Any

from clock import since_start

EPISODES = 10
"""Episodes in a row whose mean return must reach a goal."""


def main() -> None:
    """Train once and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("algorithm", choices=("sac",))
    add("--env", required=True)
    add("--steps", type=int, required=True)
    add("--window-from", type=int, default=0, help="step from which `window` counts")
    add("--learning-starts", type=int, default=100)
    add("--batch-size", type=int, default=256)
    add("--hidden", type=int, default=256, help="width of each of two hidden layers")
    add("--learning-rate", type=float, default=3e-4)
    add(
        "--goal",
        type=float,
        help="`score` is then the seconds until ten episodes in a row reach it",
    )
    add("--seed", type=int, default=0)
    args = parser.parse_args()

    folder = tempfile.TemporaryDirectory()
    tempfile.tempdir = folder.name  # where it looks for what it has compiled
    import gymnasium
    from gymnasium.wrappers import RecordEpisodeStatistics, RescaleAction
    from rltools import SAC

    made: list[Any] = []

    def make() -> Any:
        env = RescaleAction(gymnasium.make(args.env), -1, 1)
        if args.goal is not None:
            env = RecordEpisodeStatistics(env, buffer_length=EPISODES)
            made.append(env)
        env.reset(seed=args.seed)
        return env

    def reached() -> bool:
        recent = [env.return_queue for env in made]
        return any(
            len(returns) == EPISODES and sum(returns) / EPISODES >= args.goal for returns in recent
        )

    out = os.dup(1)
    os.dup2(2, 1)  # its C++ prints, too
    sac = SAC(
        make, enable_evaluation=False, STEP_LIMIT=args.steps,
        ACTOR_BATCH_SIZE=args.batch_size, CRITIC_BATCH_SIZE=args.batch_size,
        N_WARMUP_STEPS=args.learning_starts, ACTOR_HIDDEN_DIM=args.hidden,
        CRITIC_HIDDEN_DIM=args.hidden, OPTIMIZER_ALPHA=args.learning_rate,
    )  # fmt: skip
    state = sac.State(args.seed)
    steps, begin, first_update_s, score = 0, time.perf_counter(), 0.0, None
    while not state.step():  # the call that ends the loop makes no step
        steps += 1
        if score is None and made and reached():
            score = since_start()
        if steps == args.window_from:
            begin = time.perf_counter()
        if steps == args.learning_starts + 1:
            first_update_s = since_start()
    end = time.perf_counter()
    sys.stdout.flush()
    os.dup2(out, 1)
    updates = args.steps - args.learning_starts
    inside = args.steps - max(args.window_from, args.learning_starts)
    print(json.dumps({
        "steps": steps, "updates": updates, "samples": updates * args.batch_size,
        "first_update_s": first_update_s, "score": score,
        "window": {"steps": args.steps - args.window_from, "updates": inside, "s": end - begin},
        "versions": {
            "python": platform.python_version(), "gymnasium": gymnasium.__version__,
            "rltools": importlib.metadata.version("rltools"),
        },
    }))  # fmt: skip


if __name__ == "__main__":
    main()
