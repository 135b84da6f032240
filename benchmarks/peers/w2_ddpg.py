"""A teaching program's DDPG on Pendulum-v1 in plain PyTorch: prints one JSON object on stdout.

One environment, one action at a time through PyTorch, a deque and `random.sample`, one update after
every step. It is written the way such programs are, lists and all, but without two of their usual
mistakes: only the first reset is seeded, and an episode cut by the time limit is not stored as
ended. `--train-freq 200` collects a whole episode first and then makes its updates.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import warnings
from collections import deque
from typing import Any

STARTED = time.perf_counter()

ACTOR_RATE, CRITIC_RATE = 5e-4, 5e-3
GAMMA, TAU, SIGMA = 0.98, 0.005, 0.01
BUFFER, MINIMUM, BATCH = 10_000, 1000, 64
HIDDEN = 64


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--env", default="Pendulum-v1")
    add("--seed", type=int, default=0)
    add("--episodes", type=int, default=200)
    add("--train-freq", type=int, default=1, help="steps between updates, and updates then")
    add("--threads", type=int, default=1, help="PyTorch's threads (0: leave its default)")
    return parser.parse_args()


def main() -> None:
    """Train and print the figures."""
    args = arguments()
    if args.threads:  # before PyTorch starts its pool
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    warnings.filterwarnings("ignore", message=".*list of numpy.ndarrays is extremely slow.*")

    import gymnasium
    import numpy as np
    import torch
    import torch._dynamo  # the first Adam would import it: an import, not training
    from torch import nn
    from torch.nn import functional

    if args.threads:
        torch.set_num_threads(args.threads)

    class Actor(nn.Module):
        """Two hidden layers with ReLU; tanh, scaled to the action's bound."""

        def __init__(self, inputs: int, outputs: int, bound: float) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
            self.out, self.bound = nn.Linear(HIDDEN, outputs), bound

        def forward(self, x: Any) -> Any:
            x = functional.relu(self.second(functional.relu(self.first(x))))
            return torch.tanh(self.out(x)) * self.bound

    class Critic(nn.Module):
        """Two hidden layers with ReLU over observation and action."""

        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
            self.out = nn.Linear(HIDDEN, 1)

        def forward(self, x: Any, a: Any) -> Any:
            x = functional.relu(self.first(torch.cat([x, a], dim=1)))
            return self.out(functional.relu(self.second(x)))

    class Agent:
        """Networks, their targets and their optimisers."""

        def __init__(self, inputs: int, outputs: int, bound: float) -> None:
            self.outputs = outputs
            self.actor, self.critic = Actor(inputs, outputs, bound), Critic(inputs + outputs)
            self.target_actor = Actor(inputs, outputs, bound)
            self.target_critic = Critic(inputs + outputs)
            self.target_actor.load_state_dict(self.actor.state_dict())
            self.target_critic.load_state_dict(self.critic.state_dict())
            self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=ACTOR_RATE)
            self.critic_adam = torch.optim.Adam(self.critic.parameters(), lr=CRITIC_RATE)
            self.updates = 0

        def act(self, state: Any) -> Any:
            """One action for one state, with noise."""
            action = self.actor(torch.tensor([state], dtype=torch.float)).tolist()[0]
            return np.array(action) + SIGMA * np.random.randn(self.outputs)

        def soft_update(self, network: Any, target: Any) -> None:
            """Move the target a little towards the network."""
            for aim, parameter in zip(target.parameters(), network.parameters(), strict=True):
                aim.data.copy_(aim.data * (1.0 - TAU) + parameter.data * TAU)

        def learn(self, batch: dict[str, Any]) -> None:
            """One update of critic, actor and targets."""
            states = torch.tensor(batch["states"], dtype=torch.float)
            actions = torch.tensor(batch["actions"], dtype=torch.float).view(-1, self.outputs)
            rewards = torch.tensor(batch["rewards"], dtype=torch.float).view(-1, 1)
            next_states = torch.tensor(batch["next_states"], dtype=torch.float)
            ended = torch.tensor(batch["terminated"], dtype=torch.float).view(-1, 1)
            with torch.no_grad():
                next_values = self.target_critic(next_states, self.target_actor(next_states))
                targets = rewards + GAMMA * next_values * (1 - ended)
            critic_loss = functional.mse_loss(self.critic(states, actions), targets)
            self.critic_adam.zero_grad()
            critic_loss.backward()
            self.critic_adam.step()
            actor_loss = -self.critic(states, self.actor(states)).mean()
            self.actor_adam.zero_grad()
            actor_loss.backward()
            self.actor_adam.step()
            self.soft_update(self.actor, self.target_actor)
            self.soft_update(self.critic, self.target_critic)
            self.updates += 1

    imported = time.perf_counter()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    random.seed(args.seed)
    env = gymnasium.make(args.env)
    shape, space = env.observation_space.shape, env.action_space
    agent = Agent(shape[0], space.shape[0], float(space.high[0]))  # type: ignore
    replay: deque[Any] = deque(maxlen=BUFFER)
    names = ("states", "actions", "rewards", "next_states", "terminated")
    returns: list[float] = []
    steps = 0
    for index in range(args.episodes):
        state, _ = env.reset(seed=args.seed if index == 0 else None)
        episode_return, done = 0.0, False
        while not done:
            action = agent.act(state)
            next_state, reward, terminated, truncated, _ = env.step(action)
            replay.append((state, action, reward, next_state, terminated))
            state, done = next_state, terminated or truncated
            episode_return += float(reward)
            steps += 1
            if steps <= MINIMUM or steps % args.train_freq:
                continue
            for _ in range(args.train_freq):
                entries = random.sample(replay, BATCH)
                columns = (list(column) for column in zip(*entries, strict=True))
                batch = dict(zip(names, columns, strict=True))
                batch["states"] = np.array(batch["states"])
                batch["next_states"] = np.array(batch["next_states"])
                agent.learn(batch)
        returns.append(episode_return)
    trained = time.perf_counter()

    print(
        json.dumps(
            {
                "env": args.env, "seed": args.seed, "train_freq": args.train_freq,
                "import_s": imported - STARTED, "train_s": trained - imported,
                "episodes": len(returns), "steps": steps, "updates": agent.updates,
                "return_mean_100": float(np.mean(returns[-100:])),
                "return_mean_10": float(np.mean(returns[-10:])),
                "steps_per_s": steps / (trained - imported),
                "threads": torch.get_num_threads(), "wall_s": time.perf_counter() - STARTED,
                "versions": {
                    "torch": torch.__version__, "gymnasium": gymnasium.__version__,
                    "python": sys.version.split()[0],
                },
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
