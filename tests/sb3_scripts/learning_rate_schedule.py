"""A function as learning rate, falling linearly."""

from collections.abc import Callable

from stable_baselines3 import PPO


def falling(start: float) -> Callable[[float], float]:
    def rate(remaining: float) -> float:
        return remaining * start

    return rate


model = PPO("MlpPolicy", "CartPole-v1", learning_rate=falling(1e-3), n_steps=256)
model.learn(512)
model.learn(512, reset_num_timesteps=True)
print("trained with a schedule")
