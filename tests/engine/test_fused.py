"""The fused schedule: chunk lengths, stops and kills change no bit of its results."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from flatout.config.settings import resolve
from flatout.engine import fused, rollout
from flatout.engine.programs import Programs
from flatout.errors import CheckpointError, EnvironmentFailure, FlatoutError
from flatout.run.build import Components, assemble
from flatout.run.resolve import resolve_run
from flatout.run.trainer import Trainer
from flatout.spans import Spans
from flatout.storage.checkpoint import PREFIX
from flatout.storage.run_folder import RunFolder
from tests import tiny
from tests.conftest import furthest, last_saved

MORE: dict[str, dict[str, Any]] = {"dqn": {"prioritized": True, "n_step": 3, "steps": 960}}
"""Settings with which the loop carries more state than with the tiny ones. `steps` is the same in
all tests, because a program with prioritised replay depends on it."""
NORMALISED = {"ppo": {"normalize_observation": True}}
"""Such settings of PPO, for tests of the state."""


def every(*quick: str) -> list[Any]:
    """Return all algorithms; all but the `quick` ones are marked slow."""
    return [pytest.param(n, marks=() if n in quick else pytest.mark.slow) for n in tiny.SETTINGS]


def settings(algorithm: str, **more: Any) -> dict[str, Any]:
    own = {"steps": 10_000, "env_backend": "device"} | MORE.get(algorithm, {})
    return tiny.settings(algorithm, **(own | more))


class Playing(Programs):
    """Programs for tests that only collect: the update is not compiled."""

    def get(self, name: Any, make: Any) -> Any:
        return None if name[0] == "learn" else super().get(name, make)


@contextmanager
def parts(algorithm: str, learns: bool = True, **more: Any) -> Iterator[Components]:
    """Return a context with a run's started components; tests of the same shape share programs."""
    config = resolve(algorithm, settings(algorithm, **more))
    programs = tiny.programs(tiny.shape(config)) if learns else Playing()
    made = assemble(resolve_run(config), Spans(), programs=programs)
    try:
        made.schedule.start()
        yield made
    finally:
        made.close()


def chunks_of(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(
        fused.FusedSchedule, "_length", lambda self, asked, first: min(length, asked)
    )


def lengths_of_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The iterations of each call of the program from now on, in a list that grows."""
    called: list[int] = []
    make = fused.FusedSchedule._call

    def counted(flow: Any, state: Any, count: int) -> Any:
        called.append(count)
        return make(flow, state, count)

    monkeypatch.setattr(fused.FusedSchedule, "_call", counted)
    return called


@pytest.mark.parametrize("algorithm", every("dqn"))
def test_chunk_lengths_change_nothing(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, np.ndarray]] = []
    told: list[Any] = []
    with parts(algorithm, **NORMALISED.get(algorithm, {})) as made:
        flow: Any = made.schedule
        begun = flow.snapshot()
        for length in (1, 5, 100):
            chunks_of(monkeypatch, length)
            flow.restore(begun)
            told.append([(m.steps, m.updates, m.values, m.episodes) for m in flow.advance(12)])
            found.append(flow.snapshot().arrays)
    for arrays in found[1:]:
        assert arrays.keys() == found[0].keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, found[0][name], name)
    for other in told[1:]:
        jax.tree.map(np.testing.assert_array_equal, told[0], other)
    assert sum(updates for _, updates, _, _ in told[0]) > 0


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_a_stop_within_a_chunk_gives_the_state_of_that_iteration(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks_of(monkeypatch, 6)
    with parts(algorithm, **NORMALISED.get(algorithm, {})) as made:
        flow: Any = made.schedule
        begun = flow.snapshot()
        for number, _ in enumerate(flow.advance(12)):
            if number == 7:  # the second iteration of the second chunk
                break
        stopped = flow.snapshot()
        flow.restore(begun)
        list(flow.advance(8))
        exact = flow.snapshot()
    assert furthest(stopped.arrays, exact.arrays) == 0.0
    assert stopped.data == exact.data


def test_an_advance_that_ends_within_a_chunk_makes_no_iteration_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = lengths_of_calls(monkeypatch)
    chunks_of(monkeypatch, 5)
    monkeypatch.setattr(fused, "AHEAD_S", float("inf"))  # every chunk starts the next ones at once
    with parts("ppo") as made:
        flow: Any = made.schedule
        begun = flow.snapshot()
        for n in (3, 4, 1, 6, 2):
            assert len(list(flow.advance(n))) == n
        beyond = flow._chunk.count - flow._chunk.consumed + sum(one.length for one in flow._ahead)
        flow.idle()
        assert sum(called) == 16 + beyond
        pieces = flow.snapshot()
        flow.restore(begun)
        list(flow.advance(16))
        whole = flow.snapshot()
    assert furthest(pieces.arrays, whole.arrays) == 0.0


def test_metrics_rows_do_not_split_chunks_but_events_that_read_the_state_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = lengths_of_calls(monkeypatch)
    monkeypatch.setattr(fused, "ROWS_S", float("1e9"))
    monkeypatch.setattr(fused, "AHEAD_S", 0.0)
    with parts("ppo") as made:
        flow: Any = made.schedule
        list(flow.advance(1, 1))
        for row in range(4):
            assert len(list(flow.advance(2, 8 - 2 * row))) == 2
        assert called == [1, 8]  # the second extends until the state will be read
        flow.snapshot()
        assert called == [1, 8]  # no iteration was made twice for it
        list(flow.advance(3))
        assert called == [1, 8, 3]


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("genetic", {"env": "CartPole-v1", "env_kwargs": {}, "n_steps": 60, "rollout_episodes": 2}),
        pytest.param("genetic", {"envs": 4}, marks=pytest.mark.slow),
        pytest.param("ppo", {"env_kwargs": {"max_episode_steps": 30}, "rollout_episodes": 2,
                             "batch_size": 960}, marks=pytest.mark.slow),
        pytest.param("ppo", {"env": "tests.device_envs:corridor", "envs": 4,
                             "env_kwargs": {"patience": 9}, "rollout_episodes": 3,
                             "batch_size": 240}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_compaction_does_not_change_whole_episodes(
    algorithm: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    more = {"envs": 16, "placement": "sampler=device"} | more
    for least in (10**9, 1):  # without and with compaction
        monkeypatch.setattr(rollout, "LEAST_LEFT", least)
        with parts(algorithm, learns=False, **more) as made:
            flow: Any = made.schedule
            sampler, environments = flow._sampler, flow.state.environments
            for _ in range(3):  # environments continue between trajectories
                trajectory, environments = sampler.collect(environments, flow.params)
                episodes = sorted(episode[:3] for episode in sampler.episodes)
                told.append((trajectory, episodes, sampler.steps_collected))
            told.append((jax.device_get(environments), [], 0))
    for (one, episodes, steps), (other, theirs, others) in zip(told[:4], told[4:], strict=True):
        assert episodes == theirs
        assert steps == others
        valid = getattr(one, "valid", None)
        for name in one._fields:
            mine, same = getattr(one, name), getattr(other, name)
            by_step = valid is not None and name not in ("last_obs", "finals")
            for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(same), strict=True):
                a, b = (x[valid] if by_step else x for x in (a, b))
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)
    assert len(told[0][1]) >= more["envs"]


@pytest.mark.parametrize("algorithm", every("ppo"))
def test_a_resumed_run_ends_with_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    def train(name: str, until: int = 960, resume: bool = False) -> Path:
        more = {"steps": 960, "checkpoint_every": 100, "tensorboard": False, "log_every": 50}
        more |= NORMALISED.get(algorithm, {})
        folder = RunFolder(tmp_path / name, resume)
        config = resolve(algorithm, settings(algorithm, **more))
        try:
            Trainer(
                config, folder=folder, resume=resume, programs=tiny.programs(tiny.shape(config)),
                callback=lambda progress, metrics: progress.steps < until,
            ).run()  # fmt: skip
        finally:
            folder.close()
        return tmp_path / name

    whole = train("whole")
    train("parts", 480)
    parts_ = train("parts", resume=True)
    assert furthest(last_saved(whole), last_saved(parts_)) == 0.0
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) > 3
    assert rows[-1]["rollout/episodes"] > 0


@pytest.mark.parametrize(
    "algorithm", ["ppo", *(pytest.param(n, marks=pytest.mark.slow) for n in ("dqn", "sac"))]
)
def test_one_program_learns_what_its_parts_learn(algorithm: str) -> None:
    """XLA may round differently in one program, so a few iterations agree only to a tolerance."""
    found: list[dict[str, np.ndarray]] = []
    host, device = "act=cpu sampler=device", "act=cpu sampler=device replay=device"
    # Host replay refreshes DQN's priorities once for several updates.
    for placement in ("auto", device) if algorithm == "dqn" else ("auto", device, host):
        with parts(algorithm, placement=placement) as made:
            list(made.schedule.advance(4))
            arrays = made.schedule.snapshot().arrays
            found.append({n: a for n, a in arrays.items() if n.startswith(PREFIX)})
    together, *apart = found
    assert together
    for other in apart[1:]:
        assert furthest(apart[0], other) == 0.0, "the place of replay changed the result"
    assert furthest(together, apart[0]) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["a2c", "dqn"])
def test_shards_learn_the_same_on_one_device_and_on_two(algorithm: str) -> None:
    found: list[Any] = []
    for placement in ("act=cpu sampler=device schedule=fused",
                      "act=cpu,cpu:1 sampler=device schedule=fused",
                      "act=cpu sampler=device replay=device"):  # fmt: skip
        more = {"placement": placement, "shards": 2, "reduce": "ordered", "envs": 4}
        with parts(algorithm, **more) as made:
            told = list(made.schedule.advance(4))
            found.append((made.schedule.snapshot(), told))
    (one, told), (two, other), (apart, _) = found
    assert furthest(one.arrays, two.arrays) < 1e-5
    assert [m.steps for m in told] == [m.steps for m in other]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5)  # DQN's values, too
    jax.tree.map(close, told[-1].episodes, other[-1].episodes)
    mine, theirs = (
        {n: a for n, a in each.arrays.items() if n.startswith(PREFIX)} for each in (one, apart)
    )
    assert furthest(mine, theirs) < 1e-4


def test_episodes_are_what_the_environment_played() -> None:
    with parts("ppo") as made:
        told = list(made.schedule.advance(40))
    lengths = np.concatenate([metrics.episodes.length for metrics in told])
    returns = np.concatenate([metrics.episodes.episode_return for metrics in told])
    assert len(lengths) > 10
    np.testing.assert_array_equal(lengths, returns)  # CartPole: 1 for each step
    steps = sum(metrics.steps for metrics in told)
    assert steps - 2 * 500 <= lengths.sum() <= steps
    assert {*np.concatenate([metrics.episodes.env for metrics in told])} == {0, 1}


def test_final_observations_have_the_places_of_their_truncations() -> None:
    env = {"env": "tests.device_envs:corridor", "env_kwargs": {"patience": 5}}
    with parts("ppo", learns=False, placement="sampler=device", envs=4, **env) as made:
        flow: Any = made.schedule
        trajectory, _ = flow._sampler.collect(flow.state.environments, flow.params)
    step, column = np.nonzero(trajectory.truncated)
    assert {*column} == {0, 1, 2, 3}
    steps, envs = trajectory.truncated.shape
    places = trajectory.final_index[trajectory.final_index < steps * envs]
    np.testing.assert_array_equal(np.sort(places), step * envs + column)
    walked = trajectory.final_obs[trajectory.final_index < steps * envs][:, 1]
    np.testing.assert_allclose(walked, 5 / 100)  # last observations, not first ones


def test_a_callback_and_a_goal_stop_at_their_iteration(tmp_path: Path) -> None:
    seen: list[int] = []

    def callback(progress: Any, metrics: dict[str, float]) -> bool:
        seen.append(progress.steps)
        return progress.steps < 7 * 64

    config = resolve("ppo", settings("ppo"))
    programs = tiny.programs(tiny.shape(config))
    trainer = Trainer(config, callback=callback, programs=programs)
    summary = trainer.run()
    assert seen == [64 * k for k in range(1, 8)]
    assert summary["steps"] == 7 * 64
    assert summary["ended"] == "callback"
    stopped = trainer.final
    whole = Trainer(resolve("ppo", settings("ppo", steps=7 * 64)), programs=programs)
    whole.run()
    assert stopped is not None
    assert whole.final is not None
    assert furthest(stopped.arrays, whole.final.arrays) == 0.0
    config = resolve("ppo", settings("ppo", steps=200_000, stop_at_return=20.0))
    assert Trainer(config, programs=programs).run()["ended"] == "return"


def iterations_saved(trainer: Trainer) -> int:
    """Return the updates in a failed run's last state, whose numbers have to be finite."""
    assert trainer.final is not None
    arrays = trainer.final.arrays
    assert all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f")
    (updates,) = (array for name, array in arrays.items() if name.endswith("counters.updates"))
    return int(updates)


def test_an_error_names_what_is_not_finite() -> None:
    trainer = Trainer(resolve("a2c", settings("a2c", env="tests.device_envs:broken", steps=2000)))
    with pytest.raises(EnvironmentFailure, match=r"tests\.device_envs:broken"):
        trainer.run()
    assert iterations_saved(trainer) == trainer.progress.iterations
    diverging = resolve("ppo", settings("ppo", learning_rate=1e30, max_grad_norm=1e30))
    with pytest.raises(FlatoutError, match="learning diverged"):
        Trainer(diverging, programs=tiny.programs(tiny.shape(diverging))).run()


@pytest.mark.slow
def test_a_truncation_before_the_patience_ends_the_run_in_its_iteration() -> None:
    hasty = settings("a2c", env="tests.device_envs:hasty", steps=2000)
    trainer = Trainer(resolve("a2c", hasty))
    with pytest.raises(EnvironmentFailure, match=r"after 3 steps, but DeviceEnv\.patience is 1000"):
        trainer.run()
    assert iterations_saved(trainer) == trainer.progress.iterations


def test_host_and_device_runs_do_not_resume_each_other() -> None:
    plain = {"normalize_observation": False}
    with parts("ppo", env_backend="host", **plain) as host:
        saved = host.schedule.snapshot()
    with parts("ppo", **plain) as made:
        there = made.schedule.snapshot()
        with pytest.raises(CheckpointError, match="without sampler=device"):
            made.schedule.restore(saved)
    refused = pytest.raises(CheckpointError, match="resume it with sampler=device")
    with parts("ppo", env_backend="host", **plain) as host, refused:
        host.schedule.restore(there)


@pytest.mark.usefixtures("shared_programs")
def test_train_reports_and_explain_describes_a_fused_run(flatout: Any, tmp_path: Path) -> None:
    words = (*tiny.flags("ppo", env_backend="device"), "--steps", 25_600, "--log-every", 6_400,
             "--checkpoint-every", 0, "--no-tensorboard", "--run-dir", tmp_path)  # fmt: skip
    result = flatout("train", "ppo", *words)
    assert result.code == 0, result.err
    assert "schedule=fused" in result.out
    told = flatout("explain", tmp_path)
    assert told.code == 0, told.err
    assert "one program acts, steps and learns" in told.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"env": "Blackjack-v1"}, "Tuple|no device environment"),
        ({"env_backend": "host", "placement": "sampler=device"}, "--env-backend host"),
        ({"placement": "schedule=fused"}, "needs sampler=device"),
        ({"placement": "sampler=inline"}, "needs sampler=device"),
        ({"placement": "act=cpu learn=cpu:1 sampler=device schedule=fused"}, "leave learn= out"),
        ({"placement": "sampler=device schedule=fused replay=cpu"}, "in the device's memory"),
        ({"placement": "sampler=device groups=2"}, "one group"),
        ({"frame_stack": 4}, "--frame-stack"),
        ({"replay_trajectories": 2, "normalize_observation": False}, "replay_trajectories"),
        ({"env_kwargs": {"wind": 3}}, "wind"),
    ],
)
def test_what_cannot_be_is_one_sentence(more: dict[str, Any], said: str) -> None:
    with pytest.raises(FlatoutError, match=said), parts("ppo", **more):
        pass
