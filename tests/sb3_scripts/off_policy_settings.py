"""`train_freq`, `gradient_steps`, `learning_starts`, `buffer_size`, `tau`."""

from stable_baselines3 import DQN, SAC, TD3

DQN(
    "MlpPolicy", "CartPole-v1", learning_rate=1e-3, buffer_size=5_000, learning_starts=100,
    batch_size=32, tau=1.0, train_freq=(4, "step"), gradient_steps=1, target_update_interval=100,
    exploration_fraction=0.2, exploration_initial_eps=1.0, exploration_final_eps=0.1,
).learn(400)  # fmt: skip
SAC(
    "MlpPolicy", "Pendulum-v1", buffer_size=5_000, learning_starts=100, batch_size=32, tau=0.01,
    train_freq=4, gradient_steps=-1, ent_coef="auto_0.1", target_entropy="auto",
).learn(300)  # fmt: skip
TD3(
    "MlpPolicy", "Pendulum-v1", learning_starts=100, batch_size=32, policy_delay=2,
    train_freq=8, gradient_steps=2, target_policy_noise=0.2, target_noise_clip=0.5,
).learn(300)  # fmt: skip
print("trained")
