"""`StopTrainingOnMaxEpisodes`."""

from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes

stop = StopTrainingOnMaxEpisodes(max_episodes=10, verbose=0)
model = A2C("MlpPolicy", "CartPole-v1")
model.learn(100_000, callback=stop)
assert stop.n_episodes >= 10
assert model.num_timesteps < 6_000
print("stopped after", stop.n_episodes, "episodes")
