"""`dqn_breaker.py` drawing 64 random indices instead of a permutation of the whole memory."""

import dqn_breaker
import numpy as np
import torch


def minibatch(memory):
    picks = np.random.randint(0, len(memory), dqn_breaker.BATCH)
    rows = [memory[i] for i in picks]
    s, a, r, s2, d = zip(*rows, strict=True)
    return (
        torch.from_numpy(np.stack(s)), torch.tensor(a), torch.tensor(r, dtype=torch.float32),
        torch.from_numpy(np.stack(s2)), torch.tensor(d, dtype=torch.float32),
    )  # fmt: skip


dqn_breaker.minibatch = minibatch

if __name__ == "__main__":
    dqn_breaker.main()
