"""Bootstrap of a regression: every iteration starts a pool of processes for its resamples."""

import argparse
import multiprocessing as mp
import time

import numpy as np
from phases import phase


def fit(job):
    seed, x, y = job
    rows = np.random.default_rng(seed).integers(0, len(x), len(x))
    return np.linalg.solve(x[rows].T @ x[rows] + 0.1 * np.eye(x.shape[1]), x[rows].T @ y[rows])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rng = np.random.default_rng(args.seed)
    truth = rng.normal(size=8)
    spread, iteration, start = 0.0, 0, time.time()
    while time.time() - start < args.seconds:
        x = rng.normal(size=(300, 8))
        y = x @ truth + rng.normal(size=300)
        jobs = [(int(seed), x, y) for seed in rng.integers(0, 2**31, 8)]
        with phase("processes"):
            pool = mp.Pool(4)
        with phase("waiting"):
            weights = pool.map(fit, jobs)
        with phase("processes"):
            pool.close()
            pool.join()
        spread += np.std(weights, axis=0).mean()
        iteration += 1
        if iteration % 10 == 0:
            print(f"iteration {iteration}: spread {spread / iteration:.4f}", flush=True)


if __name__ == "__main__":
    main()
