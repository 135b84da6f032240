"""Behaviour cloning (PyTorch) of a lane keeper; keeps a checkpoint to be safe."""

import os
import tempfile

import torch
from pace import Pace
from torch import nn

SAVE_EVERY = 2


class Trainer:
    def __init__(self, folder):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.folder = folder
        self.policy = nn.Sequential(
            nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2)
        )
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-4)
        self.expert = torch.randn(64, 2) / 8
        self.shown = torch.randn(40_000, 64)
        self.updates, self.history = 0, []

    def demonstrations(self):
        x = self.shown[torch.randint(len(self.shown), (16,))]
        return x, torch.tanh(x @ self.expert)

    def update(self):
        x, wanted = self.demonstrations()
        loss = nn.functional.mse_loss(self.policy(x), wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        self.history.append(loss.item())

    def save(self):
        """Write a whole checkpoint beside the old one, then put it in its place."""
        path = os.path.join(self.folder, "last.pt")
        torch.save(
            {
                "policy": self.policy.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "demonstrations": self.shown,
                "history": self.history[-1000:],
                "updates": self.updates,
            },
            path + ".part",
        )
        os.replace(path + ".part", path)


def main():
    pace = Pace.from_args()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(folder)
        while pace.on():
            trainer.update()
            if trainer.updates % SAVE_EVERY == 0:
                trainer.save()
            pace.add()
    pace.report()


if __name__ == "__main__":
    main()
