"""The carry of a recurrent policy: wherever it acts, an update finds what it remembers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load

from flatout import Agent, UsageError
from tests.conftest import Result
from tests.kills import finish, spawn, wait_for
from tests.recurrent import Killed, Signs, device_signs, memory

pytestmark = pytest.mark.usefixtures("shared_programs")

WORKERS = "sampler=processes workers=2x2"


def trained(env: Any = Signs, algorithm: Any = memory, steps: int = 256, **settings: Any) -> Agent:
    """Train for some trajectories of 16 steps of 4 environments, and check that none was wrong."""
    seen = list[dict[str, float]]()
    agent = Agent(env, algorithm=algorithm, envs=4, seed=1, log_every=64, **settings)
    agent.learn(steps, callback=lambda progress, metrics: seen.append(dict(metrics)))
    assert [values["train/wrong"] for values in seen] == [0.0] * (steps // 64)
    assert max(values["train/oldest"] for values in seen) > 0  # episodes span trajectories
    return agent


def weight(agent: Agent) -> float:
    arrays = agent._acting.arrays
    assert arrays is not None
    return float(next(array for name, array in arrays.items() if "weight" in name))


@functools.cache
def inline() -> Agent:
    """The agent that one process trains, of one group."""
    return trained(placement="sampler=inline")


@pytest.mark.parametrize(
    "placement",
    [
        WORKERS,
        *(pytest.param(place, marks=pytest.mark.slow) for place in (
            f"{WORKERS} inference=local", "sampler=inline groups=2",
            "sampler=inline schedule=overlapped", f"{WORKERS} schedule=overlapped groups=2",
        )),
    ],
)  # fmt: skip
def test_every_placement_remembers_the_same(placement: str) -> None:
    found = trained(placement=placement)
    if "overlapped" not in placement:
        assert weight(found) == weight(inline())


@pytest.mark.parametrize(
    "placement", ["schedule=fused", pytest.param("sampler=device schedule=serial",
                                                 marks=pytest.mark.slow)],
)  # fmt: skip
def test_compiled_loops_reset_the_carry_where_an_episode_ends(placement: str) -> None:
    env = device_signs()
    found = trained(env, env_backend="device", placement=f"sampler=device {placement}"
                    if "sampler" not in placement else placement)  # fmt: skip
    assert np.mean(found.evaluate(20).returns) > 1


def test_evaluation_resets_the_carry_at_episode_starts() -> None:
    found = trained()
    evaluation = found.evaluate(20)
    assert evaluation.returns == tuple(map(float, evaluation.lengths))  # every action was right


def test_predict_returns_the_state_and_takes_it() -> None:
    found = trained()
    shown = np.float32([[2.0], [-3.0], [1.0]])
    action, state = found.predict(shown[0], deterministic=True)
    assert (action, float(state["sum"][0])) == (1, 2.0)
    action, state = found.predict(shown[1], state=state, episode_start=[False], deterministic=True)
    assert (action, float(state["sum"][0])) == (0, -1.0)
    for given, words in (
        ({"state": state}, "a state without episode_start: pass one True or False for each"),
        (
            {"state": {"sum": state["sum"]}, "episode_start": [False]},
            r"a state of arrays \[1\], but",
        ),
        ({"state": state, "episode_start": [False, True]}, r"episode_start of shape \[2\] for 1"),
        ({"state": state, "episode_start": ["no"]}, r"episode_start = \['no'\]: pass True where"),
    ):
        with pytest.raises(UsageError, match=words):
            found.predict(shown[1], **given)
    actions, state = found.predict(shown, deterministic=True)
    assert actions.tolist() == [1, 0, 1]
    with pytest.raises(UsageError, match=r"episode_start of shape \[1\] for 3"):
        found.predict(shown, state=state, episode_start=[False])
    actions, state = found.predict(
        shown, state=state, episode_start=[False, False, True], deterministic=True
    )
    assert state["sum"].tolist() == [4.0, -6.0, 1.0]
    with pytest.raises(UsageError, match="cannot be exported"):
        found.export("policy.py")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sampler=inline", f"{WORKERS} inference=local"])
def test_a_run_that_continues_remembers_as_one_that_was_not_interrupted(
    place: str, tmp_path: Path
) -> None:
    whole = weight(trained(placement=place))
    saved = trained(steps=128, placement=place, run_dir=str(tmp_path / "run"))
    assert weight(saved) != whole
    again = Agent.load(tmp_path / "run", algorithm=memory, env=Signs)
    assert weight(again.learn(128)) == whole


Cli = Callable[..., Result]


@pytest.mark.slow
@pytest.mark.fault
def test_a_killed_run_resumes_with_its_carry(flatout: Cli, tmp_path: Path) -> None:
    """Also with that of a trajectory which was collected ahead."""
    command = (
        "train", "tests.recurrent:memory", "--env", "tests.recurrent:Signs", "--envs", 4,
        "--steps", 6400, "--checkpoint-every", 64, "--quiet", "--seed", 1, "--placement",
        "sampler=inline schedule=overlapped", "--run-dir",
    )  # fmt: skip
    assert flatout(*command, tmp_path / "whole").code == 0
    process = spawn(*map(str, command), str(tmp_path / "killed"))
    wait_for(lambda: any((tmp_path / "killed").glob("checkpoints/*/state.json")))
    process.kill()
    assert finish(process).code == -9
    assert flatout("train", "--resume", tmp_path / "killed", "--quiet").code == 0
    whole, resumed = (
        load((tmp_path / name / "params.safetensors").read_bytes()) for name in ("whole", "killed")
    )
    assert {n: a.tobytes() for n, a in whole.items()} == {
        name: array.tobytes() for name, array in resumed.items()
    }


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("place", [f"{WORKERS} inference=local", f"{WORKERS} groups=2"])
def test_a_lost_workers_environments_begin_with_a_fresh_carry(place: str, tmp_path: Path) -> None:
    found = trained(functools.partial(Killed, str(tmp_path / "once")), placement=place)
    assert (tmp_path / "once").exists()
    assert found.summary["steps"] == 256


def broken(**changes: Any) -> Callable[[Any], Any]:
    return lambda spec: replace(memory(spec), **changes)


def forgetful(params: Any, obs: Any, carry: Any, noise: Any) -> Any:
    return jnp.zeros(len(obs), jnp.int32), {"sum": carry["sum"]}, {}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (broken(act=forgetful), r"act returns carry\['steps'\] as None, and initial_carry made"),
        (broken(initial_carry=lambda n: {"sum": jnp.zeros(1), "steps": jnp.zeros(n, jnp.int32)}),
         "as float32.1.; it must have 4 rows"),
    ],
)  # fmt: skip
def test_a_carry_that_changes_its_form_is_refused(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Agent(Signs, algorithm=make, envs=4).learn(64)
