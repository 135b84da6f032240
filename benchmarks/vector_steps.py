"""The steps per second of a user's vector environment, next to its environments one by one.

Eight CartPoles take random actions as a run steps them, without acting and learning, in turns: one
by one, as a `SyncVectorEnv`, and as that without Flatout. Flatout steps the environments of a bare
`SyncVectorEnv` itself; one with a wrapper around it is stepped as it is.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack, closing
from typing import Any

from harness import main, parser
from report import RATIO_HEAD, measured_here, per_round, ratio_row, spread, table, write_section

NAME = "vector_steps"
ENV, ENVS = "CartPole-v1", 8


def cases() -> dict[str, tuple[Any, Any]]:
    """Return, by its label, what makes one environment (None: the id) and what makes a vector of
    `num_envs`, with the same wrappers."""
    import gymnasium as gym
    from gymnasium import wrappers
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    def one() -> Any:
        return gym.make(ENV, disable_env_checker=True)

    def normalised() -> Any:
        return wrappers.NormalizeObservation(one())

    def counted() -> Any:
        return wrappers.RecordEpisodeStatistics(one())

    def together(make: Any, mode: AutoresetMode, wrap: Any = lambda vector: vector) -> Any:
        return lambda num_envs: wrap(SyncVectorEnv([make] * num_envs, autoreset_mode=mode))

    found: dict[str, tuple[Any, Any]] = {
        f"bare, {mode.name}": (None, together(one, mode)) for mode in AutoresetMode
    }
    mode = AutoresetMode.NEXT_STEP
    found["NormalizeObservation in each"] = normalised, together(normalised, mode)
    around = wrappers.vector.RecordEpisodeStatistics
    found["RecordEpisodeStatistics around all"] = counted, together(one, mode, around)
    return found


def alone(stack: ExitStack, make: Any, seconds: float) -> Any:
    """Return a function that steps a vector without Flatout for a while, and returns its rate."""
    import numpy as np
    from gymnasium.vector import AutoresetMode

    vector = stack.enter_context(closing(make(ENVS)))
    actions = np.random.default_rng(0).integers(2, size=(100, ENVS))
    resets = vector.metadata["autoreset_mode"] == AutoresetMode.DISABLED

    def rate() -> float:
        vector.reset(seed=0)
        steps, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            for chosen in actions:
                _, _, *ends, _ = vector.step(chosen)
                if resets and (ended := np.logical_or(*ends)).any():
                    vector.reset(options={"reset_mask": ended})
            steps += actions.size
        return steps / (time.perf_counter() - began)

    return rate


def opened(stack: ExitStack, source: Any, seconds: float) -> Any:
    """Return a function that steps environments for a while, and returns their rate."""
    import numpy as np

    from flatout import tree
    from flatout.config.schema import EnvConfig
    from flatout.envs.task import open_task
    from flatout.envs.vector import RARELY

    task = open_task(EnvConfig(env=ENV, envs=ENVS), source)
    envs = stack.enter_context(closing(task.open(ENVS, 0, reseeding=RARELY)))
    out, rewards = tree.zeros(task.obs_spec, ENVS), np.zeros(ENVS, np.float32)
    actions = task.action_spec.random(np.random.default_rng(0), 100 * ENVS).reshape(100, ENVS)

    def rate() -> float:
        envs.reset_all(out)
        steps, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            for chosen in actions:
                envs.step(chosen, out, rewards, lambda *_: None)
            steps += actions.size
        return steps / (time.perf_counter() - began)

    return rate


def benchmark(args: argparse.Namespace) -> None:
    """Measure all cases and write the section."""
    body, ratios = [], []
    for label, (single, vector) in cases().items():
        with ExitStack() as stack:
            sides = (
                opened(stack, single, args.seconds),
                opened(stack, vector, args.seconds),
                alone(stack, vector, args.seconds),
            )
            rounds = [[rate() for rate in sides] for _ in range(args.seeds)]
        single_, vector_, gymnasium_ = ([one[side] for one in rounds] for side in range(3))
        body.append([label, spread(single_, 0), spread(vector_, 0), spread(gymnasium_, 0)])
        ratios += [
            ratio_row(f"{label}: vector / one by one", per_round(vector_, single_)),
            ratio_row(f"{label}: vector / without Flatout", per_round(vector_, gymnasium_)),
        ]
    write_section(args, NAME, f"""## A vector environment next to its environments one by one

{measured_here(args)}
- {ENVS} {ENV} in this process, random actions, {args.seconds:g} s a run, {args.seeds} rounds
  in turns.
- The last row has Gymnasium's wrapper for vectors, or that for single environments; modes are
  NEXT_STEP where none is named. Without Flatout the vector's own steps and resets are made alone;
  in NEXT_STEP each step of a reset counts as one.

{table(["environments", "one by one, steps/s", "SyncVectorEnv", "without Flatout"], body)}

{table(RATIO_HEAD, ratios)}
""")  # fmt: skip


if __name__ == "__main__":
    options = parser(__doc__, seeds=5, fewest=3)
    options.add_argument("--seconds", type=float, default=2.0, help="seconds of each measurement")
    main(benchmark, options.parse_args())
