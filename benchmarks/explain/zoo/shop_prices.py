"""A bandit that sets prices (NumPy, Thompson sampling, linear model), with a careful journal."""

import json
import os
import tempfile
import time

import numpy as np
from pace import Pace

FEATURES, PRICES = 12, 5


class Journal:
    """Every decision is on disk before the next one is made."""

    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def write(self, **record):
        record["time"] = time.time()
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self):
        self.file.close()


class Linear:
    """A Gaussian belief over the weights of each price."""

    def __init__(self):
        self.precision = np.tile(np.eye(FEATURES), (PRICES, 1, 1))
        self.moment = np.zeros((PRICES, FEATURES))

    def pick(self, x, rng):
        draws = [
            np.linalg.solve(p, m) @ x + rng.normal() * np.sqrt(x @ np.linalg.solve(p, x))
            for p, m in zip(self.precision, self.moment, strict=True)
        ]
        return int(np.argmax(draws))

    def learn(self, price, x, y):
        self.precision[price] += np.outer(x, x)
        self.moment[price] += y * x


def customer(rng):
    return np.abs(rng.normal(size=FEATURES)) / 4


if __name__ == "__main__":
    pace = Pace.from_args()
    rng = np.random.default_rng(0)
    taste = rng.normal(0, 1, (PRICES, FEATURES))
    model, earned = Linear(), 0.0
    disk = "/var/tmp" if os.path.isdir("/var/tmp") else None  # /tmp may be memory
    with tempfile.TemporaryDirectory(dir=disk) as top:
        journal = Journal(os.path.join(top, "decisions.jsonl"))
        while pace.on():
            x = customer(rng)
            price = model.pick(x, rng)
            paid = float(taste[price] @ x + rng.normal(0, 0.3))
            model.learn(price, x, paid)
            earned += paid
            journal.write(price=price, paid=paid, earned=earned, customer=x.tolist())
            pace.add()
        journal.close()
    pace.report()
