"""Augmented random search for one controller that balances four different pendulums.

Each process owns a pendulum. Perturbations and scores live in shared memory, and a barrier
separates the generations.
"""

import math
import multiprocessing as mp

import numpy as np
from pace import Pace, end_with_parent

FEATURES = 4
DIRECTIONS = 6
CONTROL_DT = 0.02
EPISODE = 100

# length [m], friction, motor stiffness, integration step [s]: the geared one needs a fine step
PENDULUMS = [
    (1.0, 0.10, 0.0, 0.01),
    (0.6, 0.05, 0.0, 0.01),
    (1.4, 0.20, 0.0, 0.01),
    (0.3, 0.02, 900.0, 0.0005),
]


def episode(gains, pendulum, start):
    length, friction, stiffness, dt = pendulum
    substeps = round(CONTROL_DT / dt)
    angle, rate, motor, total = start, 0.0, 0.0, 0.0
    g0, g1, g2, g3 = gains
    for _ in range(EPISODE):
        command = g0 * math.sin(angle) + g1 * rate + g2 * math.cos(angle) + g3
        command = min(max(command, -8.0), 8.0)
        for _ in range(substeps):
            if stiffness:
                motor += dt * stiffness * (command - motor)
            else:
                motor = command
            rate += dt * (9.81 / length * math.sin(angle) + motor - friction * rate)
            rate = min(max(rate, -20.0), 20.0)
            angle += dt * rate
        total -= 1.0 - math.cos(angle) + 0.01 * rate * rate
    return total


def evaluate(index, candidates, scores, running, barrier):
    end_with_parent()
    candidates = np.frombuffer(candidates).reshape(2 * DIRECTIONS, FEATURES)
    scores = np.frombuffer(scores).reshape(len(PENDULUMS), 2 * DIRECTIONS)
    rng = np.random.default_rng(index)
    while True:
        barrier.wait()  # candidates are there
        if not running.value:
            return
        start = rng.uniform(-0.4, 0.4)
        for i, gains in enumerate(candidates.tolist()):
            scores[index, i] = episode(gains, PENDULUMS[index], start)
        barrier.wait()  # scores are there


def main():
    pace = Pace.from_args()
    ctx = mp.get_context("spawn")
    shared_candidates = ctx.RawArray("d", 2 * DIRECTIONS * FEATURES)
    shared_scores = ctx.RawArray("d", len(PENDULUMS) * 2 * DIRECTIONS)
    running = ctx.RawValue("b", 1)
    barrier = ctx.Barrier(len(PENDULUMS) + 1)
    shared = (shared_candidates, shared_scores, running, barrier)
    workers = [ctx.Process(target=evaluate, args=(i, *shared)) for i in range(len(PENDULUMS))]
    for worker in workers:
        worker.start()

    candidates = np.frombuffer(shared_candidates).reshape(2, DIRECTIONS, FEATURES)
    scores = np.frombuffer(shared_scores).reshape(len(PENDULUMS), 2, DIRECTIONS)
    rng = np.random.default_rng(100)
    gains = np.zeros(FEATURES)
    while pace.on():
        noise = rng.normal(size=(DIRECTIONS, FEATURES))
        candidates[0], candidates[1] = gains + 0.3 * noise, gains - 0.3 * noise
        barrier.wait()
        barrier.wait()
        plus, minus = scores.mean(axis=0)
        top = np.argsort(np.maximum(plus, minus))[DIRECTIONS // 2 :]
        spread = np.concatenate([plus[top], minus[top]]).std() + 1e-6
        gains += 0.2 / (len(top) * spread) * (plus[top] - minus[top]) @ noise[top]
        pace.add(scores.size)
    running.value = 0
    barrier.wait()
    for worker in workers:
        worker.join()
    pace.report()


if __name__ == "__main__":
    main()
