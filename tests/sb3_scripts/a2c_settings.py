"""Settings of A2C and PPO."""

from stable_baselines3 import A2C, PPO

A2C(
    "MlpPolicy", "CartPole-v1", learning_rate=7e-4, n_steps=5, gamma=0.98, gae_lambda=0.9,
    ent_coef=0.01, vf_coef=0.4, max_grad_norm=0.5, use_rms_prop=True, rms_prop_eps=1e-5,
    normalize_advantage=False, policy_kwargs={"net_arch": [32]}, device="cpu",
).learn(300)  # fmt: skip
PPO(
    "MlpPolicy", "CartPole-v1", learning_rate=3e-4, n_steps=128, batch_size=32, n_epochs=2,
    gamma=0.99, gae_lambda=0.95, clip_range=0.2, clip_range_vf=None, ent_coef=0.0, vf_coef=0.5,
    max_grad_norm=0.5, target_kl=0.05, seed=3, device="auto", use_sde=False,
    policy_kwargs={"ortho_init": True},
).learn(300)  # fmt: skip
print("trained")
