"""A function as `clip_range`."""

from stable_baselines3 import PPO

model = PPO(
    "MlpPolicy", "CartPole-v1", n_steps=256, clip_range=lambda remaining: 0.1 + 0.1 * remaining
)
model.learn(512)
print("trained with a schedule")
