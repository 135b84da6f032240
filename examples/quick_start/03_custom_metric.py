"""Your own metric in the log: the length of the longest recent episode."""

from flatout import PPO, Callback


class Longest(Callback):
    def on_iteration(self, run):
        run.log("my/longest", max(run.progress.lengths))


PPO("CartPole-v1", n_steps=256).learn(1_024, callback=Longest(), run_dir="runs/metric")
