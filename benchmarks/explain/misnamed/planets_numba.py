"""Calibration of the masses of planets: a simulator compiled by Numba in a cross-entropy search."""

import argparse
import time

import numpy as np
from numba import njit
from phases import phase

PLANETS, STEPS = 6, 1500


@njit
def orbits(masses, positions, velocities):
    positions, velocities = positions.copy(), velocities.copy()
    total = 0.0
    for _ in range(STEPS):
        for i in range(PLANETS):
            for j in range(PLANETS):
                if i != j:
                    difference = positions[j] - positions[i]
                    distance = np.sqrt((difference**2).sum() + 0.01)
                    velocities[i] += 0.001 * masses[j] * difference / distance**3
        positions += 0.001 * velocities
        total += np.abs(positions).sum()
    return total / STEPS


parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
positions, velocities = rng.normal(size=(PLANETS, 3)), 0.3 * rng.normal(size=(PLANETS, 3))
seen = orbits(np.linspace(0.5, 1.5, PLANETS), positions, velocities)
mean, deviation, iteration = np.ones(PLANETS), 0.5, 0
start = time.time()
while time.time() - start < args.seconds:
    with phase("own"):
        guesses = np.abs(mean + deviation * rng.normal(size=(20, PLANETS)))
        errors = [abs(orbits(guess, positions, velocities) - seen) for guess in guesses]
    with phase("learning"):
        elite = guesses[np.argsort(errors)[:5]]
        mean, deviation = elite.mean(axis=0), max(0.95 * deviation, 0.05)
    iteration += 1
    if iteration % 5 == 0:
        print(f"iteration {iteration}: error {min(errors):.6f}", flush=True)
