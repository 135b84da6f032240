"""`benchmarks/explain/renamed.py`: a program's twin does the same, and its names say nothing."""

from __future__ import annotations

import ast
import contextlib
import io
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "benchmarks" / "explain"
Twin = Callable[[Path, Path], Path]


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> Twin:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    import renamed  # pyright: ignore[reportMissingImports]

    return renamed.twin


def output(script: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a script in this process and return its output."""
    for name in ("helpers", "m1"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(script.parent))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue()


def names(script: Path) -> set[str]:
    """The identifiers of a script."""
    found = set[str]()
    for node in ast.walk(ast.parse(script.read_text())):
        for kind in ("id", "attr", "arg", "name"):
            found.add(str(getattr(node, kind, None)))
    return found


HELPERS = '''
"""Helpers: store."""
store = []

def remember(reward, weight=1.0):
    global store
    store = [*store, reward * weight]
'''

PROGRAM = '''
"""A program that evaluates a replay buffer."""
import argparse
from collections import deque
from dataclasses import dataclass
from functools import partial

import gymnasium as gym
import helpers
from helpers import remember as note


@dataclass
class Settings:
    rate: float
    episodes: int = 3


class Corridor(gym.Env):
    def __init__(self):
        self.action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.spaces.Discrete(9)
        self.place = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 4
        return self.place, {}

    def step(self, action):
        self.place += 1 if action else -1
        return self.place, float(self.place), self.place in (0, 8), False, {"place": self.place}


class Trainer:
    """Not an environment."""

    def __init__(self, settings):
        self.settings, self.buffer = settings, deque(maxlen=5)
        self.total = 0.0

    def reset(self):
        self.buffer.append(self.total)

    def step(self, reward, scale=1.0):
        try:
            self.total += reward * scale * self.settings.rate
        except TypeError as mistake:
            print(mistake)
        return self


def evaluate(trainer):
    sample = max(trainer.buffer, default=0.0)
    return f"{sample=} {trainer.total:.2f}"


def main():
    settings = Settings(rate=0.5)
    world, trainer = Corridor(), Trainer(settings)
    learn = partial(trainer.step, scale=2.0)
    for episode in range(settings.episodes):
        observation, _ = world.reset(seed=episode)
        trainer.reset()
        done = False
        while not done:
            observation, reward, done, _, info = world.step(observation > 3)
            learn(reward)
            trainer.step(reward=info["place"])
            note(reward, weight=2.0)
        print(evaluate(trainer), len(helpers.store), getattr(trainer, "buffer")[0])
        world.place = 0


if __name__ == "__main__":
    main()
'''


def test_a_twin_prints_the_same_and_keeps_only_names_that_others_read(
    twin: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gymnasium", reason="the program imports it")
    (tmp_path / "replay_buffer.py").write_text(PROGRAM)
    (tmp_path / "helpers.py").write_text(HELPERS)
    other = twin(tmp_path / "replay_buffer.py", tmp_path / "twin")
    expected = output(tmp_path / "replay_buffer.py", monkeypatch)
    assert output(other, monkeypatch) == expected
    assert expected.count("\n") == 3
    left = names(other)
    protocol = {"reset", "step", "seed", "options", "action_space", "observation_space"}
    by_name = {"rate", "buffer"}  # a dataclass's keyword, and getattr's string
    assert protocol | by_name <= left
    own = "Corridor Trainer Settings evaluate main place total learn sample episodes scale weight"
    assert not left & {*own.split(), "helpers", "remember", "note", "store", "mistake", "settings"}
    assert "buffer." not in other.read_text().split("import")[0]  # its docstring is gone


def test_a_method_named_as_a_librarys_is_renamed_only_where_its_object_is_known(
    twin: Twin, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text("""
import torch

class Agent:
    def __init__(self, network):
        self.optimizer = torch.optim.Adam(network.parameters())

    def step(self, loss):
        loss.backward()
        self.optimizer.step()

    def save(self, thing):
        torch.save(thing, "file")

    def sample(self):
        return 1

def play(thing):
    return thing.sample()

assert {kind.__name__ for kind in (Agent,)} == {"Agent"}
agent = Agent(torch.nn.Linear(1, 1))
agent.step(torch.zeros(1))
agent.save([])
play(torch.distributions.Normal(0, 1))
play(agent)
""")
    source = twin(script, tmp_path / "twin").read_text()
    assert "class Agent:" in source  # a string names it
    assert source.count(".step(") == 1  # the optimiser's
    assert source.count(".save(") == 1  # torch's
    assert source.count("sample(") == 2  # the object may be either


def test_an_option_that_is_called_as_an_attribute_of_the_program_stays(
    twin: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "program.py"
    script.write_text("""
import argparse

class Loop:
    def __init__(self):
        self.updates = self.rounds = 0

    def run(self, most):
        self.updates, self.rounds = most, 1

parser = argparse.ArgumentParser()
add = parser.add_argument
add("--updates", type=int, default=3)
add("-n", dest="rounds", type=int, default=2)
args = parser.parse_args([])
loop = Loop()
loop.run(args.updates + args.rounds)
print(loop.updates, loop.rounds)
""")
    other = twin(script, tmp_path / "twin")
    assert output(other, monkeypatch) == output(script, monkeypatch) == "5 1\n"
    assert {"updates", "rounds"} <= names(other)  # of the command line
    assert other.read_text().count("updates") == 2  # the option, and where it is read


@pytest.mark.slow
def test_the_twin_of_each_program_of_the_benchmark_compiles(twin: Twin, tmp_path: Path) -> None:
    scripts = [one for one in sorted(PROGRAMS.glob("*/*.py")) if one.parent.name != "renaming"]
    assert len(scripts) > 100
    for script in scripts:
        if script.stem not in ("phases", "pace", "methods"):
            folder = tmp_path / script.parent.name / script.stem
            for file in twin(script, folder).parent.glob("*.py"):
                compile(file.read_text(), str(file), "exec")
