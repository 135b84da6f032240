"""The Python face: learn, predict, save, load, and what an import costs."""

from __future__ import annotations

import json
import math
import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import flatout
from flatout import PPO, CheckpointError, FlatoutError, UsageError
from flatout.run import trainer
from flatout.storage import checkpoint
from tests import bad_envs, tiny
from tests.kills import assert_same

pytestmark = pytest.mark.usefixtures("shared_programs")

SETTINGS: dict[str, Any] = tiny.python("ppo", seed=1)
STEPS = 2 * tiny.ITERATION
OBS = np.random.default_rng(0).uniform(-0.2, 0.2, (5, 4)).astype(np.float32)


def new(**settings: Any) -> PPO:
    return PPO("CartPole-v1", **SETTINGS | settings)


@pytest.fixture(scope="module")
def agent() -> PPO:
    """Trained once; not to be trained further."""
    return new(threshold=[1.0, 1e6], stop_at_return=1e5).learn(STEPS)


def parameters(agent: PPO, path: Path) -> dict[str, np.ndarray]:
    """The networks' arrays by name."""
    return {n: a for n, a in load_file(agent.save(path)).items() if "networks" in n}


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    assert {n: a.shape for n, a in one.items()} == {n: a.shape for n, a in other.items()}
    return max(float(np.abs(one[name] - other[name]).max(initial=0)) for name in one)


# Learning


def test_learn_returns_the_agent_and_a_summary(agent: PPO) -> None:
    assert isinstance(agent, PPO)
    summary = agent.summary
    assert json.loads(json.dumps(summary)) == summary
    words = {name: summary[name] for name in ("algorithm", "env", "seed", "envs", "ended")}
    assert words == {
        "algorithm": "ppo", "env": "CartPole-v1", "seed": 1, "envs": 2, "ended": "steps",
    }  # fmt: skip
    counts = {name: summary[name] for name in ("steps", "iterations", "updates")}
    assert counts == {"steps": STEPS, "iterations": 2, "updates": 2 * tiny.UPDATES}
    for name in ("time_to_return_s", "steps_to_return"):  # null where not reached
        assert summary[name] == {"1.0": None, "100000.0": None, "1000000.0": None}
    phases = summary["phases"]
    known = (
        "env act input transfer replay learn fused publish log checkpoint wait eval compile plan "
        "other"
    )
    assert set(phases) == set(known.split())
    assert math.isclose(sum(phases.values()), 1, abs_tol=1e-6)
    assert min(phases.values()) >= 0
    assert phases["learn"] > 0
    assert phases["env"] > 0
    for name in ("wall_s", "steps_per_s", "peak_rss_mb"):
        assert summary[name] > 0
    assert summary["run_dir"] is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("learning_rate", r"agent\.learning_rate = 1e-05 .* PPO\(env, learning_rate=1e-05\)"),
        ("env", r"PPO\(env\)"),
        ("leraning_rate", "no such attribute.*Did you mean 'learning_rate'"),
        ("callback", "no such attribute"),
    ],
)
def test_what_would_change_nothing_cannot_be_set(name: str, words: str) -> None:
    agent = new()
    with pytest.raises(UsageError, match=words):
        setattr(agent, name, 1e-5)
    assert getattr(agent, name, None) != 1e-5


def test_classes_of_others_may_keep_what_they_like() -> None:
    class Mine(PPO):
        def __init__(self, *args: Any, **settings: Any) -> None:
            self.notes: list[str] = []
            super().__init__(*args, **settings)

        def predict(self, *observations: Any, **others: Any) -> int:
            return len(observations)

    agent = Mine("CartPole-v1")
    agent.notes = ["first"]
    agent.predict = lambda *_: 0  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="Mine"):
        agent.gamma = 0.9


def test_learn_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    new().learn(STEPS)
    assert not list(tmp_path.iterdir())


@pytest.mark.bits
def test_equal_seeds_learn_equal_parameters(agent: PPO, tmp_path: Path) -> None:
    here = parameters(agent, tmp_path / "a")
    assert_same(load_file(agent.save(tmp_path / "a")),
                load_file(new().learn(STEPS).save(tmp_path / "b")))  # fmt: skip
    assert distance(here, parameters(new(seed=2).learn(STEPS), tmp_path / "c")) > 1e-3


def test_learning_goes_on_from_the_parameters(tmp_path: Path) -> None:
    # Steps too small to matter: whatever else the second call does, it starts from the first's.
    agent = new(learning_rate=1e-9).learn(STEPS)
    first = parameters(agent, tmp_path / "first")
    agent.learn(STEPS)
    second = parameters(agent, tmp_path / "second")
    assert 0 < distance(first, second) < 1e-5
    assert agent.summary["steps"] == 2 * STEPS


def test_a_second_call_learns_further(tmp_path: Path) -> None:
    agent = new().learn(STEPS)
    first = parameters(agent, tmp_path / "first")
    before = agent.predict(OBS, deterministic=False)[0]
    assert agent.learn(STEPS) is agent
    assert distance(first, parameters(agent, tmp_path / "second")) > 1e-4
    assert agent.predict(OBS, deterministic=True)[0].shape == before.shape


def test_environments_may_reuse_their_arrays(tmp_path: Path) -> None:
    def learned(kind: type[bad_envs.Good]) -> dict[str, np.ndarray]:
        agent = PPO(lambda: kind(ends="truncated"), **SETTINGS).learn(STEPS)
        return parameters(agent, tmp_path / kind.__name__)

    assert distance(learned(bad_envs.Good), learned(bad_envs.SameArray)) == 0


def test_callback_sees_every_iteration_and_stops() -> None:
    seen: list[tuple[int, dict[str, float]]] = []

    def callback(progress: Any, metrics: dict[str, float]) -> bool:
        seen.append((progress.steps, metrics))
        return len(seen) < 2

    agent = new(steps=10 * STEPS).learn(callback=callback)
    assert [steps for steps, _ in seen] == [64, 128]
    assert agent.summary["ended"] == "callback"
    assert agent.summary["steps"] == 128
    assert all(np.isfinite(value) for value in seen[0][1].values())
    assert "train/policy_loss" in seen[0][1]


def test_a_second_thread_does_not_train_what_is_training(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, errors, original = new(), list[str](), trainer.assemble

    def second() -> None:
        try:
            agent.learn(tiny.ITERATION)
        except UsageError as error:
            errors.append(str(error))

    def assemble(*given: Any, **others: Any) -> Any:
        monkeypatch.setattr(trainer, "assemble", original)
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        return original(*given, **others)

    monkeypatch.setattr(trainer, "assemble", assemble)
    assert agent.learn(tiny.ITERATION).summary["steps"] == tiny.ITERATION
    assert len(errors) == 1
    assert "is training" in errors[0]
    assert agent.learn(tiny.ITERATION).summary["steps"] == 2 * tiny.ITERATION


def test_callbacks_that_return_nothing_do_not_stop() -> None:
    assert new().learn(STEPS, callback=lambda progress, metrics: None).summary["steps"] == STEPS


# Acting


def test_predict_one_and_many(agent: PPO) -> None:
    many = agent.predict(OBS, deterministic=True)[0]
    assert (many.shape, many.dtype.kind) == ((5,), "i")
    one = [agent.predict(obs, deterministic=True)[0] for obs in OBS]
    assert all(np.shape(action) == () for action in one)
    assert [int(action) for action in one] == many.tolist()
    assert agent.predict(OBS[0].tolist(), deterministic=True)[0] == one[0], (
        "lists are observations too"
    )
    assert set(many.tolist()) <= {0, 1}


def test_an_empty_batch_has_the_type_of_actions(agent: PPO) -> None:
    none = agent.predict(np.zeros((0, 4)), deterministic=True)[0]
    assert (none.shape, none.dtype) == ((0,), np.int64)
    assert agent.predict(OBS, deterministic=True)[0].dtype == np.int64
    with pytest.raises(UsageError, match="learned nothing"):
        new().predict(np.zeros((0, 4)), deterministic=True)


def test_predict_repeats_itself_only_when_deterministic(agent: PPO) -> None:
    batch = np.repeat(OBS[:1], 64, 0)
    assert len(set(agent.predict(batch, deterministic=True)[0].tolist())) == 1
    draws = [agent.predict(batch, deterministic=False)[0].tolist() for _ in range(3)]
    assert draws[0] != draws[1] != draws[2]
    assert set(draws[0]) == {0, 1}


@pytest.mark.parametrize(
    "observation",
    [
        3.0, None, np.zeros(5), np.zeros((2, 5)), np.zeros((2, 2, 4)), [[1, 2], [3]],
        ["a", "b", "c", "d"], ["1", "2", "3", "4"], [None] * 4, np.zeros(4, complex),
    ],
    ids=str,
)  # fmt: skip
def test_predict_refuses_what_is_no_observation(agent: PPO, observation: Any) -> None:
    with pytest.raises(UsageError, match=r"observations? .*\[4\]"):
        agent.predict(observation, deterministic=True)


def test_evaluate_repeats_itself(agent: PPO) -> None:
    one, two = agent.evaluate(3, seed=5), agent.evaluate(3, seed=5)
    assert one == two
    assert len(one.returns) == 3
    assert one.return_mean == pytest.approx(np.mean(one.lengths)), "CartPole pays 1 a step"


# Saving


def test_save_and_load(agent: PPO, tmp_path: Path) -> None:
    path = agent.save(tmp_path / "deep" / "agent.safetensors")
    with pytest.raises(UsageError, match=r"^--placement: 'nonsense' is neither"):
        PPO.load(path, placement="nonsense")
    again = PPO.load(path)
    assert again.config.flat() == agent.config.flat()
    assert distance(parameters(agent, tmp_path / "a"), parameters(again, tmp_path / "b")) == 0
    assert np.array_equal(
        again.predict(OBS, deterministic=True)[0], agent.predict(OBS, deterministic=True)[0]
    )
    draws = new().learn(STEPS), PPO.load(path)
    one, other = (each.predict(OBS, deterministic=False)[0] for each in draws)
    assert np.array_equal(one, other), "exploring draws follow from the seed"
    assert again.learn(STEPS).summary["steps"] == STEPS


def test_run_folder(agent: PPO, tmp_path: Path) -> None:
    run = tmp_path / "run"
    learned = new().learn(STEPS, run_dir=run)
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "metrics.jsonl", "checkpoints", "params.safetensors",
            "summary.json"} <= names  # fmt: skip
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert json.loads((run / "summary.json").read_text()) == learned.summary
    assert learned.summary["run_dir"] == str(run)
    loaded = PPO.load(run)
    assert np.array_equal(
        loaded.predict(OBS, deterministic=True)[0], agent.predict(OBS, deterministic=True)[0]
    )
    advice = r"already holds a run; continue it with \w+\.load\(.*\)\.learn\(.*run_dir=.*\), or"
    with pytest.raises(UsageError, match=advice):
        new().learn(STEPS, run_dir=run)


class Torso(eqx.Module):
    """A network of the user's own."""

    weight: jax.Array

    def __init__(self, key: jax.Array, shape: tuple[int, ...]) -> None:
        self.weight = jax.random.normal(key, (shape[0], 7))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ self.weight)


def test_custom_network(tmp_path: Path) -> None:
    agent = new(network=Torso).learn(STEPS)
    arrays = parameters(agent, tmp_path / "agent")
    assert [a.shape for n, a in arrays.items() if n.endswith("actor.torso.weight")] == [(4, 7)]
    loaded = PPO.load(tmp_path / "agent", network=Torso)
    assert np.array_equal(
        loaded.predict(OBS, deterministic=True)[0], agent.predict(OBS, deterministic=True)[0]
    )
    with pytest.raises(CheckpointError, match="network="):
        PPO.load(tmp_path / "agent")


class Matrix(Torso):
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.weight


class Integers(Torso):
    def __init__(self, key: jax.Array, shape: tuple[int, ...]) -> None:
        self.weight = jnp.zeros((4, 7), int)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Matrix, r"vector of features.*\[4, 7\]"),
        (Integers, "int32"),
        (lambda key, shape: None, "returned NoneType.*module"),
        (3, "network"),
        ("mpl", "'mpl'.*'mlp'"),
    ],
)
def test_networks_that_cannot_be_used(network: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        new(network=network).learn(STEPS)


# Refusals


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: PPO(), "no environment"),
        (lambda: PPO("CartPole-v1", learning_rat=3), "'learning_rat'.*'learning_rate'"),
        (lambda: PPO("CartPole-v1", gamma=2), "gamma = 2.0"),
        (lambda: PPO("CartPole-v1", placement="nonsense"), "^--placement: 'nonsense' is neither"),
        (lambda: PPO("CartPole-v1", placement="act=tpu"), "^--placement: act=tpu: 'tpu' is not a"),
        (lambda: PPO(preset="cartpol-ppo"), "'cartpole-ppo'"),
        (lambda: PPO("CartPol-v1").learn(64), "'CartPole-v1'"),
        (lambda: PPO(bad_envs.Good(), **SETTINGS).learn(64), "one environment object"),
        (lambda: PPO(3).learn(64), "not int"),
        (lambda: new().predict(OBS, deterministic=True)[0], "learned nothing"),
        (lambda: new().evaluate(1), "learned nothing"),
        (lambda: new().save("agent"), "nothing to save"),
        (lambda: new(steps=64).learn(0), "total_timesteps = 0"),
        (lambda: new().learn(-1), "total_timesteps = -1"),
        (lambda: PPO.load("no-such-agent"), "no-such-agent"),
    ],
)
def test_refusals(call: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=words):
        call()
    assert not list(tmp_path.iterdir())


def test_evaluating_and_saving_in_vain(agent: PPO, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="episodes = 0"):
        agent.evaluate(0)
    with pytest.raises(UsageError, match="seed = -1"):
        agent.evaluate(1, seed=-1)
    (tmp_path / "file").write_text("")
    with pytest.raises(FlatoutError, match="cannot write"):
        agent.save(tmp_path / "file" / "agent")


# Processes


def python(code: str, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *argv]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_an_import_starts_nothing(tmp_path: Path) -> None:
    loaded = "[n for n in ('jax', 'gymnasium', 'equinox', 'optax', 'torch') if n in sys.modules]"
    result = python(f"import sys, flatout; flatout.engine; print({loaded})", cwd=tmp_path)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
    assert set(flatout.__all__) >= {"PPO", "FlatoutError", "Placement"}
    with pytest.raises(AttributeError, match="PPOO"):
        _ = flatout.PPOO


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["train", "ppo", "--help"]])
def test_help_needs_no_jax(argv: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['jax'] = sys.modules['gymnasium'] = None\n"
        "from flatout.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    result = python(code, *argv, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "flatout" in result.stdout


def test_training_while_a_spawned_process_imports_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(UsageError, match=r"a spawned process .*: put .* under if __name__ == "):
        PPO("CartPole-v1", **SETTINGS).learn(STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "when",
    [
        "if __name__ != '__main__': ",  # the first process need not train
        "",
    ],
    ids=["in the second process", "in both"],
)
def test_a_script_without_the_main_guard(when: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "from flatout import PPO\n"
        f"{when}PPO('CartPole-v1', **{SETTINGS}).learn({STEPS})\n"
        "child = multiprocessing.get_context('spawn').Process(target=print)\n"
        "child.start()\n"
        "child.join()\n"
        "sys.exit(child.exitcode)\n"
    )
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert "spawned process" in last
    assert 'if __name__ == "__main__":' in last
    assert last.startswith("flatout.errors.UsageError: ")


@pytest.mark.bits
def test_a_new_run_after_loading_equals_a_new_run_before(tmp_path: Path) -> None:
    agent = new(seed=3).learn(STEPS)
    loaded = PPO.load(agent.save(tmp_path / "agent.safetensors"))
    files = [
        one.learn(STEPS, reset=True).save(tmp_path / name)
        for one, name in ((agent, "a"), (loaded, "b"))
    ]
    one, other = (checkpoint.load_agent(file)[0] for file in files)
    assert all(np.array_equal(one[name], other[name]) for name in one)
