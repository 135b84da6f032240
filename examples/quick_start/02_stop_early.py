"""A callback that stops training at the first episode of at least 60 steps."""

from flatout import PPO, Callback


class StopEarly(Callback):
    def on_episode(self, run):
        return run.episode.length < 60


agent = PPO("CartPole-v1", n_steps=256).learn(20_000, callback=StopEarly())
print(agent.summary["steps"])
