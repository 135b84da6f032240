"""What the probe reads from a program's source: loops, and which call made a value."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import linecache
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

from flatout_explain.program.attach import probe_module

TRAINING = """\
def train(step, evaluate, batches, log):
    state, losses, history = 0, [], []
    for batch in batches:
        state, loss = step(state, batch)
        losses.append(loss)
        loss = float(loss)
        if loss > 3:
            while False:
                pass
        score = evaluate(state)
        history.append(score)
        log(max(losses))
        log(score)
        log(batch)
    return history
"""


def lines_of(text: str) -> list[str]:
    return [str(line) for line in text.splitlines(keepends=True)]


def run(text: str, file: str) -> dict[str, Any]:
    """Run a source as if it were in a file, and return its global variables."""
    linecache.cache[file] = (len(text), None, lines_of(text), file)
    scope: dict[str, Any] = {}
    exec(compile(text, file, "exec"), scope)
    return scope


class PjitFunction:
    """Stands in for a compiled function of JAX, which the probe knows by its type's name."""

    __module__ = "jaxlib._jax"

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__wrapped__ = function

    def __call__(self, *arguments: Any) -> Any:
        return self.__wrapped__(*arguments)


def value_and_grad(state: Any, batch: Any) -> tuple[Any, float]:
    return state, 1.0


def learning_step(state: Any, batch: Any) -> tuple[Any, float]:
    return value_and_grad(state, batch)


def accuracy(state: Any) -> float:
    return 0.5


@pytest.fixture(scope="module")
def probe_source() -> Any:
    return probe_module("_flatout_source")


@pytest.fixture(scope="module")
def flow() -> Any:
    return probe_module("_flatout_flow")


@pytest.fixture(scope="module")
def flight() -> Any:
    return probe_module("_flatout_flight")


@pytest.fixture(scope="module")
def made_at(flow: Any, flight: Any) -> Callable[[FrameType, int], Any]:
    """The function that says which call made the values of a running function's line."""
    return lambda frame, line: flow.Search(
        frame.f_code, partial(flight.read.resolve, frame)
    ).origin(line)


@pytest.fixture(scope="module")
def frame() -> FrameType:
    """The running frame of ``train``."""
    scope = run(TRAINING, "/home/me/training.py")
    found: list[FrameType] = []

    def log(value: Any) -> None:
        found.append(sys._getframe(1))

    scope["train"](PjitFunction(learning_step), PjitFunction(accuracy), [0], log)
    return found[-1]


def test_loops_are_found_with_their_lines(probe_source: Any, frame: FrameType) -> None:
    assert probe_source.loops_of(frame.f_code) == [[3, 14], [8, 9]]


def functions_of(code: CodeType) -> Iterator[CodeType]:
    """The functions that are defined in a code, at any depth."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from functions_of(one)
            if not one.co_name.startswith("<") and one.co_flags & 0x2:
                yield one


@pytest.mark.parametrize("module", [argparse, dataclasses, json.decoder, sys.modules[__name__]])
def test_a_functions_own_lines_give_the_tree_of_the_whole_file(
    probe_source: Any, module: ModuleType
) -> None:
    file = str(module.__file__)
    text = Path(file).read_text()
    tree = probe_module("_flatout_describe").parsed(text)
    nodes = {
        (node.name, min([node.lineno, *(one.lineno for one in node.decorator_list)])): node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    codes = list(functions_of(compile(text, file, "exec")))
    assert len(codes) >= 5
    for code in codes:
        whole = nodes[code.co_name, code.co_firstlineno]
        found = probe_source.node_of(code)
        assert [(one.lineno, one.end_lineno) for one in probe_source.statements(found)] == [
            (one.lineno, one.end_lineno) for one in probe_source.statements(whole)
        ]
        assert ast.dump(found) == ast.dump(whole)
    assert without_texts(tree) == without_texts(ast.parse(text))


def without_texts(tree: ast.AST) -> str:
    """A syntax tree whose texts are empty: the probe's have no escapes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            node.value = type(node.value)()
    return ast.dump(tree, include_attributes=True)


def test_one_dear_sample_does_not_make_the_next_ones_rare() -> None:
    usual_cost = probe_module("_flatout_pace").usual_cost
    assert usual_cost(3e-4, 0.1) < 1.2 * 3e-4
    used = 0.0
    for _ in range(200):
        used = usual_cost(used, 2e-3)
    assert used == pytest.approx(2e-3, rel=0.01), "samples that are always dear are rare"


@pytest.mark.parametrize(
    ("line", "call", "learns"),
    [(4, "step", True), (6, "step", True), (7, "step", True), (12, "step", True),
     (11, "evaluate", False), (13, "evaluate", False), (14, None, None)],
)  # fmt: skip
def test_a_value_is_followed_back_to_the_call_that_made_it(
    made_at: Callable[..., Any], frame: FrameType, line: int, call: str | None, learns: bool | None
) -> None:
    made = made_at(frame, line)
    assert (made and made["call"], made and made["learns"]) == (call, learns)


@pytest.mark.parametrize(
    ("file", "users"),
    [("/home/me/train.py", True), ("/x/lib/python3.11/site-packages/jax/_src/api.py", False),
     ("/x/lib/python3.11/site-packages/stable_baselines3/ppo/ppo.py", True),
     ("<frozen importlib._bootstrap>", False), (json.__file__, False)],
)  # fmt: skip
def test_lines_of_the_user_are_told_from_those_of_libraries(
    probe_source: Any, file: str, users: bool
) -> None:
    assert probe_source.is_users(file) is users


def test_a_source_that_cannot_be_parsed_says_nothing(probe_source: Any) -> None:
    file = "/home/me/broken.py"
    code = compile("def f():\n    return 1\n", file, "exec").co_consts[0]
    for text in ("def f(:\n", "", "x" * 10):
        probe_source.PARSED.clear()
        probe_source.source_lines.__globals__["SOURCES"].pop(file, None)
        linecache.cache[file] = (len(text), None, lines_of(text), file)
        assert probe_source.loops_of(code) == []


def test_kinds_of_a_steps_values_are_told() -> None:
    """Those of NumPy's arrays too, whose classes are built in."""
    kinds_of = probe_module("_flatout_window").kinds_of
    ends = np.zeros(3, bool)
    assert kinds_of((np.ones((3, 2)), np.ones(3), ends)) == "oNB"
    assert kinds_of((np.ones(2), 1.0, True, np.bool_(False), {})) == "Nnbbo"
    assert kinds_of((object(), np.float32(1.0))) == "?n"
    assert kinds_of(([[0.0, 1.0]] * 2, [1.0, 0.5], [False, True], [{}, {}])) == "oNBo"
    assert kinds_of(({"a": np.ones(2)}, {"a": 1.0}, {"a": np.bool_(True)}, [])) == "oNBo"


HELPER = """\
def wait(value):
    return value.block_until_ready()

def train(step):
    result = step(0, 1)
    wait(result)
"""


def test_a_line_that_waits_for_an_argument_is_explained_by_its_caller(
    made_at: Callable[..., Any], flow: Any
) -> None:
    scope = run(HELPER, "/home/me/helper.py")
    found: list[Any] = []

    class Result:
        def block_until_ready(self) -> None:
            frame = sys._getframe(1)
            assert frame.f_back is not None
            found.append(flow.is_given(frame.f_code, frame.f_lineno))
            found.append(made_at(frame, frame.f_lineno))
            found.append(made_at(frame.f_back, frame.f_back.f_lineno))

    def learns(state: Any, batch: Any) -> Any:
        value_and_grad(state, batch)
        return Result()

    scope["train"](PjitFunction(learns))
    assert found == [True, None, {"call": "step", "line": 5, "learns": True}]


class ArrayImpl:
    """Stands in for an array of JAX, which the probe knows by its type's name."""

    __module__ = "jaxlib._jax"

    def __init__(self, ready: bool) -> None:
        self.ready = ready

    def is_ready(self) -> bool:
        return self.ready


LOOP = """\
def run(update, act, look, ready):
    params = {"w": (ready,)}
    for _ in range(1):
        params, loss = update(params, ready)
        action = act(params)
        look()
"""


@pytest.mark.parametrize("ready", [True, False])
def test_a_learning_call_whose_result_is_not_ready_is_in_flight(flight: Any, ready: bool) -> None:
    scope = run(LOOP, "/home/me/loop.py")
    found: list[Any] = []

    def look() -> None:
        found.append(flight.pending(sys._getframe(), {}))

    array = ArrayImpl(ready)
    scope["run"](PjitFunction(learning_step), PjitFunction(accuracy), look, array)
    assert [one and (one[0].co_name, one[1]) for one in found] == [None if ready else ("run", 4)]


AGENT = """\
class Agent:
    def __init__(self, compiled, array, look):
        type(self)._update = classmethod(compiled)
        self.state, self.seen, self.look = array, array, look

    @staticmethod
    def loss(params):
        return value_and_grad(params)

    def train(self):
        self.state, loss = self._update(self.state)

    def act(self):
        self.look()
"""


@pytest.mark.parametrize("ready", [True, False])
def test_a_result_in_flight_is_found_where_another_method_has_left_it(
    flight: Any, ready: bool
) -> None:
    """As an agent's methods do: `train` learns, and `act` then waits for the parameters. The
    compiled function takes its gradients in another method of the class."""
    scope = run(AGENT, "/home/me/agent.py")
    found: list[Any] = []

    def look() -> None:
        found.append(flight.pending(sys._getframe(), {}))

    def update(cls: Any, state: Any) -> Any:
        return cls.loss(state)

    scope["Agent"](PjitFunction(update), ArrayImpl(ready), look).act()
    assert [one and (one[0].co_name, one[1]) for one in found] == [None if ready else ("train", 11)]


def test_a_librarys_function_is_not_taken_for_learning(flight: Any) -> None:
    """Flax's `apply` reaches code that can take gradients, and takes none when it acts."""
    scope = {"__name__": "flax.linen.module", "vjp": None}
    exec("def apply(params, observation):\n    return vjp", scope)
    assert flight.described(PjitFunction(scope["apply"]))["learns"] is False


def test_methods_of_extension_modules_are_built_in_functions(flight: Any) -> None:
    """All of `numpy.random`: such a call has no frame of its own, as no function in C has."""
    generator = np.random.default_rng(0)
    for draw in (np.random.permutation, np.random.RandomState(0).randint, generator.choice):
        found = flight.described(draw)
        assert "cython" in found["type"], found
        assert found["of"].startswith("numpy.")
    assert flight.described(Recorder().method) == {"type": "builtins.method"}


class Recorder:
    def method(self) -> None: ...


def test_only_arrays_of_jax_are_asked_and_nothing_of_the_user_runs(flight: Any) -> None:
    class Trap:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("the program's code ran")

        def __iter__(self) -> Any:
            raise AssertionError("the program's code ran")

    array = ArrayImpl(ready=True)
    assert flight.first_array({"a": Trap(), "b": [Trap(), (array,)]}, 4) is array
    assert flight.first_array(Trap(), 4) is None
    assert flight.first_array([[[[[array]]]]], 4) is None, "too deep to be looked for"


def test_objects_named_like_those_of_libraries_are_not_asked(flight: Any) -> None:
    def ran(*arguments: Any) -> Any:
        raise AssertionError("the program's code ran")

    class Meta(type):
        __getattribute__ = ran

    dictionary = {"__dict__": property(ran), "__class__": property(ran), "__getattr__": ran}
    for name in ("ArrayImpl", "PjitFunction", "Function"):
        trap = type(name, (), {**dictionary, "__module__": "theirs"})()
        assert flight.first_array([trap], 4) is None
        assert flight.described(trap) == {"type": f"theirs.{name}"}
        scope = {"trap": trap, "held": Meta("Held", (), {})()}
        exec("import sys; frame = sys._getframe()", scope)
        assert flight.read.resolve(scope["frame"], "trap.x.y") is None
        assert flight.read.resolve(scope["frame"], "held.x") is None


def test_a_source_is_read_whatever_its_encoding(probe_source: Any, tmp_path: Path) -> None:
    cookie = "# coding: latin-1\r\n"
    for encoding, begin in [("utf-8", ""), ("utf-8", "\ufeff"), ("latin-1", cookie)]:
        file = tmp_path / f"{encoding}{len(begin)}.py"
        file.write_bytes(f"{begin}name = 'é'\r\nlast = 1".encode(encoding))
        assert probe_source.source_lines(str(file))[-2:] == ["name = 'é'", "last = 1"]
    assert probe_source.source_lines("/dev/zero") == []


WARNED_OF = r"""
def f(x):
    texts = "\d \N{DASH} \' \\d" + r"\d\"" + f"\d{x}" + "\
more"
    both = b"\q", 1or 2 if 0x1for 3 else x
    return texts \
        + str(both)
"""


def test_what_python_warns_of_is_parsed_while_the_filters_stay_the_program_s() -> None:
    """They are those of all threads, one of which may run meanwhile."""
    describe = probe_module("_flatout_describe")
    assert not hasattr(describe, "warnings")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (function,) = describe.parsed(WARNED_OF).body
        with pytest.raises((SyntaxError, Warning)):
            ast.parse(WARNED_OF)
    names = [node.id for node in ast.walk(function) if isinstance(node, ast.Name)]
    assert sorted(names) == ["both", "both", "str", "texts", "texts", "x", "x"]
    assert [node.lineno for node in function.body] == [3, 5, 6]
