"""Notes about inputs and actions from which no agent can learn."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np

from flatout import PPO
from flatout.algorithms.common.diagnostics import input_notes
from flatout.run.progress import Progress
from flatout.types import Episodes, Metrics
from tests import tiny


def notes_of(progress: Progress, count: int, steps: int = 512, **values: float) -> list[str]:
    """Return the notes of some iterations with the same values, in which two episodes end each."""
    found: list[str] = []
    for _ in range(count):
        given = {name.replace("constant_of_", "constant/"): v for name, v in values.items()}
        episodes = Episodes(*(np.zeros(2) for _ in Episodes._fields))
        metrics = Metrics(steps, 1, episodes, given)
        found += input_notes(metrics, progress.steps, progress.lasting, progress.noted)
        progress.add(metrics, by_episode=False)
    return found


def test_what_lasts_is_noted_once_also_in_a_resumed_run() -> None:
    progress = Progress()
    values = {"constant_actions": 1.0, "clipped_inputs": 0.41, "constant_of_goal": 1.0}
    assert notes_of(progress, 3, **values) == []
    progress = Progress.from_json(json.loads(json.dumps(progress.to_json())))
    constant, same, clipped = notes_of(progress, 1, **values)
    assert "the input goal never changes: it had one value in all 2,048 steps" in constant
    assert "all actions are the same" in same
    assert "41% of normalised inputs lie at the clip" in clipped
    assert notes_of(progress, 20, **values) == []
    assert progress.means()["constant_inputs"] == 1.0


def test_what_does_not_last_is_not_noted() -> None:
    progress = Progress()
    for _ in range(10):
        assert notes_of(progress, 3, constant_actions=1.0, clipped_inputs=0.3) == []
        assert notes_of(progress, 1, constant_actions=0.0, clipped_inputs=0.01) == []
    assert notes_of(progress, 1, constant_of_goal=0.0) == []
    assert notes_of(progress, 50, constant_of_goal=1.0) == []  # it changed once
    assert notes_of(progress, 50, constant_actions=0.99, clipped_inputs=0.04) == []


class Still(gym.Env[Any, Any]):
    """An environment whose observation is always the same."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self.left = 100
        return np.full(4, 0.5, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.full(4, 0.5, np.float32), 0.0, not self.left, False, {}


def test_a_run_says_that_its_observation_never_changes() -> None:
    agent = PPO(Still, **tiny.python("ppo")).learn(34 * tiny.ITERATION)
    assert agent.summary is not None
    said = [note for note in agent.summary["notes"] if "never changes" in note]
    assert len(said) == 1
    assert "the observation never changes: it had one value in all 2,048 steps" in said[0]
    assert agent.summary["last"]["constant_inputs"] == 1.0
