"""Time by machine, of runs whose workers are on a cluster."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flatout.config.settings import resolve
from flatout.explain.runs import Evidence, diagnose_evidence
from flatout.storage.span_records import as_line
from flatout_explain import html
from flatout_explain.diagnosis import Diagnosis
from flatout_explain.document import Report
from flatout_explain.report import machine_lines
from tests.explain.test_report import piped
from tests.storage.test_span_records import record

PLACEMENT = "act=cpu sampler=cluster workers=4x2"
CONFIG = resolve("ppo", {"env": "Hopper-v5", "envs": 8, "n_steps": 32, "placement": PLACEMENT})


def explained(machines: dict[str, dict[str, float]], env_s: tuple[float, ...]) -> Diagnosis:
    """A run of ten iterations of a second, of which 0.95 s are spent waiting for workers.

    Args:
        machines: seconds of each in an iteration, by span.
        env_s: seconds of stepping of each worker in it.
    """
    lines: list[dict[str, Any]] = [{"begin": {"t": 0, "cores": 2, "placement": PLACEMENT}}]
    lines.append(as_line(record(0, first=True, updates=5)))
    for t in range(1, 11):
        lines.append(as_line(record(t, spans={"wait": 0.95, "learn": 0.05}, updates=5)))
        for name, spans in machines.items():
            lines.append(
                as_line(record(t, lane=f"machine {name}", spans=spans, turns=2, clock_s=4e-4))
            )
        for number, seconds in enumerate(env_s):
            lines.append(
                as_line(record(t, lane=f"worker {number}", spans={"env": seconds}, turns=1,
                               square=seconds**2))
            )  # fmt: skip
    return diagnose_evidence(Evidence("run", CONFIG, lines, ended=True))


def test_the_slow_machine_is_named_with_its_remedy_in_every_form() -> None:
    times = {
        "desk": {"work": 0.45, "way": 0.01, "held": 0.0},
        "laptop": {"work": 0.93, "way": 0.01, "held": 0.48},
    }
    found = explained(times, (0.45, 0.45, 0.93, 0.93))
    (waiting,) = [one for one in found.findings if one.id == "waiting"]
    assert "the run waits for laptop alone 48 % of the time" in " ".join(waiting.evidence)
    assert "laptop collects for 0.9 s, the other machines for 0.5 s" in " ".join(waiting.evidence)
    assert waiting.remedy.startswith("laptop is slow: stop other programs on it")
    first, desk, laptop = machine_lines(found)
    assert first.startswith("laptop is waited for most: 48 % of the time alone")
    assert first.endswith("aligned by round trips, to within 400 µs")
    words = "desk 2 workers collecting 45 % on the way 1 % waited for alone 0 %"
    assert " ".join(desk.split()) == words
    assert "93 %" in laptop
    assert "laptop is waited for most" in piped(found)
    assert "laptop is waited for most" in html.page(found)
    report = msgspec.convert(msgspec.to_builtins(found.as_json()), Report)
    assert [(one.name, one.workers) for one in report.machines] == [("desk", 2), ("laptop", 2)]
    assert all(not lane.name.startswith("machine") for lane in found.lanes)


def test_a_slow_network_to_one_machine_is_no_slow_machine() -> None:
    times = {
        "desk": {"work": 0.45, "way": 0.01, "held": 0.0},
        "far": {"work": 0.45, "way": 0.49, "held": 0.48},
    }
    found = explained(times, (0.45,) * 4)
    assert found.findings[0].id == "ipc-bound", "the workers are equally fast"
    evidence = " ".join(found.findings[0].evidence)
    assert "on their way for 0.5 s; the machines collect for 0.5 s" in evidence
    assert "far" in evidence
    assert "waits for far alone 48 % of the time" in evidence


def test_equal_machines_are_not_waited_for_alone() -> None:
    times = {name: {"work": 0.93, "way": 0.01, "held": 0.002} for name in ("desk", "laptop")}
    found = explained(times, (0.93,) * 4)
    assert machine_lines(found)[0].startswith("no machine is waited for alone; clocks")


@pytest.mark.parametrize("count", [0, 1])
def test_without_other_machines_nobody_is_waited_for(count: int) -> None:
    times = {"desk": {"work": 0.93, "way": 0.01, "held": 0.94}}
    found = explained(dict(list(times.items())[:count]), (0.93,) * 4)
    assert len(found.machines) == count
    assert bool(machine_lines(found)) == bool(count)
    assert all("alone" not in sentence for one in found.findings for sentence in one.evidence)
