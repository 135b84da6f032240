"""Train with rejax, the whole loop in one compiled program: prints one JSON object on stdout.

    run_rejax.py ppo --env CartPole-v1 --steps 1024000 --num-envs 4 --num-steps 128

Any flag that is not listed in `--help` is a setting of rejax. The program is compiled first and
evaluates nothing; the window is the whole of its run. Steps and updates are those that its state
has counted at the end.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import json
import platform
import time

from clock import since_start


def main() -> None:
    """Compile, train once, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("algorithm", choices=("ppo",))
    add("--env", required=True)
    add("--steps", type=int, required=True)
    add("--window-from", type=int, default=0, help="ignored: the window is the whole run")
    add("--seed", type=int, default=0)
    args, rest = parser.parse_known_args()
    settings = {
        name[2:].replace("-", "_"): ast.literal_eval(value)
        for name, value in zip(rest[::2], rest[1::2], strict=True)
    }

    import jax
    from rejax import get_algo

    algorithm = get_algo(args.algorithm).create(
        env=args.env, total_timesteps=args.steps, eval_freq=args.steps,
        skip_initial_evaluation=True, agent_kwargs={"activation": "tanh"}, **settings,
    ).replace(eval_callback=lambda algorithm, state, key: ())  # fmt: skip
    rollout = algorithm.num_envs * algorithm.num_steps
    iterations = -(-args.steps // rollout)
    key = jax.random.PRNGKey(args.seed)
    program = jax.jit(algorithm.train).lower(key).compile()
    begin = time.perf_counter()
    state, _ = jax.block_until_ready(program(key))
    seconds = time.perf_counter() - begin
    steps, updates = int(state.global_step), int(state.actor_ts.step)
    print(json.dumps({
        "steps": steps, "updates": updates,
        "samples": updates * (rollout // algorithm.num_minibatches),
        # It returns only at its end: as if all iterations took equally long.
        "first_update_s": since_start() - seconds * (1 - 1 / iterations),
        "window": {"steps": steps, "updates": updates, "s": seconds},
        "versions": {
            "python": platform.python_version(), "jax": jax.__version__,
            "rejax": importlib.metadata.version("rejax"),
            "gymnax": importlib.metadata.version("gymnax"),
        },
    }))  # fmt: skip


if __name__ == "__main__":
    main()
