"""`TQC`."""

from sb3_contrib import TQC

model = TQC(
    "MlpPolicy", "Pendulum-v1", learning_starts=100, train_freq=8, batch_size=32,
    top_quantiles_to_drop_per_net=2, policy_kwargs={"n_critics": 2, "n_quantiles": 25},
)  # fmt: skip
model.learn(300)
print("trained")
