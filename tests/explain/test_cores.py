"""Rules about the cores: who had them, and whether there are too many threads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout_explain.cores import TAKEN, contended, oversubscribed, slowdown
from flatout_explain.hardware.core_use import CoreUse, core_use
from flatout_explain.hardware.monitor import MonitorSample


def sample(**values: float) -> MonitorSample:
    return MonitorSample(**({"t": 1.0, "seconds": 1.0, "cores": 2, "cpu": 0.5} | values))  # pyright: ignore[reportArgumentType]


def test_a_program_that_gets_half_of_what_it_wants_is_contended() -> None:
    """Two threads on two cores, and another program with as many."""
    use = CoreUse(2, used=1.0, others=1.0, delayed=1.0, runnable=2.0, programs=(("make", 1.0),))
    found = contended(use)
    assert found is not None
    assert found.share == pytest.approx(0.5)
    assert "had 1.0 of 2 cores and could have used 2.0" in found.evidence[0]
    assert "make (50 %)" in found.evidence[1]


def test_a_steal_is_the_hosts() -> None:
    found = contended(CoreUse(2, used=1.0, others=0.8, delayed=0.0, stolen=0.8))
    assert found is not None
    assert "the host of this virtual machine (40 %)" in found.evidence[1]


def test_threads_of_its_own_do_not_make_a_program_contended() -> None:
    """Six threads on two cores, all for themselves."""
    assert contended(CoreUse(2, used=2.0, others=0.0, delayed=4.0, runnable=6.0)) is None


def test_others_on_idle_cores_take_nothing() -> None:
    assert contended(CoreUse(16, used=1.0, others=8.0, delayed=0.0)) is None


@given(
    cores=st.integers(1, 64), used=st.floats(0, 1), others=st.floats(0, 1),
    delayed=st.floats(0, 200), stolen=st.floats(0, 1),
)  # fmt: skip
def test_what_others_took_is_never_more_than_they_used(
    cores: int, used: float, others: float, delayed: float, stolen: float
) -> None:
    use = CoreUse(cores, used * cores, others * cores, delayed, stolen=stolen * others * cores)
    wanted = min(use.used + delayed + use.stolen, cores)
    assert 0.0 <= use.taken <= 1.0
    assert use.taken * wanted <= use.others + 1e-9
    assert (contended(use) is not None) == (use.taken >= TAKEN)


def test_threads_that_only_wait_on_free_cores_are_no_oversubscription() -> None:
    """Many runnable threads count only where the cores are the limit."""
    assert oversubscribed(CoreUse(4, used=2.0, others=0.0, runnable=9.0)) is None
    found = oversubscribed(CoreUse(4, used=3.9, others=0.0, runnable=8.0))
    assert found is not None
    assert found[0] == pytest.approx(0.5)
    assert found[1] == "on average 8.0 threads want to run on 4 cores"


def test_threads_that_wait_for_a_core_are_counted_by_the_kernels_clock() -> None:
    """No core is free while they wait, even if switching between them takes a part of each."""
    found = oversubscribed(CoreUse(2, used=1.6, others=0.0, runnable=2.5, delayed=6.4))
    assert found is not None
    assert found[0] == pytest.approx(0.75)
    assert oversubscribed(CoreUse(2, used=1.9, others=0.0, runnable=9.0, delayed=0.1)) is None


def test_means_are_weighted_by_time_and_name_the_busiest_programs() -> None:
    samples = [
        sample(cpu=0.25, cpu_all=0.75, seconds=3.0, delayed=0.5),
        sample(cpu=0.5, cpu_all=1.0, delayed=1.5, others={"gcc": 1.0, "cc1": 0.2}),  # pyright: ignore[reportArgumentType]
    ]
    use = core_use(samples, 2)
    assert use is not None
    assert use.used == pytest.approx((0.5 * 3 + 1.0) / 4)
    assert use.others == pytest.approx(1.0)
    assert [name for name, _ in use.programs] == ["gcc", "cc1"]
    assert core_use([], 2) is None


def test_the_shares_of_other_programs_are_of_what_others_used_all_the_time() -> None:
    """They are counted on all of the machine's CPUs, while there are many others."""
    crowded = sample(cpu=0.5, cpu_all=1.0, delayed=1.0, others={"train": 12.0, "make": 4.0})  # pyright: ignore[reportArgumentType]
    calm = sample(cpu=0.5, cpu_all=0.5, delayed=0.0, seconds=3.0)
    use = core_use([crowded, calm], 2)
    assert use is not None
    assert use.others == pytest.approx(0.25)
    assert dict(use.programs) == pytest.approx({"train": 0.75 * 0.25, "make": 0.25 * 0.25})
    use = core_use([crowded], 2)
    found = contended(use)
    assert found is not None
    assert found.evidence[1] == "shares of the 2 cores that others used: train (38 %), make (12 %)"
    small = sample(cpu=0.5, cpu_all=1.0, others={"make": 0.5})  # pyright: ignore[reportArgumentType]
    use = core_use([small], 2)
    assert use is not None
    assert use.programs == (("make", 0.5),), "others were too small to be named"


def test_a_fall_of_the_frequency_is_named_and_a_rise_is_not() -> None:
    falling = [sample(mhz=3000.0)] * 4 + [sample(mhz=2500.0)] * 4
    assert "fell from 3,000 to 2,500 MHz" in slowdown(falling)
    assert slowdown(falling[::-1]) == ""
    assert slowdown([sample(mhz=3000.0)] * 8) == slowdown([sample()] * 8) == ""
