"""Loading an agent without naming its class."""

from __future__ import annotations

import os
from pathlib import Path

from flatout.api import A2C, DDPG, DQN, PPO, SAC, TD3, Agent, Genetic, consent
from flatout.errors import UsageError
from flatout.storage import checkpoint
from flatout.storage.agent_file import AGENT_FILES, FINAL, find_agent, saved_config
from flatout.storage.run_folder import load_config

AGENTS: dict[str, type[Agent]] = {
    agent.algorithm: agent for agent in (PPO, A2C, DQN, DDPG, TD3, SAC, Genetic)
}


def load_any(
    path: Path,
    prefer: str = "best",
    env: str | None = None,
    trust: bool = False,
    algorithm: str | None = None,
) -> tuple[Agent, Path]:
    """An agent of whatever algorithm, and the file that it came from.

    Args:
        path: a saved agent or a run folder.
        prefer: ``best``, ``final``, or ``newest``, which may be a checkpoint's of a run that goes
            on. A run that has neither of the others yet gives that, too.
        env, algorithm, trust: see `Agent.load`.

    Raises:
        UsageError, CheckpointError: there is none, or it is corrupt.
    """
    saved = checkpoint.checkpoints(path / "checkpoints") if path.is_dir() else []
    there = [name for name in AGENT_FILES if os.path.lexists(path / name)]
    if saved and (not there or (prefer == "newest" and FINAL not in there)):
        file, metadata = saved[-1], {}
        arrays = checkpoint.load(file)[1].arrays
        config = load_config(path, consent(env, trust, algorithm))
    else:
        file = path / FINAL if prefer != "best" and FINAL in there else find_agent(path)
        arrays, metadata = checkpoint.load_agent(file)
        config = saved_config(metadata, file, consent(env, trust, algorithm))
    kind = Agent if ":" in config.algorithm else AGENTS.get(config.algorithm)
    if kind is None:
        raise UsageError(
            f"{path} holds no agent that plays, but a {config.algorithm} run; how well it does is "
            "in its summary.json (test_accuracy)."
        )
    return kind._restored(arrays, metadata, config, file, env, None, algorithm), file
