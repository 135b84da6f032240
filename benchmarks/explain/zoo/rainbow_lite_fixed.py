"""`rainbow_lite.py` with its priorities in a NumPy array: a sum and a binary search."""

import numpy as np
import rainbow_lite
from rainbow_lite import ALPHA, BATCH, BETA, CAPACITY


class Prioritised(rainbow_lite.Prioritised):
    def __init__(self):
        super().__init__()
        self.priorities = np.zeros(CAPACITY)

    def add(self, item, priority=1.0):
        if len(self.data) < CAPACITY:
            self.priorities[len(self.data)] = priority
            self.data.append(item)
        else:
            self.data[self.at], self.priorities[self.at] = item, priority
            self.at = (self.at + 1) % CAPACITY

    def sample(self):
        sums = np.cumsum(self.priorities**ALPHA)
        idx = np.searchsorted(sums, np.random.uniform(0, sums[-1], BATCH))
        chances = self.priorities[idx] ** ALPHA / sums[-1]
        return idx, [self.data[i] for i in idx], (len(self.data) * chances) ** -BETA


rainbow_lite.Prioritised = Prioritised

if __name__ == "__main__":
    rainbow_lite.main()
