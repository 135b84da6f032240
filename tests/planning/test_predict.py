"""Predictions from stages that are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.placement import Placement, parse
from flatout.config.workers import with_workers
from flatout.planning.answer import Answer
from flatout.planning.machine import with_running_cores
from flatout.planning.plan import Allowed, candidates, choose, worker_counts
from flatout.planning.predict import Prediction, in_program, loaded, predict
from flatout.planning.stages import Stages, at
from flatout_explain.documents import convert
from flatout_explain.hardware.running_cores import Busy, RunningCores

PLAIN = Stages(
    envs=8, horizon=64, cores=4, env=(1e-3,), act={"cpu": ((1, 1e-4), (8, 2e-4))},
    learn={"cpu cpu": 0.05}, full=1.0, local=((1, 1e-4), (8, 2e-4)), trip=1e-4, message=1e-5,
)  # fmt: skip


def placed(text: str, stages: Stages = PLAIN) -> Placement:
    return with_workers(parse(text), stages.envs, stages.cores)


def predictions(stages: Stages, placements: Sequence[Placement]) -> list[Prediction]:
    return [predict(stages, one) for one in placements]


def test_inline_is_the_sum_of_its_parts() -> None:
    seconds = 64 * (2e-4 + 8 * 1e-3) + 0.05
    assert predict(PLAIN, placed("cpu")).rate == pytest.approx(512 / seconds)


def test_overlapped_takes_the_longer_side() -> None:
    stages = replace(PLAIN, learn={"cpu cpu": 5.0})
    overlapped = predict(stages, placed("act=cpu schedule=overlapped"))
    assert overlapped.rate == pytest.approx(512 / 5.0, rel=0.01)
    assert overlapped.waits["main"] == pytest.approx(1 - 0.525 / 5.0, abs=0.02)


def test_processes_step_side_by_side() -> None:
    placement = placed("act=cpu sampler=processes workers=4x2 inference=local")
    seconds = 64 * (at(PLAIN.local, 2) + 2 * 1e-3) + 0.05
    assert predict(PLAIN, placement).rate == pytest.approx(512 / seconds, rel=0.01)


def test_the_slowest_process_holds_up_a_turn() -> None:
    heavy = replace(PLAIN, env=(0.5e-3,) * 9 + (5.5e-3,))  # the same mean
    central = placed("act=cpu sampler=processes workers=4x2")
    assert heavy.env_s == pytest.approx(PLAIN.env_s)
    assert predict(heavy, central).rate < 0.8 * predict(PLAIN, central).rate


def test_environments_that_sleep_need_no_core() -> None:
    asleep = replace(PLAIN, computing=0.0, cores=1, full=1.0)
    eight = parse("act=cpu sampler=processes workers=8x1 inference=local")
    assert predict(asleep, with_workers(eight, 8, 1)).rate > 3 * predict(asleep, placed("cpu")).rate
    assert worker_counts(asleep) == [2, 4, 8]
    assert worker_counts(replace(asleep, computing=1.0)) == []


def test_cores_that_do_not_run_at_once_gain_nothing() -> None:
    inline, four = placed("cpu"), placed("act=cpu sampler=processes workers=4x2 inference=local")
    assert predict(PLAIN, four).rate > 2 * predict(PLAIN, inline).rate
    one = replace(PLAIN, running=1.0)
    assert predict(one, four).rate < 1.05 * predict(one, inline).rate
    half = predict(replace(PLAIN, running=2.0), four).rate
    assert predict(one, four).rate < half < predict(PLAIN, four).rate


def test_planning_notices_that_fewer_cores_run_than_are_listed() -> None:
    levels = Busy(1, 1.0, 1.0), Busy(4, 1.9, 1.9)
    stages, note = with_running_cores(PLAIN, RunningCores(4, 4, 4, levels, throttled=2.1))
    assert stages.running == 1.9
    assert stages.full == 1.0
    assert "may use 4 cores, but 1.9 ran at once" in note
    assert "withheld 2.1 cores" in note
    assert Answer(stages, (), predictions(stages, [placed("cpu")]), [], 1.0).words().endswith(
        "; of 4 cores 1.9 ran at once for busy processes"
    )  # fmt: skip
    # Processes that take turns on two cores are not slower than that.
    assert loaded(stages, 4, 1e-3 * 4 / 1.9, 1e-4, 2).full == pytest.approx(1.0)
    assert loaded(PLAIN, 4, 1e-3 * 4 / 1.9, 1e-4, 2).full == pytest.approx(1.9 / 4)


def test_hardware_threads_that_share_a_core_are_slower() -> None:
    levels = Busy(1, 1.0, 1.0), Busy(4, 4.0, 2.4)
    stages, note = with_running_cores(PLAIN, RunningCores(4, 4, 2, levels))
    assert (stages.running, note) == (None, "")
    assert stages.full == pytest.approx(0.6)


@st.composite
def some_stages(draw: Any) -> Stages:
    times = st.floats(1e-6, 1e-2)
    return Stages(
        envs=draw(st.sampled_from([1, 2, 4, 8])), horizon=draw(st.integers(1, 100)),
        cores=draw(st.integers(1, 8)), env=tuple(draw(st.lists(times, min_size=1, max_size=5))),
        act={"cpu": ((1, draw(times)),)}, learn={"cpu cpu": draw(st.floats(1e-5, 0.1))},
        full=draw(st.floats(0.5, 1.0)), computing=draw(st.floats(0.0, 1.0)),
        call=draw(times), trip=draw(times), message=draw(times), local=((1, draw(times)),),
        width=draw(st.floats(1.0, 2.0)), iteration=draw(times), trajectory=draw(times),
    )  # fmt: skip


ALL = Allowed(lag=True)


@settings(max_examples=15, deadline=None)
@given(some_stages())
def test_more_cores_are_never_predicted_slower(stages: Stages) -> None:
    more = replace(stages, cores=stages.cores + 1)
    for placement in candidates(stages, Placement(), ALL):
        assert predict(more, placement).rate >= predict(stages, placement).rate * (1 - 1e-2)


@settings(max_examples=12, deadline=None)
@given(some_stages())
def test_faster_environments_are_never_predicted_slower(stages: Stages) -> None:
    free, found = stages.faster_envs(1e6), candidates(stages, Placement(), ALL)
    now = [predict(stages, placement) for placement in found]
    fast = [predict(free, placement).rate for placement in found]
    assert max(fast) >= max(p.rate for p in now) * (1 - 5e-2)
    for before, after in zip(now, fast, strict=True):
        # Threads that take turns in another order may lose a little (Graham, 1969).
        assert after >= before.rate * (1 - 0.1)
        assert before.low <= before.rate <= before.high


@settings(max_examples=15, deadline=None)
@given(some_stages(), st.randoms())
def test_order_does_not_matter_and_what_does_not_fit_is_left_out(
    stages: Stages, random: Any
) -> None:
    found = candidates(stages, Placement(), ALL)
    mixed = random.sample(found, len(found))
    in_order, out_of_order = predictions(stages, found), predictions(stages, mixed)
    assert {str(p.placement): p.rate for p in in_order} == {
        str(p.placement): p.rate for p in out_of_order
    }
    assert choose(in_order).placement == choose(out_of_order).placement
    fits = Allowed(lag=True, fits=lambda p: p.inline)
    assert {p.collects for p in candidates(stages, Placement(), fits)} == {"inline"}


def test_lag_is_never_taken_unasked() -> None:
    assert all(p.lag == 0 for p in candidates(PLAIN, Placement(), Allowed()))


# --- Environments in a program --------------------------------------------------------------------

FUSED, SERIAL = "act=cpu sampler=device schedule=fused", "act=cpu sampler=device"
PROGRAM = {"rollout": {"cpu": 0.02}, "stepping": {"cpu": 0.005}, "inside": {"cpu": 0.03},
           "apart": {"cpu": 0.001}}  # fmt: skip
TWIN = replace(PLAIN, iteration=2e-3, **PROGRAM)  # type: ignore[arg-type]


def test_a_program_is_the_sum_of_its_parts() -> None:
    assert predict(TWIN, parse(FUSED)).rate == pytest.approx(512 / 0.05, rel=0.02)
    assert predict(TWIN, parse(SERIAL)).rate == pytest.approx(512 / (0.02 + 0.001 + 0.05 + 2e-3))


def test_candidates_are_those_whose_environments_were_measured() -> None:
    on_host = candidates(PLAIN, Placement(), Allowed())
    both = candidates(TWIN, Placement(), Allowed())
    assert both == [*on_host, parse(FUSED), parse(SERIAL)]
    alone = candidates(replace(TWIN, act={}, local=()), Placement(), Allowed())
    assert alone == [parse(FUSED), parse(SERIAL)]
    no_room = Allowed(fits=lambda p: p.schedule != "fused")
    assert parse(FUSED) not in candidates(TWIN, Placement(), no_room)
    # Whatever the search begins with, a candidate is one of both kinds, not a mixture.
    again = candidates(TWIN, parse(FUSED), Allowed())
    assert {*map(str, again)} == {*map(str, both)}


def test_replay_of_a_program_lies_where_it_was_measured() -> None:
    stages = replace(TWIN, learn={"cpu cpu": 0.05, "cpu device": 0.04})
    found = [p for p in candidates(stages, Placement(), Allowed()) if p.sampler == "device"]
    assert [p.replay for p in found] == ["device", "cpu", "device"]
    slow, fast = (predict(stages, p).rate for p in found[1:])
    assert fast > slow


def test_what_is_measured_decides_between_host_and_device() -> None:
    chosen = choose(predictions(TWIN, candidates(TWIN, Placement(), Allowed())))
    assert chosen.placement == parse(FUSED)
    slow = replace(TWIN, rollout={"cpu": 5.0})
    chosen = choose(predictions(slow, candidates(slow, Placement(), Allowed())))
    assert chosen.placement.sampler != "device"


times = st.floats(1e-6, 1e-1)


@settings(max_examples=30, deadline=None)
@given(times, times, times, times, st.sampled_from([FUSED, SERIAL]), st.integers(0, 4))
def test_a_longer_part_is_never_predicted_faster(
    rollout: float, env: float, inside: float, apart: float, text: str, part: int
) -> None:
    stages = replace(TWIN, rollout={"cpu": rollout}, stepping={"cpu": env},
                     inside={"cpu": inside}, apart={"cpu": apart})  # fmt: skip
    names = ("rollout", "inside", "apart", "learn", "stepping")
    measured = getattr(stages, names[part])
    longer = replace(stages, **{names[part]: {name: 1.5 * s for name, s in measured.items()}})
    before, after = predict(stages, parse(text)), predict(longer, parse(text))
    assert after.rate * (1 - 1e-9) <= before.rate
    assert before.low <= before.rate <= before.high
    assert sum(in_program(stages, parse(text)).values()) == pytest.approx(512 / before.rate)
    faster = predict(stages.faster_envs(10.0), parse(text)).rate
    assert before.rate * (1 - 1e-9) <= faster


def test_stages_survive_json() -> None:
    for stages in (PLAIN, TWIN, replace(TWIN, act={}, local=(), env=(0.0,))):
        assert convert(json.loads(json.dumps(asdict(stages))), Stages) == stages
