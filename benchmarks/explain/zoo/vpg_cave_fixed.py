"""`vpg_cave.py` with every episode padded to 1,200 steps, the padding masked out."""

import numpy as np
import vpg_cave

prepare = vpg_cave.prepare


def padded(obs, actions):
    columns = prepare(obs, actions)
    return [np.pad(c, [(0, 1200 - len(c))] + [(0, 0)] * (c.ndim - 1)) for c in columns]


vpg_cave.prepare = padded

if __name__ == "__main__":
    vpg_cave.main()
