"""Frame stacks: each frame is stored and copied once, and algorithms see the same observations as
if every observation were stored whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from flatout import DQN, PPO
from flatout.algorithms.base import RolloutSpec
from flatout.engine.act import Policy
from flatout.engine.collect import CentralSampler
from flatout.engine.groups import ActingGroup
from flatout.engine.rollout_buffer import RolloutBuffer
from flatout.engine.trajectory import whole_trajectory
from flatout.frames import stack_frames
from flatout.hardware import backend
from flatout.spans import Spans
from flatout.types import ObservationSpec, Trajectory
from tests.engine.test_collect import Chooser, Scripted
from tests.engine.test_episode_starts import Losing

HORIZON, STACK = 8, 4
SIZES = 2, 1
"""The number of environments of each acting group."""


STEPS = st.sets(st.integers(0, 3 * HORIZON - 1), max_size=4)


def spec_of(pad: str) -> ObservationSpec:
    return ObservationSpec((1, 2, STACK), "uint8", 255, STACK, pad)


class Framed(Scripted):
    """Scripted environments that observe a stack of the last frames of the episode."""

    def __init__(self, spec: ObservationSpec, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.spec = spec

    def _observe(self, env: int, shift: int = 0) -> np.ndarray:
        number, episode, at = self._see(env, shift)
        steps = np.arange(at - STACK + 1, at + 1)
        frames = 1 + 60 * number + 9 * episode % 50 + np.maximum(steps, 0)
        image = np.stack([frames, 255 - frames])[None]
        if self.spec.stack_pad == "zeros":
            image = np.where(steps < 0, 0, image)
        return image.astype(np.uint8)


class OfFrames(Chooser):
    """A policy that takes frames, and keeps those that it has taken where observations follow."""

    def __init__(self, spec: ObservationSpec, count: int) -> None:
        super().__init__(count, [], False)
        self.spec, self.kept = spec, dict[int, list[np.ndarray]]()

    def begin(  # type: ignore[override]
        self, obs: Any, step: int, first: int = 0, age: Any = None, follows: bool = False
    ) -> np.ndarray:
        if age is not None:
            older = self.kept[first][1:] if follows else obs[:-1]
            self.kept[first] = [*older, obs[-1].copy()]
            obs = stack_frames(np, self.spec, self.kept[first], age)
        return super().begin(obs.reshape(len(obs), -1), step, first)


def made(
    frames: bool, spec: ObservationSpec, losses: Sequence[set[int]], lives: bool, slots: int,
    whole: int | None,
) -> tuple[CentralSampler, list[Framed]]:  # fmt: skip
    """Make a sampler; the first group chooses its actions in two calls."""
    policies = [OfFrames(spec, 1) for _ in SIZES]
    layouts = [policies[0].layout] * sum(SIZES)
    rollout = RolloutSpec(HORIZON, whole, 1, True, frames=frames)
    buffers = [RolloutBuffer(rollout, sum(SIZES), spec, layouts) for _ in range(slots)]
    envs = [Framed(spec, first, n, [], lives=lives) for first, n in zip((0, 2), SIZES, strict=True)]
    groups: list[list[Any]] = [
        [ActingGroup(Losing(one, buffers, set(lost)), policy)]  # type: ignore[arg-type]
        for one, policy, lost in zip(envs, policies, losses, strict=True)
    ]
    sampler = CentralSampler(groups, buffers, "script", whole, Spans(), life_loss=lives)
    return sampler, envs


def counted(sampler: CentralSampler, spec: ObservationSpec) -> tuple[Trajectory, Any]:
    """Collect and commit; return the trajectory's steps with whole observations, and those after
    the last step."""
    found = jax.tree.map(np.array, sampler.collect()[0])
    sampler.commit()
    if found.age is not None:
        assert found.obs.shape == (HORIZON + STACK - 1, sum(SIZES), 1, 2, 1)
        found = whole_trajectory(np, spec, found)
    valid = np.ones(found.rewards.shape, bool) if found.valid is None else found.valid
    steps = jax.tree.map(lambda leaf: leaf[valid], found._replace(last_obs=(), finals=()))
    return steps, (found.finals, found.last_obs if found.valid is None else ())


@settings(deadline=None)
@given(
    st.tuples(STEPS, STEPS), st.booleans(), st.integers(1, 2), st.sampled_from([None, 1]),
    st.sampled_from(["zeros", "first"]), st.booleans(),
)  # fmt: skip
def test_frames_give_the_trajectories_of_whole_observations(
    losses: tuple[set[int], set[int]], lives: bool, slots: int, whole: int | None, pad: str,
    reproduces: bool,
) -> None:  # fmt: skip
    """With lost workers and lives, several groups and calls, whole episodes, and resumed."""
    spec = spec_of(pad)
    given = spec, losses, lives, slots, whole
    samplers = [made(frames, *given)[0] for frames in (True, False)]
    for sampler in samplers:
        sampler.start()
    for _ in range(3):
        jax.tree.map(np.testing.assert_array_equal, *(counted(one, spec) for one in samplers))
        assert samplers[0].episodes == samplers[1].episodes
    states = [sampler.state() for sampler in samplers]
    jax.tree.map(np.testing.assert_array_equal, *states)
    resumed = [made(frames, spec, [set(), set()], *given[2:]) for frames in (True, False)]
    notes: list[list[str]] = []
    for (sampler, envs), state in zip(resumed, states, strict=True):
        envs[0].shift = 0 if reproduces else 9
        notes.append(sampler.restore(state))
    assert notes[0] == notes[1]
    for _ in range(2):
        found = [counted(sampler, spec) for sampler, _ in resumed]
        jax.tree.map(np.testing.assert_array_equal, *found)


SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 16, "batch_size": 32, "n_epochs": 1},
    "dqn": {"train_freq": 32, "gradient_steps": 1, "batch_size": 4, "learning_starts": 32,
            "buffer_size": 256, "placement": "act=cpu replay=device"},
}  # fmt: skip
FRAME, STEPS_EACH = 84 * 84, 64
"""Bytes of a frame of an Atari game, and the steps of each of the two games."""


@pytest.mark.slow
@pytest.mark.bits
@pytest.mark.parametrize("name", SMALL)
def test_a_step_of_breakout_copies_one_frame_to_act_and_one_to_learn(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To a device that does not share the host's memory, 7.1 kB instead of 28.2, with equal
    results."""
    pytest.importorskip("ale_py")
    kind: Any = {"ppo": PPO, "dqn": DQN}[name]

    def trained() -> Any:
        agent = kind("BreakoutNoFrameskip-v4", envs=2, network="mlp", hidden=[4], **SMALL[name])
        return agent.learn(2 * STEPS_EACH)

    shared = trained()
    copied: list[int] = []  # arrays of the host that acting passed to the device
    copy, begin = jax.device_put, Policy.begin

    def count(tree: Any) -> None:
        copied.extend(leaf.nbytes for leaf in jax.tree.leaves(tree) if isinstance(leaf, np.ndarray))

    def counted_copy(array: Any, *arguments: Any, **options: Any) -> Any:
        count(array)
        return copy(array, *arguments, **options)

    def counted_begin(policy: Policy, *arguments: Any, **options: Any) -> Any:
        act = policy._act

        def counted_act(*given: Any) -> Any:
            count(given)
            return act(*given)

        with monkeypatch.context() as within:
            within.setattr(jax, "device_put", counted_copy)
            within.setattr(policy, "_act", counted_act)
            return begin(policy, *arguments, **options)

    monkeypatch.setattr(backend, "shares_memory", lambda device: False)
    monkeypatch.setattr(Policy, "begin", counted_begin)
    apart = trained()
    flow, turns = apart.summary["flow"], STEPS_EACH
    # The first turn copies the older frames, too, and ages travel at an episode's start.
    assert sorted(copied)[-turns - STACK + 1 :] == [2 * FRAME] * (turns + STACK - 1)
    assert sorted(copied)[: -turns - STACK + 1] == [2] * (STACK - 1)
    assert flow["act_bytes_per_step"] == sum(copied) / (2 * turns)
    # In addition to T rows: the rows around them, and the room for a final frame of each game.
    rows, more = (16, 5) if name == "ppo" else (16, 2)
    assert flow["learn_bytes_per_step"] == pytest.approx(FRAME * (rows + more) / rows, rel=0.01)
    assert shared.summary["flow"]["act_bytes_per_step"] == 0
    learned = [
        load_file(agent.save(tmp_path / str(at))) for at, agent in enumerate((shared, apart))
    ]
    jax.tree.map(np.testing.assert_array_equal, *learned)
