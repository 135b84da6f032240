"""What other libraries call settings: docs/coming-from.md shows these tables."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from flatout.errors import nearest

RENAMED: dict[str, str] = {
    # Stable-Baselines3
    "lr": "learning_rate", "total_timesteps": "steps", "n_envs": "envs",
    "n_eval_episodes": "eval_episodes", "eval_freq": "eval_every", "save_freq": "checkpoint_every",
    # CleanRL
    "env_id": "env", "num_envs": "envs", "num_steps": "n_steps", "update_epochs": "n_epochs",
    "minibatch_size": "batch_size", "clip_coef": "clip_range", "norm_adv": "normalize_advantage",
    "start_e": "exploration_initial_eps", "end_e": "exploration_final_eps",
    "train_frequency": "train_freq", "target_network_frequency": "target_update_interval",
    "policy_lr": "learning_rate", "q_lr": "critic_learning_rate",
    "policy_noise": "target_policy_noise", "noise_clip": "target_noise_clip",
    "exploration_noise": "action_noise", "wandb_project_name": "wandb",
    # elsewhere
    "entropy_coef": "ent_coef", "value_coef": "vf_coef", "discount": "gamma", "lam": "gae_lambda",
    "hidden_sizes": "hidden", "net_arch": "hidden", "activation_fn": "activation",
    "timesteps": "steps", "log_dir": "run_dir", "random_seed": "seed",
}  # fmt: skip
"""Another name of a setting, with the same meaning and unit."""

REFUSED: dict[str, str] = {
    "tensorboard_log": "run_dir keeps TensorBoard events with everything else of a run",
    "stats_window_size": "training returns are means over the last 100 episodes; leave it out",
    "use_sde": "state-dependent exploration is not available; leave it out",
    "sde_sample_freq": "state-dependent exploration is not available; leave it out",
    "optimize_memory_usage": "replay always keeps each frame once; leave it out",
    "replay_buffer_class": "prioritized, n_step and buffer_size say what replay is",
    "replay_buffer_kwargs": "prioritized, n_step and buffer_size say what replay is",
    "rollout_buffer_class": "n_steps says what a rollout is",
    "rollout_buffer_kwargs": "n_steps says what a rollout is",
    "num_minibatches": "batch_size is the transitions of a minibatch: n_steps x envs / minibatches",
    "anneal_lr": "learning_rate lin_0.0003 falls to 0 over the run",
    "device": "--placement gpu, cpu or cpu+gpu (placement='gpu' in Python and in files)",
    "cuda": "--placement gpu, cpu or cpu+gpu (placement='gpu' in Python and in files)",
    "track": "wandb names the Weights & Biases project to log to",
    "clip_vloss": "clip_range_vf 0.2 clips the value's change",
    "log_interval": "log_every counts environment steps",
    "capture_video": "flatout.RecordEvery, or flatout eval RUN_DIR --video",
    "features_extractor_class": "network takes any Equinox module (examples/2_own_network.py)",
    "features_extractor_kwargs": "network takes any Equinox module (examples/2_own_network.py)",
    "optimizer_class": "optimizer, where the algorithm has a choice",
    "optimizer_kwargs": "adam_eps and optimizer, where the algorithm has a choice",
    "ortho_init": "layers of ppo and a2c always begin orthogonal; leave it out",
    "n_critics": "td3 and sac have two critics, ddpg one; leave it out",
    "tb_log_name": "run_dir names the run",
    "custom_objects": "settings are given by their names: load(path, learning_rate=1e-4)",
    "print_system_info": "flatout devices says what this machine has; leave it out",
}
"""What has no counterpart of the same meaning, and what to do instead."""

IMPORTED: dict[str, str] = {
    "BaseCallback": "flatout.Callback",
    "EvalCallback": "PPO(env, eval_every=10_000); the run folder keeps the best agent",
    "CheckpointCallback": "flatout.SaveEvery",
    "StopTrainingOnRewardThreshold": "flatout.StopOnReward",
    "StopTrainingOnNoModelImprovement": "flatout.StopOnNoImprovement",
    "make_vec_env": "PPO(env, envs=8)",
    "DummyVecEnv": "PPO(env, envs=8)",
    "SubprocVecEnv": 'PPO(env, envs=8, placement="sampler=processes")',
    "VecNormalize": "PPO(env, normalize_observation=True, normalize_reward=True)",
    "VecFrameStack": "PPO(env, frame_stack=4)",
    "VecVideoRecorder": "flatout.RecordEvery, or agent.record(path)",
    "Monitor": "returns and lengths of episodes are kept without it",
}
"""What Stable-Baselines3's users import, and what there is instead."""


def meant(name: str, names: Collection[str], flag: bool = False) -> str:
    """`flatout.errors.nearest` for a setting, which may have another library's name.

    Args:
        flag: names are flags: ``--learning-rate``.
    """
    plain = name.removeprefix("--").replace("-", "_")
    right = {n: f"--{it.replace('_', '-')}" if flag else it for n, it in RENAMED.items()}
    others = [*(other for other, it in right.items() if it in names), *REFUSED]
    close = [plain] if plain in others else []
    if not close and not difflib.get_close_matches(name, list(names), cutoff=0.85):
        close = difflib.get_close_matches(plain, others, n=1, cutoff=0.85)
    for other in close:
        there = other in right
        return f" Did you mean {right[other]!r}?" if there else f" Instead: {REFUSED[other]}."
    return nearest(name, difflib.get_close_matches(name, list(names), n=1, cutoff=0.6))
