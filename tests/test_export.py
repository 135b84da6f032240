"""An exported agent acts as the agent does, with NumPy alone."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import numpy as np
import pytest

from flatout import PPO, Agent, UsageError
from flatout.api import standalone
from flatout.api.load import AGENTS
from flatout.networks.layers import ACTIVATIONS
from flatout.randomness import raw_key
from flatout.storage import checkpoint
from flatout.types import ContinuousSpec, DiscreteSpec
from tests import tiny
from tests.conftest import Result

VECTOR = gym.spaces.Box(-5, 5, (6,), np.float32)
PIXELS = gym.spaces.Box(0, 255, (44, 40, 3), np.uint8)
BOARD = gym.spaces.Box(0, 3, (7, 6, 1), np.uint8)
CHOICE = gym.spaces.Discrete(5, start=-2)
BOX = gym.spaces.Box(np.array([[-2.0, 0.1]]), np.array([[0.3, 9.0]]), dtype=np.float64)
WHOLE = gym.spaces.Box(np.array([-2, 0]), np.array([2, 9]), dtype=np.int64)
UNBOUNDED = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Spaces(gym.Env[Any, Any]):
    """An environment that is looked at only: its observations are zeros."""

    def __init__(self, observed: gym.Space[Any], acted: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observed, acted

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, False, False, {}


def initial(algorithm: str, observed: Any, acted: Any, **settings: Any) -> Agent:
    """An agent with the parameters that training begins with, its normaliser moved."""
    agent = AGENTS[algorithm](lambda: Spaces(observed, acted), seed=3, **settings)
    _ = agent.task
    made = agent._acting._algorithm
    state = made.init(raw_key(3, 0), made.hp)._replace(opt=())
    names = jax.tree.leaves(checkpoint.leaf_names(state, checkpoint.PREFIX))
    rng = np.random.default_rng(1)
    arrays = dict(zip(names, jax.tree.leaves(state), strict=True))
    for name, array in arrays.items():
        if "moments" in name or (array.ndim == 1 and "bias" in name):  # else zeros and ones
            arrays[name] = rng.uniform(0.5, 2, array.shape).astype(array.dtype)
    agent._acting.learned(arrays)
    return agent


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expected(agent: Agent, obs: np.ndarray) -> np.ndarray:
    """Logits or action values, or the actions of a box, by the agent's own networks."""
    from flatout.algorithms.common.actor_critic import policy
    from flatout.networks.encoder import Encoder

    params, algorithm = agent._acting.params(), agent._acting._algorithm
    if not isinstance(agent.task.action_spec, DiscreteSpec):
        assert isinstance(agent.task.action_spec, ContinuousSpec)
        return np.asarray(jax.jit(algorithm.act)(params, obs, (), None)[0])

    encoder = Encoder(agent.task.obs_spec, agent.config.network, None)

    def outputs(params: Any, obs: jax.Array) -> jax.Array:
        x = encoder.prepare(obs, getattr(params, "moments", None))
        if agent.algorithm == "dqn":
            return params.network(encoder.features(params.network.torso, x))
        if agent.algorithm == "genetic":
            return policy(encoder, jax.tree.map(lambda leaf: leaf[0], params), x)[0]
        return policy(encoder, params.actor, x)[0]

    return np.asarray(jax.jit(outputs)(params, obs))


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


NETWORKS = [
    ("ppo", VECTOR, CHOICE, {"activation": "tanh", "normalize_observation": True}),
    slow("ppo", VECTOR, UNBOUNDED, {"activation": "silu", "hidden": ()}),
    slow(
        "a2c", PIXELS, BOX, {"network": "mlp", "activation": "gelu", "normalize_observation": True}
    ),
    slow("ppo", PIXELS, CHOICE, {"network": "nature"}),
    ("dqn", PIXELS, CHOICE, {"network": "nature_same", "dueling": True}),
    ("dqn", BOARD, CHOICE, {"network": "grid", "activation": "elu"}),
    slow("ppo", BOARD, CHOICE, {"network": "wide_grid"}),
    slow("a2c", BOARD, CHOICE, {"network": "onehot"}),
    slow("genetic", BOARD, CHOICE, {"network": "centred", "envs": 4, "elites": 1, "n_steps": 8}),
    slow("genetic", BOARD, CHOICE, {"network": "compass", "envs": 4, "elites": 1, "n_steps": 8}),
    ("ddpg", VECTOR, BOX, {}),
    slow("td3", PIXELS, BOX, {"network": "nature"}),
    ("sac", BOARD, BOX, {"network": "centred"}),
    slow("ppo", VECTOR, WHOLE, {"hidden": ()}),
    slow("sac", VECTOR, WHOLE, {}),
]


@pytest.mark.parametrize(
    ("algorithm", "observed", "acted", "settings"),
    NETWORKS,
    ids=lambda value: value.get("network", "auto") if isinstance(value, dict) else None,
)
def test_outputs_are_the_agents(
    algorithm: str, observed: Any, acted: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    agent = initial(algorithm, observed, acted, **settings)
    policy = loaded(agent.export(tmp_path / "policy.py"))
    observed.seed(7)
    obs = np.stack([observed.sample() for _ in range(6)])
    if observed is BOARD:
        obs[obs == 1] = 0
        obs[np.arange(5), np.arange(5), 1] = 1  # a head each, and none in the last
    wanted = expected(agent, obs)
    assert np.ptp(wanted) > 1e-3
    found = policy.outputs(obs)
    assert (found.shape, found.dtype) == (wanted.shape, np.float32)
    assert np.abs(found - wanted).max() <= 1e-5 * max(1, np.abs(wanted).max())
    actions, own = (
        policy.predict(obs, deterministic=True)[0],
        np.asarray([agent.predict(one, deterministic=True)[0] for one in obs]),
    )
    assert actions.shape == own.shape
    assert np.allclose(actions, own, rtol=1e-5, atol=1e-5)
    for none in (
        policy.predict(obs[:0], deterministic=True)[0],
        agent.predict(obs[:0], deterministic=True)[0],
    ):
        assert (none.shape, none.dtype) == ((0, *own.shape[1:]), own.dtype)
    assert own.dtype == (np.int64 if acted is CHOICE else acted.dtype)
    assert acted.contains(
        policy.predict(obs[0], deterministic=True)[0] if acted is not CHOICE else int(actions[0])
    )


def test_no_layer_overflows_or_rounds_categories(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.array([-3e4, -100, -1, 0, 1, 100, 3e4], np.float32)
    for name in ("silu", "elu", "gelu", "relu", "tanh"):
        with np.errstate(over="raise", invalid="raise"):
            found = standalone.LAYERS[name](x)
        np.testing.assert_allclose(found, ACTIVATIONS[name](x), rtol=1e-5, atol=1e-6)
    first = 2**24  # above it float32 holds even numbers only
    steps = [["categories", [], [[3], [first]]]]
    inputs = [["", [], "int32", False, steps]]
    monkeypatch.setattr(
        standalone, "SPEC", {"inputs": inputs, "layers": [], "memory": [], "mask": None}
    )
    rows = np.arange(first, first + 3, dtype=np.int32)
    assert standalone.outputs(rows).tolist() == np.eye(3).tolist()
    assert standalone.outputs(rows).dtype == np.float32


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"recurrent": "lstm", "normalize_observation": True}),
        ("a2c", {"recurrent": "gru", "recurrent_size": 8, "critic_memory": "own"}),
    ],
    ids=["lstm", "gru"],
)
def test_an_exported_policy_has_the_agents_memory(
    algorithm: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    agent = initial(algorithm, VECTOR, UNBOUNDED, **settings)
    policy = loaded(agent.export(tmp_path / "policy.py"))
    obs = np.random.default_rng(0).normal(size=(4, 3, 6)).astype(np.float32)
    mine = theirs = None
    begins = np.array([[1, 1, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]], np.bool_)
    for seen, begun in zip(obs, begins, strict=True):
        action, mine = policy.predict(seen, mine, begun, True)
        wanted, theirs = agent.predict(seen, theirs, begun, True)
        np.testing.assert_allclose(action, wanted, atol=1e-5)
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    fresh, _ = policy.predict(obs[-1], None, None, True)
    assert np.abs(fresh - action).max() > 1e-4  # the memory matters
    np.testing.assert_allclose(policy.outputs(obs[-1]), fresh, atol=1e-6)
    single, state = policy.predict(obs[0, 0], None, None, True)
    assert (single.shape, state[0].shape) == ((2,), (1, settings.get("recurrent_size", 64)))
    with pytest.raises(ValueError, match="with a state, pass episode_start: 3 times"):
        policy.predict(obs[0], mine)
    with pytest.raises(ValueError, match="3 times True or False"):
        policy.predict(obs[0], mine, [0.5, 0.0, 1.0])
    with pytest.raises(ValueError, match="the last one that predict returned"):
        policy.predict(obs[0, :2], mine, [False, False])
    with pytest.raises(UsageError, match="without episode_start"):
        agent.predict(obs[0], theirs)
    with pytest.raises(UsageError, match=r"the state of 2 observation\(s\) has arrays \[2, "):
        agent.predict(obs[0, :2], theirs, [False, False])


def test_the_command_writes_a_file_that_needs_numpy_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.__main__ import main

    run, file = tmp_path / "run", tmp_path / "policy.py"
    flags = (*tiny.flags("ppo"), "--normalize-observation", "--steps", "64", "--quiet")
    assert main(["train", "ppo", *flags, "--run-dir", str(run)]) == 0
    assert main(["export", str(run), "--out", str(file)]) == 0
    code = (
        "import sys, json\n"
        "sys.modules |= dict.fromkeys(('jax', 'gymnasium', 'flatout', 'equinox', 'scipy'))\n"
        "import numpy as np, policy\n"
        "obs = np.array(json.loads(sys.argv[1]), np.float32)\n"
        "print(json.dumps(policy.predict(obs, deterministic=True)[0].tolist()))\n"
    )
    obs = np.random.default_rng(0).uniform(-0.2, 0.2, (50, 4)).tolist()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, json.dumps(obs)], cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert (
        json.loads(done.stdout)
        == PPO.load(run).predict(np.float32(obs), deterministic=True)[0].tolist()
    )


def test_text_of_a_strangers_run_is_no_code(tmp_path: Path) -> None:
    agent = initial("ppo", VECTOR, CHOICE)
    name = '"""\nimport os; os.abort()\n"""; \'\'\' {0} '
    object.__setattr__(agent.config.env, "env", name)
    file = agent.export(tmp_path / "policy.py")
    names = [n.name for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.alias)]
    assert sorted(names) == ["Any", "base64", "numpy", "zlib"]
    assert loaded(file).SPEC["environment"].split() == name.split()


class Mine(eqx.Module):
    weight: jax.Array

    def __init__(self, key: jax.Array, shape: tuple[int, ...]) -> None:
        self.weight = jax.random.normal(key, (6, 7))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.weight


def test_what_cannot_be_exported(flatout: Callable[..., Result], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"network of your own \(Mine\) cannot be exported"):
        initial("ppo", VECTOR, CHOICE, network=Mine).export(tmp_path / "policy.py")
    with pytest.raises(UsageError, match=r"policy.txt.*\.py"):
        initial("ppo", VECTOR, CHOICE).export(tmp_path / "policy.txt")
    with pytest.raises(UsageError, match="learned nothing"):
        AGENTS["ppo"]("CartPole-v1").export(tmp_path / "policy.py")
    assert "--out policy.py" in flatout("export", tmp_path).message
    assert "holds neither" in flatout("export", tmp_path, "--out", "a.py").message
    assert not (tmp_path / "policy.py").exists()
