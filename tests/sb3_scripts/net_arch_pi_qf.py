"""`net_arch=dict(pi=..., qf=...)` of an off-policy agent."""

from stable_baselines3 import SAC

model = SAC(
    "MlpPolicy", "Pendulum-v1", learning_starts=100, batch_size=32, train_freq=8,
    policy_kwargs={"net_arch": {"pi": [32, 32], "qf": [48, 32]}},
)  # fmt: skip
model.learn(300)
action, _ = model.predict([1.0, 0.0, 0.0], deterministic=True)
assert action.shape == (1,)
print("trained")
