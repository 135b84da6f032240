"""Populations on several devices: each member on one of them, and as it would be there alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flatout.config.placement import DeviceName, parse
from flatout.engine.programs import Programs
from flatout.errors import UsageError
from flatout.hardware.inventory import Gpu, inventory, resolve_placement
from flatout.populations import strategy
from flatout.populations.members import FOLDER
from flatout.reports.curves import Run, curves
from flatout.run.auto import with_placement
from flatout.run.build import assemble, foreseen
from flatout.run.opening import member_devices
from flatout.run.resolve import resolve_run
from flatout.spans import Spans
from tests import tiny
from tests.conftest import Result, furthest, last_saved
from tests.populations.test_population import SMALL
from tests.populations.test_strategy import configs
from tests.tiny import train_config

pytestmark = pytest.mark.usefixtures("shared_programs")

Cli = Callable[..., Result]
LOOP = ("a2c", *tiny.flags("a2c", env_backend="device"), "--steps", 160, "--log-every", 16,
        "--checkpoint-every", 80, "--no-tensorboard", "--quiet")  # fmt: skip
"""A run whose loop is one program, smaller than that of `SMALL`; `--quiet` is its last word."""


def member(folder: Path, seed: int) -> Path:
    return folder / FOLDER / f"seed={seed}"


def placements(folder: Path, count: int) -> list[str]:
    summaries = (member(folder, seed) / "summary.json" for seed in range(count))
    return [str(parse(json.loads(path.read_text())["placement"]).learn[0]) for path in summaries]


@pytest.mark.slow
def test_spread_members_take_the_devices_in_turn(flatout: Cli, tmp_path: Path) -> None:
    words = ("--devices", 2, "--seeds", 3, "--strategy", "spread", "--run-dir", tmp_path / "p")
    result = flatout("train", *SMALL[:-1], *words)
    assert result.code == 0, result.err
    assert "each as a run of its own on cpu, cpu:1 (--strategy spread)" in result.out
    assert placements(tmp_path / "p", 3) == ["cpu", "cpu:1", "cpu"]
    alone = tmp_path / "alone"
    assert flatout("train", *SMALL, "--seed", 1, "--run-dir", alone).code == 0
    assert furthest(last_saved(member(tmp_path / "p", 1)), last_saved(alone)) == 0.0
    on = ("--resume", member(tmp_path / "p", 1), "--steps", 1280, "--quiet")
    assert flatout("train", *on).code == 0  # an ordinary run


@pytest.mark.slow
def test_each_device_has_groups_of_its_own(flatout: Cli, tmp_path: Path) -> None:
    words = ("--strategy", "together", "--run-dir")
    both = ("--devices", 2, "--seeds", 3, *words)
    result = flatout("train", *LOOP[:-1], *both, tmp_path / "p")
    assert result.code == 0, result.err
    assert "2 at a time in one program on each of cpu, cpu:1" in result.out
    assert placements(tmp_path / "p", 3) == ["cpu", "cpu", "cpu:1"]
    for first, count, device in ((0, 2, "cpu"), (2, 1, "cpu:1")):
        own = tmp_path / f"{first}"  # as two populations with a device each
        place = ("--placement", f"act={device} sampler=device schedule=fused")
        own_words = ("--seed", first, "--seeds", count, *place, *words, own)
        assert flatout("train", *LOOP, *own_words).code == 0
        for seed in range(first, first + count):
            one, other = member(tmp_path / "p", seed), member(own, seed)
            assert furthest(last_saved(one), last_saved(other)) == 0.0
    short = tmp_path / "short"
    assert flatout("train", *LOOP, *both, short, "--steps", 80).code == 0
    assert flatout("train", "--resume", short, "--steps", 160, "--quiet").code == 0
    for seed in range(3):
        one, other = member(tmp_path / "p", seed), member(short, seed)
        assert furthest(last_saved(one), last_saved(other)) == 0.0
    out = flatout("report", "--curves", tmp_path / "p").out
    assert "(3 runs)" in out


@pytest.mark.slow
def test_members_of_several_shards_have_all_devices(flatout: Cli, tmp_path: Path) -> None:
    words = ("--devices", 2, "--shards", 2, "--seeds", 2, "--strategy", "spread")
    assert flatout("train", *LOOP, *words, "--run-dir", tmp_path).code == 0
    for seed in range(2):
        summary = json.loads((member(tmp_path, seed) / "summary.json").read_text())
        assert summary["placement"] == "act=cpu,cpu:1 sampler=device schedule=fused"


@pytest.mark.slow
def test_both_devices_are_measured_at_the_same_time() -> None:
    asked = configs(4, "--devices", 2)
    two, _ = foreseen(asked[0])
    given = [with_placement(config, two[number % 2]) for number, config in enumerate(asked)]
    assert [config.run.devices for config in given] == [None] * 4
    told = strategy.call("flatout.populations.strategy:speed", (given, True), 120.0)
    assert 0.0 < told < 1e9


def test_what_fits_is_divided_among_the_devices() -> None:
    few, many = (
        strategy.choose(configs(count, "--devices", 4), "together", Programs()) for count in (2, 9)
    )
    assert [str(one.learn[0]) for one in few.placements] == ["cpu", "cpu:1"]
    assert few.size == 1
    assert many.size == 3
    assert len(many.placements) == 4


def test_every_device_has_a_member_however_few_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(inventory(), cores=2)
    monkeypatch.setattr(strategy, "inventory", lambda: here)
    chosen = strategy.choose(configs(9, "--devices", 4), "spread", Programs())
    assert chosen.size == 4


@pytest.mark.parametrize(
    ("words", "names", "devices"),
    [
        ((), ["H100", "H100"], ["gpu:0", "gpu:1"]),
        ((), ["H100", "A10", "H100"], ["gpu:0", "gpu:2"]),
        ((), ["H100"], []),
        (("--placement", "gpu"), ["H100", "H100"], []),
        (("--placement", "cpu"), ["H100", "H100"], []),
        (("--devices", "1"), ["H100", "H100"], []),
        (("--devices", "2", "--shards", "2", "--envs", "2"), ["H100"] * 2, []),
        (("--devices", "2"), ["H100", "A10"], ["gpu:0", "gpu:1"]),
    ],
)
def test_nobody_named_a_card_so_all_like_the_first_are_taken(
    words: tuple[str, ...], names: list[str], devices: list[str]
) -> None:
    config, _ = train_config(["ppo", "--env", "CartPole-v1", *words])
    gpus = tuple(Gpu(number, name, 80_000, 80_000) for number, name in enumerate(names))
    here = replace(inventory(), gpus=gpus, cuda_plugin=True)
    text = config.run.placement
    placement, _ = resolve_placement(
        "gpu" if text == "auto" else text, here, devices=config.run.devices
    )
    assert [str(device) for device in member_devices(config, placement, here)] == devices


def test_devices_that_are_not_here_are_refused_by_name(flatout: Cli, tmp_path: Path) -> None:
    result = flatout("train", *SMALL, "--devices", 9, "--seeds", 2, "--run-dir", tmp_path / "p")
    assert result.code == 2
    assert "needs cpu:8, which is not here" in result.message
    assert not (tmp_path / "p").exists()


def test_runs_on_like_devices_are_one_curve() -> None:
    def run(place: str) -> Run:
        settings: dict[str, object] = {"placement": place}
        return Run("r", np.array([0.0, 100.0]), np.array([0.0, 1.0]), settings)

    fused = "sampler=device schedule=fused"
    found = curves([run(f"act=gpu:0 {fused}"), run(f"act=gpu:3 {fused}"), run(f"act=cpu {fused}")])
    assert [curve.runs for curve in found] == [2, 1]


@pytest.mark.slow
def test_the_loop_on_the_device_learns_on_the_devices_that_are_counted(
    flatout: Cli, tmp_path: Path
) -> None:
    words = ("--devices", 2, "--shards", 2, "--run-dir", tmp_path)
    assert flatout("train", *SMALL, *words).code == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert parse(summary["placement"]).learn == (DeviceName("cpu"), DeviceName("cpu", 1))


def test_a_lone_run_on_several_devices_still_asks_for_shards() -> None:
    config, _ = train_config([str(word) for word in (*SMALL, "--devices", 2)])
    with pytest.raises(UsageError, match="--shards 1 does not divide evenly"):
        assemble(resolve_run(config), Spans())
