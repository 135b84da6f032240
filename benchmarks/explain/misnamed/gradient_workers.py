"""Evolution of a large linear controller: six workers receive parameters and send gradients."""

import argparse
import multiprocessing as mp
import time

import numpy as np
from phases import phase

WORKERS, SIZE = 6, 250_000


def work(pipe, seed):
    rng = np.random.default_rng(seed)
    while True:
        params = pipe.recv()
        direction = int(rng.integers(SIZE // 64)) * 64
        gradient = np.zeros(SIZE)
        part = params[direction : direction + 64]
        for _ in range(5):
            gradient[direction : direction + 64] += part - np.tanh(rng.normal(size=64))
        pipe.send((float(part @ part), gradient))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    pipes = []
    for number in range(WORKERS):
        ours, theirs = mp.Pipe()
        process = mp.Process(target=work, args=(theirs, args.seed + number), daemon=True)
        process.start()
        pipes.append(ours)
    params = np.random.default_rng(args.seed).normal(size=SIZE)
    iteration, start = 0, time.time()
    while time.time() - start < args.seconds:
        with phase("waiting"):
            for pipe in pipes:
                pipe.send(params)
            answers = [pipe.recv() for pipe in pipes]
        with phase("learning"):
            for _, gradient in answers:
                params -= 0.1 * np.clip(gradient, -1.0, 1.0)
        iteration += 1
        if iteration % 20 == 0:
            mean = np.mean([score for score, _ in answers])
            print(f"iteration {iteration}: score {mean:.3f}", flush=True)


if __name__ == "__main__":
    main()
