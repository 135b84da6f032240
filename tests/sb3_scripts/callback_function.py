"""A callback that is a plain function, and one with an event hook."""

from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback

calls = []


def watch(local_variables, global_variables):
    """Called after each step with the training loop's variables."""
    calls.append(local_variables["self"].num_timesteps)
    return True


class CountRollouts(BaseCallback):
    rollouts = 0

    def _on_rollout_end(self):
        self.rollouts += 1

    def _on_step(self):
        return True


counter = CountRollouts()
A2C("MlpPolicy", "CartPole-v1").learn(500, callback=watch)
A2C("MlpPolicy", "CartPole-v1").learn(500, callback=counter)
assert calls
assert calls == sorted(calls)
assert counter.rollouts >= 50
print("rollouts", counter.rollouts)
