"""The times of machines of a cluster, whose clocks differ, from requests and their answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.engine.workers.link import LARGE, bytes_per_s
from flatout.engine.workers.traffic import DRIFT, Clock, Traffic, Trip

times = st.floats(0.0, 10.0)


@given(offset=st.floats(-1e4, 1e4), there=times, work=times, back=times)
def test_a_clock_is_aligned_to_within_its_stated_uncertainty(
    offset: float, there: float, work: float, back: float
) -> None:
    clock, sent = Clock(), 5.0
    began = sent + there + offset
    clock.align(Trip(sent, began, began + work, sent + there + work + back))
    assert abs(clock.offset_s - offset) <= clock.uncertainty_s + 1e-9
    assert clock.uncertainty_s == pytest.approx((there + back) / 2, abs=1e-9)


def test_a_better_round_trip_counts_until_clocks_may_have_drifted() -> None:
    clock = Clock()
    clock.align(Trip(0.0, 100.001, 100.501, 0.502))
    clock.align(Trip(1.0, 101.1, 101.6, 1.8))  # a slow one
    assert clock.uncertainty_s == pytest.approx(1e-3)
    clock.align(Trip(2000.0, 2100.2, 2100.7, 2000.9))
    assert clock.uncertainty_s == pytest.approx(0.2)
    assert DRIFT * 2000 > 0.1  # which is why the slow one is more certain by then


def collected(traffic: Traffic, node: str, sent: float, there: float, work: float, back: float,
              ahead: float) -> None:  # fmt: skip
    """Count a worker's trajectory on a machine whose clock is ahead."""
    began = sent + there + ahead
    trip = Trip(sent, began, began + work, sent + there + work + back)
    traffic.trajectory(traffic.machine(node, node), trip, steps=50, array_bytes=5_000)


def test_the_machine_that_is_waited_for_is_the_slow_one_whatever_its_clock() -> None:
    traffic = Traffic()
    for k in range(10):
        sent = 3.0 * k
        for worker in range(2):
            collected(traffic, "quick", sent, 0.01, 1.0 + 0.1 * worker, 0.01, ahead=500.0)
            collected(traffic, "slow", sent, 0.01, 2.0 + 0.1 * worker, 0.01, ahead=-500.0)
        traffic.end_round()
    work = traffic.work()
    quick, slow = (work[f"machine {name}"] for name in ("quick", "slow"))
    assert (quick.turns, slow.turns) == (20, 20)
    assert slow.seconds["held"] == pytest.approx(10 * 1.0, abs=0.2)
    assert quick.seconds["held"] == 0.0
    assert quick.seconds["work"] == pytest.approx(10 * 1.1, abs=0.2)
    assert slow.seconds["way"] == pytest.approx(10 * 0.02, abs=0.01)
    assert slow.clock_s == pytest.approx(0.01)


def test_the_rate_at_which_the_network_is_full_follows_from_bytes_and_its_speed() -> None:
    traffic = Traffic()
    assert traffic.figures() == {}
    traffic.machine("there", "there").bytes_per_s = 1e6
    collected(traffic, "there", 0.0, 0.02, 1.0, 0.03, ahead=0.0)
    traffic.end_round()
    found = traffic.figures()
    assert found["network_bytes_per_step"] == 100.0
    assert found["network_full_steps_per_s"] == 1e6 / 100
    assert found["network_round_trip_s"] == pytest.approx(0.05)
    assert found["network_way_s"] == pytest.approx(0.05 - 5_000 / 1e6)
    assert found["network_clocks_s"] == pytest.approx(0.025)


def test_workers_of_the_runs_own_machine_send_nothing() -> None:
    traffic = Traffic()
    here = traffic.machine("node", "desk", here=True)
    traffic.trajectory(here, Trip(0.0, 0.0, 1.0, 1.0), 50, 0)
    traffic.end_round()
    assert traffic.figures() == {}
    assert traffic.work()["machine desk"].seconds == {"work": 1.0, "way": 0.0, "held": 1.0}
    assert traffic.machine("other", "desk").name == "desk (2)"


def test_a_links_rate_leaves_out_the_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("flatout.engine.workers.link.time.monotonic", lambda: now[0])

    def payload(size: int) -> None:
        now[0] += 0.04 + size / 25e6

    assert bytes_per_s(payload) == pytest.approx(25e6)
    sizes: list[int] = []

    def slow(size: int) -> None:
        sizes.append(size)
        now[0] += size / 1e5

    assert bytes_per_s(slow) == pytest.approx(1e5)
    assert LARGE not in sizes, "it would take a minute"
