"""A run's memory does not grow with its steps."""

from __future__ import annotations

import gc
import io
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from flatout.api import history
from flatout.config.schema import TrainConfig
from flatout.config.settings import resolve
from flatout.populations.members import Member
from flatout.populations.population import State
from flatout.run import display, progress, recording, trainer
from flatout.run.callbacks import Callback, Run
from flatout.run.display import LiveDisplay
from flatout.run.progress import Display
from flatout.run.trainer import Trainer
from tests import tiny

pytestmark = pytest.mark.usefixtures("shared_programs")

ITERATIONS = {"ppo": 60, "dqn": 90}
"""Until then a hundred episodes have ended, and replay is full."""

LIKELY = 16
"""Bytes per iteration: an object in a list takes three times as many."""

CODE = (types.ModuleType, types.CodeType, types.FrameType, type)


def held(*roots: Any) -> dict[str, int]:
    """Bytes of all objects that are reachable from some, without what modules and classes hold, by
    the types on the way to them."""
    sizes: dict[str, int] = {}
    seen: dict[int, Any] = {}
    found: list[tuple[str, Any]] = [("", root) for root in roots]
    while found:
        way, one = found.pop()
        # Rich keeps up to a thousand samples of its own.
        if id(one) in seen or isinstance(one, CODE) or type(one).__module__.startswith("rich."):
            continue
        seen[id(one)] = one
        name = type(one).__name__
        way = way if way.endswith(name) else f"{way} > {name}"
        sizes[way] = sizes.get(way, 0) + sys.getsizeof(one)
        found += [(way, other) for other in _referents(one)]
    return sizes


def _referents(one: Any) -> Iterator[Any]:
    if isinstance(one, types.FunctionType):  # not all of its module
        yield from one.__closure__ or ()
    else:
        yield from gc.get_referents(one)


class Nowhere(io.StringIO):
    def write(self, text: str) -> int:
        return len(text)


def live(config: TrainConfig) -> Display:
    return LiveDisplay(config, Console(file=Nowhere(), force_terminal=True))


def member(config: TrainConfig) -> Display:
    return State(Member("member", config))


@pytest.mark.parametrize(
    ("kind", "shown"), [("ppo", live), pytest.param("dqn", member, marks=pytest.mark.slow)]
)
def test_a_run_twice_as_long_holds_as_much(
    kind: str, shown: Callable[[TrainConfig], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "INTERVAL_S", 1e9)  # what grows with the hours
    monkeypatch.setattr(display, "REDRAW_S", 0.0)
    monkeypatch.setattr(progress, "ROWS", 20)
    made, assemble = deque[Any](maxlen=1), trainer.assemble

    def kept(*args: Any, **named: Any) -> Any:
        made.append(assemble(*args, **named))
        return made[0]

    monkeypatch.setattr(trainer, "assemble", kept)
    first, sizes = ITERATIONS[kind], dict[int, dict[str, int]]()

    class Measures(Callback):
        def on_iteration(self, run: Run) -> None:
            if run.progress.iterations in (first, 2 * first):
                gc.collect()
                sizes[run.progress.iterations] = held(run_, *made)

    steps = tiny.ITERATION if kind == "ppo" else 32
    asked = tiny.settings(
        kind, seed=1, placement="cpu", learning_rate=1e-9, quiet=True, checkpoint_every=0,
        log_every=steps, steps=2 * first * steps,
    )  # fmt: skip
    config = resolve(kind, asked)
    with closing(shown(config)) as screen:
        run_ = Trainer(config, callback=Measures(), display=screen)
        run_.run()
    before, after = sizes[first], sizes[2 * first]
    assert any("SerialSchedule" in way for way in after)
    grown = {way: size - before.get(way, 0) for way, size in after.items()}
    assert sum(grown.values()) < LIKELY * first, sorted(grown, key=lambda way: -grown[way])[:5]


def test_a_curve_of_many_calls_of_learn_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "ROWS", 20)
    points = None
    for number in range(1, 1001):
        one = np.array([float(number)])
        points = history._joined(points, (one, one, one))
    assert points is not None
    assert 20 <= len(points[0]) <= 80
    assert points[0][-1] == 1000
    assert 0 < np.diff(points[0]).min() <= np.diff(points[0]).max() <= 200
