"""A2C (PyTorch) with sixteen poles; each agent asks the shared network for its own action."""

import numpy as np
import torch
import torch.nn.functional as F
from pace import Pace
from torch import nn

N, T = 16, 8


class Poles:
    """Sixteen pole-balancing tasks as arrays."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.s = self.rng.uniform(-0.05, 0.05, (N, 4)).astype(np.float32)

    def step(self, a):
        _, v, th, w = self.s.T
        force = np.where(a == 1, 10.0, -10.0)
        s, c = np.sin(th), np.cos(th)
        tmp = (force + 0.05 * w**2 * s) / 1.1
        acc = (9.8 * s - c * tmp) / (0.5 * (4 / 3 - 0.1 * c**2 / 1.1))
        push = tmp - 0.05 * acc * c / 1.1
        move = np.stack([v, push, w, acc], 1)
        self.s = (self.s + 0.02 * move).astype(np.float32)
        done = (np.abs(self.s[:, 0]) > 2.4) | (np.abs(self.s[:, 2]) > 0.21)
        if done.any():
            self.s[done] = self.rng.uniform(-0.05, 0.05, (int(done.sum()), 4))
        return self.s, np.ones(N, np.float32), done


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = nn.Linear(4, 64), nn.Linear(64, 64)
        self.pi, self.v = nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, x):
        h = F.relu(self.l2(F.relu(self.l1(x))))
        return self.pi(h), self.v(h)


def decide(net, obs):
    """An action for each agent, and the value of where it is."""
    actions, values = np.zeros(N, np.int64), np.zeros(N, np.float32)
    with torch.no_grad():
        for i in range(N):
            logits, v = net(torch.tensor(obs[i]).unsqueeze(0))
            p = F.softmax(logits, dim=1)
            actions[i] = torch.multinomial(p, 1)[0, 0]
            values[i] = v[0, 0]
    return actions, values


def main():
    pace = Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    poles, net = Poles(), Net()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    obs = poles.s
    while pace.on():
        S, A, R, D = [], [], [], []
        for _ in range(T):
            a, _ = decide(net, obs)
            S.append(obs)
            obs, r, d = poles.step(a)
            A.append(a)
            R.append(r)
            D.append(d)
        ret, G = decide(net, obs)[1], []
        for r, d in zip(R[::-1], D[::-1], strict=True):
            ret = r + 0.99 * ret * (1 - d)
            G.insert(0, ret)
        s, a = torch.tensor(np.concatenate(S)), torch.tensor(np.concatenate(A))
        g = torch.tensor(np.concatenate(G), dtype=torch.float32)
        logits, v = net(s)
        adv = g - v[:, 0]
        loss = F.cross_entropy(logits, a, reduction="none") @ adv.detach() / len(a)
        loss = loss + 0.5 * (adv**2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        pace.add(N * T)
    pace.report()


if __name__ == "__main__":
    main()
