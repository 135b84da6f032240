"""`petals.py` with two worker processes that load and augment."""

import petals
import torch


def loader(data):
    return torch.utils.data.DataLoader(
        data, batch_size=petals.BATCH, shuffle=True, drop_last=True,
        num_workers=2, persistent_workers=True, multiprocessing_context="spawn",
    )  # fmt: skip


petals.loader = loader

if __name__ == "__main__":
    petals.main()
