"""JSON that may be a stranger's becomes an object only if its types and limits are right."""

from __future__ import annotations

import json
import math
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from flatout.planning.answer import Answer
from flatout.planning.found import Found
from flatout.planning.machine import SHIPPED, Machine
from flatout.planning.stages import Stages
from flatout.run.progress import Progress
from flatout.storage.span_records import Begin, SpanRecord
from flatout.sweeps.plan import Job, Trial
from flatout_explain.documents import convert
from flatout_explain.hardware.monitor import MonitorSample
from tests.cli.test_plan import KNOWN
from tests.planning.test_predict import PLAIN

FOUND = Found(PLAIN, ("inline",), {"cpu": {"cpu": 1.0}}, {"cpu": (100.0, 0.1)}, ("a note",), 1.0)
SAMPLE = MonitorSample(1.0, 1.0, 4, 0.5, processes={7: 0.5})
TRIAL = Trial("seed=0", "", "ppo", {"steps": 64})
GOOD: dict[Any, Any] = {
    Answer: KNOWN.as_json(), Found: asdict(FOUND), Stages: asdict(PLAIN),
    Machine: asdict(SHIPPED), Progress: Progress(steps=64).to_json(),
    Begin: asdict(Begin(1.0)), SpanRecord: asdict(SpanRecord(0.0, 1.0, spans={"env": 0.5})),
    MonitorSample: SAMPLE.as_json(), Job: asdict(Job("seed=0", (TRIAL,), "a folder")),
}  # fmt: skip
READERS: dict[Any, Any] = {Answer: Answer.from_json, Progress: Progress.from_json}

BAD: list[tuple[Any, dict[str, Any]]] = [
    *[(Stages, change) for change in (
        {"env": []}, {"env": [math.nan]}, {"env": "ab"}, {"cores": 0}, {"cores": True},
        {"learn": {"cpu cpu": -1.0}}, {"full": 2.0}, {"act": 3}, {"local": [[1]]},
        {"local": [["1", 1.0]]}, {"rollout": {"cpu": -1.0}}, {"inside": 3}, {"lanes": 2**70},
    )],
    *[(Answer, change) for change in (
        {"stages": None}, {"base": "nowhere"}, {"predictions": []}, {"predictions": [{}]},
        {"predictions": [KNOWN.as_json()["predictions"][0] | {"rate": -1.0}]},
        {"predictions": [KNOWN.as_json()["predictions"][0] | {"placement": "act=moon"}]},
        {"larger": [0, {}]}, {"notes": [1]}, {"spent_s": math.inf},
    )],
    *[(Found, change) for change in (
        {"stages": {}}, {"known": "inline"}, {"memory": {"cpu": 1.0}}, {"rates": {"cpu": [1.0]}},
        {"spent_s": -1.0},
    )],
    *[(Machine, change) for change in ({"trip": -1.0}, {"iteration": 1e9}, {"cores": 0},
                                       {"trip": "fast"})],
    *[(Progress, change) for change in (
        {"steps": -1}, {"steps": 1.5}, {"steps": 2**60}, {"wall_s": math.nan},
        {"wall_s": math.inf}, {"returns": ["x"]}, {"returns": 3}, {"lasting": {"a": [0.5]}},
        {"reached": []}, {"noted": {"a": 1}}, {"metrics_bytes": None},
    )],
    *[(Begin, change) for change in ({"t": "x"}, {"t": math.nan}, {"gpus": "abc"}, {"cores": 1.5},
                                     {"images": 1}, {"placement": None})],
    *[(SpanRecord, change) for change in ({"t": 1e300}, {"d": math.nan}, {"spans": []},
                                          {"spans": {"env": math.inf}}, {"steps": "1"},
                                          {"first": 1}, {"lane": 3})],
    *[(MonitorSample, change) for change in ({"cpu": math.nan}, {"gpus": [{}]}, {"gpus": {}},
                                             {"processes": {"x": 1.0}}, {"faults": {"1": [1.0]}},
                                             {"notes": "abc"}, {"t": None})],
    *[(Job, change) for change in ({"trials": [{}]}, {"name": 3}, {"cap_mb": "1"},
                                   {"population": "yes"}, {"folder": None})],
]  # fmt: skip


def read(kind: Any, values: Any) -> Any:
    return READERS.get(kind, lambda one: convert(one, kind))(json.loads(json.dumps(values)))


@pytest.mark.parametrize(("kind", "change"), BAD, ids=lambda one: getattr(one, "__name__", None))
def test_impossible_values_are_refused_by_their_names(kind: Any, change: dict[str, Any]) -> None:
    read(kind, GOOD[kind])
    (name,) = change
    with pytest.raises(ValueError, match=f"^(key in )?{name}|placement|nowhere") as refused:
        read(kind, GOOD[kind] | change)
    assert "`" not in str(refused.value)


@pytest.mark.parametrize("kind", [*GOOD])
def test_what_is_no_object_or_has_no_first_value_is_refused(kind: Any) -> None:
    first = next(iter(GOOD[kind]))
    for values in (None, [], "x", 3, {k: v for k, v in GOOD[kind].items() if k != first}):
        with pytest.raises(ValueError, match=f"^{first} is missing|xpected"):
            read(kind, values)


class Slow:
    """A type that msgspec does not know."""


@dataclass
class HasSlow:
    slow: Slow


def test_threads_convert_one_after_another() -> None:
    """msgspec crashed where members of a population converted to new types at the same time."""
    alone, met = threading.Lock(), list[bool]()
    both = threading.Barrier(2)

    def make(kind: type, value: Any) -> Slow:
        free = alone.acquire(blocking=False)
        met.append(not free)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # for the other thread, if it can be here, too
        if free:
            alone.release()
        return kind()

    threads = [
        threading.Thread(target=convert, args=({"slow": 1}, HasSlow, make)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == [False, False]
