"""Separable CMA-ES for a softmax classifier of 8x8 digits, with concurrent.futures."""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from phases import phase


def make_digits(rng, n=1797):
    templates = rng.uniform(0, 16, (10, 64))
    y = rng.integers(0, 10, n)
    x = np.clip(templates[y] + rng.normal(0, 6, (n, 64)), 0, 16) / 16
    return x, y


def fitness(params, x, y):
    w, b = params[:640].reshape(64, 10), params[640:]
    logits = x @ w + b
    logits -= logits.max(axis=1, keepdims=True)
    log_z = np.log(np.exp(logits).sum(axis=1))
    return float((log_z - logits[np.arange(len(y)), y]).mean())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    rng = np.random.default_rng(args.seed)
    x, y = make_digits(rng)

    n, popsize = 650, 48
    mu = popsize // 2
    weights = np.log(mu + 0.5) - np.log(np.arange(1, mu + 1))
    weights /= weights.sum()
    mueff = 1 / (weights**2).sum()
    cs = (mueff + 2) / (n + mueff + 5)
    cc = (4 + mueff / n) / (n + 4 + 2 * mueff / n)
    c1 = 2 / ((n + 1.3) ** 2 + mueff) * (n + 2) / 3
    cmu = min(1 - c1, 2 * (mueff - 2 + 1 / mueff) / ((n + 2) ** 2 + mueff) * (n + 2) / 3)
    damps = 1 + cs + 2 * max(0, np.sqrt((mueff - 1) / (n + 1)) - 1)
    chi_n = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))

    mean, sigma, c = np.zeros(n), 0.3, np.ones(n)
    ps, pc = np.zeros(n), np.zeros(n)
    generation = 0
    start = time.time()
    with ProcessPoolExecutor(max_workers=args.workers) as executor:
        while time.time() - start < args.seconds:
            with phase("learning"):
                steps = rng.standard_normal((popsize, n)) * np.sqrt(c)
                population = mean + sigma * steps
            with phase("waiting"):
                futures = [executor.submit(fitness, p, x, y) for p in population]
                losses = np.array([f.result() for f in futures])
            with phase("learning"):
                best = np.argsort(losses)[:mu]
                step = weights @ steps[best]
                mean = mean + sigma * step
                ps = (1 - cs) * ps + np.sqrt(cs * (2 - cs) * mueff) * step / np.sqrt(c)
                pc = (1 - cc) * pc + np.sqrt(cc * (2 - cc) * mueff) * step
                c = (1 - c1 - cmu) * c + c1 * pc**2 + cmu * (weights @ steps[best] ** 2)
                sigma *= np.exp((cs / damps) * (np.linalg.norm(ps) / chi_n - 1))
            generation += 1
            if generation % 20 == 0:
                print(f"generation {generation}: best {losses.min():.4f}, sigma {sigma:.4f}")


if __name__ == "__main__":
    main()
