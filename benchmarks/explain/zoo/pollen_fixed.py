"""`pollen`, whose loader has two workers that stay."""

import numpy as np
import pollen
import torch
from pace import end_with_parent
from torch.utils.data import DataLoader


def start(worker):
    end_with_parent()
    np.random.seed(torch.initial_seed() % 2**32)


def train_dataloader(self):
    return DataLoader(
        self.train_set,
        batch_size=pollen.BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=4,
        worker_init_fn=start,
    )


pollen.PollenData.train_dataloader = train_dataloader

if __name__ == "__main__":
    pollen.main()
