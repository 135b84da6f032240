"""Resets of environments: how long others wait for them, and what placements make of that."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.placement import Placement, parse
from flatout.config.workers import with_workers
from flatout.envs.task import open_task
from flatout.errors import UsageError
from flatout.planning.answer import Answer
from flatout.planning.measure import EnvCost, ResetLook, env_cost, resets_of
from flatout.planning.plan import why
from flatout.planning.predict import Prediction, fitted, iteration_s, predict
from flatout.planning.resets import Resets, longest_s
from flatout.planning.stages import Stages
from flatout.planning.what_if import changed, outcome, refuse_unmeasured
from flatout.planning.what_if import parse as parse_changes
from flatout_explain.documents import convert
from tests.tiny import train_config

RESET = Resets((50.1e-3,), ends=0.01, computing=0.0)
SLEEPING = Stages(
    envs=8, horizon=64, cores=2, env=(1.07e-3,), computing=0.03,
    act={"cpu": ((1, 4e-5), (8, 6e-5))}, learn={"cpu cpu": 0.015}, local=((1, 6e-5), (8, 8e-5)),
    trip=8e-5, message=2e-5, turn=2e-5, iteration=5e-4, resets=RESET,
)  # fmt: skip
"""Eight environments that sleep for 1 ms in a step and for 50 ms in a reset."""

INLINE, CENTRAL, LOCAL = "cpu", "sampler=processes", "sampler=processes inference=local"


def placed(text: str, stages: Stages = SLEEPING) -> Placement:
    return with_workers(parse(f"act=cpu {text}" if text != "cpu" else text), stages.envs, 2)


def rate(text: str, resets: Resets, stages: Stages = SLEEPING) -> float:
    return predict(replace(stages, resets=resets), placed(text)).rate


def enumerated(seconds: tuple[float, ...], chance: float, count: int, workers: int) -> float:
    """The expected longest, from all that can happen."""
    each = [(0.0, 1.0 - chance), *((s, chance / len(seconds)) for s in seconds)]
    expected = 0.0
    for turn in itertools.product(each, repeat=count * workers):
        share, sums = 1.0, [0.0] * workers
        for at, (duration, probable) in enumerate(turn):
            share *= probable
            sums[at // count] += duration
        expected += share * max(sums)
    return expected


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=2), st.floats(0.0, 1.0),
    st.sampled_from([(1, 1), (1, 4), (2, 2), (3, 2), (1, 2)]),
)  # fmt: skip
def test_the_longest_resets_are_those_of_all_that_can_happen(
    seconds: list[float], chance: float, shape: tuple[int, int]
) -> None:
    found, expected = (
        function(tuple(seconds), chance, *shape) for function in (longest_s, enumerated)
    )
    assert found == pytest.approx(expected, rel=1e-2, abs=1e-3 * max(seconds))


@pytest.mark.parametrize("workers", [2, 16, 256])
def test_rare_long_resets_rarely_coincide(workers: int) -> None:
    found = longest_s((0.3,), 0.01, 1, workers)
    assert found == pytest.approx(0.3 * (1 - 0.99**workers), rel=1e-3)
    assert longest_s((0.3,), 1e-5, 1, workers) == pytest.approx(3e-6 * workers, rel=0.01)


@pytest.mark.parametrize(
    ("text", "together", "measured"),
    [
        (INLINE, False, 654.0), (INLINE, True, 638.0),
        (f"{CENTRAL} workers=2x4", False, 1036.0), (f"{CENTRAL} workers=2x4", True, 1180.0),
        (f"{CENTRAL} workers=8x1", False, 1568.0), (f"{CENTRAL} workers=8x1", True, 3965.0),
        (f"{CENTRAL} workers=8x1 groups=1", False, 1569.0),
        (f"{LOCAL} workers=2x4", False, 1147.0), (f"{LOCAL} workers=8x1", False, 2852.0),
    ],
)  # fmt: skip
def test_runs_of_sleeping_environments_were_as_fast_as_predicted(
    text: str, together: bool, measured: float
) -> None:
    """Steps per second that PPO made on two cores, in episodes of 100 steps on average: of random
    lengths, or all of the same one."""
    resets = replace(RESET, together=together)
    assert rate(text, resets) == pytest.approx(measured, rel=0.2)


def test_resets_that_others_wait_for_are_not_a_part_of_every_step() -> None:
    """The mean alone would be twice as fast as what was measured above."""
    mean = replace(SLEEPING, resets=Resets(), env=(SLEEPING.env_s + RESET.mean_s,))
    eight = placed(f"{CENTRAL} workers=8x1")
    assert predict(mean, eight).rate > 2.0 * 1568.0
    assert rate(INLINE, RESET) == pytest.approx(predict(mean, placed(INLINE)).rate, rel=0.01)


@pytest.mark.parametrize("text", [INLINE, f"{CENTRAL} workers=2x4", f"{LOCAL} workers=2x4"])
def test_spares_hide_resets_that_sleep(text: str) -> None:
    free, spares = rate(text, Resets()), rate(text, replace(RESET, spares=True))
    assert rate(text, RESET) < 0.8 * free
    assert spares == pytest.approx(free, rel=0.01)
    # A reset that is longer than the episode before it cannot be hidden.
    long = replace(RESET, seconds=(3.0,), spares=True)
    assert rate(text, long) < 0.7 * free


def test_spares_that_compute_use_the_idle_time_of_their_processes() -> None:
    computing = replace(RESET, computing=1.0)
    spares = replace(computing, spares=True)
    # Here nothing is idle: the work stays, and only the waiting for one another ends.
    assert rate(INLINE, spares) == pytest.approx(rate(INLINE, computing), rel=0.01)
    busy = replace(SLEEPING, computing=1.0)
    text = f"{LOCAL} workers=2x4"
    assert rate(text, spares, busy) < 0.9 * rate(text, Resets(), busy)
    # While one core learns, the others may reset.
    learning = replace(busy, cores=4, full=1.0, learn={"cpu cpu": 0.5})
    assert rate(text, computing, learning) < 0.9 * rate(text, spares, learning)
    assert rate(text, spares, learning) == pytest.approx(rate(text, Resets(), learning), rel=0.01)


def test_what_a_short_look_saw_is_not_what_is_expected() -> None:
    """Collecting was measured while no episode ended: it fits the stages without resets."""
    inline = placed(INLINE)
    step_s = iteration_s(replace(SLEEPING, resets=Resets(), iteration=0.0), inline)[0] / 512
    found = fitted(SLEEPING, inline, step_s, 64, replace(RESET, ends=0.0))
    assert found.resets == RESET
    assert predict(found, inline).rate == pytest.approx(rate(INLINE, RESET), rel=0.05)


@pytest.mark.parametrize(
    ("looks", "limit", "length", "ends", "together"),
    [
        ([ResetLook(1, 250, [0.1], 0.5, [1, 1], [100, 100], {0}),
          ResetLook(2, 150, [0.1], 0.5, [2], [100, 100], {0, 1})], None, 0.0, 0.01, True),
        ([ResetLook(1, 60, [0.1], 0.5, [1], [50], {0}),
          ResetLook(2, 20, [0.1], 0.5, [], [], set())], None, 0.0, 0.01, True),
        ([ResetLook(1, 220, [0.1], 0.5, [1, 1], [100, 100], {0}),
          ResetLook(16, 40, [0.1], 0.5, [], [], set())], None, 0.0, 0.01, True),
        ([ResetLook(1, 60, [0.1], 0.5), ResetLook(2, 20)], 1000, 0.0, 1e-3, True),
        ([ResetLook(1, 60, [0.1], 0.5), ResetLook(2, 20)], None, 0.0, 0.0, True),
        ([ResetLook(1, 30, [0.1], 0.5, [1], [10], {0}),
          ResetLook(2, 30, [0.1], 0.5, [1, 1], [10, 20], {0, 1})], None, 400.0, 2.5e-3, False),
        ([ResetLook(1, 250, [0.1], 0.5, [1, 1], [100, 100], {0}),
          ResetLook(2, 150, [0.1], 0.5, [2], [100, 100], {0, 1})], None, 40.0, 0.025, False),
    ],
    ids=["same length", "not yet all", "not yet, same length", "time limit", "no end", "random",
         "as it is now"],
)  # fmt: skip
def test_how_often_episodes_end(
    looks: list[ResetLook], limit: int | None, length: float, ends: float, together: bool
) -> None:
    found = resets_of(looks, limit, length)
    assert found.ends == pytest.approx(ends)
    assert found.together is together
    assert found.seconds == (0.1,) * len(found.seconds)


def measured(name: str, limit_s: float) -> EnvCost:
    """Measure the cost of two environments of `tests.fault_envs`."""
    config, _ = train_config(["ppo", "--env", f"tests.fault_envs:{name}", "--envs", "2"])
    task = open_task(config.env, None, None)
    try:
        return env_cost(task, 2, 0, limit_s)
    finally:
        task.close()


def test_resets_are_measured_separately_from_steps() -> None:
    cost = measured("SlowReset", 0.2)
    assert min(cost.resets.seconds) >= 0.002
    assert cost.env[len(cost.env) // 2] < 0.002, "a step takes some microseconds"
    assert 1 / 80 < cost.resets.ends < 1 / 8, "random actions end an episode after 22 steps"
    assert cost.resets.computing < 0.9, "its resets sleep"
    assert not cost.resets.together


def test_slow_resets_are_looked_at_until_episodes_have_ended() -> None:
    """How often they happen decides what they cost; the limit ends within the first episode."""
    assert measured("SleepyReset", 0.4).resets.ends == pytest.approx(1 / 20)


def test_stages_with_resets_survive_json() -> None:
    assert convert(json.loads(json.dumps(asdict(SLEEPING))), Stages) == SLEEPING


def answer(stages: Stages = SLEEPING) -> Answer:
    rows = [Prediction(placed(INLINE), 600.0, 500.0, 700.0)]
    return Answer(stages, ("inline",), rows, [], 1.0, base=parse("cpu"))


@pytest.mark.parametrize("value", ["all", "0"])
def test_what_if_resets_happened_in_the_background(value: str) -> None:
    spares = value == "0"  # as it is
    now = answer(replace(SLEEPING, resets=replace(RESET, spares=spares)))
    (change,) = parse_changes([f"spare-envs={value}"])
    refuse_unmeasured(change, now.stages)
    stages, wider = changed(now.stages, [change])
    found = outcome(str(change), now, replace(now, stages=stages), wider, False)
    gain = rate(INLINE, Resets()) / rate(INLINE, RESET)
    assert found.gain == pytest.approx(1 / gain if spares else gain, rel=0.01)


def test_resets_are_named_where_they_take_most() -> None:
    assert "stepping the environments is the largest part" in why(
        predict(SLEEPING, placed(INLINE)), SLEEPING
    )
    long = replace(SLEEPING, resets=replace(RESET, seconds=(0.3,)))
    assert "resetting the environments is the largest part" in why(
        predict(long, placed(INLINE)), long
    )
    found = outcome("", answer(), answer(long), 0.0, False)
    assert found.bottleneck == "resetting the environments"


def test_spares_are_refused_where_no_reset_was_timed() -> None:
    with pytest.raises(UsageError, match="spare-envs=all or spare-envs=0"):
        parse_changes(["spare-envs=2"])
    (change,) = parse_changes(["spare-envs=all"])
    with pytest.raises(UsageError, match="no reset was timed"):
        refuse_unmeasured(change, replace(SLEEPING, resets=replace(RESET, ends=0.0)))
    with pytest.raises(UsageError, match="compiled program"):
        refuse_unmeasured(change, replace(SLEEPING, act={}))
