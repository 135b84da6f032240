"""A player with a memory for CartPole: its state is reset before each episode."""

import argparse
import time

import gymnasium as gym
import torch
import torch.nn as nn
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.GRUCell(4, 32)
        self.mind = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))

    def reset(self):
        self.state = torch.zeros(1, 32)
        self.history = []

    def step(self, picture):
        with torch.no_grad():
            self.state = self.memory(torch.as_tensor(picture)[None], self.state)
            chances = torch.softmax(self.mind(self.state), dim=1)
        move = torch.multinomial(chances, 1).item()
        self.history.append((picture, move))
        return move

    def log_probs(self):
        pictures = torch.stack([torch.as_tensor(picture) for picture, _ in self.history])
        moves = torch.tensor([move for _, move in self.history])
        state, outputs = torch.zeros(1, 32), []
        for picture in pictures[-30:]:
            state = self.memory(picture[None], state)
            outputs.append(state)
        logits = self.mind(torch.cat(outputs))
        return torch.log_softmax(logits, dim=1).gather(1, moves[-30:, None])


torch.manual_seed(args.seed)
world, player = gym.make("CartPole-v1"), Player()
optimizer = torch.optim.Adam(player.parameters(), lr=1e-3)
game, start = 0, time.time()
while time.time() - start < args.seconds:
    player.reset()
    picture, _ = world.reset(seed=args.seed + game)
    points, over = 0.0, False
    while not over:
        with phase("acting"):
            move = player.step(picture)
        with phase("env"):
            picture, point, lost, late, _ = world.step(move)
        points, over = points + point, lost or late
    game += 1
    if game % 8 == 0:
        with phase("learning"):
            loss = -player.log_probs().mean() * (points - 30) / 30
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"game {game}: {points:.0f} points", flush=True)
