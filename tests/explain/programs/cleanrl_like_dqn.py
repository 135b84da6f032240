"""DQN in one file, with the structure of CleanRL's: vector environments and a buffer of arrays."""

import random
import sys
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from phases import phase
from stable_baselines3.common.buffers import ReplayBuffer

SECONDS = float(sys.argv[1])


def make_env(seed):
    def thunk():
        env = gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))
        env.action_space.seed(seed)
        return env

    return thunk


class QNetwork(nn.Module):
    def __init__(self, env):
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(np.prod(env.single_observation_space.shape), 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, env.single_action_space.n),
        )  # fmt: skip

    def forward(self, x):
        return self.network(x)


torch.set_num_threads(1)
random.seed(1)
torch.manual_seed(1)
envs = gym.vector.SyncVectorEnv([make_env(1)])
q_network, target_network = QNetwork(envs), QNetwork(envs)
optimizer = torch.optim.Adam(q_network.parameters(), lr=2.5e-4)
target_network.load_state_dict(q_network.state_dict())
rb = ReplayBuffer(10000, envs.single_observation_space, envs.single_action_space, "cpu")
obs, _ = envs.reset(seed=1)
global_step, start = 0, time.process_time()
while time.process_time() - start < SECONDS:
    global_step += 1
    with phase("acting"):
        if random.random() < 0.05:
            actions = np.array([envs.single_action_space.sample()])
        else:
            actions = torch.argmax(q_network(torch.Tensor(obs)), dim=1).cpu().numpy()
    with phase("env"):
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
    with phase("replay"):
        rb.add(obs, next_obs, actions, rewards, terminations, [infos])
    obs = next_obs
    if global_step > 500 and global_step % 2 == 0:
        with phase("replay"):
            data = rb.sample(128)
        with phase("learning"):
            with torch.no_grad():
                target_max, _ = target_network(data.next_observations).max(dim=1)
                td_target = data.rewards.flatten() + 0.99 * target_max * (1 - data.dones.flatten())
            old_val = q_network(data.observations).gather(1, data.actions).squeeze()
            loss = F.mse_loss(td_target, old_val)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if global_step % 500 == 0:
        target_network.load_state_dict(q_network.state_dict())
