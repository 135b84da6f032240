"""Q-learning with linear features: a gatherer in a wood of rabbits and foxes, all in one file."""

import random
from collections import deque

import numpy as np
from pace import Pace

SIZE, RABBITS, FOXES = 20, 12, 4
MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0), (0, 0)]


class Wood:
    """Rabbits flee, foxes hunt along shortest paths around the trees, we gather rabbits."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.reset()

    def reset(self):
        cells = [(r, c) for r in range(SIZE) for c in range(SIZE)]
        self.rng.shuffle(cells)
        self.trees = set(cells[:70])
        free = cells[70:]
        self.me = free.pop()
        self.rabbits = [free.pop() for _ in range(RABBITS)]
        self.foxes = [free.pop() for _ in range(FOXES)]
        self.clock = 0
        return self.look()

    def neighbours(self, cell):
        for dr, dc in MOVES[:4]:
            r, c = cell[0] + dr, cell[1] + dc
            if 0 <= r < SIZE and 0 <= c < SIZE and (r, c) not in self.trees:
                yield (r, c)

    def path(self, start, goals):
        """The first cell on a shortest path to any of the goals."""
        came, queue = {start: start}, deque([start])
        while queue:
            cell = queue.popleft()
            if cell in goals and cell != start:
                while came[cell] != start:
                    cell = came[cell]
                return cell
            for near in self.neighbours(cell):
                if near not in came:
                    came[near] = cell
                    queue.append(near)
        return start

    def step(self, action):
        move = (self.me[0] + MOVES[action][0], self.me[1] + MOVES[action][1])
        if move == self.me or move in set(self.neighbours(self.me)):
            self.me = move
        reward = 0.0
        for i, rabbit in enumerate(self.rabbits):
            options = [*self.neighbours(rabbit), rabbit]
            self.rabbits[i] = max(
                options,
                key=lambda o: min(abs(o[0] - f[0]) + abs(o[1] - f[1]) for f in self.foxes),
            )
        caught = [r for r in self.rabbits if r == self.me]
        if caught:
            reward += len(caught)
            self.rabbits = [r for r in self.rabbits if r != self.me]
        prey = {*self.rabbits, self.me}
        self.foxes = [self.path(fox, prey) for fox in self.foxes]
        self.clock += 1
        eaten = self.me in self.foxes
        return self.look(), reward - eaten, eaten or not self.rabbits or self.clock >= 200

    def look(self):
        """What lies in the 5x5 cells around us: 75 zeros and ones."""
        seen = np.zeros((3, 5, 5))
        for layer, things in enumerate((self.trees, self.rabbits, self.foxes)):
            for r, c in things:
                dr, dc = r - self.me[0] + 2, c - self.me[1] + 2
                if 0 <= dr < 5 and 0 <= dc < 5:
                    seen[layer, dr, dc] = 1.0
        return seen.ravel()


def main():
    pace = Pace.from_args()
    rng = np.random.default_rng(0)
    world, weights = Wood(0), rng.normal(0, 0.01, (5, 75))
    x, total = world.look(), 0.0
    while pace.on():
        q = weights @ x
        a = int(rng.integers(5)) if rng.random() < 0.1 else int(q.argmax())
        x2, r, done = world.step(a)
        target = r if done else r + 0.97 * (weights @ x2).max()
        weights[a] += 0.01 * (target - q[a]) * x
        total += r
        x = world.reset() if done else x2
        pace.add()
    print(f"total reward {total:.0f}")
    pace.report()


if __name__ == "__main__":
    main()
