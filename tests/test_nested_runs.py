"""What users do with agents that read nested observations: resume, evaluate, watch, export."""

from __future__ import annotations

import functools
import importlib.util
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from PIL import Image

from flatout import DQN, PPO, SAC, UsageError, tree
from flatout.engine.replay.counters import RingCounters
from flatout.engine.replay.ring import Ring, RingLayout, gather, merge, ring_shapes
from flatout.engine.trajectory import whole_trajectory
from flatout.types import ObsSpec, Trajectory
from tests import nested_envs, tiny
from tests.conftest import Result, furthest, last_saved
from tests.engine.test_workers import LOCAL, PROCESSES, collected, sampler
from tests.kills import assert_same, kill_at_random_times
from tests.worlds import NEEDS

Cli = Callable[..., Result]
QUIET = ("--no-tensorboard", "--quiet")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_programs")]

WALK, TWO = "tests.nested_envs:walk", "tests.nested_envs:two"


# --- Nothing is lost --------------------------------------------------------------------------

KILLED = {
    "ppo": ("ppo", *tiny.flags("ppo", env=WALK), "--steps", "9600", "--normalize-observation",
            "--log-every", "448"),
    "dqn": ("dqn", *tiny.flags("dqn", env=WALK), "--steps", "3200", "--frame-stack", "3",
            "--n-step", "3", "--eval-every", "1500", "--eval-episodes", "2", "--placement",
            "act=cpu replay=device"),
}  # fmt: skip


@pytest.mark.parametrize("name", KILLED)
def test_killed_at_random_times_and_resumed_is_bit_equal(name: str, tmp_path: Path) -> None:
    flags = ("train", *KILLED[name], *QUIET, "--checkpoint-every", "64", "--seed", "3")
    # Convolutions take a while to compile.
    kill_at_random_times(flags, 1, random.Random(name), tmp_path, 2.0)


@pytest.mark.bits
@pytest.mark.parametrize("name", ["dqn", pytest.param("ppo")])
def test_learning_again_equals_learning_longer(name: str) -> None:
    kind: Any = {"ppo": PPO, "dqn": DQN}[name]
    more = {"exploration_steps": 128} if name == "dqn" else {"network": "mlp"}
    settings = tiny.python(name, seed=1, **more)
    make = nested_envs.two if name == "dqn" else nested_envs.walk
    whole = kind(make, **settings).learn(256)
    parts = kind(make, **settings).learn(128).learn(128)
    assert_same(parts._acting.arrays, whole._acting.arrays)


@pytest.mark.parametrize(
    ("make", "more"),
    [
        (nested_envs.walk, {}),
        (nested_envs.corner, {"env_backend": "device", "shards": 2}),
    ],
)
def test_a_new_run_takes_the_replay_of_another(
    make: Any, more: dict[str, Any], tmp_path: Path
) -> None:
    """The other run's last episodes end where its environments were."""
    settings = tiny.python("dqn", seed=1, tensorboard=False, **more)
    DQN(make, **settings).learn(128, run_dir=tmp_path / "run")
    again = DQN.load(tmp_path / "run", env=make)
    again.learn(64, run_dir=tmp_path / "new")
    assert again.summary["updates"] == 64 // 16 * 4
    assert again.summary["last"]["replay_fill"] > 128 / 512


@pytest.mark.fault
@pytest.mark.parametrize("placement", [PROCESSES, pytest.param(LOCAL)])
def test_a_lost_worker_loses_the_same_steps_as_with_one_array(
    placement: str, tmp_path: Path
) -> None:
    """A worker is killed in the second of two trajectories. What is kept of the episodes, and the
    final observations, fit together as they do without a Dict."""
    found: list[list[Trajectory]] = []
    restarts: list[Any] = []
    for number, make in enumerate((nested_envs.faulty, nested_envs.single_faulty)):
        folder = tmp_path / str(number)
        folder.mkdir()
        notes: list[str] = []
        source = functools.partial(make, "kill", 23, str(folder), 10)
        with sampler(placement, source, notes=notes, algorithm="dqn", train_freq=64) as made:
            found.append(collected(made, 2))
            restarts.append(made.restarted)
        assert "SIGKILL" in notes[0]
    nested, single = found
    joined = [
        jax.tree.map(np.asarray, t._replace(
            obs=_join(t.obs), last_obs=_join(t.last_obs),
            finals=t.finals._replace(obs=_join(t.finals.obs)),
        )) for t in nested
    ]  # fmt: skip
    # Either worker may have been the one: which of the two is a race.
    for one, other in zip(joined, single, strict=True):
        for field in ("terminated", "truncated", "ended"):
            assert getattr(one, field).sum() == getattr(other, field).sum(), field
        used = one.finals.index < one.rewards.size
        assert used.sum() == one.truncated.sum()
        # The second number is the step: a final observation follows that of its step.
        rows, envs = np.divmod(one.finals.index[used], one.rewards.shape[1])
        np.testing.assert_array_equal(one.finals.obs[used][:, 1], one.obs[rows, envs][:, 1] + 1)
        np.testing.assert_array_equal(one.finals.obs[used][:, 0], one.obs[rows, envs][:, 0])
    assert len(restarts[0]) == len(restarts[1])


def _join(obs: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([obs["seed"], obs["at"]], -1)


@pytest.mark.parametrize(
    ("algorithm", "env", "more"),
    [
        ("dqn", "two", ()),
        ("ppo", "corner", ("--env-backend", "device")),
    ],
)
def test_a_run_is_not_resumed_with_other_entries(
    algorithm: str, env: str, more: tuple[str, ...], flatout: Cli, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The user has renamed an entry, whose array has the same shape as before."""
    run = tmp_path / "run"
    flags = (*tiny.flags(algorithm, env=f"tests.nested_envs:{env}"), *more, "--hidden", 8)
    assert flatout("train", algorithm, *flags, "--steps", 64, *QUIET, "--run-dir", run).code == 0
    monkeypatch.setattr(nested_envs, "SECOND" if env == "two" else "WHERE", "b")
    result = flatout("train", "--resume", run, "--steps", 128, "--quiet")
    assert result.code == 1
    names = ("a second, first", "b, first") if env == "two" else ("camera, where", "b, camera")
    assert (
        "does not fit this run: it observed {}, but this environment observes {}".format(*names)
        in result.message
    )


# --- Replay -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", [1, 3])
def test_a_ring_gives_back_what_was_observed(stack: int) -> None:
    """Each frame of the picture is stored once, the other arrays once for each step."""
    with sampler(
        "groups=2", nested_envs.walk, "dqn", inline=True, frame_stack=stack, train_freq=52
    ) as made:
        parts = collected(made, 3)
        spec: ObsSpec = made_spec(stack)
    layout = RingLayout(spec, num_envs=4, rows=200, n_step=1)
    counters = RingCounters(layout, NEEDS)
    shapes = ring_shapes(layout, parts[0], counters.final_capacity)
    ring = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    assert ring.frames["camera"].shape[1:] == (6, 6, 1)
    assert ring.frames["state/place"].shape[1:] == (2 * stack,)
    ring = Ring(*ring)
    for part in parts:
        ring, _ = counters.write(ring, part)
    rows = counters.rows_written
    row, env = (x.ravel() for x in np.meshgrid(np.arange(rows), np.arange(4), indexing="ij"))
    found = gather(np, layout, ring, rows, row.astype(np.int32), env)
    batch = merge(layout, found, np.float32(0.9))
    if stack > 1:
        parts = [whole_trajectory(np, spec, part) for part in parts]
    obs = tree.map(lambda *leaves: np.concatenate(leaves), *(t.obs for t in parts))
    after = tree.map(
        lambda *leaves: np.concatenate(leaves),
        *(tree.map(lambda a, b: np.concatenate([a[1:], b[None]]), t.obs, t.last_obs)
          for t in parts),
    )  # fmt: skip
    truncated = 0
    start = 0
    for part in parts:
        size = part.rewards.size
        for place, index in enumerate(part.finals.index):
            if index < size:
                t, n = divmod(int(index), 4)
                tree.put(after, (start + t, n), tree.take(part.finals.obs, place))
                truncated += 1
        start += len(part.rewards)
    assert truncated > 8
    goes_on = ~np.concatenate([t.terminated for t in parts])
    for path in spec:
        flat = np.asarray(batch.obs[path]).reshape(obs[path].shape)
        np.testing.assert_array_equal(flat, obs[path], path)
        flat = np.asarray(batch.next_obs[path]).reshape(obs[path].shape)
        np.testing.assert_array_equal(flat[goes_on], after[path][goes_on], path)


def made_spec(stack: int) -> Any:
    from flatout.config.schema import EnvConfig
    from flatout.envs.task import open_task

    task = open_task(EnvConfig(env="walk", frame_stack=stack), nested_envs.walk)
    task.close()
    return task.obs_spec


def test_frame_stacks_are_the_same_from_host_and_device_replay(
    flatout: Cli, tmp_path: Path
) -> None:
    found = []
    for replay in ("cpu", "device"):
        flags = (*tiny.flags("dqn", env=WALK), "--frame-stack", 3, "--steps", 256)
        where = ("--placement", f"act=cpu replay={replay}", "--run-dir", tmp_path / replay)
        result = flatout("train", "dqn", *flags, *QUIET, *where)
        assert result.code == 0, result.err
        found.append(last_saved(tmp_path / replay))
    assert furthest(*found) == 0.0


# --- Using an agent ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a PPO run on `Walk`, with an evaluation."""
    folder = tmp_path_factory.mktemp("nested") / "run"
    settings = tiny.python("ppo", seed=2, normalize_observation=True, eval_every=128)
    PPO(WALK, **settings, eval_episodes=2, run_dir=str(folder)).learn(256)
    return folder


def observations(count: int) -> list[Any]:
    env = nested_envs.Walk()
    obs, _ = env.reset(seed=5)
    found = [obs]
    for step in range(count - 1):
        found.append(env.step(step % 4)[0])
    return found


def batched(observations: list[Any]) -> Any:
    first = observations[0]
    if isinstance(first, dict):
        return {key: batched([obs[key] for obs in observations]) for key in first}
    if isinstance(first, tuple):
        return tuple(batched([obs[index] for obs in observations]) for index in range(len(first)))
    return np.stack(observations)


def test_one_observation_and_a_batch_get_the_same_actions(run: Path) -> None:
    agent, seen = PPO.load(run), observations(7)
    one_by_one = [agent.predict(obs, deterministic=True)[0] for obs in seen]
    assert {np.shape(action) for action in one_by_one} == {()}
    np.testing.assert_array_equal(agent.predict(batched(seen), deterministic=True)[0], one_by_one)
    assert agent.predict(batched(seen[:1]), deterministic=True)[0].shape == (1,)
    drawn = agent.predict(batched(seen), deterministic=False)[0]
    assert drawn.shape == (7,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda obs: {k: v for k, v in obs.items() if k != "camera"}, "no entry 'camera'; it"),
        (lambda obs: obs | {"state": {"place": [0, 0]}}, "no entry 'state/direction'"),
        (lambda obs: obs | {"camera": np.zeros((6, 5, 1))}, r"shape \[6, 6, 1\] for 'camera' or a"),
        (lambda obs: obs | {"camera": obs["camera"][None]}, "sizes of these entries differ"),
        (
            lambda obs: obs | {"state": {"place": [0, np.nan], "direction": 2}},
            "for 'state/place' with NaN",
        ),
        (
            lambda obs: obs | {"state": {"place": [0, 0], "direction": 0}},
            "for 'state/direction' with 0, which is none of 1 to 4",
        ),
        (lambda obs: obs["camera"], "with type ndarray instead of a dict or tuple with"),
        (lambda obs: None, "with type NoneType instead of"),
    ],
)  # fmt: skip
def test_predict_refuses_observations_that_do_not_fit(change: Any, words: str, run: Path) -> None:
    agent = PPO.load(run)
    with pytest.raises(UsageError, match=words):
        agent.predict(change(observations(1)[0]), deterministic=True)


def test_an_agent_is_evaluated_and_recorded(run: Path, flatout: Cli, tmp_path: Path) -> None:
    shown = flatout("eval", run, "--episodes", 3, "--json")
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["return_mean"] < 1.0
    watched = flatout("eval", run, "--episodes", 2, "--fps", 1000, "--show")
    assert watched.code == 0, watched.err
    assert "mean return" in watched.out
    path = tmp_path / "walk.gif"
    assert flatout("eval", run, "--episodes", 1, "--checkpoint", "newest", "--out", path).code == 0
    with Image.open(path) as image:
        assert image.size == (48, 48)
    assert PPO.load(run).evaluate(3).returns == tuple(json.loads(shown.out)["returns"])


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_exported_agent_acts_as_the_agent(run: Path, flatout: Cli, tmp_path: Path) -> None:
    assert flatout("export", run, "--out", tmp_path / "policy.py").code == 0
    policy, agent, seen = loaded(tmp_path / "policy.py"), PPO.load(run), observations(12)
    actions = [agent.predict(obs, deterministic=True)[0] for obs in seen]
    assert [policy.predict(obs, deterministic=True)[0] for obs in seen] == actions
    np.testing.assert_array_equal(policy.predict(batched(seen), deterministic=True)[0], actions)
    with pytest.raises(ValueError, match="no entry 'camera'"):
        policy.predict({}, deterministic=True)
    with pytest.raises(ValueError, match="different sizes"):
        policy.predict(seen[0] | {"camera": seen[0]["camera"][None]}, deterministic=True)


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_agents_with_replay_are_exported(kind: Any, tmp_path: Path) -> None:
    env = {DQN: "CartPole-v1", SAC: "Pendulum-v1"}[kind]
    make = functools.partial(nested_envs.two, env)
    agent = kind(make, **tiny.python(kind.algorithm, seed=1)).learn(64)
    policy = loaded(agent.export(tmp_path / "policy.py"))
    obs, _ = make().reset(seed=1)
    np.testing.assert_allclose(
        policy.predict(obs, deterministic=True)[0],
        agent.predict(obs, deterministic=True)[0],
        rtol=1e-5,
    )
    many = batched([obs] * 3)
    np.testing.assert_allclose(
        policy.predict(many, deterministic=True)[0],
        agent.predict(many, deterministic=True)[0],
        rtol=1e-5,
    )


# --- Networks of the user's own ---------------------------------------------------------------


class Look(eqx.Module):
    """A linear layer over the flattened picture."""

    layer: eqx.nn.Linear

    def __init__(self, key: jax.Array, shape: Any) -> None:
        assert shape == (6, 6, 1)
        self.layer = eqx.nn.Linear(36, 5, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.layer(x.reshape(-1)))


class Whole(eqx.Module):
    """A linear layer over the picture and the place."""

    layer: eqx.nn.Linear

    def __init__(self, key: jax.Array, shapes: Any) -> None:
        assert shapes == {"camera": (6, 6, 1), "pair/0": (5,), "pair/1": (3,),
                          "state/direction": (4,), "state/place": (2,)}  # fmt: skip
        self.layer = eqx.nn.Linear(38, 5, key=key)

    def __call__(self, x: dict[str, jax.Array]) -> jax.Array:
        return self.layer(jax.numpy.concatenate([x["camera"].reshape(-1), x["state/place"]]))


@pytest.mark.parametrize("network", [{"camera": Look}, pytest.param(Whole)])
def test_networks_of_ones_own_read_entries_or_all(network: Any, tmp_path: Path) -> None:
    """Workers that act build them, too; a saved agent is loaded with them."""
    settings = tiny.python("ppo", seed=1, envs=4)
    agents = [
        PPO(WALK, network=network, **settings, placement=placement).learn(256)
        for placement in ("groups=2", LOCAL)
    ]
    one, other = (agent._acting.arrays for agent in agents)
    assert_same(one, other)
    assert any(array.shape == (5, 36 if network is not Whole else 38) for array in one.values())
    path = agents[0].save(tmp_path / "agent")
    again = PPO.load(path, network=network)
    seen = batched(observations(5))
    np.testing.assert_array_equal(
        again.predict(seen, deterministic=True)[0], agents[0].predict(seen, deterministic=True)[0]
    )
    with pytest.raises(UsageError, match="network of your own"):
        again.export(tmp_path / "policy.py")


@pytest.mark.parametrize(
    ("env", "network", "words"),
    [
        (WALK, {"camra": Look}, "entry 'camra'.*camera, pair/0.* Did you mean 'camera'"),
        (WALK, {"state": Look}, "entry 'state', but the observation has"),
        ("CartPole-v1", {"camera": Look}, "entry 'camera', but the observation has one array"),
        (WALK, {"camera": lambda key, shape: None}, "network of 'camera' returned NoneType"),
        (WALK, {"camera": lambda key: 3}, "building the network of 'camera' failed: TypeError"),
        (WALK, {"camera": lambda *_: lambda x: x}, "'camera' .* not to an array of shape \\[6"),
        (WALK, lambda *_: lambda x: x["no"], r"'state/direction': \[4\].* KeyError: 'no'"),
        (WALK, {"camera": "nature"}, "network\\['camera'\\] is a function, not str"),
        (WALK, {}, "network is an empty dict"),
        (WALK, 3, "network is a name, a function or a dict of functions by path, not int"),
    ],
)  # fmt: skip
def test_networks_that_do_not_fit_are_refused(env: str, network: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PPO(env, network=network, **tiny.python("ppo")).learn(64)


# --- What does not fit ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "placement",
    ["cpu", *(pytest.param(where) for where in (PROCESSES, LOCAL))],
    ids=["inline", "processes", "acting processes"],
)
@pytest.mark.parametrize(
    ("kind", "at", "words"),
    [
        ("missing", 0, "no entry 'state' from reset"),
        ("missing", 20, "no entry 'state' from step"),
        ("direction", 20, "'state/direction' from step .* with 9, which is none of 1 to 4"),
        ("unknown", 20, "NaN or infinity in 'state/place' at step"),
    ],
)
def test_the_command_refuses_what_does_not_fit_in_one_sentence(
    kind: str, at: int, words: str, placement: str, flatout: Cli, tmp_path: Path
) -> None:
    result = flatout(
        "train", "ppo", *tiny.flags("ppo", env="tests.nested_envs:odd", envs=4), "--env-kwargs",
        f"kind={kind}", "--env-kwargs", f"at={at}", "--steps", 256, "--placement", placement,
        *QUIET, "--run-dir",
        tmp_path / "run",
    )  # fmt: skip
    assert result.code == 1
    assert re.search(
        rf"environment \d \(tests.nested_envs:odd\) returned .*{words}", result.message
    )


def test_the_command_refuses_spaces_in_one_sentence(flatout: Cli, tmp_path: Path) -> None:
    flags = tiny.flags("ppo", env="tests.nested_envs:empty")
    result = flatout("train", "ppo", *flags, *QUIET, "--run-dir", tmp_path / "run")
    assert result.code == 2
    assert "tests.nested_envs:empty observes a Dict space without entries" in result.message
