"""Three arms reach for targets: two are simulated, the third stands on the bench.

NumPy only: online actor-critic on random features, shared by the arms.
"""

import multiprocessing as mp
import time

import numpy as np
from pace import Pace, end_with_parent

JOINTS, FEATURES, SUBSTEPS = 3, 400, 20
BENCH_PERIOD = 0.012  # seconds; its controller takes a command at each tick


class SimulatedArm:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.q, self.qd = np.zeros(JOINTS), np.zeros(JOINTS)
        self.target, self.age = self.rng.uniform(-1.5, 1.5, 2), 0

    def sense(self):
        return np.concatenate([np.sin(self.q), np.cos(self.q), self.qd, self.target])

    def move(self, torque):
        for _ in range(SUBSTEPS):
            self.qd += 0.002 * (5.0 * torque - 0.5 * self.qd - np.sin(self.q))
            self.q += 0.002 * self.qd

    def step(self, torque):
        self.move(np.clip(torque, -1, 1))
        tip = np.exp(1j * np.cumsum(self.q)).sum()
        gap = float(np.hypot(tip.real - self.target[0], tip.imag - self.target[1]))
        self.age += 1
        done = gap < 0.1 or self.age >= 250
        if done:
            self.target, self.age = self.rng.uniform(-1.5, 1.5, 2), 0
        return self.sense(), -gap, done


class BenchArm(SimulatedArm):
    """The same arm in the laboratory, played here by its simulation in real time."""

    def __init__(self, seed):
        super().__init__(seed)
        self.tick = time.monotonic()

    def move(self, torque):
        super().move(torque)
        self.tick = max(self.tick + BENCH_PERIOD, time.monotonic())
        time.sleep(max(0.0, self.tick - time.monotonic()))


def serve(kind, seed, conn):
    end_with_parent()
    arm = kind(seed)
    conn.send((arm.sense(), 0.0, False))
    while (torque := conn.recv()) is not None:
        conn.send(arm.step(torque))


class ActorCritic:
    def __init__(self, n_obs):
        self.rng = np.random.default_rng(0)
        self.proj = self.rng.normal(0, 0.7, (n_obs, FEATURES))
        self.value, self.mean = np.zeros(FEATURES), np.zeros((FEATURES, JOINTS))
        self.sigma = 0.3

    def features(self, obs):
        return np.sin(obs @ self.proj + np.arange(FEATURES)) * np.sqrt(2.0 / FEATURES)

    def act(self, phi):
        return phi @ self.mean + self.sigma * self.rng.normal(size=(len(phi), JOINTS))

    def learn(self, phi, action, reward, done, phi2):
        delta = reward + 0.97 * (1 - done) * (phi2 @ self.value) - phi @ self.value
        self.value += 0.1 * phi.T @ delta
        score = (action - phi @ self.mean) / self.sigma**2
        self.mean += 0.002 * phi.T @ (np.clip(delta, -1, 1)[:, None] * score)


def gather(conns):
    """What the arms answer: a list of (number of the arm, answer)."""
    return [(i, conn.recv()) for i, conn in enumerate(conns)]


def main():
    ctx = mp.get_context("spawn")
    conns, workers = [], []
    for seed, kind in enumerate([SimulatedArm, SimulatedArm, BenchArm]):
        here, there = ctx.Pipe()
        workers.append(ctx.Process(target=serve, args=(kind, seed, there), daemon=True))
        workers[-1].start()
        conns.append(here)

    first = np.stack([conn.recv()[0] for conn in conns])
    agent = ActorCritic(first.shape[1])
    phi = agent.features(first)
    actions = agent.act(phi)
    for conn, action in zip(conns, actions, strict=True):
        conn.send(action)
    pace = Pace.from_args()
    while pace.on():
        who, answers = zip(*gather(conns), strict=True)
        who = list(who)
        obs, reward, done = (np.array(part, float) for part in zip(*answers, strict=True))
        phi2 = agent.features(obs)
        agent.learn(phi[who], actions[who], reward, done, phi2)
        phi[who] = phi2
        actions[who] = agent.act(phi2)
        for i in who:
            conns[i].send(actions[i])
        pace.add(len(who))
    for conn, worker in zip(conns, workers, strict=True):
        conn.recv()
        conn.send(None)
        worker.join()
    pace.report()


if __name__ == "__main__":
    main()
