"""DQN on CartPole (PyTorch) in the teaching style: an Agent with act, remember and learn."""

import gymnasium as gym
import numpy as np
import torch
from pace import Pace
from torch import nn


def build(inputs, outputs):
    layers, width = [], inputs
    for size in (128, 128, 128, 128, 128):
        layers += [nn.Linear(width, size), nn.LayerNorm(size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, outputs))


class Agent:
    def __init__(self, inputs, outputs):
        self.actions = outputs
        self.model, self.target = build(inputs, outputs), build(inputs, outputs)
        self.target.load_state_dict(self.model.state_dict())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-4)
        self.memory = {
            "s": np.zeros((20000, inputs), np.float32), "a": np.zeros(20000, np.int64),
            "r": np.zeros(20000, np.float32), "s2": np.zeros((20000, inputs), np.float32),
            "d": np.zeros(20000, np.float32),
        }  # fmt: skip
        self.count, self.best = 0, []

    def act(self, state):
        x = torch.tensor(state, dtype=torch.float32).unsqueeze(0)
        q = self.model(x)
        self.best.append(q.max())
        self.best = self.best[-100:]
        if np.random.rand() < 0.05:
            return np.random.randint(self.actions)
        return torch.argmax(q, dim=1).item()

    def remember(self, *transition):
        i = self.count % 20000
        for name, value in zip(self.memory, transition, strict=True):
            self.memory[name][i] = value
        self.count += 1

    def learn(self):
        rows = np.random.randint(0, min(self.count, 20000), 64)
        s, a, r, s2, d = (torch.from_numpy(column[rows]) for column in self.memory.values())
        with torch.no_grad():
            y = r + 0.99 * (1 - d) * self.target(s2).max(1)[0]
        q = self.model(s).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    pace = Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    np.random.seed(0)
    env = gym.make("CartPole-v1")
    agent = Agent(4, 2)
    state, _ = env.reset(seed=0)
    step = 0
    while pace.on():
        action = agent.act(state)
        state2, reward, terminated, truncated, _ = env.step(action)
        agent.remember(state, action, reward, state2, terminated)
        state = env.reset()[0] if terminated or truncated else state2
        step += 1
        if step > 500 and step % 32 == 0:
            agent.learn()
        if step % 2000 == 0:
            agent.target.load_state_dict(agent.model.state_dict())
        pace.add()
    pace.report()


if __name__ == "__main__":
    main()
