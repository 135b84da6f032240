"""What other libraries call the metrics, for TensorBoard and W&B (`--metric-names`).

Only what means the same, or the same times a factor. metrics.jsonl keeps Flatout's names.
"""

from __future__ import annotations

NAMES: dict[str, dict[str, tuple[str, float]]] = {
    "flatout": {},
    "sb3": {
        "rollout/return_mean_100": ("rollout/ep_rew_mean", 1.0),
        "rollout/length_mean_100": ("rollout/ep_len_mean", 1.0),
        "rollout/episodes": ("time/episodes", 1.0),
        "time/steps_per_s": ("time/fps", 1.0),
        "time/wall_s": ("time/time_elapsed", 1.0),
        "train/policy_loss": ("train/policy_gradient_loss", 1.0),
        "train/entropy": ("train/entropy_loss", -1.0),
        "train/epsilon": ("rollout/exploration_rate", 1.0),
        "eval/return_mean": ("eval/mean_reward", 1.0),
        "eval/length_mean": ("eval/mean_ep_length", 1.0),
    },
    "cleanrl": {
        "rollout/return_mean_100": ("charts/episodic_return", 1.0),
        "rollout/length_mean_100": ("charts/episodic_length", 1.0),
        "time/steps_per_s": ("charts/SPS", 1.0),
        "train/learning_rate": ("charts/learning_rate", 1.0),
        "train/policy_loss": ("losses/policy_loss", 1.0),
        "train/value_loss": ("losses/value_loss", 0.5),
        "train/entropy": ("losses/entropy", 1.0),
        "train/approx_kl": ("losses/approx_kl", 1.0),
        "train/clip_fraction": ("losses/clipfrac", 1.0),
        "train/explained_variance": ("losses/explained_variance", 1.0),
        "train/loss": ("losses/td_loss", 1.0),
        "train/actor_loss": ("losses/actor_loss", 1.0),
        "train/ent_coef": ("losses/alpha", 1.0),
    },
}
"""By library and our name: theirs, and the factor."""


def renamed(row: dict[str, float], library: str) -> dict[str, float]:
    """A row of metrics under a library's names; what it has no name for keeps ours."""
    names = NAMES[library]
    if not names:
        return row
    pairs = ((*names.get(name, (name, 1.0)), value) for name, value in row.items())
    return {name: factor * value for name, factor, value in pairs}
