"""The learning curve as a picture."""

import matplotlib.pyplot as plt
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.results_plotter import X_TIMESTEPS, plot_results

env = make_vec_env("CartPole-v1", monitor_dir="runs/plot")
PPO("MlpPolicy", env, n_steps=256).learn(1_024)
plot_results(["runs/plot"], 1_024, X_TIMESTEPS, "CartPole-v1")
plt.savefig("curve.svg")
