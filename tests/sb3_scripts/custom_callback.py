"""A callback of the user's: counters, and a stop by returning False."""

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback


class StopEarly(BaseCallback):
    """Stops after a number of environment steps."""

    def __init__(self, limit, verbose=0):
        super().__init__(verbose)
        self.limit = limit
        self.started = self.ended = False

    def _on_training_start(self):
        self.started = True
        assert self.model is not None

    def _on_step(self):
        return self.num_timesteps < self.limit

    def _on_training_end(self):
        self.ended = True


callback = StopEarly(limit=600)
model = PPO("MlpPolicy", "CartPole-v1", n_steps=256)
model.learn(20_000, callback=callback)
assert callback.started
assert callback.n_calls > 0
assert 600 <= callback.num_timesteps < 2_000
print("stopped")
