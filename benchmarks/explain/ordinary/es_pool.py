"""Evolution strategies on CartPole with a pool of processes."""

import argparse
import multiprocessing as mp
import time

import gymnasium as gym
import numpy as np
from phases import phase

HIDDEN = 16
NUM_PARAMS = 4 * HIDDEN + HIDDEN + HIDDEN * 2 + 2


def policy(params, obs):
    w1 = params[: 4 * HIDDEN].reshape(4, HIDDEN)
    b1 = params[4 * HIDDEN : 5 * HIDDEN]
    w2 = params[5 * HIDDEN : 7 * HIDDEN].reshape(HIDDEN, 2)
    b2 = params[7 * HIDDEN :]
    return int(np.argmax(np.tanh(obs @ w1 + b1) @ w2 + b2))


def evaluate(job):
    params, seed = job
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=seed)
    total_reward, done = 0.0, False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(policy(params, obs))
        total_reward += reward
        done = terminated or truncated
    env.close()
    return total_reward


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    population_size, sigma, learning_rate = 40, 0.1, 0.05
    rng = np.random.default_rng(args.seed)
    params = 0.1 * rng.normal(size=NUM_PARAMS)
    generation = 0
    with mp.Pool(processes=mp.cpu_count()) as pool:
        start = time.time()
        while time.time() - start < args.seconds:
            with phase("learning"):
                noise = rng.normal(size=(population_size, NUM_PARAMS))
                jobs = [
                    (params + sigma * n, int(seed))
                    for n, seed in zip(noise, rng.integers(0, 2**31, population_size))
                ]
            with phase("waiting"):
                rewards = np.array(pool.map(evaluate, jobs))
            with phase("learning"):
                scores = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
                params = params + learning_rate / (population_size * sigma) * noise.T @ scores
            generation += 1
            if generation % 10 == 0:
                print(f"generation {generation}: mean {rewards.mean():.1f} max {rewards.max():.0f}")


if __name__ == "__main__":
    main()
