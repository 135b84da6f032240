"""A2C (PyTorch) steering a tanker: a Gymnasium environment with an integrator written in Python."""

import math

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from pace import Pace
from torch import nn
from torch.distributions import Categorical

ENVS, HORIZON, GAMMA = 4, 16, 0.98


class Tanker(gym.Env):
    """Keep the ship on its course against waves; 1,000 integration steps for each action."""

    observation_space = spaces.Box(-np.inf, np.inf, (6,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = [0.0, 0.0, float(self.np_random.normal(0, 0.3)), 2.0, 0.0, 0.0]
        self.t = 0
        return np.array(self.x, np.float32), {}

    def derivatives(self, x, rudder, wave):
        _, _, heading, speed, drift, turn = x
        return [
            speed * math.cos(heading) - drift * math.sin(heading),
            speed * math.sin(heading) + drift * math.cos(heading),
            turn,
            0.05 * (3.0 - speed * abs(speed) * 0.3) - 0.1 * abs(rudder) * speed,
            -0.4 * drift + 0.05 * turn * speed + 0.02 * wave,
            -0.6 * turn + 0.35 * rudder * speed + 0.1 * wave - 0.05 * drift,
        ]

    def step(self, action):
        rudder, h = (int(action) - 1) * 0.4, 0.001
        for k in range(1000):
            wave = math.sin(0.7 * (self.t + k * h)) + 0.5 * math.sin(1.9 * (self.t + k * h))
            k1 = self.derivatives(self.x, rudder, wave)
            mid = [x + 0.5 * h * d for x, d in zip(self.x, k1, strict=True)]
            k2 = self.derivatives(mid, rudder, wave)
            self.x = [x + h * d for x, d in zip(self.x, k2, strict=True)]
        self.t += 1
        off = abs(self.x[1]) + abs(self.x[2])
        return np.array(self.x, np.float32), 1.0 - 0.1 * off, off > 15, self.t >= 300, {}


def make_envs():
    return gym.vector.SyncVectorEnv([Tanker] * ENVS)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi, self.v = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, x):
        x = self.body(x)
        return self.pi(x), self.v(x).squeeze(-1)


def main():
    pace = Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    envs, net = make_envs(), ActorCritic()
    optimiser = torch.optim.RMSprop(net.parameters(), lr=7e-4)
    obs, _ = envs.reset(seed=0)
    while pace.on():
        log_probs, values, rewards, goes_on = [], [], [], []
        for _ in range(HORIZON):
            logits, value = net(torch.from_numpy(obs))
            dist = Categorical(logits=logits)
            action = dist.sample()
            obs, reward, terminated, truncated, _ = envs.step(action.numpy())
            log_probs.append(dist.log_prob(action))
            values.append(value)
            rewards.append(torch.as_tensor(reward, dtype=torch.float32))
            goes_on.append(torch.as_tensor(~(terminated | truncated), dtype=torch.float32))
        with torch.no_grad():
            ret = net(torch.from_numpy(obs))[1]
        returns = []
        for r, alive in zip(reversed(rewards), reversed(goes_on), strict=True):
            ret = r + GAMMA * alive * ret
            returns.append(ret)
        advantage = torch.stack(returns[::-1]) - torch.stack(values)
        policy_loss = -(torch.stack(log_probs) * advantage.detach()).mean()
        loss = policy_loss + 0.5 * advantage.pow(2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        pace.add(ENVS * HORIZON)
    envs.close()
    pace.report()


if __name__ == "__main__":
    main()
