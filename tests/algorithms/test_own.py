"""Users' algorithms: all that built-in algorithms can do, and one sentence for each mistake."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout import PPO, Agent, CheckpointError, UsageError
from flatout.storage import checkpoint
from tests import own_algorithms as own
from tests import tiny
from tests.cli.test_bad_input import sentence
from tests.conftest import Result, furthest, last_saved
from tests.kills import (
    ROOT,
    assert_same,
    final_state,
    finish,
    kill_at_random_times,
    spawn,
)

pytestmark = pytest.mark.usefixtures("small_heap")

Cli = Callable[..., Result]
EXAMPLE = "examples.7_own_algorithm:vtrace_actor_critic"
CARTPOLE = ("--env", "CartPole-v1", "--envs", "2", "--quiet", "--no-tensorboard")
RUN = ("train", EXAMPLE, *CARTPOLE, "--steps", "400", "--seed", "3")
"""A run of 10 updates: 20 steps of 2 environments pay for each."""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # the folder from which `examples` and `tests` can be imported


@pytest.fixture(scope="module")
def example() -> Any:
    """Return the function of the example."""
    return importlib.import_module(EXAMPLE.partition(":")[0]).vtrace_actor_critic


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run of the example, which tests must not change."""
    from flatout.__main__ import main

    path = tmp_path_factory.mktemp("own") / "run"
    with contextlib.chdir(ROOT):
        assert main([*RUN, "--run-dir", str(path)]) == 0
    return path


def small(flatout: Cli, name: str, path: Path, *flags: Any) -> Result:
    """Train one of `tests.own_algorithms` for only four updates."""
    return flatout(
        "train", f"tests.own_algorithms:{name}", *CARTPOLE, "--steps", 64, "--run-dir", path, *flags
    )


# --- All that built-in algorithms can do ------------------------------------------------------


@pytest.mark.slow
@pytest.mark.bits
def test_the_command_and_python_learn_the_same(run: Path, example: Any, tmp_path: Path) -> None:
    agent = Agent("CartPole-v1", algorithm=example, envs=2, seed=3).learn(400)
    assert agent.summary["algorithm"] == EXAMPLE
    assert agent.summary["updates"] == 10
    arrays, _ = checkpoint.load_agent(agent.save(tmp_path / "agent"))
    kept, _ = checkpoint.load_agent(run / "params.safetensors")
    assert set(kept) < set(arrays)  # `save` also writes what is needed to continue learning
    assert_same({name: arrays[name] for name in kept}, kept)
    named = Agent("CartPole-v1", algorithm=EXAMPLE, envs=2, seed=3)
    assert named.config == agent.config


@pytest.mark.bits
def test_its_run_is_loaded_evaluated_watched_and_explained(
    run: Path, example: Any, flatout: Cli, tmp_path: Path
) -> None:
    agents = [
        Agent.load(run),
        Agent.load(run, algorithm=example),
        Agent.load(run, algorithm=EXAMPLE),
    ]
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    first = agents[0].predict(obs, deterministic=True)[0]
    assert set(first) == {0, 1}
    for agent in agents[1:]:
        np.testing.assert_array_equal(agent.predict(obs, deterministic=True)[0], first)
    shown = flatout("eval", run, "--episodes", 3, "--json")
    assert shown.code == 0, shown.err
    returns = json.loads(shown.out)["returns"]
    assert returns == list(agents[0].evaluate(3).returns)
    explained = flatout("explain", run)
    assert explained.code == 0, explained.err
    assert "VERDICT" in explained.out
    gif = tmp_path / "out.gif"
    watched = flatout("eval", run, "--episodes", 1, "--out", gif)
    assert watched.code == 0, watched.err
    assert gif.read_bytes()[:3] == b"GIF"


@pytest.mark.bits
def test_a_loaded_agent_continues_learning(tmp_path: Path) -> None:
    agent = Agent("CartPole-v1", algorithm=own.good, envs=2).learn(64)
    again = Agent.load(agent.save(tmp_path / "agent"))
    for one in (agent, again):
        one.learn(64, reset=True)
        one.save(tmp_path / str(one is agent))
    one, other = (checkpoint.load_agent(tmp_path / str(number))[0] for number in (True, False))
    assert_same(one, other)


@pytest.mark.slow
@pytest.mark.bits
@pytest.mark.usefixtures("shared_programs")
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    run: Path, flatout: Cli, tmp_path: Path
) -> None:
    half = tmp_path / "half"
    assert flatout(*RUN, "--steps", 200, "--run-dir", half).code == 0
    assert flatout("train", EXAMPLE, "--resume", half, "--steps", 400, "--quiet").code == 0
    assert_same(final_state(half)["arrays"], final_state(run)["arrays"])
    message = flatout("train", "--resume", half, "--steps", 800, "--hp", "gamma=0.5").message
    assert "--resume cannot change hp" in message
    message = flatout("train", "tests.own_algorithms:good", "--resume", half).message
    assert f"was trained with {EXAMPLE}" in message


def test_a_run_whose_state_does_not_fit_is_refused_before_there_is_a_folder(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check uses the function's state, not only the settings: the function may have changed."""
    monkeypatch.setattr(own, "mine", own.good, raising=False)
    assert small(flatout, "mine", tmp_path / "run").code == 0
    where = ("train", "--from", tmp_path / "run", "--quiet", "--run-dir", tmp_path / "new")
    sentence(flatout(*where, "--env", "Acrobot-v1"), 2, "tests.own_algorithms:mine: act failed")
    monkeypatch.setattr(own, "mine", own.wider)
    words = "tests.own_algorithms:mine has changed|['w'] is float32[4, 2] there, float32[8, 2] here"
    sentence(flatout(*where), 2, words)
    monkeypatch.setattr(own, "mine", own.fails)
    sentence(flatout(*where), 2, "function itself failed|no such thing in here")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    monkeypatch.setattr(own, "mine", own.good)
    assert flatout(*where, "--steps", 64).code == 0


@pytest.mark.slow
def test_killed_at_random_times_and_resumed_is_bit_equal(tmp_path: Path) -> None:
    flags = (
        "train", EXAMPLE, *CARTPOLE, "--steps", "16000", "--checkpoint-every", "80",
        "--log-every", "80", "--hp", "gamma=0.98",
    )  # fmt: skip
    kill_at_random_times(flags, 2, random.Random("own"), tmp_path)


@pytest.mark.slow
def test_its_shards_learn_the_same_on_any_number_of_devices(flatout: Cli, tmp_path: Path) -> None:
    flags = (*RUN, "--steps", 160, "--shards", 2, "--reduce", "ordered")
    for devices in (1, 2):
        done = flatout(*flags, "--devices", devices, "--run-dir", tmp_path / str(devices))
        assert done.code == 0, done.err
    assert furthest(last_saved(tmp_path / "1"), last_saved(tmp_path / "2")) < 1e-5


@pytest.mark.slow
def test_the_command_shows_virtual_devices(tmp_path: Path) -> None:
    flags = ("--shards", "2", "--devices", "2", "--virtual-devices", "2", "--json")
    done = finish(spawn(*RUN, *flags, "--run-dir", str(tmp_path / "run")))
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert "cpu:1" in summary["placement"]
    assert summary["updates"] == 10


@pytest.mark.bits
@pytest.mark.slow
@pytest.mark.parametrize("inference", ["central", "local"])
def test_processes_change_no_bit(inference: str, run: Path, flatout: Cli, tmp_path: Path) -> None:
    placement = f"sampler=processes workers=1x2 inference={inference}"
    done = flatout(*RUN, "--placement", placement, "--run-dir", tmp_path / "run")
    assert done.code == 0, done.err
    assert_same(last_saved(tmp_path / "run"), last_saved(run))


@pytest.mark.slow
@pytest.mark.bits
def test_workers_act_with_a_function_that_has_no_name() -> None:
    """A function that a script passes reaches worker processes that cannot import it."""
    rate = np.float32(0.5)

    def make(spec: Any) -> Any:
        right = own.good(spec)
        return own.replace(right, hp=right.hp._replace(rate=rate))

    def learned(placement: str) -> dict[str, Any]:
        metrics: list[dict[str, float]] = []
        agent = Agent("CartPole-v1", algorithm=make, envs=2, placement=placement)
        agent.learn(64, callback=lambda progress, row: metrics.append(row))
        return {"metrics": [{n: v for n, v in m.items() if n == "train/top"} for m in metrics]}

    local = learned("sampler=processes workers=1x2 inference=local")
    assert len(local["metrics"]) == 4
    assert local == learned("cpu")


@pytest.mark.parametrize("name", ["replayed", "act_own_derivative", "no_hp"])
def test_other_kinds_of_algorithms_run(name: str, flatout: Cli, tmp_path: Path) -> None:
    done = small(flatout, name, tmp_path / "run", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["updates"] > 0


@pytest.mark.slow
def test_the_example_learns_cartpole(example: Any) -> None:
    agent = Agent("CartPole-v1", algorithm=example, envs=16, seed=1).learn(160_000)
    assert agent.summary["return_mean_100"] > 110  # from about 20


# --- Hyper-parameters -------------------------------------------------------------------------


def test_hyper_parameters_have_an_effect(flatout: Cli, tmp_path: Path) -> None:
    initial = own.good().init(np.zeros(2, np.uint32), own.HyperParameters()).params["w"]

    def moved(name: str, *flags: str) -> list[bool]:
        assert small(flatout, "good", tmp_path / name, "--seed", 1, *flags).code == 0
        return (weights(name) != start).any(0).tolist()

    def weights(name: str) -> np.ndarray:
        arrays, _ = checkpoint.load_agent(tmp_path / name / "params.safetensors")
        (found,) = (array for array in arrays.values() if array.shape == initial.shape)
        return found

    assert small(flatout, "good", tmp_path / "start", "--seed", 1, "--hp", "rate=0").code == 0
    start = weights("start")
    assert moved("default") == [True, True]
    assert moved("both", "--hp", "rate=0.1", "--hp", "scale=[0,3]") == [False, True]
    assert moved("twice", "--hp", "rate=1", "--hp=rate=0") == [False, False]
    agent = Agent("CartPole-v1", algorithm=own.good, envs=2, seed=1, hp={"rate": 0.0}).learn(64)
    assert agent.config.flat()["hp"] == {"rate": 0.0}


@pytest.mark.parametrize(
    ("name", "pair", "words"),
    [
        ("good", "rat=1", "tests.own_algorithms:good|'rat'|rate, scale|'rate'?"),
        ("good", "rate=fast", "--hp rate='fast'|rate is a number"),
        ("good", "rate=nan", "--hp rate=nan|rate is a number"),
        ("good", "rate=[1,2]", "--hp rate=[1, 2]|rate is a number"),
        ("good", "scale=1", "--hp scale=1|[2]"),
        ("good", "scale=[1,true,x]", "--hp scale=|[2]"),
        ("good", "rate", "--hp|'rate'|KEY=VALUE"),
        ("no_hp", "rate=1", "no hyper-parameter 'rate'|names none"),
    ],
)
def test_impossible_hyper_parameters_are_refused(
    name: str, pair: str, words: str, flatout: Cli, tmp_path: Path
) -> None:
    sentence(small(flatout, name, tmp_path / "run", "--hp", pair), 2, words)
    assert not (tmp_path / "run").exists()


def test_built_in_algorithms_have_flags_instead(flatout: Cli) -> None:
    result = flatout("train", "ppo", *tiny.flags("ppo"), "--hp", "gamma=0.9")
    sentence(result, 2, "--hp|ppo|flag for each setting")
    text = " ".join(flatout("train", EXAMPLE, "--help").out.replace("│", " ").split())
    assert "--hp NAME=VALUE" in text
    assert "learning_rate=0.002 gamma=0.99 value_weight=0.5 entropy_weight=0.01" in text
    assert "--hp " not in flatout("train", "ppo", "--help").out


# --- One sentence for each mistake ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no.such.module:make", "no.such.module:make|no module 'no'"),
        ("tests.own_algorithms:godo", "tests.own_algorithms|'godo'|'good'"),
        ("tests.own_algorithms:NO_FUNCTION", "'NO_FUNCTION'"),
        ("tests.own_algorithms:", "tests.own_algorithms: is not module:function"),
        (":good", ":good is not module:function"),
        ("good", "'good'|module:function"),
    ],
)
def test_names_that_name_no_function_are_refused(
    name: str, words: str, flatout: Cli, tmp_path: Path
) -> None:
    result = flatout("train", name, *CARTPOLE, "--run-dir", tmp_path / "run")
    sentence(result, 2, words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("code", "text", "words"),
    [
        (1, "1 / 0", "importing broken failed|ZeroDivisionError|division by zero|error.log"),
        (1, "def make(:", "importing broken failed|SyntaxError"),
        (1, "raise SystemExit(0)", "importing broken failed|SystemExit"),
        (2, "import no_such_thing", "no module 'no_such_thing'|imported by broken"),
    ],
)
def test_modules_that_cannot_be_imported_are_refused(
    code: int, text: str, words: str, flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(f"{text}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    result = flatout("train", "broken:make", *CARTPOLE, "--run-dir", tmp_path / "run")
    sentence(result, code, f"broken:make|{words}")
    assert "Traceback" in (tmp_path / "run" / "error.log").read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", "function itself failed|LookupError|no such thing in here"),
        ("returns_none", "returned NoneType|flatout.Algorithm"),
        ("named_ppo", "'ppo' is taken"),
        ("init_fails", "init failed|no_such_field"),
        ("init_no_state", "init returns dict|flatout.State"),
        ("init_no_step", "init's counters have no step|flatout.Counters"),
        ("init_python_number", "init returns state.opt['sum'] as a Python float|NumPy"),
        ("init_float64", "init returns state.params['w'] as float64[4, 2]|32 bits"),
        ("update_two_values", "update must return|priorities"),
        ("update_list_of_metrics", "update"),
        ("update_more", "update returns a leaf state.params['b']|init made none"),
        ("update_less", "update returns no leaf state.opt['sum']|float32[]"),
        ("update_shape", "update returns state.params['w'] as float32[3, 2]|float32[4, 2]"),
        ("update_dtype", "update returns state.counters.step as float32[]|int32[]"),
        ("update_fails", "update failed|KeyError: 'v'"),
        ("metric_missing", "metric 'entropy'|update|top, updates"),
        ("metric_not_scalar", "update's metric 'top' is float32[3, 2]|scalar"),
        ("no_updates", "metric 'updates'|Algorithm.metrics"),
        ("act_numpy_random", "act is not pure|noise"),
        ("act_numpy_array", "act is not pure|noise"),
        ("act_counter", "act is not pure|state"),
        ("act_keeps", "act keeps what it is given beyond the call|state"),
        ("actor_integers", "actor returns params['n'] as int32[]|floats"),
        ("actor_fails", "actor failed|AttributeError|network"),
        ("noise_fails", "noise failed"),
        ("act_fails", "act failed|KeyError: 'v'"),
        ("act_shape", "act gives actions int32[2, 1]|int32[2]"),
        ("act_dtype", "act gives actions float32[2]|int32[2]"),
        ("act_two_values", "act must return"),
        ("act_no_names", "act must return|extras by name"),
        ("extra_without_rows", "act's extra 'top' is float32[]|2 rows"),
        ("extra_too_narrow", "act's extra 'top' is bool[2]|32 bits"),
        ("extra_named_action", "act's extra 'action'|another name"),
        ("advance_shape", "advance returns state.counters.step as int32[2]|int32[]"),
        ("advance_state_alone", "advance must return"),
        ("no_steps", "Algorithm.horizon is 0|at least 1"),
        ("replay_every_no_step", "ReplaySpec.train_freq is 0|at least 1"),
        ("replay_without_gamma", "replay needs hp.gamma"),
        ("replay_without_advance", "replay needs Algorithm.advance"),
        ("prioritised_without_exponents", "replay needs hp.priority_alpha"),
        ("errors_missing", "update's third value is None|float32[4]"),
    ],
)
def test_breaches_of_the_contract_are_named(
    name: str, words: str, flatout: Cli, tmp_path: Path
) -> None:
    sentence(small(flatout, name, tmp_path / "run"), 2, words)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("placement", ["cpu", "act=cpu learn=cpu:1 schedule=overlapped"])
@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("diverges", "diverged: state.params['w'] became", "state.opt|top"),
        ("loss_diverges", "top|state.params['w']|state.opt['sum']", "counters|updates"),
    ],
)
def test_divergence_names_the_leaves_that_are_not_finite(
    name: str, bad: str, good: str, placement: str, flatout: Cli, tmp_path: Path
) -> None:
    message = sentence(
        small(flatout, name, tmp_path / "run", "--placement", placement), 1, f"{bad}|NaN"
    )
    assert not [word for word in good.split("|") if word in message]


def test_divergence_of_a_built_in_names_some_of_many(flatout: Cli, tmp_path: Path) -> None:
    flags = (*tiny.flags("ppo", env="tests.bad_envs:HugeReward"), "--steps", 256, "--quiet")
    result = flatout("train", "ppo", *flags, "--run-dir", tmp_path / "run")
    message = sentence(result, 1, "value_loss| more became NaN")
    assert len(message) < 500


# --- From Python ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Agent("CartPole-v1"), "needs algorithm="),
        (lambda: Agent("CartPole-v1", algorithm=3), "not int"),
        (lambda: Agent("CartPole-v1", algorithm="good"), "unknown algorithm 'good'"),
        (lambda: Agent("CartPole-v1", algorithm=own.good, n_steps=3), "unknown setting 'n_steps'"),
        (lambda: PPO("CartPole-v1", algorithm=own.good), "PPO has its algorithm"),
        (lambda: Agent("CartPole-v1", algorithm=own.good, preset="cartpole-ppo"), "is for ppo"),
    ],
)
def test_impossible_python_calls_are_refused(call: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call()


def test_built_in_algorithms_are_named_to_agent() -> None:
    assert Agent("CartPole-v1", algorithm="ppo").config == PPO("CartPole-v1").config


def test_agents_of_other_algorithms_are_not_mistaken(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"agent of {EXAMPLE}"):
        PPO.load(run)
    file = PPO("CartPole-v1", **tiny.python("ppo")).learn(64).save(tmp_path / "ppo")
    with pytest.raises(UsageError, match=r"agent of ppo.*algorithm="):
        Agent.load(file, algorithm=own.good)
    with pytest.raises(CheckpointError, match="does not fit"):
        Agent.load(run, algorithm=own.good)


def test_an_agent_of_a_function_without_a_name_is_loaded_with_the_function(tmp_path: Path) -> None:
    """Loading by the name of the function inside a partial would load another algorithm."""

    def make(kind: Any, spec: Any) -> Any:
        return kind(spec)

    whole = functools.partial(make, own.good)
    file = Agent("CartPole-v1", algorithm=whole, envs=2).learn(16).save(tmp_path / "agent")
    with pytest.raises(UsageError, match=r"has no function"):
        Agent.load(file)
    assert Agent.load(file, algorithm=whole).predict(np.zeros(4, np.float32), deterministic=True)[
        0
    ] in (0, 1)


def test_an_algorithm_whose_module_is_gone(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, run = tmp_path / "project" / "own_lab.py", tmp_path / "run"
    module.parent.mkdir()
    module.write_text("from tests.own_algorithms import good\n")
    monkeypatch.setattr(sys, "path", [str(module.parent), *sys.path])
    done = flatout("train", "own_lab:good", *CARTPOLE, "--steps", 64, "--run-dir", run)
    assert done.code == 0, done.err
    module.unlink()
    monkeypatch.delitem(sys.modules, "own_lab")
    importlib.invalidate_caches()
    before = final_state(run)
    for command in (("train", "--quiet", "--steps", 128, "--resume"), ("eval",)):
        sentence(flatout(*command, run), 2, "own_lab:good|no module 'own_lab'")
    with pytest.raises(UsageError, match="no module 'own_lab'"):
        Agent.load(run)
    assert_same(final_state(run), before)
    assert Agent.load(run, algorithm=own.good).predict(np.zeros(4, np.float32), deterministic=True)[
        0
    ] in (0, 1)
