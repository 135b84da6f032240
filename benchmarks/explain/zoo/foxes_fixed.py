"""`foxes`, with the rabbits moved by NumPy, all pairs at once."""

import foxes
import numpy as np


def flock(self):
    at, speeds = np.array(self.rabbits), np.array(self.speeds)
    gaps = at[None] - at[:, None]
    d2 = (gaps * gaps).sum(-1) + 0.01
    near = d2 < 25.0
    np.fill_diagonal(near, False)
    pull = np.where(near, 0.01 - 0.02 / d2, 0.0)
    push = (pull[..., None] * gaps).sum(1)
    push += 0.01 * (near @ speeds - near.sum(1)[:, None] * speeds)
    away = at - self.fox
    push += 0.3 * away / ((away * away).sum(-1) + 0.1)[:, None]
    new = 0.9 * speeds + push
    new *= np.minimum(1.0, 0.35 / (np.hypot(new[:, 0], new[:, 1]) + 1e-6))[:, None]
    self.speeds = new.tolist()
    self.rabbits = np.clip(at + new, 0.0, foxes.SIZE).tolist()


foxes.Meadow.flock = flock

if __name__ == "__main__":
    foxes.main()
