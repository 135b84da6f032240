"""Evolution strategies (NumPy): a pool of processes tries perturbed policies on a leg that hops."""

import math
import multiprocessing as mp

import numpy as np
from pace import Pace, end_with_parent

POPULATION, SIGMA, RATE = 16, 0.1, 0.05
SHAPES = [(8, 16), (16, 3)]
SIZE = sum(a * b for a, b in SHAPES)


def simulate(joints, speeds, torques, height, fall):
    """0.05 s of the leg: 40 small steps with contacts and limits."""
    for _ in range(40):
        for j in range(3):
            push = torques[j] - 0.8 * speeds[j] - 4.0 * joints[j]
            if abs(joints[j]) > 1.2:
                push -= 30.0 * math.copysign(abs(joints[j]) - 1.2, joints[j])
            speeds[j] += 0.00125 * push
            joints[j] += 0.00125 * speeds[j]
        foot = height - 0.4 * sum(math.cos(q) for q in joints)
        ground = 400.0 * max(0.0, -foot) - 8.0 * min(0.0, fall)
        fall += 0.00125 * (-9.81 + (ground if foot < 0 else 0.0))
        height += 0.00125 * fall
    return height, fall


def episode(job):
    """The return of one policy over 100 steps."""
    centre, seed, sign = job
    rng = np.random.default_rng(seed)
    theta = centre + sign * SIGMA * rng.standard_normal(SIZE)
    first = theta[:128].reshape(SHAPES[0])
    second = theta[128:].reshape(SHAPES[1])
    joints, speeds, height, fall, score = [0.1, -0.2, 0.1], [0.0] * 3, 1.3, 0.0, 0.0
    for _ in range(100):
        x = np.array([*joints, *speeds, height, fall])
        torques = (np.tanh(np.tanh(x @ first) @ second) * 5).tolist()
        height, fall = simulate(joints, speeds, torques, height, fall)
        score += height - 0.01 * sum(t * t for t in torques)
    return score


def main():
    pace = Pace.from_args()
    theta, rng = np.zeros(SIZE), np.random.default_rng(0)
    with mp.get_context("spawn").Pool(2, initializer=end_with_parent) as pool:
        pool.map(math.sqrt, range(4))
        generation = 0
        while pace.on():
            seeds = rng.integers(2**31, size=POPULATION).tolist()
            jobs = [(theta, seed, sign) for seed in seeds for sign in (1, -1)]
            scores = np.array(pool.map(episode, jobs, chunksize=4)).reshape(POPULATION, 2)
            weights = (scores[:, 0] - scores[:, 1]) / (scores.std() + 1e-8)
            noise = np.stack([np.random.default_rng(s).standard_normal(SIZE) for s in seeds])
            theta = theta + RATE / (POPULATION * SIGMA) * weights @ noise
            generation += 1
            pace.add(len(jobs) * 100)
            if generation % 10 == 0:
                print(f"generation {generation}: mean score {scores.mean():.2f}")
        pool.close()
        pool.join()
    pace.report()


if __name__ == "__main__":
    main()
