"""The documents' code runs: the Python of every page, and the commands of the pages for beginners.

Runs are shortened. `GIVEN` has the code that a page leaves to its reader, such as an environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result
from tests.kills import run_script
from tests.test_docs import PAGES, ROOT, code, commands

CARTPOLE = """
import gymnasium as gym
import numpy as np
import flatout
from flatout import PPO

class MyEnv(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action):
        *rest, info = self.env.step(action)
        return *rest, info | {"distance": 1.0}

def make():
    return MyEnv()
"""
NETWORKS = """
import equinox as eqx
import jax

class Camera(gym.Env):
    observation_space = gym.spaces.Dict(
        camera=gym.spaces.Box(-1, 1, (8, 8), np.float32),
        speed=gym.spaces.Box(-1, 1, (2,), np.float32),
    )
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}
    def step(self, action):
        return self.observation_space.sample(), 0.0, False, True, {}

make = Camera

class MyConvolutions(eqx.Module):
    dense: eqx.nn.Linear
    def __init__(self, key, shape):
        self.dense = eqx.nn.Linear(64, 8, key=key)
    def __call__(self, x):
        return self.dense(x.ravel())

class MyNetwork(MyConvolutions):
    def __call__(self, x):
        return self.dense(x["camera"].ravel())
"""
MASKED = """
from tests.masked_envs import Picky
agent = PPO(lambda: Picky("method"), envs=1, n_steps=32, batch_size=32).learn(32)
observation, mask = np.zeros(4, np.float32), np.array([True, False, False, False, True])
"""
PHASES = """
from types import SimpleNamespace
action, simulator = 0, SimpleNamespace(advance=lambda action: action)
def train(steps):
    return sum(range(steps))
"""
GIVEN: dict[str, dict[int, str]] = {
    "callbacks": {0: CARTPOLE},
    "device-environments": {0: "import flatout\n"},
    "environments": {1: CARTPOLE.partition("class")[0], 2: NETWORKS, 3: MASKED},
    "explain": {0: PHASES},
    "own-algorithm": {
        0: "import flatout",
        1: "from tests.own_algorithms import good as my_algorithm",
    },
    "own-loop": {
        1: "rates = jax.numpy.full((3, 2), 1e-3)\nstate = init(jax.random.key(0))",
        2: "import numpy as np",
    },
    "populations": {0: "import flatout"},
    "replay": {0: "import numpy as np"},
    "vector-environments": {0: CARTPOLE},
}
"""Code by page, before its block of that number."""
CUT: dict[str, list[tuple[str, str]]] = {
    "callbacks": [("0_000", "00")],
    "coming-from": [("0_000", "00")],
    "own-algorithm": [("0_000", "00")],
    "own-loop": [
        ("length=100", "length=2"),
        ("n_steps=128, batch_size=128", "n_steps=32, batch_size=32"),
        ("jax.random.key(0), 16", "jax.random.key(0), 2"),
    ],
    "populations": [("100_000", "10_000")],
}
"""Texts of a page's Python that are replaced, so that it trains for seconds."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if code(page, "python") and not page.stem.startswith("README")],
    ids=lambda page: page.stem,
)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README's is run by tests/test_readme.py, without a cut."""
    given = GIVEN.get(page.stem, {})
    blocks = [f"{given.get(n, '')}\n{text}" for n, text in enumerate(code(page, "python"))]
    script = "\n".join(blocks)
    for long, short in CUT.get(page.stem, []):
        assert long in script, f"{page.name} has no {long!r} any more"
        script = script.replace(long, short)
    (tmp_path / "script.py").write_text(script)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of worker processes
    done = run_script(tmp_path / "script.py", tmp_path)
    assert done.code == 0, done.err


BEGINNERS = [
    ROOT / "README.md", ROOT / "docs" / "README.md", ROOT / "docs" / "start.md",
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]  # fmt: skip
ELSEWHERE = re.compile(r"gpu:|--ray-address|\.trace\.json|--show|--resize|breakout|popgym|repeat")
"""Commands that need a GPU, a cluster, a file of another program, a terminal, popgym (and its run,
runs/repeat) or an environment of images, or train convolutions for a minute; the Python of
docs/guides/pixels.md trains some."""
SHORTER: dict[str, tuple[object, ...]] = {
    "train": ("--steps", 640, "--quiet"),
    "sweep": ("--steps", 256, "--seeds", 1, "--quiet"),
    "plan": ("--steps", 640, "--seconds", 4),
    "eval": ("--episodes", 1),
}
"""Flags that take the place of a command's own."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in BEGINNERS if [*commands(page)]],
    ids=lambda page: str(page.relative_to(ROOT).with_suffix("")),
)
def test_the_commands_of_a_page_run(
    page: Path, flatout: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    monkeypatch.setenv(
        "PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    )
    (tmp_path / "my_module.py").write_text(CARTPOLE)
    (tmp_path / "train.py").write_text("for n in range(200):\n    sum(range(100_000))\n")
    for words in commands(page):
        if ELSEWHERE.search(" ".join(words)):
            continue
        flags = SHORTER.get(words[0], ())
        if "--compare-devices" in words:  # whose runs are not timed
            flags = ("--steps", 640)
        if "--resume" in words:
            flags = ("--steps", 1280, "--quiet")
        before = words.index("--") if "--" in words else len(words)
        done = flatout(*words[:before], *flags, *words[before:])
        assert done.code == 0, f"{words}: {done.err}"
