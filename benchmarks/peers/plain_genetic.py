"""A genetic algorithm as a plain loop over members: prints one JSON object on stdout.

Gymnasium's CartPole-v1, one member after another, a NumPy network of one hidden layer; the best
members stay, the others become noisy copies of them. Nothing is logged.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
import numpy as np


def main() -> None:
    """Evolve until so many steps are made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--steps", type=int, default=200_000)
    add("--members", type=int, default=64)
    add("--elites", type=int, default=4)
    add("--hidden", type=int, default=32)
    add("--noise", type=float, default=0.05)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    shapes = ((4, args.hidden), (args.hidden,), (args.hidden, 2), (2,))
    members = [
        [rng.normal(0.0, 0.5, shape).astype(np.float32) for shape in shapes]
        for _ in range(args.members)
    ]
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=args.seed)
    steps = generations = 0
    begin = time.perf_counter()
    best = 0.0
    while steps < args.steps:
        fitness: list[float] = []
        for w1, b1, w2, b2 in members:
            obs, _ = env.reset()
            total, over = 0.0, False
            while not over:
                action = int((np.tanh(obs @ w1 + b1) @ w2 + b2).argmax())
                obs, reward, terminated, truncated, _ = env.step(action)
                over = terminated or truncated
                total += float(reward)
                steps += 1
            fitness.append(total)
        order = np.argsort(fitness)[::-1][: args.elites]
        elites = [members[int(i)] for i in order]
        members = [*elites]
        while len(members) < args.members:
            parent = elites[int(rng.integers(args.elites))]
            members.append(
                [w + args.noise * rng.standard_normal(w.shape, np.float32) for w in parent]
            )
        generations += 1
        best = max(fitness)
    seconds = time.perf_counter() - begin
    print(json.dumps({
        "steps": steps, "generations": generations, "wall_s": seconds, "best": best,
        "steps_per_s": steps / seconds,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
