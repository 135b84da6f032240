"""`net_arch=dict(pi=..., vf=...)` with different widths."""

from stable_baselines3 import PPO

shape = {"pi": [32, 32], "vf": [64, 48]}
model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, policy_kwargs={"net_arch": shape})
model.learn(512)
action, _ = model.predict([0.0, 0.0, 0.0, 0.0])
assert action in (0, 1)
print("trained")
