"""Two forklifts with cameras, each simulated in its own process; actor-critic, PyTorch."""

import multiprocessing as mp

import numpy as np
import torch
from pace import Pace, end_with_parent
from torch import nn
from torch.distributions import Categorical

H, W, HORIZON = 480, 640, 16
MOVES = 12.0 * np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])


class ForkliftSim:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.floor = self.rng.integers(60, 90, (H, W, 3), dtype=np.uint8)
        self.frames = {"front": self.floor.copy(), "rear": self.floor.copy()}
        self.depth = np.full((H, W), 8.0, np.float32)
        self.marks = []

    def reset(self):
        self.pose = self.rng.uniform(100, 380, 2)
        self.pallet = self.rng.uniform(100, 380, 2)
        self.t = 0
        return self.render()

    def paint(self, at, colour, depth):
        y, x = int(at[0]), int(at[1] * W / H)
        here = slice(max(y - 20, 0), y + 20), slice(max(x - 20, 0), x + 20)
        self.frames["front"][here] = colour
        self.frames["rear"][here] = colour[::-1]
        self.depth[here] = depth
        self.marks.append(here)

    def render(self):
        while self.marks:
            here = self.marks.pop()
            self.frames["front"][here] = self.frames["rear"][here] = self.floor[here]
            self.depth[here] = 8.0
        self.paint(self.pallet, (210, 160, 60), 5.0)
        self.paint(self.pose, (200, 30, 30), 2.0)
        return {**self.frames, "depth": self.depth, "odometry": self.pose / H}

    def step(self, action):
        before = np.abs(self.pose - self.pallet).sum()
        self.pose = np.clip(self.pose + MOVES[action], 0, H - 1)
        left = np.abs(self.pose - self.pallet).sum()
        self.t += 1
        done = left < 25 or self.t >= 200
        obs = self.reset() if done else self.render()
        return obs, (before - left) / 50.0 + (left < 25), done


def simulate(seed, pipe):
    end_with_parent()
    sim = ForkliftSim(seed)
    pipe.send(sim.reset())
    while (action := pipe.recv()) is not None:
        pipe.send(sim.step(action))


class Fleet:
    def __init__(self, n):
        self.pipes, self.processes = [], []
        for seed in range(n):
            ours, theirs = mp.Pipe()
            process = mp.Process(target=simulate, args=(seed, theirs), daemon=True)
            process.start()
            self.pipes, self.processes = [*self.pipes, ours], [*self.processes, process]

    def first(self):
        return [pipe.recv() for pipe in self.pipes]

    def step(self, actions):
        for pipe, action in zip(self.pipes, actions, strict=True):
            pipe.send(action)
        return [pipe.recv() for pipe in self.pipes]

    def close(self):
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join()


class Driver(nn.Module):
    def __init__(self):
        super().__init__()
        eye = [nn.Conv2d(7, 8, 5, stride=3), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()]
        self.net = nn.Sequential(
            *eye, nn.Flatten(), nn.Linear(640, 64), nn.ReLU(), nn.Linear(64, 5)
        )

    def forward(self, x):
        out = self.net(x)
        return Categorical(logits=out[:, :4]), out[:, 4]


def to_tensor(observations):
    rows = []
    for obs in observations:
        front, rear, depth = (obs[k][::12, ::12] for k in ("front", "rear", "depth"))
        rows.append(np.concatenate((front / 255.0, rear / 255.0, depth[..., None] / 8.0), -1))
    return torch.from_numpy(np.stack(rows).transpose(0, 3, 1, 2).astype(np.float32))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    fleet, driver = Fleet(2), Driver()
    x = to_tensor(fleet.first())
    optimizer = torch.optim.RMSprop(driver.parameters(), lr=3e-4)
    pace = Pace.from_args()
    while pace.on():
        steps = []
        for _ in range(HORIZON):
            policy, value = driver(x)
            actions = policy.sample()
            observations, rewards, dones = zip(*fleet.step(actions.tolist()), strict=True)
            x = to_tensor(observations)
            alive = 1.0 - torch.tensor(dones).float()
            steps.append((policy.log_prob(actions), value, torch.tensor(rewards).float(), alive))
        loss, ahead = 0.0, driver(x)[1].detach()
        for logp, value, reward, alive in reversed(steps):
            ahead = reward + 0.98 * alive * ahead
            advantage = ahead - value
            loss = loss + (0.5 * advantage.pow(2) - logp * advantage.detach()).mean()
        optimizer.zero_grad()
        (loss / HORIZON).backward()
        optimizer.step()
        pace.add(HORIZON * 2)
    fleet.close()
    pace.report()


if __name__ == "__main__":
    main()
