"""`net_arch` as a list, and `activation_fn`."""

from stable_baselines3 import A2C, PPO
from torch import nn

model = PPO(
    "MlpPolicy", "CartPole-v1", n_steps=256,
    policy_kwargs={"activation_fn": nn.ReLU, "net_arch": [32, 32]},
)  # fmt: skip
model.learn(512)
A2C("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [16]}).learn(200)
print("trained")
