"""From settings to components: notes, refusals before anything large, and nothing left open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import psutil
import pytest

from flatout import EnvironmentFailure, FlatoutError, UsageError
from flatout.algorithms.registry import horizon
from flatout.config.settings import resolve
from flatout.engine.programs import Programs
from flatout.engine.rollout_buffer import RolloutBuffer
from flatout.run.build import Components, assemble
from flatout.run.resolve import resolve_run
from flatout.spans import Spans
from flatout.types import UserCode
from tests import own_algorithms, tiny
from tests.faulty_envs import Envs

PROCESSES = "sampler=processes workers=1x2"


def build(
    envs: Callable[..., Any] | None = None, algorithm: str = "ppo", code: Any = None,
    notes: list[str] | None = None, **settings: Any,
) -> Components:  # fmt: skip
    small = tiny.settings(algorithm) if algorithm in ("ppo", "dqn") else {"envs": 2}
    config = resolve(algorithm, small | {"env": "scripted", "steps": 64} | settings)
    said = [] if notes is None else notes
    passed = UserCode(env=envs or Envs(), algorithm=code)
    return assemble(resolve_run(config, passed, said.append), Spans(), announce=said.append)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


# --- What it says -----------------------------------------------------------------------------


def test_a_placement_that_is_chosen_says_why() -> None:
    notes: list[str] = []
    built = build(notes=notes, placement="auto")
    built.close()
    assert str(built.placement) == "cpu"
    assert any(note.startswith("placement auto: cpu (") for note in notes)
    assert set(built.notes) <= set(notes)


def test_a_placement_that_is_named_is_taken_as_it_is() -> None:
    notes: list[str] = []
    built = build(notes=notes, placement="act=cpu:1 learn=cpu:2")
    built.close()
    assert str(built.placement) == "act=cpu:1 learn=cpu:2"
    assert not [note for note in notes if "placement" in note]


@pytest.mark.parametrize(("starts", "said"), [(64, True), (63, False)])
def test_a_run_that_ends_before_it_learns_says_so(starts: int, said: bool) -> None:
    notes: list[str] = []
    build(algorithm="dqn", notes=notes, learning_starts=starts).close()
    assert any("nothing will be learned" in note for note in notes) == said


def test_the_expected_memory_is_by_device_and_purpose() -> None:
    built = build(placement="act=cpu learn=cpu:1")
    built.close()
    for parts in built.memory_mb.values():
        assert all(size >= 0 for size in parts.values())
    assert sum(sum(parts.values()) for parts in built.memory_mb.values()) > 0


# --- Refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "settings", "words"),
    [
        ("ppo", {"placement": "cpu:99"}, "cpu:99"),
        ("ppo", {"shards": 2, "placement": "learn=cpu,cpu:1,cpu:2"}, "shards"),
        ("ppo", {"network": "nature"}, "nature"),
        ("ppo", {"rollout_episodes": 1}, "gymnasium.wrappers.TimeLimit"),
        ("sac", {}, "sac|action"),
        ("genetic", {"placement": "schedule=overlapped", "n_steps": 8}, "schedule=serial"),
        ("ppo", {"n_steps": 2_000_000_000}, "MiB"),
        ("tests.own_algorithms:act_counter", {}, "act is not pure"),
        ("tests.own_algorithms:no_such", {}, "no function 'no_such'"),
    ],
)
def test_refusals_come_before_anything_large_and_leave_nothing_open(
    algorithm: str, settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one environment that was looked at is closed, and no room for experience was made."""
    made: list[Any] = []
    room = RolloutBuffer.__init__

    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        room(self, *args, **kwargs)

    monkeypatch.setattr(RolloutBuffer, "__init__", counted)
    envs, before = Envs(), psutil.Process().memory_info().rss
    with pytest.raises(FlatoutError) as refused:
        build(envs, algorithm, **settings)
    assert any(word in str(refused.value) for word in words.split("|"))
    assert len(envs.made) <= 1
    assert envs.open == 0
    assert not made
    assert psutil.Process().memory_info().rss - before < 2**28


@pytest.mark.parametrize(
    ("env", "words"),
    [("CartPole-v1", "pass max_episode_steps=N in env_kwargs"),
     ("tests.bad_envs:Good", r"wrap it in gymnasium\.wrappers\.TimeLimit"),
     ("CartPole-v1(...)", r"wrap it in gymnasium\.wrappers\.TimeLimit")],
)  # fmt: skip
def test_a_time_limit_is_asked_for_where_it_can_be_given(env: str, words: str) -> None:
    config = resolve("ppo", {"env": env, "rollout_episodes": 2})
    with pytest.raises(UsageError, match=f"rollout_episodes = 2 .*{words}"):
        horizon(config, None)


# --- What is open -----------------------------------------------------------------------------


def test_as_many_environments_are_open_as_are_needed_until_it_is_closed() -> None:
    envs = Envs()
    built = build(envs, eval_every=32, eval_episodes=3)
    assert envs.open == 2 + 3
    assert len(envs.made) == 1 + envs.open, "one more was looked at"
    built.close()
    assert envs.open == 0


@pytest.mark.parametrize("fails", [0, 1, 4])
def test_an_environment_that_cannot_be_made_closes_the_others(fails: int) -> None:
    """The first, one of training, or one of evaluation."""
    envs = Envs(fails)
    with pytest.raises((EnvironmentFailure, UsageError), match="no licence for so many"):
        build(envs, eval_every=32, eval_episodes=3)
    assert len(envs.made) == fails
    assert envs.open == 0


def test_what_fails_to_compile_closes_environments_and_ends_workers() -> None:
    """Workers are at work already when programs are compiled."""

    def make(spec: Any) -> Any:
        right = own_algorithms.good(spec)
        traced: list[int] = []

        def update(*given: Any) -> Any:
            traced.append(0)
            if len(traced) > 1:  # after it was checked
                raise ArithmeticError("no such gradient")
            return own_algorithms.update(*given)

        return own_algorithms.replace(right, update=update)

    for placement in ("cpu", PROCESSES):
        envs, before = Envs(), children()
        with pytest.raises(ArithmeticError, match="no such gradient"):
            build(envs, "tests.own_algorithms:good", code=make, placement=placement, eval_every=32)
        assert envs.made
        assert envs.open == 0
        assert children() <= before


@pytest.mark.parametrize("kind", ["classify", pytest.param("device", marks=pytest.mark.slow)])
def test_runs_of_one_shape_compile_no_program_twice(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, values = "classify", {"steps": 6, "batch_size": 64, "log_every": 2}
    if kind == "device":
        algorithm, values = "ppo", tiny.settings("ppo", eval_every=64, eval_episodes=2)
        values |= {"env_backend": "device", "placement": "sampler=device"}
    seen, listens = list[str](), True

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        if listens and event.endswith("backend_compile_duration"):
            seen.append(str(kwargs.get("fun_name", "")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    shared, compiled = Programs(several=True), list[list[str]]()
    for seed in range(2):
        seen.clear()
        made = assemble(
            resolve_run(resolve(algorithm, values, {"seed": seed})), Spans(), programs=shared
        )
        made.schedule.start()
        assert made.evaluator is not None
        list(made.schedule.advance(1))
        made.evaluator.run(made.schedule.params, 1)
        made.close()
        compiled.append([name for name in seen if "first_step" not in name])  # a constant
    listens = False
    assert len(compiled[0]) >= 2, "the programs were seen"
    assert compiled[1] == []


@pytest.mark.slow
def test_an_evaluation_that_cannot_open_ends_the_workers() -> None:
    envs, before = Envs(fails=2), children()
    with pytest.raises((EnvironmentFailure, UsageError), match="no licence"):
        build(envs, placement=PROCESSES, eval_every=32, eval_episodes=3)
    assert envs.open == 0
    assert children() <= before


def test_with_workers_nothing_is_open_here() -> None:
    envs, before = Envs(), children()
    built = build(envs, placement="sampler=processes workers=2x1")
    assert len(children() - before) >= 2
    assert envs.open == 0
    built.close()
    assert children() <= before
