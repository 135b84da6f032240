"""Double Q-learning on MountainCar; after some updates the greedy policy plays a few games."""

import argparse
import random
import time
from collections import deque

import gymnasium as gym
import torch
import torch.nn as nn
import torch.nn.functional as F
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

random.seed(args.seed)
torch.manual_seed(args.seed)
world, arena = gym.make("MountainCar-v0"), gym.make("MountainCar-v0")
net, slow = (nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 3)) for _ in range(2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
seen = deque(maxlen=10000)


def play(games=8):
    total = 0.0
    for game in range(games):
        state, over = arena.reset(seed=game)[0], False
        while not over:
            with torch.no_grad():
                move = int(net(torch.as_tensor(state)).argmax())
            state, reward, terminated, truncated, _ = arena.step(move)
            total, over = total + reward, terminated or truncated
    return total / games


state, turn, start = world.reset(seed=args.seed)[0], 0, time.time()
while time.time() - start < args.seconds:
    with phase("acting"), torch.no_grad():
        greedy = int(net(torch.as_tensor(state)).argmax())
    move = greedy if random.random() > 0.1 else random.randrange(3)
    with phase("env"):
        following, reward, terminated, truncated, _ = world.step(move)
    seen.append((torch.as_tensor(state), move, reward, torch.as_tensor(following), terminated))
    state, turn = following, turn + 1
    if terminated or truncated:
        state, _ = world.reset()
    if turn > 64 and turn % 8 == 0:
        with phase("replay"):
            s, a, r, n, d = (list(part) for part in zip(*random.sample(seen, 64)))
            s, n, a, r, d = torch.stack(s), torch.stack(n), *map(torch.tensor, (a, r, d))
        with phase("learning"):
            with torch.no_grad():
                best = net(n).argmax(1, keepdim=True)
                target = r + 0.98 * slow(n).gather(1, best).squeeze(1) * ~d
            loss = F.smooth_l1_loss(net(s).gather(1, a[:, None]).squeeze(1), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if turn % 100 == 0:
        slow.load_state_dict(net.state_dict())
        with phase("evaluation"):
            points = play()
        print(f"turn {turn}: {points:.1f} points", flush=True)
