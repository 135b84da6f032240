"""Loading an agent without naming its class."""

from __future__ import annotations

import os
from pathlib import Path

from flatout.api import A2C, DDPG, DQN, PPO, SAC, TD3, Agent, Genetic, consent, trusted_config
from flatout.errors import UsageError
from flatout.storage import checkpoint
from flatout.storage.agent_file import AGENT_FILES, FINAL, find_agent
from flatout.storage.run_folder import load_config

AGENTS: dict[str, type[Agent]] = {
    agent.algorithm: agent for agent in (PPO, A2C, DQN, DDPG, TD3, SAC, Genetic)
}


def load_any(
    path: Path, prefer: str = "best", env: str | None = None, trust: bool = False
) -> tuple[Agent, Path]:
    """An agent of whatever algorithm, and the file that it came from.

    Args:
        path: a saved agent or a run folder.
        prefer: ``best``, ``final``, or ``newest``, which may be a checkpoint's of a run that goes
            on. A run that has neither of the others yet gives that, too.
        env: the environment, where the saved one's module is not to be trusted by itself.
        trust: whatever the file names may be used.

    Raises:
        UsageError, CheckpointError: there is none, or it is corrupt.
    """
    saved = checkpoint.checkpoints(path / "checkpoints") if path.is_dir() else []
    there = [name for name in AGENT_FILES if os.path.lexists(path / name)]
    if saved and (not there or (prefer == "newest" and FINAL not in there)):
        _, snapshot = checkpoint.load(saved[-1])
        config = load_config(path, consent(env, trust))
        kind = _kind(config.algorithm, path)
        return kind._restored(snapshot.arrays, {}, config, saved[-1], env, None), saved[-1]
    file = find_agent(path)
    if prefer != "best" and FINAL in there:
        file = path / FINAL
    arrays, metadata = checkpoint.load_agent(file)
    config = trusted_config(metadata, file, env, trust)
    kind = _kind(config.algorithm, file)
    return kind._restored(arrays, metadata, config, file, env, None), file


def _kind(algorithm: str, path: Path) -> type[Agent]:
    """The agents of an algorithm."""
    if algorithm not in AGENTS:
        raise UsageError(
            f"{path} holds no agent that plays, but a {algorithm} run; how well it does is in "
            "its summary.json (test_accuracy)."
        )
    return AGENTS[algorithm]
