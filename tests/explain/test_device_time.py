"""Time in which a program waits for a device counts for the part that the device works for."""

from __future__ import annotations

from typing import Any

import pytest

from flatout_explain.diagnosis import Diagnosis
from flatout_explain.program.diagnose import diagnose
from flatout_explain.program.evidence import build, from_json
from tests.explain.recorded import FOLDER, values_of
from tests.explain.test_program_rules import Recorded, card, meta, told


def waiting(place: str, elsewhere: float, worked: float = 0.0) -> Recorded:
    """A loop that steps for 20 ms and then waits for a device, whose host threads work for
    `elsewhere` of each 10 ms."""
    driver = Recorded(1)
    for _ in range(40):
        driver.spend(0.02, "env", 0, 0.01, 0.0).spend(0.08, place, 0, worked, elsewhere)
    return driver


def jax_loop(elsewhere: float, worked: float = 0.0, learns: bool = True) -> Diagnosis:
    return told(waiting("fetch", elsewhere, worked).loads("jax").waits_for("update", learns))


def test_waiting_for_a_cpu_device_that_computes_is_arithmetic() -> None:
    """``loss = float(loss)`` after one large compiled step."""
    found = jax_loop(elsewhere=0.018)
    assert found.verdict == "healthy"
    assert found.phases["learn"] == pytest.approx(0.8, abs=0.03)
    assert not {"launch-bound", "transfer-bound"} & {one.id for one in found.findings}


def test_the_line_that_started_the_work_is_named() -> None:
    """And not the one that waits for it."""
    first = jax_loop(elsewhere=0.018).findings[0]
    assert first.place == ("/home/me/train.py", 30)
    assert "train.py:30 `loss = update(state)`" in first.evidence[0]


def test_waiting_for_a_device_that_does_nothing_is_a_transfer() -> None:
    found = jax_loop(elsewhere=0.0)
    assert found.verdict == "transfer-bound"
    assert found.phases["transfer"] == pytest.approx(0.8, abs=0.03)


def test_fetching_many_small_results_is_work_of_the_host() -> None:
    """It does not wait: the calls themselves take the time."""
    assert jax_loop(elsewhere=0.0, worked=0.01).phases["transfer"] == pytest.approx(0.8, abs=0.03)


def test_a_device_that_chooses_actions_is_waited_for_in_acting() -> None:
    assert jax_loop(elsewhere=0.018, learns=False).phases["act"] == pytest.approx(0.8, abs=0.03)


def test_fetching_an_action_from_an_idle_device_is_acting() -> None:
    """`jax.device_get(actions)` for one environment: more of them in one call are the remedy."""
    for worked in (0.0, 0.01):
        found = jax_loop(elsewhere=0.0, worked=worked, learns=False)
        assert found.phases["act"] == pytest.approx(0.8, abs=0.03)


def test_what_jax_copies_to_check_its_arguments_is_no_transfer() -> None:
    """``q_values.argmax()`` calls `asarray`."""
    assert "transfer" not in told(waiting("checks", 0.0, 0.01).loads("jax")).phases


def torch_on_gpu(busy: float | None, call: str = "item") -> Diagnosis:
    """A training loop in PyTorch that spends its time at ``loss.item()``, or another call."""
    driver = Recorded(1).loads("torch")
    for _ in range(40):
        driver.spend(0.02, "learn", 0, 0.01, 0.0).spend(0.08, call, 0, 0.01, 0.0)
    about: dict[str, Any] = meta(driver.clock)
    for row in about["monitor"]:
        row["gpus"] = [card(busy, 2_000)]
    return diagnose(build(about, [driver.written()]))


@pytest.mark.parametrize("call", ["item", "cuda"])
def test_waiting_for_a_busy_gpu_is_the_gpus_arithmetic(call: str) -> None:
    found = torch_on_gpu(0.98, call)
    assert found.verdict == "healthy"
    assert found.phases["learn"] == pytest.approx(0.98, abs=0.03)


@pytest.mark.parametrize("call", ["to", "cuda"])
def test_both_ways_to_move_a_networks_input_to_a_gpu_are_acting(call: str) -> None:
    """In the place of a program's `torch.stack(observations)`."""
    values = values_of("acrobot_torch")
    for row in (row for rows in values["processes"] for row in rows):
        if row["k"] == "leaf" and str(row["call"]).endswith(".stack"):
            row["call"] = f"x.{call}"
    found = diagnose(from_json(values, FOLDER / "acrobot_torch"))
    assert found.phases["act"] > 0.52
    assert found.phases["other"] < 0.05


@pytest.mark.parametrize("call", ["item", "cuda"])
def test_waiting_for_an_idle_gpu_is_a_transfer(call: str) -> None:
    assert torch_on_gpu(0.05, call).verdict == "transfer-bound"


def test_item_on_a_gpu_whose_use_nobody_reports_is_no_transfer() -> None:
    """NVML gives none for an instance of a divided card (MIG)."""
    found = torch_on_gpu(busy=None)
    assert found.verdict == "healthy"
    assert "transfer" not in found.phases
    assert any("cannot be read" in note for note in found.notes)


def test_a_lock_that_another_thread_holds_counts_for_its_work() -> None:
    """A thread that writes events takes the interpreter's lock from the training loop."""
    driver = Recorded(1)
    driver.rows.append({"k": "lane", "i": 1, "main": False, "name": "writer"})
    for _ in range(300):
        driver.spend(0.01, "learn", 0, 0.004, 0.006)
        driver.also(1, 0.01, "io", 0.006)
    found = told(driver)
    assert found.phases["io"] == pytest.approx(0.6, abs=0.05)
    assert found.verdict == "io-bound"
    assert "waited for Python's interpreter lock" in " ".join(found.notes)


def test_threads_that_take_turns_get_no_verdict() -> None:
    """Neither is the main one, so both are seen only where they release the lock."""
    driver = Recorded(1)
    driver.rows += [
        {"k": "lane", "i": lane, "main": False, "name": f"actor {lane}"} for lane in (1, 2)
    ]
    for _ in range(300):
        driver.spend(0.01, "wait", 0, 0.0, 0.01)
        for lane in (1, 2):
            driver.also(lane, 0.01, "learn", 0.005)
    found = told(driver)
    assert found.verdict == "unknown"
    assert "2 threads of one process take turns" in found.headline
    assert [one.id for one in found.findings] == ["unknown"]


@pytest.mark.parametrize("parallel", [True, False])
def test_a_backward_pass_that_sleeps_averages_gradients(parallel: bool) -> None:
    """DistributedDataParallel exchanges them in other threads, within the one call."""
    driver = Recorded(1).loads("torch")
    for _ in range(60):
        driver.spend(0.01, "parallel" if parallel else "learn", 0, 0.01, 0.0)
        driver.spend(0.09, "backward", 0, 0.002, 0.0)
    found = told(driver)
    share = found.phases.get("communicate", 0.0)
    assert share == pytest.approx(0.72 if parallel else 0.0, abs=0.03)
    assert (found.verdict == "communication-bound") is parallel
