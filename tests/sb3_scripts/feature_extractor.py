"""A feature extractor written in PyTorch."""

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn


class Small(BaseFeaturesExtractor):
    def __init__(self, observation_space, features_dim=16):
        super().__init__(observation_space, features_dim)
        self.layer = nn.Linear(observation_space.shape[0], features_dim)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(observations))


kwargs = {"features_extractor_class": Small, "features_extractor_kwargs": {"features_dim": 8}}
model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, policy_kwargs=kwargs)
model.learn(512)
print("trained")
