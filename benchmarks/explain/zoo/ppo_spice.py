"""PPO (PyTorch) on a market of spices: ten epochs over each rollout, in small minibatches."""

from dataclasses import dataclass

import torch
from pace import Pace
from torch import nn
from torch.distributions import Normal


@dataclass
class Config:
    traders: int = 64
    horizon: int = 32
    epochs: int = 10
    minibatch: int = 8
    clip: float = 0.2
    gamma: float = 0.97


class Market:
    """Prices revert to a mean; a trader is paid for what it holds."""

    def __init__(self, cfg):
        self.price, self.held = torch.randn(cfg.traders, 5), torch.zeros(cfg.traders, 5)

    def observe(self):
        return torch.cat([self.price, self.held], 1)

    def step(self, trade):
        before = self.price
        self.price = 0.95 * self.price + 0.2 * torch.randn_like(self.price)
        self.held = (self.held + 0.1 * trade).clamp(-1, 1)
        return (self.held * (self.price - before)).sum(1) - 0.01 * trade.abs().sum(1)


class Brain(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
                                nn.Linear(64, 5))  # fmt: skip
        self.value = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1))
        self.log_std = nn.Parameter(torch.full((5,), -0.5))

    def dist(self, x):
        return Normal(self.mu(x), self.log_std.exp())


def ppo_epochs(brain, opt, cfg, data, pace):
    x, a, logp_old, ret, adv = data
    for _ in range(cfg.epochs):
        for rows in torch.randperm(len(x)).split(cfg.minibatch):
            logp = brain.dist(x[rows]).log_prob(a[rows]).sum(1)
            ratio = (logp - logp_old[rows]).exp()
            clipped = ratio.clamp(1 - cfg.clip, 1 + cfg.clip)
            policy_loss = -torch.min(ratio * adv[rows], clipped * adv[rows]).mean()
            value_loss = (brain.value(x[rows])[:, 0] - ret[rows]).pow(2).mean()
            opt.zero_grad()
            (policy_loss + 0.5 * value_loss).backward()
            nn.utils.clip_grad_norm_(brain.parameters(), 0.5)
            opt.step()
            pace.add()
            if not pace.on():
                return


def main():
    cfg, pace = Config(), Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    market, brain = Market(cfg), Brain()
    opt = torch.optim.Adam(brain.parameters(), lr=3e-4)
    while pace.on():
        obs, acts, logps, rewards = [], [], [], []
        with torch.no_grad():
            for _ in range(cfg.horizon):
                x = market.observe()
                d = brain.dist(x)
                a = d.sample()
                obs.append(x)
                acts.append(a)
                logps.append(d.log_prob(a).sum(1))
                rewards.append(market.step(a))
            ret, returns = brain.value(market.observe())[:, 0], []
            for r in reversed(rewards):
                ret = r + cfg.gamma * ret
                returns.append(ret)
            x, ret = torch.cat(obs), torch.cat(returns[::-1])
            adv = ret - brain.value(x)[:, 0]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        ppo_epochs(brain, opt, cfg, (x, torch.cat(acts), torch.cat(logps), ret, adv), pace)
    pace.report()


if __name__ == "__main__":
    main()
