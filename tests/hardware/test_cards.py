"""Which GPUs a placement takes that does not say which, and how the run names them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.placement import parse
from flatout.config.settings import resolve
from flatout.errors import UsageError
from flatout.hardware.inventory import (
    Gpu,
    Hardware,
    inventory,
    resolve_placement,
    resumed_placement,
)
from flatout.run.auto import question, with_placement
from flatout.storage.run_folder import RunFolder
from flatout_explain.hardware.nvml import GpuProcess
from tests import tiny
from tests.tiny import train_config

TOTAL = 80_000


def machine(*cards: tuple[int, int | None]) -> Hardware:
    """A machine whose GPUs have so many MiB free and are busy for such a percentage of the time."""
    gpus = tuple(
        Gpu(number, "NVIDIA H100", TOTAL, free, number, (), busy)
        for number, (free, busy) in enumerate(cards)
    )
    return Hardware("a CPU", 4, 16_384, 16_384, 1, gpus, True)


FULL, USED, IDLE, BUSY = (1_000, 0), (60_000, 0), (79_000, 0), (79_500, 90)


@pytest.mark.parametrize("text", ["gpu", "cpu+gpu", "act=cpu learn=gpu replay=gpu", "auto"])
def test_the_card_with_the_most_free_memory_and_the_least_use_is_taken(text: str) -> None:
    placement, notes = resolve_placement(text, machine(FULL, BUSY, IDLE, USED), images=True)
    assert str(placement.learn[0]) == "gpu:2"
    assert "gpu:2 (79,000 of 80,000 MiB free, 0 % busy): the freest of 4 GPUs" in notes[-1]
    assert "gpu:2" in str(placement)
    assert parse(str(placement)) == placement


def test_processes_decide_where_the_driver_does_not_report_use() -> None:
    here = machine((70_000, None), (70_000, None))
    first = replace(here.gpus[0], processes=(GpuProcess(1, "python", None),))
    placement, notes = resolve_placement("gpu", replace(here, gpus=(first, here.gpus[1])))
    assert str(placement) == "act=gpu:1"
    assert "gpu:1 (70,000 of 80,000 MiB free): the freest" in notes[0]


def test_a_card_that_is_named_is_taken_however_full() -> None:
    here = machine(FULL, IDLE)
    assert resolve_placement("act=gpu:0", here) == (parse("act=gpu:0"), [])
    placement, _ = resolve_placement("act=gpu learn=gpu:1", here)  # the other one
    assert str(placement) == "act=gpu:0 learn=gpu:1"


@pytest.mark.parametrize(
    ("text", "count", "taken"),
    [
        ("auto", 1, "act=cpu learn=gpu:4"),
        ("auto", 2, "act=cpu learn=gpu:2,gpu:4"),
        ("cpu", 3, "act=cpu learn=gpu:2,gpu:3,gpu:4"),
        ("gpu", 2, "act=gpu:4 learn=gpu:2,gpu:4"),
    ],
)
def test_so_many_devices_are_the_freest_cards_in_order(text: str, count: int, taken: str) -> None:
    here = machine(FULL, (5_000, 0), (76_000, 5), USED, IDLE)
    placement, notes = resolve_placement(text, here, devices=count)
    assert str(placement) == taken
    assert "the freest of 5 GPUs" in notes[-1]
    with pytest.raises(UsageError, match="has 5 usable GPUs"):
        resolve_placement(text, here, devices=6)


cards = st.lists(
    st.tuples(st.integers(0, TOTAL), st.none() | st.integers(0, 100)), min_size=1, max_size=5
)


@settings(deadline=None, max_examples=100)
@given(cards, st.sets(st.integers(0, 4)))
def test_no_card_left_is_freer_and_less_used(
    here: list[tuple[int, int | None]], opened: set[int]
) -> None:
    order = machine(*here).freest()
    assert sorted(gpu.index for gpu in order) == list(range(len(here)))
    for number, gpu in enumerate(order):
        for later in order[number + 1 :]:
            better = (later.busy or 0) < (gpu.busy or 0)
            assert not (later.memory_free_mb > gpu.memory_free_mb and better)
    limited = replace(machine(*here), opened=tuple(opened)).freest()
    inside = [gpu.index in opened for gpu in limited]
    assert inside == sorted(inside, reverse=True)


def test_a_process_stays_on_the_cards_that_jax_has_opened() -> None:
    jax.devices()
    before = jax.config.values["jax_cuda_visible_devices"]
    assert inventory().opened == ()
    try:
        jax.config.update("jax_cuda_visible_devices", "1,3")
        here = replace(machine(IDLE, FULL, IDLE, FULL), opened=inventory().opened)
    finally:
        jax.config.update("jax_cuda_visible_devices", before)
    assert str(resolve_placement("gpu", here)[0]) == "act=gpu:1"
    assert str(resolve_placement("cpu", here, devices=2)[0]) == "act=cpu learn=gpu:1,gpu:3"


def test_a_run_that_resumes_takes_the_cards_that_jax_has_opened() -> None:
    """Those of a population's members are opened before the members look at theirs."""
    here = replace(machine(IDLE, IDLE), opened=(1,))
    assert resumed_placement("act=gpu:0", here)[0] == "act=gpu:1"
    assert resumed_placement("act=gpu:1", here) == ("act=gpu:1", "")
    full = replace(machine(IDLE, FULL), opened=(1,))  # by this process itself, perhaps
    assert resumed_placement("act=gpu:1", full) == ("act=gpu:1", "")


def test_a_missing_card_is_replaced_by_the_freest() -> None:
    placement, _ = resolve_placement("act=cpu learn=gpu:7", machine(FULL, IDLE), soft=True)
    assert str(placement) == "act=cpu learn=gpu:1"


def test_planning_measures_the_freest_card() -> None:
    config = resolve("ppo", tiny.settings("ppo"))
    asked = question(config, parse("cpu"), machine(FULL, IDLE), 1.0)
    assert [str(device) for device in asked.devices] == ["cpu", "gpu:1"]


@pytest.mark.parametrize(
    ("text", "here", "then"),
    [
        ("act=gpu:2 memory=0.5", machine(IDLE, IDLE, USED), "act=gpu:2 memory=0.5"),
        ("act=gpu:2 memory=0.5", machine(USED, IDLE, FULL), "act=gpu:1 memory=0.5"),
        ("act=gpu:2", machine(IDLE, USED), "act=gpu:0"),
        (
            "act=gpu:0 learn=gpu:0,gpu:3",
            machine(FULL, IDLE, IDLE, IDLE),
            "act=gpu:1 learn=gpu:1,gpu:2",
        ),
        ("learn=gpu:0,gpu:3", machine(IDLE), "learn=gpu:0,gpu:3"),  # refused by name later
        ("act=gpu:0", machine(), "act=gpu:0"),
        ("act=gpu:0", machine(FULL, FULL), "act=gpu:0"),
        ("cpu", machine(IDLE), "cpu"),
    ],
)
def test_a_resumed_run_takes_other_cards_where_its_own_are_full_or_gone(
    text: str, here: Hardware, then: str
) -> None:
    found, note = resumed_placement(text, here)
    assert found == then
    assert bool(note) == (found != text)


def test_another_card_is_no_refused_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder names the card, and `--resume` moves the run, or takes what the user names."""
    monkeypatch.setattr("flatout.hardware.inventory.inventory", lambda: machine(IDLE, USED, FULL))
    config = resolve("ppo", tiny.settings("ppo", placement="gpu", devices=1))
    placement, _ = resolve_placement("gpu", machine(FULL, FULL, IDLE), devices=1)
    folder = RunFolder(tmp_path / "run")
    folder.write_config(with_placement(config, placement), str(placement))
    folder.close()
    written: dict[str, Any] = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["placement"] == written["settings"]["placement"] == "act=gpu:2"
    assert written["settings"]["devices"] is None  # the placement names them
    words = ["--resume", str(tmp_path / "run")]
    assert train_config(words)[0].run.placement == "act=gpu:0"
    said = capsys.readouterr().err
    assert "gpu:0" in said
    assert "on gpu:2 before" in said
    assert train_config([*words, "--placement", "act=gpu:2"])[0].run.placement == "act=gpu:2"
    assert capsys.readouterr().err == ""
