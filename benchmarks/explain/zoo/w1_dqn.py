"""A hobby program's DQN loop on Breakout in plain PyTorch: prints one JSON object on stdout.

The loop of a well-known kind of teaching program: one environment; every frame cropped, averaged
over colour and stacked three deep; the online network asked at every step, also where the action
is then random; transitions in a deque; every 4th step 64 indices from a permutation of the whole
memory, each looked up in the deque; mean squared error, Nesterov momentum. What differs from its
first author's, and in whose favour:

- Frames are kept as bytes and scaled when a batch is made. The original keeps each stack in float64
  (169 KB a step, 68 GB for 400,000), which this machine could not hold. Faster here, if anything.
- The memory is filled before the clock starts: `--played` steps are really played at random, and
  their transitions are entered again and again until `--filled` entries are there, each an object
  of its own. Its length, which decides what the permutation and the look-ups cost, is the real
  one; the frames behind the entries are fewer, which the processor's caches like.
- Nothing is saved to disk, and times at which an episode was cut are not stored as its end.
- Convolutions run on channels first, PyTorch's own order, with PyTorch's threads.

``window`` counts from the filled memory to the end; ``sample_s`` is the time in it that went into
drawing and assembling batches, of which ``draw_s`` is the permutation and the look-ups alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from typing import Any

STARTED = time.perf_counter()

FRAMES, TRAINING_INTERVAL, BATCH, NO_OPS = 3, 4, 64, 5
GAMMA, LEARNING_RATE, MOMENTUM = 0.99, 1e-3, 0.95
EPSILON, EPSILON_UPDATES = (1.0, 0.1), 2_000_000
COPY_EVERY = 10_000
WARM_UPDATES = 5
"""Updates before the window, in which PyTorch finds its kernels."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--seed", type=int, default=0)
    add("--filled", type=int, default=400_000, help="entries in the memory before the clock starts")
    add("--played", type=int, default=2000, help="of these, really played")
    add("--memory", type=int, default=500_000, help="the most entries that are kept")
    add("--updates", type=int, default=400, help="updates to make within the window")
    add("--device", default="cpu", help="of the networks; the original's was a GPU")
    add("--threads", type=int, default=0, help="PyTorch's threads (0: leave its default)")
    return parser.parse_args()


def main() -> None:
    """Fill the memory, run the loop and print the figures."""
    args = arguments()
    if args.threads:  # before PyTorch starts its pool
        os.environ["OMP_NUM_THREADS"] = str(args.threads)

    import ale_py
    import gymnasium
    import numpy as np
    import torch
    from torch import nn

    if args.threads:
        torch.set_num_threads(args.threads)

    def preprocess(obs: Any) -> Any:
        """The playing field at half the size, its colours' mean: ``[88, 80]`` bytes."""
        return obs[34:210:2, ::2].mean(axis=2).astype(np.uint8)

    def batch_of(states: list[Any]) -> Any:
        """Stacks ``[B, 3, 88, 80]`` in 0 to 1."""
        return torch.from_numpy(np.array(states)).to(args.device).float() / 255.0

    def network(actions: int) -> nn.Module:
        """Convolutions whose padding keeps the size, one dense layer, one output per action."""
        return nn.Sequential(
            nn.Conv2d(FRAMES, 32, 8, stride=4, padding=2), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 11 * 10, 512), nn.ReLU(), nn.Linear(512, actions),
        )  # fmt: skip

    class Loop:
        """The program's state: environment, memory, networks, counters."""

        def __init__(self) -> None:
            gymnasium.register_envs(ale_py)
            self.env = gymnasium.make(
                "ALE/Breakout-v5", frameskip=(2, 5), repeat_action_probability=0.25
            )
            self.actions = int(self.env.action_space.n)  # type: ignore[attr-defined]
            self.online, self.target = (network(self.actions).to(args.device) for _ in range(2))
            self.target.load_state_dict(self.online.state_dict())
            self.optimizer = torch.optim.SGD(
                self.online.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, nesterov=True
            )
            self.replay: deque[Any] = deque(maxlen=args.memory)
            self.state = self.reset(args.seed)
            self.iterations = self.updates = 0
            self.sample_s = self.draw_s = 0.0
            self.max_q: list[float] = []
            self.losses: list[float] = []

        def reset(self, seed: int | None = None) -> Any:
            """A new episode, which begins with no-ops; its first stack ``[3, 88, 80]``."""
            obs, _ = self.env.reset(seed=seed)
            for _ in range(NO_OPS):
                obs, *_ = self.env.step(0)
            return np.stack([preprocess(obs)] * FRAMES)

        def step(self, action: int) -> Any:
            """One step; its transition, and the next episode's first stack where one ended."""
            obs, reward, terminated, truncated, _ = self.env.step(action)
            following = np.concatenate([self.state[1:], preprocess(obs)[None]])
            made = self.state, action, reward, following, 1.0 - float(terminated)
            self.state = self.reset() if terminated or truncated else following
            return made

        def fill(self) -> None:
            """Random play, entered again and again."""
            played = [self.step(int(self.env.action_space.sample())) for _ in range(args.played)]
            for index in range(args.filled):
                entry = list(played[index % len(played)])  # a list first: the tuple is a new one
                self.replay.append(tuple(entry))

        def act(self) -> int:
            """Epsilon-greedy; the network runs in any case, for the mean of its largest value."""
            with torch.no_grad():
                values = self.online(batch_of([self.state]))[0].cpu().numpy()
            self.max_q.append(float(values.max()))
            first, last = EPSILON
            epsilon = max(last, first - (first - last) * self.updates / EPSILON_UPDATES)
            if np.random.rand() < epsilon:
                return int(np.random.randint(self.actions))
            return int(np.argmax(values))

        def sample(self) -> Any:
            """A minibatch: a permutation of the whole memory, cut, and looked up."""
            begin = time.perf_counter()
            indices = np.random.permutation(len(self.replay))[:BATCH]
            columns: list[list[Any]] = [[], [], [], [], []]
            for index in indices:
                for column, value in zip(columns, self.replay[index], strict=True):
                    column.append(value)
            drawn = time.perf_counter()
            states, actions, rewards, following, goes_on = columns
            batch = (
                batch_of(states), torch.tensor(actions).view(-1, 1).to(args.device),
                torch.tensor(rewards, dtype=torch.float).view(-1, 1).to(args.device),
                batch_of(following),
                torch.tensor(goes_on, dtype=torch.float).view(-1, 1).to(args.device),
            )  # fmt: skip
            self.draw_s += drawn - begin
            self.sample_s += time.perf_counter() - begin
            return batch

        def learn(self) -> None:
            """One update."""
            states, actions, rewards, following, goes_on = self.sample()
            with torch.no_grad():
                best = self.target(following).max(dim=1, keepdim=True)[0]
                targets = rewards + goes_on * GAMMA * best
            values = self.online(states).gather(1, actions)
            loss = torch.square(targets - values).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            if self.updates % COPY_EVERY == 0:
                self.target.load_state_dict(self.online.state_dict())
            self.updates += 1

        def run(self, updates: int) -> None:
            """The loop, until so many updates have been made in all."""
            while self.updates < updates:
                self.iterations += 1
                self.replay.append(self.step(self.act()))
                if self.iterations % TRAINING_INTERVAL == 0:
                    self.learn()

    imported = time.perf_counter()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    loop = Loop()
    loop.env.action_space.seed(args.seed)
    loop.fill()
    loop.run(WARM_UPDATES)
    loop.sample_s = loop.draw_s = 0.0
    ready = time.perf_counter()
    steps_before = loop.iterations
    loop.run(WARM_UPDATES + args.updates)
    trained = time.perf_counter()
    seconds = trained - ready

    print(
        json.dumps(
            {
                "seed": args.seed, "import_s": imported - STARTED, "startup_s": ready - imported,
                "train_s": seconds, "steps": loop.iterations, "updates": loop.updates,
                "filled": args.filled, "played": args.played, "stored": len(loop.replay),
                "window": {
                    "steps": loop.iterations - steps_before, "updates": args.updates, "s": seconds,
                },
                "sample_s": loop.sample_s, "draw_s": loop.draw_s,
                "return_mean_100": None, "loss_mean": float(np.mean(loop.losses)),
                "max_q_mean": float(np.mean(loop.max_q)),
                "threads": torch.get_num_threads(), "wall_s": time.perf_counter() - STARTED,
                "versions": {
                    "torch": torch.__version__, "gymnasium": gymnasium.__version__,
                    "ale-py": ale_py.__version__, "numpy": np.__version__,
                    "python": sys.version.split()[0],
                },
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
