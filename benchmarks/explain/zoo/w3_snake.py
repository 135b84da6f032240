"""A hobby program's many actors on Snake in plain PyTorch: prints one JSON object on stdout.

The structure of a well-known kind of teaching program: one master and N actor processes with a pipe
each. A round: the master saves the weights to a file and says "load"; every actor loads its own
model from it and plays games, one state at a time, until it has its steps; it sends them as
pickled batches; when all have come, the master learns from one batch after the other while the
actors wait. Learning is the program's policy gradient: a step's target is 1 if another fruit
follows in its game, else 0, its advantage what that exceeds the value by.

What differs from the first author's, and in whose favour:

- The master waits for the actors' messages instead of polling, and for all of them: faster, and
  without its race. Actors are not asked for more than their steps of a round.
- Logits are logits, the value has its share of one loss and one optimiser step per batch.
- The game is a few lines of NumPy here, a step of some microseconds; weights travel by
  `torch.save`. One PyTorch thread per actor, PyTorch's default for the master.

The clock starts after every process has its model; ``play_s`` and ``learn_s`` are the master's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import tempfile
import time
from typing import Any

STARTED = time.perf_counter()
MOVES = ((-1, 0), (1, 0), (0, 1), (0, -1))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--seed", type=int, default=0)
    add("--actors", type=int, default=2)
    add("--steps", type=int, default=40_000, help="of all actors together")
    add("--round", type=int, default=10_000, help="steps of an actor between two loads")
    add("--batch", type=int, default=500, help="steps of one update")
    add("--learning-rate", type=float, default=1e-3)
    return parser.parse_args()


class Game:
    """Snake on a 10x10 board; an episode is cut after 100 steps without fruit."""

    def __init__(self, seed: int) -> None:
        import numpy as np

        self.np, self.rng = np, np.random.default_rng(seed)
        self.reset()

    def reset(self) -> None:
        """A snake of one cell, one fruit."""
        self.board = self.np.zeros((10, 10), self.np.float32)
        self.snake = [tuple(self.rng.integers(0, 10, 2))]
        self.board[self.snake[0]] = 1
        self.score = self.hungry = 0
        self.feed()

    def feed(self) -> None:
        """A fruit on an empty cell."""
        empty = self.np.argwhere(self.board == 0)
        if len(empty):
            self.board[tuple(empty[self.rng.integers(len(empty))])] = 2

    def step(self, action: int) -> tuple[float, bool]:
        """Reward, and whether the game is over."""
        (row, column), (down, right) = self.snake[-1], MOVES[action]
        head = (row + down, column + right)
        if not (0 <= head[0] < 10 and 0 <= head[1] < 10) or self.board[head] == 3:
            return 0.0, True
        ate = self.board[head] == 2
        self.board[self.snake[-1]] = 3
        self.snake.append(head)
        self.board[head] = 1
        if not ate:
            tail = self.snake.pop(0)
            self.board[tail] = 0 if tail != head else 1
            self.hungry += 1
            return 0.0, self.hungry >= 100
        self.score, self.hungry = self.score + 1, 0
        self.feed()
        return 1.0, len(self.snake) == 100


def make_model() -> Any:
    """Convolutions 100@4x4 and 200@3x3, dense 200, four logits and a value."""
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 100, 4), nn.ReLU(), nn.Conv2d(100, 200, 3), nn.ReLU(), nn.Flatten(),
                nn.Linear(5 * 5 * 200, 200), nn.ReLU(),
            )  # fmt: skip
            self.logits, self.value = nn.Linear(200, 4), nn.Linear(200, 1)

        def forward(self, x: Any) -> Any:
            x = self.body(x)
            return self.logits(x), self.value(x)[:, 0]

    return Model()


def actor(pipe: Any, weights: str, seed: int, steps: int, batch: int) -> None:
    """One actor process."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model, game = make_model(), Game(seed)
    pipe.send("ready")
    while pipe.recv() == "load":
        model.load_state_dict(torch.load(weights))
        states, actions, targets, scores = [], [], [], []
        since = 0
        while len(states) < steps:
            with torch.no_grad():
                state = game.board[None] / 3
                logits, _ = model(torch.from_numpy(state)[None])
                action = int(torch.distributions.Categorical(logits=logits[0]).sample())
            states.append(state)
            actions.append(action)
            reward, over = game.step(action)
            if reward:  # everything since the last fruit led to this one
                targets += [1.0] * (len(states) - since)
                since = len(states)
            if over:
                targets += [0.0] * (len(states) - since)
                since = len(states)
                scores.append(game.score)
                game.reset()
        targets += [0.0] * (len(states) - since)
        batches = [
            (np.stack(states[at : at + batch]), actions[at : at + batch], targets[at : at + batch])
            for at in range(0, steps, batch)
        ]
        pipe.send((batches, scores))  # pickled
    pipe.close()


def main() -> None:
    """Rounds of playing, then learning."""
    args = arguments()
    import torch

    torch.manual_seed(args.seed)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    weights = os.path.join(tempfile.mkdtemp(), "weights.pt")
    context = multiprocessing.get_context("spawn")
    pipes = []
    for number in range(args.actors):
        ours, theirs = context.Pipe()
        seed = 1000 * args.seed + number
        context.Process(
            target=actor, args=(theirs, weights, seed, args.round, args.batch), daemon=True
        ).start()
        pipes.append(ours)
    for pipe in pipes:
        assert pipe.recv() == "ready"
    begin = time.perf_counter()
    steps = updates = 0
    play_s = learn_s = 0.0
    scores: list[int] = []
    while steps < args.steps:
        start = time.perf_counter()
        torch.save(model.state_dict(), weights)
        for pipe in pipes:
            pipe.send("load")
        batches = []
        for pipe in pipes:
            found, played = pipe.recv()
            batches += found
            scores += played
        played_at = time.perf_counter()
        for states, actions, targets in batches:
            logits, values = model(torch.from_numpy(states))
            target = torch.tensor(targets)
            log_probs = torch.log_softmax(logits, 1).gather(1, torch.tensor(actions)[:, None])[:, 0]
            advantage = target - values.detach()
            loss = -(log_probs * advantage).mean() + 0.5 * torch.square(target - values).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps, updates = steps + len(actions), updates + 1
        play_s += played_at - start
        learn_s += time.perf_counter() - played_at
    wall = time.perf_counter() - begin
    for pipe in pipes:
        pipe.send("end")
    last = scores[-100:]
    print(json.dumps({
        "steps": steps, "updates": updates, "train_s": wall, "steps_per_s": steps / wall,
        "play_s": play_s, "learn_s": learn_s, "wall_s": time.perf_counter() - STARTED,
        "return_mean_100": sum(last) / len(last) if last else None,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }))  # fmt: skip


if __name__ == "__main__":
    main()
