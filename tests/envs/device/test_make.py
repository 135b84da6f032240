"""Device environments are made from names; each that cannot be made is a sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout import EnvironmentFailure, UsageError
from flatout.envs.device.make import device_env
from flatout.envs.source import EnvSource
from flatout.storage.trust import names_code

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "kwargs", "twin"),
    [
        ("CartPole-v1", {}, True),
        ("CartPole-v1", {"sutton_barto_reward": True, "max_episode_steps": 50}, True),
        ("CartPole-v1", {"max_episode_steps": -1}, True),
        ("CartPole-v1", {"length": 2}, False),
        ("Pendulum-v1", {"g": 9.81}, True),
        ("Pendulum-v1", {"g": "high"}, False),
        ("MountainCar-v0", {"goal_velocity": 0.01}, True),
        ("flatout/Snake-v0", {"size": 6, "patience": 20}, True),
        ("flatout/Snake-v0", {"size": 1}, False),
        ("flatout/Snake-v0", {"render_mode": "ansi"}, False),
        ("LunarLander-v3", {}, False),
        ("ALE/Breakout-v5", {}, False),
        ("gymnax:CartPole-v1", {}, False),
    ],
)
def test_has_twin(name: str, kwargs: dict[str, Any], twin: bool) -> None:
    assert EnvSource(name, kwargs).has_twin is twin


@pytest.mark.parametrize(
    ("name", "library", "imported", "inner"),
    [
        ("CartPole-v1", "", False, "CartPole-v1"),
        ("ALE/Breakout-v5", "", False, "ALE/Breakout-v5"),
        ("gymnax:CartPole-v1", "gymnax", False, "CartPole-v1"),
        ("envelope:navix::Empty-v0", "envelope", False, "navix::Empty-v0"),
        ("gymnax", "", False, "gymnax"),
        ("module:factory", "", True, "factory"),
        ("name/space:CartPole-v1", "", False, "name/space:CartPole-v1"),
    ],
)
def test_a_name_is_of_a_library_a_module_or_gymnasium(
    name: str, library: str, imported: bool, inner: str
) -> None:
    source = EnvSource(name)
    assert (source.library, source.imported, source.inner) == (library, imported, inner)
    passed = EnvSource(name, passed=object())  # then the name is for messages alone
    assert not any((passed.library, passed.imported, passed.atari, passed.has_twin))


def test_twins_are_known_without_jax() -> None:
    code = (
        "import sys; from flatout import DeviceEnv;"
        "from flatout.envs.task import open_task; from flatout.config.schema import EnvConfig;"
        "assert open_task(EnvConfig(env='CartPole-v1')).compiles;"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_arguments_reach_the_environment() -> None:
    assert device_env("CartPole-v1").limit == 500
    assert device_env("CartPole-v0").limit == 200
    assert device_env("CartPole-v1", {"max_episode_steps": 30}).limit == 30
    assert device_env("CartPole-v1", {"max_episode_steps": -1}).limit is None
    assert device_env("flatout/Snake-v0", {"size": 7}).obs_spec.shape == (7, 7, 1)
    own = device_env("tests.device_envs:corridor", {"limit": 3})
    assert (own.limit, own.name) == (3, "tests.device_envs:corridor")


REFUSED = [
    ("LunarLander-v3", {}, "LunarLander-v3 has no device environment; there are CartPole-v0, "),
    ("CartPole-v2", {}, "Did you mean 'CartPole-v"),
    ("CartPole-v1", {"length": 2}, "takes sutton_barto_reward, max_episode_steps, not 'length'."),
    ("CartPole-v1", {"max_episode_steps": 0}, "max_episode_steps = 0 is not a whole number"),
    ("Pendulum-v1", {"g": True}, "g = True is not a number."),
    ("flatout/Snake-v0", {"size": 300}, "size = 300 is not a whole number from 2 to 255."),
    ("flatout/Snake-v0", {"patience": 2.0}, "patience = 2.0 is not a whole number from 1"),
    ("no_such_module:make", {}, "there is no module 'no_such_module' in "),
    ("tests.device_envs:corrido", {}, "has no function 'corrido'. Did you mean 'corridor'?"),
    ("tests.device_envs:NOT_CALLABLE", {}, "has no function 'NOT_CALLABLE'."),
    ("tests.device_envs:", {}, "is not module:function."),
    
    ("tests.device_envs:number", {}, "returned int; a device environment is a flatout.DeviceEnv."),
    ("tests.device_envs:corridor", {"limit": 0}, "limit = 0 must be a number of steps, or None."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kwargs", "words"), REFUSED)
def test_wrong_names_are_refused_in_one_line(name: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        device_env(name, kwargs)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_factory_that_fails_is_a_sentence() -> None:
    with pytest.raises(EnvironmentFailure, match="raising failed: RuntimeError: no board"):
        device_env("tests.device_envs:raising")
    with pytest.raises(EnvironmentFailure, match=r"unexpected keyword argument 'width'."):
        device_env("tests.device_envs:corridor", {"width": 2})


def test_a_librarys_name_is_no_code() -> None:
    assert not names_code("gymnax:CartPole-v1")
    assert not names_code("envelope:navix::Navix-Empty-5x5-v0")
    assert names_code("gymnax.evil:factory")
    assert names_code("gymnaxx:CartPole-v1")
