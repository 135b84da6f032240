"""Answers about other machines: searched from the run's placement, within its limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.config.placement import Placement, parse
from flatout.planning.answer import Answer
from flatout.planning.plan import bottleneck, why
from flatout.planning.predict import Prediction, predict
from flatout.planning.stages import Stages
from flatout.planning.what_if import changed, outcome
from flatout.planning.what_if import parse as parse_changes

STAGES = Stages(
    envs=8, horizon=64, cores=2, env=(1e-3,), act={"cpu": ((8, 1e-4),), "gpu:0": ((8, 1e-6),)},
    learn={"cpu cpu": 0.5, "cpu device": 0.3, "gpu:0 cpu": 0.2, "gpu:0 device": 0.1},
    local=((4, 1e-5),),
)  # fmt: skip
ON_CPU = "cpu", "act=cpu replay=device"
PROCESSES = tuple(f"{text} sampler=processes workers=2x4" for text in ("act=cpu", *ON_CPU[1:]))


def answer(*texts: str, base: str = "cpu", stages: Stages = STAGES) -> Answer:
    rows = [Prediction(parse(text), 1e3, 9e2, 1.1e3) for text in texts]
    known = tuple({"central" if "processes" in text else "inline" for text in texts})
    return Answer(stages, known, rows, [], 1.0, base=parse(base))


def then(now: Answer, word: str, lag: bool = False) -> Placement:
    (change,) = parse_changes([word])
    stages, wider = changed(now.stages, [change])
    return outcome(word, now, replace(now, stages=stages), wider, lag).then.placement


def test_what_does_not_fit_into_memory_does_not_fit_on_another_machine() -> None:
    everywhere = ("act=gpu:0 replay=device", "gpu", "act=cpu learn=gpu:0", *ON_CPU)
    assert then(answer(*everywhere), "env-speed=10x").learn == parse("act=gpu:0").learn
    assert then(answer(*ON_CPU), "env-speed=10x").learn == parse("cpu").learn
    assert then(answer(*ON_CPU), "env-speed=10x").replay == "device"
    assert then(answer("cpu"), "env-speed=10x").replay == "cpu", "the replay does not fit there"


def test_what_the_run_says_of_its_devices_stays() -> None:
    capped = answer("act=gpu:0 memory=0.5", base="act=gpu:0 memory=0.5")
    assert then(capped, "cores=8").memory == 0.5
    assert then(capped, "env-speed=3x").memory == 0.5


def test_listed_cores_that_do_not_run_are_a_question() -> None:
    """Of four cores one runs: what if all of them did?"""
    now = answer("cpu", *PROCESSES, stages=replace(STAGES, cores=4, running=1.0, env=(1e-2,)))
    (change,) = parse_changes(["cores=4"])
    stages, wider = changed(now.stages, [change])
    found = outcome("cores=4", now, replace(now, stages=stages), wider, False)
    assert stages.running is None
    assert wider > 0.0
    assert found.gain > 2.0


@pytest.mark.parametrize("lag", [False, True])
def test_older_parameters_only_where_they_are_allowed(lag: bool) -> None:
    found = then(answer(*ON_CPU, *PROCESSES), "cores=8", lag)
    assert (found.schedule == "overlapped") is lag


def test_a_way_to_collect_that_failed_is_no_answer() -> None:
    more = then(answer(*ON_CPU, *PROCESSES), "cores=8")
    assert more.workers == (8, 1)
    assert more.inference == "central", "acting in them could not be measured"
    # Nobody could measure processes on one core: on more of them they may be faster.
    one = answer(*ON_CPU, stages=replace(STAGES, cores=1))
    assert then(one, "cores=8").sampler == "processes"
    two = answer(*ON_CPU)  # here they were measured, and failed
    assert then(two, "cores=8").sampler == "inline"


@pytest.mark.parametrize(
    ("stages", "text", "largest"),
    [
        (replace(STAGES, cores=8, lanes=8), "cpu", ("learning", 0.5)),
        (replace(STAGES, cores=8), "act=cpu sampler=processes workers=8x1", ("learning", 0.5)),
        (replace(STAGES, act={"cpu": ((8, 1e-4),)}, env=(1e-5,)), "cpu", ("learning", 0.5)),
        (STAGES, "act=gpu:0 learn=gpu:0", ("stepping the environments", 0.512)),
        (replace(STAGES, act={"cpu": ((8, 1.0),), "gpu:0": ((8, 1e-3),)}, env=(1e-3,)),
         "act=gpu:0 learn=gpu:0", ("stepping the environments", 0.512)),
        (replace(STAGES, act={"cpu": ((8, 1e-2),)}), "cpu", ("choosing actions", 0.64)),
    ],
)  # fmt: skip
def test_the_largest_part_is_of_the_placement_itself(
    stages: Stages, text: str, largest: tuple[str, float]
) -> None:
    """Neither of the fastest device for each part, nor of environments one after another."""
    found, took = bottleneck(stages, parse(text))
    assert (found, took) == (largest[0], pytest.approx(largest[1]))
    assert f"{found} is the largest part" in why(predict(stages, parse(text)), stages)
    assert took < stages.steps / predict(stages, parse(text)).rate
