"""`predict` has Stable-Baselines3's order, defaults and result, also in an exported policy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout import PPO, Classifier, UsageError
from flatout.api import standalone
from tests.test_export import BOX, CHOICE, UNBOUNDED, VECTOR, initial, loaded

ROOT = Path(__file__).parents[2]
ORDER = ["observation", "state", "episode_start", "deterministic"]


@pytest.mark.parametrize("function", [PPO.predict, standalone.predict])
def test_the_order_and_the_default_are_stable_baselines3s(function: Any) -> None:
    arguments = inspect.signature(function).parameters
    assert [name for name in arguments if name != "self"][:4] == ORDER
    assert [arguments[name].default for name in ORDER[1:]] == [None, None, False]
    assert not set(ORDER[1:]) & set(inspect.signature(Classifier.predict).parameters)


@pytest.mark.parametrize("value", [True, np.bool_(False)])
def test_a_bool_as_state_is_refused(value: Any) -> None:
    words = f"state.* deterministic={value}"
    with pytest.raises(UsageError, match=words):
        PPO("CartPole-v1").predict(np.zeros(4), value)
    with pytest.raises(ValueError, match=words):
        standalone.predict(np.zeros(4), value)


def exported(tmp_path: Path, *task: Any, **settings: Any) -> Any:
    """An exported policy whose draws are the same in every test."""
    policy = loaded(initial(*task, **settings).export(tmp_path / "policy.py"))
    policy.GENERATOR = np.random.default_rng(0)
    return policy


SEEN = np.repeat(np.float32([[0.5, -1, 2, 0, 1, -2]]), 20_000, 0)


def test_an_exported_policy_draws_by_its_logits(tmp_path: Path) -> None:
    policy = exported(tmp_path, "ppo", VECTOR, CHOICE)
    logits = policy.outputs(SEEN[:1])[0].astype(float)
    actions, state = policy.predict(SEEN)
    shares = np.bincount(actions - CHOICE.start, minlength=5) / len(SEEN)
    wanted = np.exp(logits) / np.exp(logits).sum()
    assert state is None
    assert np.abs(shares - wanted).max() < 0.02
    assert len(set(policy.predict(SEEN, deterministic=True)[0])) == 1


def test_an_exported_policy_draws_from_its_gaussian(tmp_path: Path) -> None:
    policy = exported(tmp_path, "ppo", VECTOR, UNBOUNDED, log_std_init=-1.0)
    actions, _ = policy.predict(SEEN)
    assert np.allclose(actions.std(0), np.exp(-1), rtol=0.03)
    assert np.allclose(actions.mean(0), policy.outputs(SEEN[:1])[0], atol=0.02)


def test_an_exported_policy_explores_as_its_agent(tmp_path: Path) -> None:
    policy = exported(tmp_path, "dqn", VECTOR, CHOICE, learning_starts=0)
    actions, _ = policy.predict(SEEN)  # epsilon is 1: nothing was learned
    assert np.abs(np.bincount(actions - CHOICE.start) / len(SEEN) - 0.2).max() < 0.02
    noisy = exported(tmp_path, "ddpg", VECTOR, BOX, action_noise=0.1)
    spread = (noisy.predict(SEEN)[0] - noisy.outputs(SEEN[:1])).std((0, 1))
    assert (spread < 0.11 * (BOX.high - BOX.low)[0] / 2).all()
    assert spread.max() > 0
    drawn, _ = exported(tmp_path, "sac", VECTOR, BOX).predict(SEEN)
    assert np.ptp(drawn, 0).min() > 0.1
    assert ((drawn >= BOX.low) & (drawn <= BOX.high)).all()


def calls() -> Iterator[tuple[Path, str]]:
    """Each call of an agent's `predict` in the examples, the pages and the package's texts."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    for path in [*pages, *(ROOT / "src").rglob("*.py"), *(ROOT / "tools").glob("*.py")]:
        for line in re.findall(
            r"^.*\b(?:agent|model|policy)\b[^\n]*\.predict\(.*$", path.read_text(), re.M
        ):
            yield path, line


def test_examples_and_pages_say_deterministic_where_they_mean_it() -> None:
    found = list(calls())
    assert len(found) > 10
    drawn = {"docs/coming-from.md", "docs/performance.md", "docs/explain-reference.md"}
    vague = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path, line in found
        if "deterministic=" not in line and "labels = " not in line
        and str(path.relative_to(ROOT)) not in drawn | {"docs/explain-examples.md"}
    ]  # fmt: skip
    assert vague == []
    page = (ROOT / "docs" / "coming-from.md").read_text()
    assert page.count("What agents draw with") == 1
