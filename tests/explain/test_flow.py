"""Where values go: from the source of functions, and from which lines called which functions."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flatout_explain.program.evidence import Process, process
from flatout_explain.program.flow import Node, Site, Values
from flatout_explain.program.spy import Source

GIVEN = {"k": "process", "pid": 1, "t": 0.0, "python": [3], "argv": ["python"], "stdlib": "/usr"}


class Program:
    """A program's functions as the probe describes them, and who called whom.

    Lines are named by comments: ``# acts`` at the end of a line makes `program["acts"]`.
    """

    def __init__(self, folder: Path, text: str) -> None:
        self.lines = textwrap.dedent(text).lstrip("\n").splitlines()
        file = folder / "program.py"
        file.write_text("\n".join(self.lines))
        source, rows = Source(), [GIVEN]
        self.functions: list[str] = []
        for code in source.read(str(file))[0]:
            name = code.co_qualname if hasattr(code, "co_qualname") else code.co_name
            lines = {line for _, _, line in code.co_lines() if line}
            found = source.described(name, str(file), {code.co_firstlineno} & lines)
            known: dict[str, Any] = {"k": "code", "i": len(self.functions), "file": str(file)}
            known |= {"plain": code.co_name, "qualname": name}
            rows.append({"line": code.co_firstlineno} | found | known)
            self.functions.append(name)
        self.process: Process = process(rows)

    def __getitem__(self, comment: str) -> Site:
        """The function and line of a comment."""
        line = next(n for n, one in enumerate(self.lines, 1) if one.endswith(f"# {comment}"))
        codes = self.process.codes
        around = [at for at, code in enumerate(codes) if code.flow is not None and any(
            one.first <= line <= one.last for one in code.flow.statements)]  # fmt: skip
        return max(around, key=lambda at: (codes[at].line, at)), line

    def goal(self, stack: Sequence[str], *stacks: Sequence[str]) -> str | None:
        """Whether the value of a stack's innermost line gets to `steps` or `learns` first; `stacks`
        are others that were seen."""
        seen = [[self[comment] for comment in one] for one in (stack, *stacks)]
        values = Values(self.process, seen)
        targets: dict[str, set[Node]] = {}
        for name in ("steps", "learns"):
            if any(line.endswith(f"# {name}") for line in self.lines):
                node = values.node(self[name])
                assert node is not None
                targets[name] = {node}
        return values.leads_to(seen[0], targets)[0]


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return lambda text: Program(tmp_path, text)


LOOP = """
def main(net, world, optimiser, data):
    seen = []
    obs = world.reset()
    while True:
        for _ in range(8):
            out = net(obs)  # acts
            act = out.argmax()
            following, reward, done, _ = world.step(act)  # steps
            seen.append((obs, act, reward))
            obs = following
        out = net(seen)  # improves
        loss = measure(out)
        loss.backward()  # learns
        total = 0
        for x, y in data:
            total += measure(net(x), y)  # validates
        print(total)
"""


@pytest.mark.parametrize(
    ("line", "goal"), [("acts", "steps"), ("improves", "learns"), ("validates", None)]
)
def test_a_networks_value_goes_to_an_action_to_an_update_or_to_neither(
    program: Any, line: str, goal: str | None
) -> None:
    """Names that are used again for other values mix up nothing."""
    assert program(LOOP).goal([line]) == goal


def test_a_value_that_is_made_again_goes_no_further(program: Any) -> None:
    found = program("""
        def main(net, world):
            obs = world.reset()
            act = net(obs)  # forgotten
            act = net(obs)  # taken
            with world:
                obs, reward, done = world.step(act)  # steps
    """)
    assert found.goal(["forgotten"]) is None
    assert found.goal(["taken"]) == "steps"


BRANCHES = """
def main(net, world, chance):
    obs = world.reset()
    while True:
        if chance():
            act = net(obs)  # acts
        else:
            act = 0
        if act is None:
            act = 1
        obs, reward, done = world.step(act)  # steps
"""


def test_a_value_of_one_branch_is_not_lost_in_another(program: Any) -> None:
    assert program(BRANCHES).goal(["acts"]) == "steps"


OBJECTS = """
class Store:
    def __init__(self):
        self.rows = []

    def keep(self, row, weight):
        self.rows.append(row)  # keeps

    def some(self):
        return self.rows[:8]  # gives

def gather(net, world, store):
    obs = world.reset()
    while True:
        act = net(obs)
        obs, reward, done = world.step(act)  # steps
        store.keep(obs, 1)  # hands

def show(net, world):
    obs, total = world.reset(), 0
    while True:
        act = net(obs)
        obs, reward, done = world.step(act)  # shows
        total += reward
    return total

def improve(net, store):
    rows = store.some()  # asks
    loss = net(rows)
    loss.backward()  # learns

def main(net, world, *rest):
    store = Store()
    gather(net, world, store)  # gathers
    best = show(net, world)  # plays
    improve(net, store)  # improves
    print(best)
"""
CALLS = (["keeps", "hands", "gathers"], ["gives", "asks", "improves"], ["learns", "improves"],
         ["shows", "plays"])  # fmt: skip


@pytest.mark.parametrize(
    ("stack", "goal"), [(["steps", "gathers"], "learns"), (["shows", "plays"], None)]
)
def test_what_a_loop_collects_gets_to_an_update_through_objects_and_functions(
    program: Any, stack: list[str], goal: str | None
) -> None:
    assert program(OBJECTS.replace("# steps", "# steps_")).goal(
        [comment.replace("steps", "steps_") for comment in stack], *CALLS
    ) == goal  # fmt: skip


def test_attributes_carry_values_from_one_method_to_another(program: Any) -> None:
    found = program("""
        class Agent:
            def gather(self, world):
                obs = world.reset()
                while True:
                    obs, reward, done = world.step(obs)  # collects
                    self.rows.append(obs)

            def improve(self, net):
                loss = net(self.rows)
                loss.backward()  # learns
    """)
    assert found.goal(["collects"]) == "learns"


PASSED = """
def gather(world, store):
    obs = world.reset()
    while True:
        obs, reward, done = world.step(obs)  # collects
        store.keep(obs)

def outer(*args, **kwargs):
    return gather(*args, **kwargs)  # passes

def main(world, store, net):
    outer(world, store)  # calls
    loss = net(store.some())
    loss.backward()  # learns
"""


def test_arguments_are_followed_through_functions_that_pass_them_on(program: Any) -> None:
    assert program(PASSED).goal(["collects", "passes", "calls"]) == "learns"


SHARED = """
seen = []

def gather(world):
    obs = world.reset()
    while True:
        obs, reward, done = world.step(obs)  # collects
        seen.append(obs)

def improve(net):
    loss = net(seen)
    loss.backward()  # learns

def main(net, world):
    rows = []
    def play():
        obs = world.reset()
        while True:
            obs, reward, done = world.step(obs)  # plays
            rows.append(obs)
    def show():
        values, obs = [], world.reset()
        while True:
            obs, reward, done = world.step(obs)  # shows
            values.append(obs)
    play()
    show()
    loss = net(rows)
    loss.backward()  # improves
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="functions have no qualified names")
@pytest.mark.parametrize(
    ("stack", "updates", "goal"),
    [
        ("collects", "learns", "learns"),
        ("plays", "improves", "learns"),
        ("shows", "improves", None),
    ],
)
def test_variables_of_the_module_and_of_functions_around_carry_values(
    program: Any, stack: str, updates: str, goal: str | None
) -> None:
    text = SHARED.replace("# learns", "").replace("# improves", "# learns")
    assert program(SHARED if updates == "learns" else text).goal([stack]) == goal


def test_a_block_that_runs_for_one_caller_keeps_no_value_of_another(program: Any) -> None:
    """One function plays the episodes of training and of evaluation."""
    found = program("""
        def play(world, store, trains):
            obs = world.reset()
            while True:
                obs, reward, done = world.step(obs)  # moves
                if trains:
                    store.append(obs)
                    rest()  # rests

        def rest():
            pass  # waits

        def main(world, net):
            store = []
            play(world, store, True)  # gathers
            play(world, store, False)  # shows
            loss = net(store)
            loss.backward()  # learns
    """)
    stacks = (["moves", "gathers"], ["waits", "rests", "gathers"], ["moves", "shows"])
    assert found.goal(["moves", "gathers"], *stacks) == "learns"
    assert found.goal(["moves", "shows"], *stacks) is None


def test_what_a_function_passes_on_as_its_rest_may_be_any_argument(program: Any) -> None:
    found = program("""
        def gather(world, scale, store):
            obs = world.reset()
            while True:
                obs, reward, done = world.step(obs)  # collects
                store.keep(obs)

        def outer(*args):
            return gather(*args)  # passes

        def main(world, store, net):
            outer(world, 2, store)  # calls
            loss = net(store.some())
            loss.backward()  # learns
    """)
    assert found.goal(["collects", "passes", "calls"]) == "learns"


def test_functions_that_call_each_other_with_an_object_end_the_search(program: Any) -> None:
    """Each changes the object that the other one has passed."""
    found = program("""
        def enter(rows, depth):
            rows.append(depth)  # enters
            descend(rows, depth)  # down
            return rows

        def descend(rows, depth):
            rows.append(depth)
            enter(rows, depth)  # again

        def main(net, rows):
            enter(rows, 0)  # begins
            loss = net(rows)
            loss.backward()  # learns
    """)
    stacks = (["enters", "again", "down", "begins"], ["learns"])
    assert found.goal(["enters"], *stacks) == "learns"


def test_what_a_function_returns_goes_to_the_caller_of_this_stack(program: Any) -> None:
    """The same function is called for an action and for an update."""
    found = program("""
        def forward(net, x):
            return net(x)  # runs

        def main(net, world, optimiser):
            obs = world.reset()
            while True:
                act = forward(net, obs)  # acts
                obs, reward, done = world.step(act)  # steps
                loss = forward(net, obs)  # improves
                loss.backward()  # learns
    """)
    assert found.goal(["runs", "acts"], ["runs", "improves"]) == "steps"
    assert found.goal(["runs", "improves"], ["runs", "acts"]) == "learns"


def test_rows_are_drawn_out_of_what_lasts(program: Any) -> None:
    """An index into a buffer chooses rows; one into the image that a loop makes does not."""
    found = program("""
        def main(rng, buffer, images):
            while True:
                rows = rng.integers(9)  # draws
                batch = buffer[rows]
                for image in images:
                    top = rng.integers(4)  # crops
                    image[top:] = 0
    """)
    values = Values(found.process, [])
    drawn, cropped = (values.node(found[line]) for line in ("draws", "crops"))
    assert drawn is not None
    assert cropped is not None
    assert values.chooses(drawn)
    assert not values.chooses(cropped)


def test_rows_that_a_learning_call_gets_are_not_passed_to_the_call_around_it(program: Any) -> None:
    found = program("""
        class Adam:
            def update(self, params, grads):
                self.mean = self.mean + grads  # averages
                return params - self.mean

        def main(rng, adam, params, gradients, data):
            while True:
                rows = rng.integers(9)  # draws
                batch = data[rows]  # gathers
                params = adam.update(params, gradients(params, batch))  # learns
    """)
    values = Values(found.process, [[found["averages"], found["learns"]], [found["draws"]]])
    learns = values.node(found["learns"])
    assert learns is not None
    _, reached = values.leads_to([found["draws"]], {}, barriers={learns}, only_named={learns})
    assert values.node(found["gathers"]) in reached
    assert values.node(found["averages"]) not in reached
    _, reached = values.leads_to([found["draws"]], {}, barriers={learns})
    assert values.node(found["averages"]) in reached, "elsewhere any argument may hold it"


def test_no_source_leads_nowhere(program: Any) -> None:
    found = program("def main(net):\n    x = net(1)  # acts\n")
    values = Values(found.process, [])
    assert values.node((found["acts"][0], 99)) is None
    assert values.leads_to([(found["acts"][0], 99)], {"learns": set()}) == (None, set())
