"""Thermal soaring with a glider. DDPG, PyTorch. Results go to a run folder."""

import copy
import csv
import json
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from pace import Pace

config = {
    "seed": 3, "gamma": 0.98, "tau": 0.01, "batch": 64, "lr": 1e-3, "width": 128,
    "buffer": 80_000, "warmup": 500, "steps_per_update": 2, "save_every": 2,
}  # fmt: skip


class Glider:
    """state: position to the thermal (2), heading (2), sink rate, height"""

    def reset(self, rng):
        self.pos = rng.uniform(-3, 3, 2)
        self.heading = rng.uniform(0, 6.28)
        self.height, self.lift, self.t = 5.0, 0.0, 0
        return self.obs()

    def obs(self):
        nose = np.cos(self.heading), np.sin(self.heading)
        return np.array([*self.pos, *nose, self.lift, self.height / 10], dtype=np.float32)

    def step(self, action):
        self.heading += 0.3 * float(action[0])
        self.pos += 0.2 * np.array([np.cos(self.heading), np.sin(self.heading)])
        self.lift = 0.5 * np.exp(-(self.pos**2).sum() / 2) - 0.1 - 0.05 * float(action[0]) ** 2
        self.height += self.lift
        self.t += 1
        return self.obs(), self.lift, self.height <= 0 or self.t >= 500


def mlp(n_in, n_out, n):
    return nn.Sequential(
        nn.Linear(n_in, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n_out)
    )


def minimise(loss, opt):
    opt.zero_grad()
    loss.backward()
    opt.step()


class Recorder:
    """Keeps the run: metrics.csv, history.json, last.pt"""

    def __init__(self, folder):
        self.folder, self.history = folder, []
        self.file = open(os.path.join(folder, "metrics.csv"), "w", newline="")  # noqa: SIM115
        self.csv = csv.writer(self.file)

    def log(self, row):
        self.history.append(row)
        self.csv.writerow(row)
        self.file.flush()
        os.fsync(self.file.fileno())

    def save(self, nets, opts, data):
        path = os.path.join(self.folder, "last.pt")
        with open(path + ".tmp", "wb") as f:
            state = {k: v.state_dict() for k, v in (nets | opts).items()}
            torch.save(state | {"replay": torch.from_numpy(data)}, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".tmp", path)
        with open(os.path.join(self.folder, "history.json"), "w") as f:
            json.dump(self.history, f)


def main(c=config):
    torch.set_num_threads(1)
    rng = np.random.default_rng(c["seed"])
    env = Glider()
    nets = {"actor": mlp(6, 1, c["width"]), "q": mlp(7, 1, c["width"])}
    nets |= {k + "_target": copy.deepcopy(v) for k, v in nets.items()}
    opts = {k + "_opt": torch.optim.Adam(nets[k].parameters(), lr=c["lr"]) for k in ("actor", "q")}
    data = np.zeros((c["buffer"], 6 + 1 + 1 + 6 + 1), np.float32)
    n, update, ret, last_ret = 0, 0, 0.0, 0.0

    folder = tempfile.TemporaryDirectory(prefix="glider-")
    recorder = Recorder(folder.name)
    pace = Pace.from_args()
    s = env.reset(rng)
    while pace.on():
        for _ in range(c["steps_per_update"] if n >= c["warmup"] else c["warmup"]):
            with torch.no_grad():
                a = torch.tanh(nets["actor"](torch.from_numpy(s))).numpy()
            a = np.clip(a + 0.2 * rng.normal(size=1), -1, 1)
            s2, r, done = env.step(a)
            data[n % c["buffer"]] = np.concatenate([s, a, [r], s2, [done]])
            n, ret, s = n + 1, ret + r, s2
            if done:
                s, last_ret, ret = env.reset(rng), ret, 0.0
            pace.add(1)

        rows = torch.from_numpy(data[rng.integers(0, min(n, c["buffer"]), c["batch"])])
        bs, ba, br, bs2, bd = rows.split([6, 1, 1, 6, 1], dim=1)
        with torch.no_grad():
            a2 = torch.tanh(nets["actor_target"](bs2))
            target = br + c["gamma"] * (1 - bd) * nets["q_target"](torch.cat([bs2, a2], 1))
        loss = ((nets["q"](torch.cat([bs, ba], 1)) - target) ** 2).mean()
        minimise(loss, opts["q_opt"])
        pi = torch.tanh(nets["actor"](bs))
        minimise(-nets["q"](torch.cat([bs, pi], 1)).mean(), opts["actor_opt"])
        with torch.no_grad():
            for k in ("actor", "q"):
                for slow, p in zip(nets[k + "_target"].parameters(), nets[k].parameters()):  # noqa: B905
                    slow.lerp_(p, c["tau"])
        update += 1
        recorder.log([update, loss.item(), target.mean().item(), last_ret])
        if update % c["save_every"] == 0:
            recorder.save(nets, opts, data)
    recorder.file.close()
    folder.cleanup()
    pace.report()


if __name__ == "__main__":
    main()
