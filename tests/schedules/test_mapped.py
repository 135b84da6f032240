"""Members on the host that share calls: each learns what it would alone, and ends by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.config.settings import resolve
from flatout.fleet.members import FOLDER, Strategy, members
from flatout.fleet.population import Population
from flatout.run import build
from flatout.run.interrupts import Interrupts
from flatout.schedules.mapped import Mapped
from tests.conftest import furthest, last_saved
from tests.schedules.test_fused import settings


def population(
    path: Path, algorithm: str, words: list[str], seeds: int, strategy: str = "together",
    resume: bool = False, interrupts: Interrupts | None = None, **more: Any,
) -> Population:  # fmt: skip
    keep = {"env_backend": "host", "tensorboard": False, "checkpoint_every": 10**9, "log_every": 64}
    config = resolve(algorithm, settings(algorithm, **(keep | more)))
    found = members(config, seeds, words, path)
    shared = Strategy(strategy, len(found), host=True)
    return Population(found, shared, resume, interrupts or Interrupts())


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("ppo", {"steps": 256}),
        ("dqn", {"steps": 64, "learning_starts": 16}),
        pytest.param("a2c", {"steps": 160}, marks=pytest.mark.slow),
        pytest.param("sac", {"steps": 64}, marks=pytest.mark.slow),
        pytest.param("td3", {"steps": 64}, marks=pytest.mark.slow),
        pytest.param("genetic", {"steps": 192}, marks=pytest.mark.slow),
    ],
)
def test_a_member_learns_what_it_would_alone(
    algorithm: str, more: dict[str, Any], tmp_path: Path
) -> None:
    key = "noise" if algorithm == "genetic" else "learning_rate"
    for strategy in ("together", "spread"):
        made = population(tmp_path / strategy, algorithm, [f"{key}=1e-3,1e-2"], 2, strategy, **more)
        made.run()
        assert [state.ended for state in made.states] == ["steps"] * 4, made.states
    for state in made.states:
        together, alone = (
            {
                name: array
                for name, array in last_saved(tmp_path / run / FOLDER / state.member.name).items()
                if name.startswith("learner.params")
            }
            for run in ("together", "spread")
        )
        assert together.keys() == alone.keys()
        for name, array in together.items():
            np.testing.assert_allclose(array, alone[name], atol=2e-4, err_msg=name)


def test_one_call_acts_for_all_and_one_dispatch_teaches_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acted, learned = list[int](), list[int]()
    act, learn = Mapped._acted, Mapped._learned

    def acts(self: Any, place: int, calls: Any) -> Any:
        acted.append(len(calls))
        return act(self, place, calls)

    def learns(self: Any, requests: Any) -> Any:
        learned.append(len(requests))
        return learn(self, requests)

    def recalled(*given: Any) -> Any:
        raise AssertionError("how members share calls is chosen before they are made")

    monkeypatch.setattr(build, "plannable", lambda config: True)
    monkeypatch.setattr(build, "recall", recalled)
    monkeypatch.setattr(Mapped, "_acted", acts)
    monkeypatch.setattr(Mapped, "_learned", learns)
    population(tmp_path, "ppo", [], 3, steps=256).run()  # 4 iterations of 32 steps
    assert acted == [3] * 128
    assert learned == [3] * 4


def test_members_end_by_themselves_and_the_others_go_on(tmp_path: Path) -> None:
    words = ["learning_rate=1e-3,2e-3,1e30"]
    made = population(tmp_path, "ppo", words, 1, steps=64_000, stop_at_return=25.0,
                      max_grad_norm=1e30, normalize_observation=False)  # fmt: skip
    made.run()
    ended = {state.member.name: state for state in made.states}
    assert ended.pop("learning_rate=1e30_seed=0").error.startswith("learning diverged")
    assert {state.ended for state in ended.values()} == {"return"}


def test_whole_episodes_of_members_end_at_their_own_steps(tmp_path: Path) -> None:
    made = population(tmp_path, "ppo", [], 3, steps=400, n_steps=200, rollout_episodes=1,
                      batch_size=200, normalize_observation=False)  # fmt: skip
    made.run()
    assert [state.ended for state in made.states] == ["steps"] * 3
    assert len({state.steps for state in made.states}) > 1


def test_stopped_members_are_saved_and_go_on(tmp_path: Path) -> None:
    interrupts = Interrupts()
    made = population(tmp_path / "p", "dqn", [], 2, steps=4096, interrupts=interrupts)

    def stop() -> None:
        if all(state.steps for state in made.states):
            interrupts.signum = 2

    made.run(stop)
    assert {state.ended for state in made.states} == {"signal"}
    assert all(0 < state.steps < 4096 for state in made.states)
    again = population(tmp_path / "p", "dqn", [], 2, resume=True, steps=4096)
    again.run()
    assert [(state.ended, state.steps) for state in again.states] == [("steps", 4096)] * 2
    ended = population(tmp_path / "p", "dqn", [], 2, resume=True, steps=4096)
    ended.run()  # nothing is left to do, and the table still tells what they are
    assert [(s.steps, s.mean) for s in ended.states] == [(s.steps, s.mean) for s in again.states]
    whole = population(tmp_path / "whole", "dqn", [], 2, steps=4096)
    whole.run()
    for state in whole.states:  # as many members all the time: also the same bits
        one, other = (
            last_saved(tmp_path / run / FOLDER / state.member.name) for run in ("p", "whole")
        )
        assert furthest(one, other) == 0.0
