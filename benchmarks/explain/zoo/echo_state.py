"""A network by hand (NumPy): learns the value of random walks by plain back-propagation."""

from itertools import pairwise

import numpy as np
from pace import Pace

WIDTHS, BATCH = (128, 768, 768, 1), 512


class Network:
    def __init__(self, rng):
        self.weights = [
            (rng.normal(size=shape) * np.sqrt(2 / shape[0])).astype(np.float32)
            for shape in pairwise(WIDTHS)
        ]
        self.speeds = [np.zeros_like(w) for w in self.weights]

    def forward(self, x):
        layers = [x]
        for w in self.weights[:-1]:
            layers.append(np.maximum(layers[-1] @ w, 0))
        return layers, layers[-1] @ self.weights[-1]

    def learn(self, x, target, rate=1e-4, momentum=0.9):
        layers, value = self.forward(x)
        delta = (value - target) / len(x)
        for i in reversed(range(len(self.weights))):
            grad = layers[i].T @ delta
            if i:
                delta = (delta @ self.weights[i].T) * (layers[i] > 0)
            self.speeds[i] *= momentum
            self.speeds[i] -= rate * grad
            self.weights[i] += self.speeds[i]
        return float(np.square(value - target).mean())


def main():
    pace = Pace.from_args()
    rng = np.random.default_rng(0)
    network = Network(rng)
    walks = rng.normal(size=(20_000, WIDTHS[0])).astype(np.float32).cumsum(0) * 0.02
    rewards = np.tanh(walks[:, :1])
    while pace.on():
        rows = rng.integers(0, len(walks) - 1, BATCH)
        ahead = network.forward(walks[rows + 1])[1]
        loss = network.learn(walks[rows], rewards[rows] + 0.9 * ahead)
        pace.add()
    print(f"loss {loss:.4f}")
    pace.report()


if __name__ == "__main__":
    main()
