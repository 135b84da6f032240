"""A teaching program's PPO on CartPole-v0 in plain PyTorch: prints one JSON object on stdout.

One environment, one episode per update, the whole episode as one batch, actor and critic with a
hidden layer of 128 each, and one action at a time through PyTorch. It is written the way such
programs are, lists and all, but without two of their usual mistakes: only the first reset is
seeded, and an episode cut by the time limit still bootstraps from its last state.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from typing import Any

STARTED = time.perf_counter()

GAMMA, LAMBDA, CLIP, EPOCHS, HIDDEN = 0.98, 0.95, 0.2, 10, 128
ACTOR_RATE, CRITIC_RATE = 1e-3, 1e-2


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--env", default="CartPole-v0")
    add("--seed", type=int, default=0)
    add("--episodes", type=int, default=500, help="at most this many")
    add("--stop-at-return", type=float, default=None, help="mean of the last 100 episodes")
    add(
        "--critic-target",
        choices=("td", "lambda"),
        default="td",
        help="td: r + gamma V(s'), as the teaching program has it; lambda: advantage + V(s)",
    )
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

    class Network(nn.Module):
        """One hidden layer with ReLU."""

        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.hidden = nn.Linear(inputs, HIDDEN)
            self.out = nn.Linear(HIDDEN, outputs)

        def forward(self, x: Any) -> Any:
            return self.out(functional.relu(self.hidden(x)))

    class Agent:
        """Actor, critic and their optimisers."""

        def __init__(self, inputs: int, actions: int) -> None:
            self.actor = Network(inputs, actions)
            self.critic = Network(inputs, 1)
            self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=ACTOR_RATE)
            self.critic_adam = torch.optim.Adam(self.critic.parameters(), lr=CRITIC_RATE)
            self.updates = 0

        def probabilities(self, states: Any) -> Any:
            return functional.softmax(self.actor(states), dim=1)

        def act(self, state: Any) -> int:
            """One action for one state."""
            probabilities = self.probabilities(torch.tensor([state], dtype=torch.float))
            return int(torch.distributions.Categorical(probabilities).sample().item())

        def learn(self, episode: dict[str, list[Any]]) -> None:
            """Ten steps of actor and critic on one whole episode."""
            states = torch.tensor(episode["states"], dtype=torch.float)
            actions = torch.tensor(episode["actions"]).view(-1, 1)
            rewards = torch.tensor(episode["rewards"], dtype=torch.float).view(-1, 1)
            next_states = torch.tensor(episode["next_states"], dtype=torch.float)
            ended = torch.tensor(episode["terminated"], dtype=torch.float).view(-1, 1)
            with torch.no_grad():
                targets = rewards + GAMMA * self.critic(next_states) * (1 - ended)
                values = self.critic(states)
                errors = (targets - values).view(-1).tolist()
                before = torch.log(self.probabilities(states).gather(1, actions))
            running, reverse = 0.0, []
            for error in reversed(errors):
                running = error + GAMMA * LAMBDA * running
                reverse.append(running)
            advantages = torch.tensor(reverse[::-1], dtype=torch.float).view(-1, 1)
            if args.critic_target == "lambda":
                targets = advantages + values
            for _ in range(EPOCHS):
                now = torch.log(self.probabilities(states).gather(1, actions))
                ratio = torch.exp(now - before)
                clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
                actor_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
                critic_loss = functional.mse_loss(self.critic(states), targets)
                self.actor_adam.zero_grad()
                self.critic_adam.zero_grad()
                actor_loss.backward()
                critic_loss.backward()
                self.actor_adam.step()
                self.critic_adam.step()
                self.updates += 1

    imported = time.perf_counter()
    torch.manual_seed(args.seed)
    env = gymnasium.make(args.env)
    agent = Agent(env.observation_space.shape[0], int(env.action_space.n))  # type: ignore
    returns: list[float] = []
    steps = 0
    reached: tuple[float, int, int] | None = None
    for index in range(args.episodes):
        state, _ = env.reset(seed=args.seed if index == 0 else None)
        names = ("states", "actions", "rewards", "next_states", "terminated")
        episode: dict[str, list[Any]] = {name: [] for name in names}
        done = False
        while not done:
            action = agent.act(state)
            next_state, reward, terminated, truncated, _ = env.step(action)
            entry = (state, action, reward, next_state, terminated)
            for name, value in zip(names, entry, strict=True):
                episode[name].append(value)
            state, done = next_state, terminated or truncated
        steps += len(episode["rewards"])
        returns.append(float(sum(episode["rewards"])))
        wanted = args.stop_at_return
        if wanted is not None and len(returns) >= 100 and np.mean(returns[-100:]) >= wanted:
            reached = time.perf_counter() - imported, steps, len(returns)
            break
        agent.learn(episode)
    trained = time.perf_counter()

    print(
        json.dumps(
            {
                "env": args.env, "seed": args.seed, "critic_target": args.critic_target,
                "import_s": imported - STARTED,
                "train_s": trained - imported, "episodes": len(returns), "steps": steps,
                "updates": agent.updates, "return_mean_100": float(np.mean(returns[-100:])),
                "steps_per_s": steps / (trained - imported),
                "stop_at_return": args.stop_at_return,
                "time_to_return_s": reached[0] if reached else None,
                "steps_to_return": reached[1] if reached else None,
                "episodes_to_return": reached[2] if reached else None,
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
