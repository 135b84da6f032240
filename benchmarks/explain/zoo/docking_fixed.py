"""`docking`, with a sum tree in NumPy for the priorities."""

import docking
import numpy as np


class PrioritizedMemory:
    def __init__(self, capacity, alpha=0.6):
        self.capacity = capacity
        self.alpha = alpha
        self.transitions = []
        self.levels = 1 << (capacity - 1).bit_length()
        self.tree = np.zeros(2 * self.levels)
        self.pos = 0

    def push(self, transition, priority):
        if len(self.transitions) < self.capacity:
            self.transitions.append(transition)
        else:
            self.transitions[self.pos] = transition
        node = self.pos + self.levels
        change = priority**self.alpha - self.tree[node]
        while node:
            self.tree[node] += change
            node >>= 1
        self.pos = (self.pos + 1) % self.capacity

    def sample(self, n, beta):
        node, left = np.ones(n, np.int64), np.random.rand(n) * self.tree[1]
        while node[0] < self.levels:
            node *= 2
            right = left >= self.tree[node]
            left -= np.where(right, self.tree[node], 0.0)
            node += right
        idx = np.minimum(node - self.levels, len(self.transitions) - 1)
        p = self.tree[idx + self.levels] / self.tree[1]
        weights = (len(self.transitions) * p) ** (-beta)
        return idx, weights / weights.max(), [self.transitions[i] for i in idx]

    def update(self, idx, priorities):
        node = idx + self.levels
        self.tree[node] = np.asarray(priorities) ** self.alpha
        while node[0] > 1:
            node = np.unique(node // 2)
            self.tree[node] = self.tree[2 * node] + self.tree[2 * node + 1]


docking.PrioritizedMemory = PrioritizedMemory

if __name__ == "__main__":
    docking.main()
