"""Loading of an agent whose algorithm the file names."""

from __future__ import annotations

from pathlib import Path

from flatout.api import Agent
from flatout.api.agents import A2C, DDPG, DQN, PPO, SAC, TD3, TQC, Genetic
from flatout.api.names import consent
from flatout.api.restore import restored
from flatout.api.saved_files import read_agent
from flatout.errors import UsageError

AGENTS: dict[str, type[Agent]] = {
    agent.algorithm: agent for agent in (PPO, A2C, DQN, DDPG, TD3, SAC, TQC, Genetic)
}

COMMAND = "give one with the same spaces: --env ID or --env module:factory"
"""How another environment is given to a command."""


def load_any(
    path: Path,
    prefer: str = "best",
    env: str | None = None,
    trust: bool = False,
    algorithm: str | None = None,
    command: bool = False,
) -> tuple[Agent, Path]:
    """Return an agent of any algorithm, and the file that it was loaded from.

    Args:
        path: a saved agent or a run folder.
        prefer: see `read_agent`.
        env, algorithm, trust: see `Agent.load`.
        command: whether the user gives them as flags of a command, for messages.

    Raises:
        UsageError, CheckpointError: the path holds no agent, or a corrupt one.
    """
    saved = read_agent(path, prefer, consent(trust, env=env, algorithm=algorithm))
    kind = Agent if ":" in saved.config.algorithm else AGENTS.get(saved.config.algorithm)
    if kind is None:
        raise UsageError(
            f"{path} holds no agent that plays, but a {saved.config.algorithm} run; how well it "
            "does is in its summary.json (test_accuracy)."
        )
    advice = COMMAND if command else "pass env="
    return restored(kind, saved, path, env, None, algorithm, {}, advice), saved.file
