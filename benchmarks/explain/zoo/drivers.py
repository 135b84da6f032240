"""PPO-like learning (PyTorch) with four simulators in processes that send camera pictures."""

import multiprocessing as mp

import numpy as np
import torch
from pace import Pace, end_with_parent
from torch import nn

CARS, STEPS, SHAPE = 4, 16, (4, 160, 160)


class Road:
    """A road that winds; the picture is the stack of the last four views."""

    def __init__(self, number):
        rng = np.random.default_rng(number)
        self.film = rng.random((64, 160, 160), dtype=np.float32)
        self.at, self.place = number, 0.0

    def reset(self):
        self.place = 0.0
        return self.views()

    def views(self):
        start = self.at % 60
        return self.film[start : start + 4]

    def step(self, action):
        self.at += 1
        self.place += 0.1 * (action - 1) + 0.05 * np.sin(self.at / 7)
        return self.views(), 1.0 - abs(self.place), abs(self.place) > 1.5


class Simulator:
    """The parent's end of a simulator process."""

    def __init__(self, context, number):
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, number), daemon=True)
        self.process.start()

    def send(self, action):
        self.pipe.send(action)

    def receive(self):
        return self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join()


def serve(pipe, number):
    """Answers an action with (picture, reward, done)."""
    end_with_parent()
    road = Road(number)
    while (action := pipe.recv()) is not None:
        obs, reward, done = road.step(action)
        pipe.send((road.reset() if done else obs, reward, done))


def gather(simulators):
    """All simulators' answers, the pictures as one array."""
    answers = [simulator.receive() for simulator in simulators]
    pictures, rewards, dones = zip(*answers, strict=True)
    return np.stack(pictures), np.array(rewards, np.float32), np.array(dones)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(400, 64), nn.ReLU())
        self.pi, self.v = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, x):
        x = self.body(x)
        return torch.distributions.Categorical(logits=self.pi(x)), self.v(x)[:, 0]


def main(simulator=Simulator):
    pace = Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    context = mp.get_context("spawn")
    cars = [simulator(context, number) for number in range(CARS)]
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
    for car in cars:
        car.send(1)
    pictures, _, _ = gather(cars)
    while pace.on():
        seen, acts, rewards = [], [], []
        for _ in range(STEPS):
            with torch.no_grad():
                small = torch.from_numpy(pictures)[:, :, ::16, ::16]
                action = policy(small)[0].sample()
            for car, a in zip(cars, action.tolist(), strict=True):
                car.send(a)
            pictures, reward, _ = gather(cars)
            seen.append(small)
            acts.append(action)
            rewards.append(torch.from_numpy(reward))
        x, a = torch.cat(seen), torch.cat(acts)
        gain = torch.cat(rewards)
        dist, value = policy(x)
        advantage = gain - value
        loss = -(dist.log_prob(a) * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        pace.add(CARS * STEPS)
    for car in cars:
        car.close()
    pace.report()


if __name__ == "__main__":
    main()
