"""Behaviour cloning with a small causal transformer over demonstrations of a reaching task."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from pace import Pace

CONTEXT, STATE, ACTION, WIDTH, HEADS, LAYERS, BATCH = 64, 12, 6, 128, 4, 3, 24


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(self.norm2(x))


class TrajectoryModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(STATE, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, ACTION))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(states) + self.position))


def demonstrations(episodes: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Arms that servo towards their goals: (goal, joint angles) and the expert's torques."""
    goal = torch.randn(episodes, STATE - ACTION)
    joints = torch.zeros(episodes, ACTION)
    states, actions = [], []
    for _ in range(length):
        action = torch.tanh(1.5 * (goal - joints)) + 0.05 * torch.randn_like(joints)
        states.append(torch.cat([goal, joints], dim=1))
        actions.append(action)
        joints = joints + 0.05 * action
    return torch.stack(states, 1), torch.stack(actions, 1)


def main() -> None:
    pace = Pace.from_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    states, actions = demonstrations(episodes=400, length=200)
    windows = torch.arange(CONTEXT)
    model = TrajectoryModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    running = 0.0
    step = 0
    while pace.on():
        episode = torch.randint(len(states), (BATCH, 1))
        at = torch.randint(states.shape[1] - CONTEXT, (BATCH, 1)) + windows
        loss = F.mse_loss(model(states[episode, at]), actions[episode, at])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running = 0.95 * running + 0.05 * loss.item()
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {running:.4f}")
        pace.add(BATCH * CONTEXT)
    pace.report()


if __name__ == "__main__":
    main()
