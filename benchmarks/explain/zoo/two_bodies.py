"""A learner and an actor's copy of a big encoder with a small head (PyTorch); only the head learns.

After every update the actor gets all weights, by way of NumPy, as if it lived elsewhere.
"""

import torch
from pace import Pace
from torch import nn


class Encoder(nn.Module):
    """A pretrained table of embeddings and a narrow tower."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100_000, 64)
        self.tower = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 128))

    def forward(self, words):
        return self.tower(self.table(words).flatten(1))


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(128, 4)
        for p in self.encoder.parameters():
            p.requires_grad_(False)

    def forward(self, words):
        return self.head(torch.relu(self.encoder(words)))


def weights_of(body):
    return {name: value.detach().cpu().numpy().copy() for name, value in body.state_dict().items()}


def give(weights, body):
    tensors = {name: torch.tensor(value) for name, value in weights.items()}
    body.load_state_dict(tensors, strict=False)


def main():
    pace = Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    learner, actor = Body(), Body()
    opt = torch.optim.Adam(learner.head.parameters(), lr=1e-3)
    actor.load_state_dict(learner.state_dict())
    right = 0.0
    while pace.on():
        words = torch.randint(100_000, (256, 8))
        with torch.no_grad():
            dist = torch.distributions.Categorical(logits=actor(words))
            action = dist.sample()
        reward = (words[:, 0] % 4 == action).float()
        logp = learner(words).log_softmax(1).gather(1, action[:, None])[:, 0]
        loss = -(logp * (reward - reward.mean())).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        give(weights_of(learner), actor)
        right = 0.99 * right + 0.01 * reward.mean().item()
        pace.add()
    pace.report()


if __name__ == "__main__":
    main()
