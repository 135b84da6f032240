"""Your own network: two layers with a skip connection."""

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor


class Residual(BaseFeaturesExtractor):
    def __init__(self, observation_space):
        super().__init__(observation_space, features_dim=64)
        self.inner = torch.nn.Linear(observation_space.shape[0], 64)
        self.outer = torch.nn.Linear(64, 64)

    def forward(self, observations):
        hidden = torch.relu(self.inner(observations))
        return hidden + torch.relu(self.outer(hidden))


kwargs = {"features_extractor_class": Residual, "net_arch": []}
PPO("MlpPolicy", "CartPole-v1", n_steps=256, policy_kwargs=kwargs).learn(1_024)
