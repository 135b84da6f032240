"""`flatout explain --against` with real programs: what is counted, in which unit, what is said."""

from __future__ import annotations

import json
import math
import re
import shlex
import signal
import sys
from pathlib import Path

import psutil
import pytest

from flatout_explain.against.rounds import compare
from flatout_explain.against.turns import Program, take_turns
from flatout_explain.errors import FlatoutError
from flatout_explain.program import attach, watch
from flatout_explain.program.evidence import CALL, Process
from flatout_explain.report import ratio_words
from tests.conftest import Result
from tests.explain.test_program import explained, script, start
from tests.kills import finish, wait_for

# Waits until a function counts, for as long as its samples may be late where others have the cores.
UNTIL = """
import sys, time

def until_counted(find):
    end = time.process_time() + 20
    while not hasattr(find(), "__wrapped__") and time.process_time() < end:
        sum(range(1000))

def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))
"""


def counted_in(path: Path, count: str = "") -> list[Process]:
    """The processes of a program that ends by itself, with what was counted."""
    facts = {"cores": 2, "gpus": [], "cpu": "c"}
    with Program([sys.executable, str(path)], count, facts) as program:
        program.wait_for_imports()
        take_turns([program], 60.0, math.inf)
        recording, evidence = program.finish()
    assert recording[0]["finished"]
    return evidence.processes


def test_a_program_that_still_imports_has_no_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a slow network disk; it was "nothing that can be counted"."""
    package = tmp_path / "site-packages" / "heavy.py"
    package.parent.mkdir()
    package.write_text("import time\nend = time.monotonic() + 60\n"
                       "while time.monotonic() < end:\n    sum(range(1000))\n")  # fmt: skip
    program = script(tmp_path, f"import sys\nsys.path.insert(0, {str(package.parent)!r})\n"
                               "import heavy\n")  # fmt: skip
    monkeypatch.setattr(watch, "IMPORTS_S", 0.5)
    monkeypatch.setattr(attach, "together", float)
    command = [sys.executable, str(program)]
    with pytest.raises(FlatoutError, match=r"script\.py was still importing modules after \d+ s"):
        compare((command, command), 0.5, 1.0, "", None)


def totals(process: Process) -> dict[str, float]:
    return {unit: series[-1][1] for unit, series in process.counts.items()}


# --- What is counted --------------------------------------------------------------------------

PARTS = """
import functools, pickle
{until}
from agent import Agent, double, weigh
import agent

class Doubler:
    def __call__(self, x):
        return 2 * x

class Compiled:
    def __init__(self, function):
        self.__wrapped__ = function

    def __call__(self, *args, **kwargs):
        return self.__wrapped__(*args, **kwargs)

compiled, weighed = Doubler(), Compiled(weigh)
{wait}
for n in range(321):
    assert weigh("a") == weigh("a", 0, rows=n) == weigh("a", 0, n) == "a"
    assert double(n) == agent.double(n) == 2 * n
    assert Agent().act(n) == Agent.make(n) == Agent.of(n) == n
    assert compiled(n) == 2 * n
    assert weighed("a", 0, n) == "a"
assert functools.partial(double, 1)() == 2 and double.__name__ == "double"
assert pickle.loads(pickle.dumps(double)) is double
"""

AGENT = """
def double(x):
    return 2 * x

def weigh(name, start=0, rows=7):
    return name

class Base:
    def act(self, x):
        return x

class Agent(Base):
    @classmethod
    def make(cls, x):
        assert cls is Agent
        return x

    @staticmethod
    def of(x):
        return x
"""


@pytest.mark.parametrize(
    ("count", "find", "calls"),
    [
        ("agent:double", "agent.double", 2 * 321 + 1),  # held by name in two modules
        ("agent:Agent.act", "agent.Agent.act", 321),  # its base defines it
        ("agent:Agent.make", "agent.Agent.make", 321),
        ("agent:Agent.of", "agent.Agent.of", 321),
        ("__main__:compiled", "compiled", 321),  # no function, as what jax.jit returns
        ("agent:weigh(rows)", "agent.weigh", 7 * 321 + 2 * (321 * 320 // 2)),  # 7: the default
        (
            "__main__:weighed(rows)",
            "type(weighed) is Compiled or weighed",
            321 * 320 // 2,
        ),  # as what jax.jit returns
        ("parts:Doubler.__call__", "Doubler.__call__", 321),  # the program's file by its name
    ],
)
def test_calls_of_a_function_are_counted_wherever_it_is_held(
    tmp_path: Path, count: str, find: str, calls: int
) -> None:
    script(tmp_path, AGENT, "agent.py")
    wait = f"until_counted(lambda: {find})"
    path = script(tmp_path, PARTS.format(until=UNTIL, wait=wait), "parts.py")
    (process,) = counted_in(path, count)
    assert totals(process) == {"calls": calls}
    assert not [code for code in process.codes if "_flatout_count" in code.file]


ENVIRONMENTS = """
import os
import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv
{until}

class Hill(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {{}}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {{}}

def wrapped():
    return gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(Hill(), 10**9))

for find in (lambda: Hill.step, lambda: SyncVectorEnv.step, lambda: gym.wrappers.TimeLimit.step,
             lambda: gym.wrappers.RecordEpisodeStatistics.step):
    until_counted(find)
env, many = wrapped(), SyncVectorEnv([wrapped] * 3)
env.reset(), many.reset()
for _ in range(123):
    env.step(0)
for _ in range(50):
    many.step(np.zeros(3, int))
child = os.fork()
if child == 0:
    for _ in range(7):
        env.step(0)
    work(0.1)
    raise SystemExit
os.waitpid(child, 0)
cloudpickle.loads(cloudpickle.dumps(wrapped))  # as for worker processes that are spawned
"""


def test_a_step_through_wrappers_counts_once_and_a_vector_s_for_each_environment(
    tmp_path: Path,
) -> None:
    parent, child = counted_in(script(tmp_path, ENVIRONMENTS.format(until=UNTIL)))
    assert totals(parent) == {"environment steps": 123 + 3 * 50}
    assert totals(child) == {"environment steps": 7}
    assert child.parent == parent.pid


TORCH = """
{until}
from torch.optim import optimizer

class Adam(optimizer.Optimizer):
    def step(self):
        for hook in optimizer.hooks:
            hook(self, (), {{}})
        return 1.0

class Careful(Adam):
    def step(self):  # without the hook, the outermost call counts
        return self.decided()

    def decided(self):
        return super().step()

class Counts:
    pass

def counts():
    if optimizer.hooks:
        Counts.__wrapped__ = True
    return Counts if optimizer.hooks else Careful.step

until_counted(counts)
for _ in range(40):
    assert Adam().step() == Careful().step() == 1.0
"""


@pytest.mark.parametrize("hooked", [True, False])
def test_steps_of_torch_s_optimisers_count_with_its_hook_and_without(
    tmp_path: Path, hooked: bool
) -> None:
    package = tmp_path / "torch" / "optim"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    register = "def register_optimizer_step_post_hook(hook):\n    hooks.append(hook)\n"
    text = "hooks = []\n" + (register if hooked else "") + "class Optimizer:\n    pass\n"
    script(package, text, "optimizer.py")
    (process,) = counted_in(script(tmp_path, TORCH.format(until=UNTIL)))
    assert totals(process) == {"optimiser steps": 80}


WATCHED = """
{until}
import agent

def train(n):
    return agent.double(n)  # HERE

until_counted(lambda: agent.double)
end, seen = time.process_time() + 20, False
while time.process_time() < end:
    for n in range(50):
        train(n)
    if sys.getprofile() is not None:
        seen = True
    elif seen:
        break
work(0.1)
"""


def test_what_counts_is_left_out_of_the_evidence(tmp_path: Path) -> None:
    script(tmp_path, AGENT, "agent.py")
    path = script(tmp_path, WATCHED.format(until=UNTIL))
    (process,) = counted_in(path, "agent:double")
    assert process.windows
    assert not [code for code in process.codes if "_flatout_count" in code.file]
    line = 1 + path.read_text().splitlines().index("    return agent.double(n)  # HERE")
    double = next(n for n, code in enumerate(process.codes) if code.plain == "double")
    called_at = {
        at
        for window in process.windows
        for _, kind, code, at in window.events
        if (kind, code) == (CALL, double)
    }
    assert called_at == {line}


def test_observing_alone_replaces_nothing(tmp_path: Path) -> None:
    path = script(tmp_path, "import json\nassert not hasattr(json.dumps, '__wrapped__')\n" + UNTIL
                  + "work(0.5)\nassert '_flatout' not in str(json.dumps.__code__)\n")  # fmt: skip
    found = explained("--stop", "--", sys.executable, path)
    assert found.code == 0, found.err


# --- What is said -----------------------------------------------------------------------------

LOOP = """
import sys, time

def work(seconds):
    time.sleep(seconds)

def main(seconds):
    while True:
        work(seconds)

if __name__ == "__main__":
    main(0.02)
"""


def against(second: Path | str, first: Path, *flags: object) -> Result:
    command = second if isinstance(second, str) else shlex.join([sys.executable, str(second)])
    return explained("--against", command, *flags, "--", sys.executable, first)


@pytest.mark.slow
def test_two_programs_are_compared_and_the_file_goes_on_where_it_was(tmp_path: Path) -> None:
    first = script(tmp_path, LOOP, "first.py")
    second = script(tmp_path, "import first\nfirst.main(0.005)\n", "second.py")
    save, shown = tmp_path / "s.json", tmp_path / "r.json"
    flags = ("--count", "first:work", "--seconds", 0.5, "--save", save, "--json", shown)
    found = against(second, first, *flags, "--minutes", 0.001)  # no time: one turn of each
    assert found.code == 0, found.err
    said = json.loads(shown.read_text())["against"]
    assert (said["pairs"], said["low"], said["unit"]) == (1, None, "calls")
    assert "calls of first:work per second, 1 pair: too few" in found.err
    assert "VERDICT" in found.err
    saved = json.loads(save.read_text())
    saved["against"]["runs"] = [each * 3 for each in saved["against"]["runs"]]
    saved["against"]["gains"] = [{}] * 3
    save.write_text(json.dumps(saved))
    again = against(second, first, *flags)  # three equal pairs are narrow: nothing is run
    said = json.loads(shown.read_text())["against"]
    assert (said["pairs"], said["same"]) == (3, False)
    gain, low, high = ratio_words(said["gain"], said["low"], said["high"])
    assert f"second.py: {gain}x ({low} to {high}) calls of first:work" in again.err
    page = tmp_path / "r.html"
    reread = explained(save, "--json", shown, "--html", page)
    assert "Against a second program" in page.read_text()
    assert json.loads(shown.read_text())["against"] == said
    assert "AGAINST" in reread.err
    second.write_text("import first\nfirst.main(0.001)\n")
    changed = against(second, first, *flags, "--minutes", 0.001)
    assert "have changed since" in changed.err
    assert json.loads(shown.read_text())["against"]["pairs"] == 1
    other = against("python other.py", first, *flags)
    assert other.code == 2
    assert "holds a comparison of other programs" in other.err


EVALUATES = """
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

class Hill(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(4), {}

    def step(self, action):
        self.t += 1
        x = sum(n * n for n in range(300))
        return np.full(4, x % 7 / 7.0), float(action), self.t >= 100, False, {}

rng = np.random.default_rng(0)
weights = rng.normal(size=(4, 2)).astype(np.float32)

def evaluate(env, weights):
    total = 0.0
    for _ in range(40):
        obs, _ = env.reset()
        done = False
        while not done:
            action = int(np.argmax(obs @ weights))
            obs, reward, done, _, _ = env.step(action)
            total += reward
    return total / 40

@jax.jit
def update(weights, batch, actions, returns):
    def loss(weights):
        chosen = jax.nn.log_softmax(batch @ weights)[jnp.arange(len(actions)), actions]
        return -(chosen * returns).sum()
    return weights - 1e-3 * jax.grad(loss)(weights)

def main(every):
    global weights
    env, eval_env = Hill(), Hill()
    obs, _ = env.reset()
    n = 0
    while True:
        batch, actions, returns = [], [], []
        for _ in range(1000):
            p = 1 / (1 + np.exp(-(obs @ weights)[1]))
            action = int(rng.random() < p)
            batch.append(obs)
            actions.append(action)
            obs, reward, done, _, _ = env.step(action)
            returns.append(reward)
            if done:
                obs, _ = env.reset()
        data = np.array(batch, np.float32), np.array(actions), np.array(returns, np.float32)
        weights = np.asarray(update(weights, *data))
        if n % every == 0:
            evaluate(eval_env, weights)
        n += 1

if __name__ == "__main__":
    main(1)
"""
"""Updates are rare: each one waits for a thread of XLA, which may have to wait for a core. Where
other programs have the cores, most of the time would be that, and evaluation hardly be seen."""


@pytest.mark.slow
def test_evaluating_less_often_is_a_gain(tmp_path: Path) -> None:
    """Fewer environment steps a second, of which more are for learning."""
    first = script(tmp_path, EVALUATES, "first.py")
    second = script(tmp_path, "import first\nfirst.main(10)\n", "second.py")
    shown = tmp_path / "r.json"
    for seconds in (5, 50):  # a single turn of a tenth of that, because the time is over
        found = against(second, first, "--seconds", seconds, "--minutes", 0.001, "--json", shown)
        said = json.loads(shown.read_text())
        # Where other programs have the cores, which the report says, that is hardly a sample.
        if said["findings"][0]["id"] != "contended":
            break
    assert said["against"]["gain"] > 1, found.err
    assert "evaluation takes up to" in found.err


def test_programs_that_end_are_compared_by_their_time(tmp_path: Path) -> None:
    first = script(tmp_path, "import time\ntime.sleep(0.8)\n", "first.py")
    second = script(tmp_path, "import time\ntime.sleep(0.2)\n", "second.py")
    found = against(second, first, "--seconds", 50, "--minutes", 0.001)
    assert "speed of the whole program, 1 pair" in found.err, found.err


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        ("raise SystemExit('no such level')", (), r"py failed with .* 1 \(no such level\)\."),
        ("import time\ntime.sleep(9)", (), "can be counted, .* --count module:function"),
        ("import first\nfirst.main(0.01)", ("--count", "first:no"),
         r"without calls of first:no that .* first:no was not found \(in the program's own file"),
        ("import first\nfirst.main(0.01)", ("--count", "first:work(second)"),
         r"counted: first:work has no argument second\."),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_told_in_a_sentence(
    tmp_path: Path, text: str, flags: tuple[str, ...], words: str
) -> None:
    first = script(tmp_path, LOOP, "first.py")
    second = script(tmp_path, text, "second.py")
    found = against(second, first, "--seconds", 0.5, *flags)
    assert found.code == 1
    assert re.search(words, found.err), found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--against", "python x.py", "/"), "--against compares two programs"),
        (("--minutes", "3", "--", "python", "x.py"), "--minutes is for --against"),
        (("--against", "python x.py", "--minutes", "0", "--", "python"), "--minutes 0 is impos"),
        (("--against", "python 'x.py", "--", sys.executable), "is not a command line"),
    ],
)
def test_flags_that_make_no_sense_are_refused(arguments: tuple[str, ...], words: str) -> None:
    found = explained(*arguments)
    assert found.code == 2
    assert words in found.err


def test_an_interrupted_comparison_ends_the_program_that_runs(tmp_path: Path) -> None:
    said = tmp_path / "pid"
    text = f"import os, pathlib, time\npathlib.Path({str(said)!r}).write_text(str(os.getpid()))\n"
    path = script(tmp_path, text + "time.sleep(60)\n")
    command = shlex.join([sys.executable, str(path)])
    process = start("--against", command, "--count", "script:work", "--", sys.executable, path)
    wait_for(lambda: said.exists() and said.read_text() != "")
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    assert not psutil.pid_exists(int(said.read_text()))


@pytest.mark.parametrize("held", ["", "{", "{}", '{"flatout_evidence": 1, "processes": []}'])
def test_a_file_that_holds_something_else_is_not_overwritten(tmp_path: Path, held: str) -> None:
    path = script(tmp_path, LOOP, "first.py")
    (tmp_path / "s.json").write_text(held)
    found = against(path, path, "--save", tmp_path / "s.json")
    assert found.code == 2
    assert "s.json exists and holds no comparison" in found.err
    assert (tmp_path / "s.json").read_text() == held
