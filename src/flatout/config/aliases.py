"""Names from other libraries, with Flatout's name or advice for the messages of `cli` and `api`.

docs/coming-from.md shows these tables.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

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
    # other libraries
    "entropy_coef": "ent_coef", "value_coef": "vf_coef", "discount": "gamma", "lam": "gae_lambda",
    "hidden_sizes": "hidden", "net_arch": "hidden", "activation_fn": "activation",
    "clip_eps": "clip_range", "timesteps": "steps", "log_dir": "run_dir", "random_seed": "seed",
    "lstm_hidden_size": "recurrent_size", "lstm_cell_size": "recurrent_size",
    "rnn_size": "recurrent_size", "rnn_type": "recurrent", "max_seq_len": "sequence_length",
    "recurrence": "sequence_length",
}  # fmt: skip
"""Flatout's name for a setting of another library, with the same meaning and unit."""

REFUSED: dict[str, str] = {
    "tensorboard_log": "use run_dir: a run folder contains TensorBoard events, too",
    "stats_window_size": "training returns are means over the last 100 episodes; leave it out",
    "use_sde": "state-dependent exploration is not available; leave it out",
    "sde_sample_freq": "state-dependent exploration is not available; leave it out",
    "optimize_memory_usage": "replay always keeps each frame once; leave it out",
    "replay_buffer_class": "replay is configured with hindsight, prioritized, n_step and "
    "buffer_size",
    "replay_buffer_kwargs": "replay is configured with hindsight, prioritized, n_step and "
    "buffer_size",
    "rollout_buffer_class": "the rollout is configured with n_steps",
    "rollout_buffer_kwargs": "the rollout is configured with n_steps",
    "num_minibatches": "give batch_size, the size of a minibatch: n_steps x envs / num_minibatches",
    "anneal_lr": "give learning_rate as lin_0.0003, which falls linearly to 0 over the run",
    "device": "--placement gpu, cpu or cpu+gpu (placement='gpu' in Python and in files)",
    "cuda": "--placement gpu, cpu or cpu+gpu (placement='gpu' in Python and in files)",
    "gpu": "--placement gpu (placement='gpu' in Python and in files)",
    "max_steps": "steps, the environment steps of the run",
    "entropy": "ent_coef, the weight of the entropy",
    "output": "run_dir, the folder of the run",
    "output_dir": "run_dir, the folder of the run",
    "policy": "network, for example mlp",
    "verbose": "the command shows its progress without it; quiet shows none",
    "progress_bar": "the command shows its progress without it; quiet shows none",
    "workers": '--placement "sampler=processes workers=4x2": four processes with two environments '
    "each",
    "num_workers": '--placement "sampler=processes workers=4x2": four processes with two '
    "environments each",
    "render": "flatout eval RUN_DIR --show, or --out video.mp4",
    "video": "flatout eval RUN_DIR --out video.mp4",
    "track": "set wandb to the name of the Weights & Biases project",
    "clip_vloss": "set clip_range_vf, for example 0.2",
    "log_interval": "use log_every, which is in environment steps",
    "capture_video": "flatout.RecordEvery, or flatout eval RUN_DIR --out video.mp4",
    "features_extractor_class": "network takes any Equinox module (examples/6_own_network.py) and, "
    "for Dict observations a dict of them by key",
    "features_extractor_kwargs": "network takes any Equinox module (examples/6_own_network.py); "
    "for Dict observations a dict of them by key",
    "optimizer_class": "use optimizer, if the algorithm offers a choice",
    "optimizer_kwargs": "use adam_eps, and optimizer if the algorithm offers a choice",
    "ortho_init": "layers of ppo and a2c are always initialised orthogonally; leave it out",
    "n_lstm_layers": "a recurrent policy has one layer, of recurrent_size units; leave it out",
    "lstm_kwargs": "a recurrent policy's memory has recurrent_size units; leave it out",
    "use_lstm": "set recurrent to lstm or gru",
    "use_rnn": "set recurrent to lstm or gru",
    "tb_log_name": "run_dir names the run",
    "custom_objects": "settings are given by their names: load(path, learning_rate=1e-4)",
    "print_system_info": "leave it out; flatout devices describes this machine",
}
"""Advice for each setting of another library that has no counterpart with the same meaning."""

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
    "MaskablePPO": "flatout.PPO, which obeys action masks without a setting",
    "Monitor": "returns and lengths of episodes are recorded without it",
    "TRPO": "PPO(env, target_kl=0.01)",
    "ARS": "flatout.Genetic, which uses no gradients either",
    "QRDQN": "DQN(env, n_step=3, prioritized=True)",
    "CrossQ": "SAC",
    "RecurrentPPO": 'PPO(env, recurrent="lstm")',
    "HerReplayBuffer": "SAC(env, hindsight=4), hindsight experience replay with 4 goals of 5",
    "NormalActionNoise": "action_noise=0.1, or flatout.sb3.common.noise.NormalActionNoise",
    "OrnsteinUhlenbeckActionNoise": "action_noise=0.1, Gaussian noise",
    "BaseFeaturesExtractor": "network= takes any Equinox module (examples/6_own_network.py)",
}
"""Flatout's replacement for each name that users import from Stable-Baselines3 and sb3-contrib."""


def meant(name: str, names: Collection[str], flag: bool = False) -> str:
    """Return the sentence that ends a message about an unknown setting, or an empty string.

    It suggests the nearest names, as `flatout.errors.nearest` does; for a name of another library
    it suggests Flatout's name, or gives the advice of `REFUSED`. Names may be in upper case, as
    PureJaxRL's are.

    Args:
        name: the unknown name.
        names: the names that exist.
        flag: whether the names are flags, such as ``--learning-rate``.
    """
    name = name.lower()
    plain = name.removeprefix("--").replace("-", "_")
    right = {n: f"--{it.replace('_', '-')}" if flag else it for n, it in RENAMED.items()}
    others = [*(other for other, it in right.items() if it in names), *REFUSED]
    close = [plain] if plain in others else []
    if not close and not difflib.get_close_matches(name, list(names), cutoff=0.85):
        close = difflib.get_close_matches(plain, others, n=1, cutoff=0.85)
    for other in close:
        there = other in right
        return f" Did you mean {right[other]!r}?" if there else f" Instead: {REFUSED[other]}."
    return nearest(name, difflib.get_close_matches(name, list(names), n=1, cutoff=0.66))


def similar(name: str, names: Iterable[str]) -> str | None:
    """Return the name that differs from `name` by about a letter (`n_steps`, `n_step`), or None."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.9)), None)
