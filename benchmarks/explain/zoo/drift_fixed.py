"""`drift`, whose batches are filled up to always the same length."""

import drift
import numpy as np

LENGTH = drift.EPISODES * drift.LIMIT
plain = drift.batch


def batch(parts):
    columns = plain(parts)
    missing = LENGTH - len(columns[1])
    return tuple(np.pad(c, [(0, missing)] + [(0, 0)] * (c.ndim - 1)) for c in columns)


drift.batch = batch

if __name__ == "__main__":
    drift.main()
