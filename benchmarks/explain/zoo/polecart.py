# A2C on CartPole in one file, in the manner of CleanRL.
import random
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from pace import Pace
from torch.distributions.categorical import Categorical


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    seed: int = 1
    learning_rate: float = 1e-4
    num_envs: int = 1
    num_steps: int = 256
    gamma: float = 0.99
    gae_lambda: float = 0.95
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    width: int = 160
    depth: int = 12


def layer_init(layer, std=1.414, bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = layer_init(nn.Linear(width, width))
        self.down = layer_init(nn.Linear(width, width), std=0.1)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Agent(nn.Module):
    def __init__(self, envs, width, depth):
        super().__init__()
        n_obs = int(np.prod(envs.single_observation_space.shape))
        blocks = [Block(width) for _ in range(depth)]
        self.trunk = nn.Sequential(layer_init(nn.Linear(n_obs, width)), *blocks, nn.Tanh())
        self.actor = layer_init(nn.Linear(width, int(envs.single_action_space.n)), std=0.01)
        self.critic = layer_init(nn.Linear(width, 1), std=1.0)

    def get_value(self, x):
        return self.critic(self.trunk(x))

    def get_action_and_value(self, x, action=None):
        hidden = self.trunk(x)
        probs = Categorical(logits=self.actor(hidden))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden)


def main(args):
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(args.env_id)] * args.num_envs)
    agent = Agent(envs, args.width, args.depth)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    shape = (args.num_steps, args.num_envs)
    obs = torch.zeros(shape + envs.single_observation_space.shape)
    actions, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
    next_obs = torch.Tensor(envs.reset(seed=args.seed)[0])
    next_done = torch.zeros(args.num_envs)

    pace = Pace.from_args()
    while pace.on():
        for step in range(args.num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, _, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step] = action
            next_obs, reward, terminated, truncated, _ = envs.step(action.numpy())
            rewards[step] = torch.as_tensor(reward)
            next_obs = torch.Tensor(next_obs)
            next_done = torch.Tensor(np.logical_or(terminated, truncated))

        with torch.no_grad():
            next_value = agent.get_value(next_obs).flatten()
        advantages, last = torch.zeros(shape), torch.zeros(args.num_envs)
        for t in reversed(range(args.num_steps)):
            nonterminal = 1.0 - next_done if t == args.num_steps - 1 else 1.0 - dones[t + 1]
            ahead = next_value if t == args.num_steps - 1 else values[t + 1]
            delta = rewards[t] + args.gamma * ahead * nonterminal - values[t]
            advantages[t] = last = delta + args.gamma * args.gae_lambda * nonterminal * last
        returns = (advantages + values).reshape(-1)
        b_adv = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

        _, logprob, entropy, newvalue = agent.get_action_and_value(
            obs.reshape(-1, obs.shape[-1]), actions.reshape(-1)
        )
        v_loss = 0.5 * ((newvalue.view(-1) - returns) ** 2).mean()
        pg_loss = -(b_adv.reshape(-1) * logprob).mean()
        loss = pg_loss - args.ent_coef * entropy.mean() + args.vf_coef * v_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()
        pace.add(args.num_steps * args.num_envs)

    envs.close()
    pace.report()


if __name__ == "__main__":
    main(Args())
