"""Threads that share cores."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.planning.simulate import CPU, Counter, Sleep, Thread, Wait, Work, shared, simulate


def works(*seconds: float, resource: str = CPU) -> Thread:
    for each in seconds:
        yield Work(each, 1.0, resource)


def ends(threads: dict[str, Thread], cores: int, full: float = 1.0) -> dict[str, float]:
    spent = simulate(threads, {CPU: shared(cores, full), "gpu": shared(1, 1.0)})
    return {name: s.working + s.sleeping + s.waiting for name, s in spent.items()}


def test_two_threads_on_two_cores_run_side_by_side() -> None:
    assert ends({"a": works(1.0), "b": works(2.0)}, 2) == pytest.approx({"a": 1.0, "b": 2.0})


def test_two_threads_take_turns_on_one_core() -> None:
    assert ends({"a": works(1.0), "b": works(2.0)}, 1) == pytest.approx({"a": 2.0, "b": 3.0})


def test_full_cores_are_slower() -> None:
    assert ends({"a": works(1.0), "b": works(1.0)}, 2, 0.5) == pytest.approx({"a": 2.0, "b": 2.0})


def test_sleep_needs_no_core_and_devices_are_apart() -> None:
    def sleeps() -> Thread:
        yield Sleep(1.0)

    threads = {f"s{i}": sleeps() for i in range(9)} | {"gpu": works(1.0, resource="gpu")}
    assert set(ends(threads | {"cpu": works(1.0)}, 1).values()) == {1.0}


def test_waiting_is_counted() -> None:
    done = Counter()

    def first() -> Thread:
        yield Work(2.0)
        done.value += 1

    def second() -> Thread:
        yield Wait(done, 1)
        yield Work(1.0)

    spent = simulate({"a": first(), "b": second()}, {CPU: shared(2, 1.0)})
    assert (spent["b"].waiting, spent["b"].working) == pytest.approx((2.0, 1.0))


def test_a_deadlock_is_an_error() -> None:
    def waits() -> Thread:
        yield Wait(Counter(), 1)

    with pytest.raises(RuntimeError, match="a wait"):
        simulate({"a": waits()}, {CPU: shared(1, 1.0)})


@given(
    st.lists(st.lists(st.floats(0.001, 5.0), min_size=1, max_size=4), min_size=1, max_size=5),
    st.integers(1, 6),
    st.floats(0.3, 1.0),
)
def test_time_lies_between_perfect_sharing_and_one_core(
    loads: list[list[float]], cores: int, full: float
) -> None:
    last = max(ends({f"t{i}": works(*s) for i, s in enumerate(loads)}, cores, full).values())
    total = sum(map(sum, loads))
    least = max(*(sum(s) for s in loads), total / cores)
    assert least * (1 - 1e-6) <= last <= total / full * (1 + 1e-6)
    more = ends({f"t{i}": works(*s) for i, s in enumerate(loads)}, cores + 1, full)
    assert max(more.values()) <= last * (1 + 1e-6)


@pytest.mark.parametrize("seconds", [math.inf, math.nan, 1e300])
def test_impossible_durations_end(seconds: float) -> None:
    def thread() -> Thread:
        yield Work(seconds)
        yield Sleep(seconds)
        yield Work(1.0, math.nan)

    assert set(simulate({"a": thread(), "b": thread()}, {CPU: shared(2, 0.9)})) == {"a", "b"}
