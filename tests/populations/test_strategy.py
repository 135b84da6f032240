"""How a population shares the machine: by measuring, by what is known, within its memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flatout.config.schema import TrainConfig
from flatout.engine.members import FusedPopulation
from flatout.engine.programs import Programs
from flatout.errors import FlatoutError, UsageError
from flatout.hardware.inventory import inventory
from flatout.populations import strategy
from flatout.populations.members import FOLDER, Strategy, members
from flatout.populations.population import Population
from flatout.run import build, resolve
from flatout.run.interrupts import Interrupts
from flatout.run.probe_process import MeasuringError
from flatout_explain.files.kept_numbers import plans
from tests import tiny
from tests.conftest import Result
from tests.populations.test_population import SMALL
from tests.tiny import train_config

Cli = Callable[..., Result]


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def configs(count: int, *more: Any) -> list[TrainConfig]:
    config, _ = train_config(tiny.latest([str(word) for word in (*SMALL, *more)]))
    return [member.config for member in members(config, count, [], Path("p"))]


class Measured:
    """Answers in the place of measuring: steps/s of lone runs side by side, and of one program."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, apart: float, together: Any) -> None:
        self.looks, self.limits = 0, list[float]()

        def speed(*given: Any) -> float:
            self.looks += 1
            return apart

        def call(function: str, arguments: Any, limit_s: float, announce: Any) -> float:
            self.limits.append(limit_s)
            if isinstance(together, FlatoutError):
                raise together
            return together

        monkeypatch.setattr(strategy, "speed", speed)
        monkeypatch.setattr(strategy, "call", call)


LONG = ("--steps", 10**8)


@pytest.mark.parametrize(
    ("together", "taken"),
    [
        (9e4, "together"), (2e4, "spread"), (MeasuringError("no such operation", False), "spread"),
        (MeasuringError("a piece did not end within 60 s", True, 2e4), "spread"),
    ],
)  # fmt: skip
def test_a_long_population_is_measured_once_and_the_faster_taken(
    together: Any, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measured(monkeypatch, 3e4, together)
    said = list[str]()
    for _ in range(2):  # the second time it is remembered
        chosen = strategy.choose(configs(8, *LONG), "auto", Programs(announce=said.append))
        assert chosen.name == taken
        assert "30,000" in chosen.why
    whole = not isinstance(together, MeasuringError) or together.so_far is None
    assert measured.limits == [strategy.MOST_S] * (1 if whole else 2), "a part is measured again"
    assert measured.looks == 1
    assert [text for text in said if "each part of it may take 60 s" in text]
    (plans() / "numbers.json").write_text('{"x": [1')  # damaged: as if it were not there
    assert strategy.choose(configs(8, *LONG), "auto", Programs()).name == taken
    assert measured.looks == 2


def test_a_short_population_follows_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(monkeypatch, 3e4, 9e9)
    chosen = strategy.choose(configs(8), "auto", Programs())
    assert (chosen.name, measured.limits) == ("together", []), "as the README says"
    assert "too short to measure" in chosen.words(8)
    for other in (("--env-backend", "host"), ("--shards", 2)):  # one program has one shard
        assert strategy.choose(configs(2, *other), "auto", Programs()).name == "spread"


def test_one_program_is_taken_where_it_could_not_be_measured_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It counted as slower, for ever: on a busy machine eight agents became two at a time."""
    late = MeasuringError("compiling did not end within 60 s; other programs hold the cores", True)
    measured = Measured(monkeypatch, 3e4, late)
    for _ in range(2):
        chosen = strategy.choose(configs(8, *LONG), "auto", Programs())
        assert chosen.name == "together"
        assert "other programs hold the cores" in chosen.words(8)
    assert len(measured.limits) == 2, "it is measured when the machine is free"


@pytest.mark.slow
def test_one_program_that_is_measured_in_a_child_tells_its_speed() -> None:
    told = strategy.call("flatout.populations.strategy:speed", (configs(2), True), 120.0)
    assert 0.0 < told < 1e9


@pytest.mark.parametrize("asked", ["together", "spread"])
def test_members_are_divided_into_groups_that_fit(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = configs(7, "--hidden", "192,192")
    placements, each = build.foreseen(wide[0])
    need = sum(each.by_device(placements[0]).values())
    limited(monkeypatch, 3.4 * need / strategy.FULL, cores=16)
    chosen = strategy.choose(wide, asked, Programs())
    assert chosen.size == 3
    assert "3 at a time" in chosen.words(7)
    assert "MiB each of" in chosen.words(7)
    limited(monkeypatch, 1.5 * need, cores=16)
    assert strategy.choose(wide, asked, Programs()).size == 1


def limited(monkeypatch: pytest.MonkeyPatch, available_mb: float, cores: int) -> None:
    here = replace(inventory(), memory_available_mb=int(available_mb), cores=cores)
    for module in (resolve, strategy):
        monkeypatch.setattr(module, "inventory", lambda: here)


def test_where_not_even_one_fits_nothing_is_written(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, 1, cores=2)
    words = ("--hidden", "192,192", "--seeds", 3, "--run-dir", tmp_path / "p")
    result = flatout("train", *SMALL, *words)
    assert result.code == 1
    assert "not even one member of this population fits" in result.message
    assert not (tmp_path / "p").exists()


@pytest.mark.slow
def test_groups_follow_one_another_with_one_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, compiled = list[int](), FusedPopulation._compile

    def noted(self: Any, schedule: Any, whole: Any, keys: Any) -> Any:
        sizes.append(len(keys[0]))
        return compiled(self, schedule, whole, keys)

    monkeypatch.setattr(FusedPopulation, "_compile", noted)
    config, _ = train_config([str(word) for word in SMALL])
    made = Population(
        members(config, 4, [], tmp_path), Strategy("together", 2), False, Interrupts()
    )
    made.run()
    assert [state.ended for state in made.states] == ["steps"] * 4
    assert sizes == [2]


def test_a_strategy_that_cannot_be_is_one_sentence(flatout: Cli, tmp_path: Path) -> None:
    def said(*words: object) -> str:
        result = flatout("train", *SMALL, *words, "--run-dir", tmp_path / "p")
        assert result.code == 2
        assert not (tmp_path / "p").exists()
        return result.message

    assert "not one of auto, together, spread" in said("--seeds", 2, "--strategy", "best")
    assert "--strategy is for populations" in said("--strategy", "spread")
    shards = ("--shards", 2, "--seeds", 2, "--strategy", "together")
    assert "one program needs --shards 1, and these members have 2 shards." in said(*shards)
    host = said("--env-backend", "host", "--seeds", 2, "--strategy", "together")
    assert "one program needs environments on the device (--env-backend device" in host


def test_a_resumed_population_keeps_its_strategy(flatout: Cli, tmp_path: Path) -> None:
    words = ("--seeds", 2, "--strategy", "spread", "--run-dir", tmp_path)
    assert flatout("train", *SMALL, *words).code == 0
    kept = json.loads((tmp_path / "population.json").read_text())["strategy"]
    assert kept == {"name": "spread", "size": 2}
    again = ("train", "--resume", tmp_path, "--quiet", "--steps", 960)
    assert "--resume keeps --strategy spread" in flatout(*again, "--strategy", "together").message
    assert flatout(*again).code == 0
    summary = (tmp_path / FOLDER / "seed=1" / "summary.json").read_text()
    assert json.loads(summary)["steps"] == 960


def test_members_on_the_host_cannot_go_on_together(flatout: Cli, tmp_path: Path) -> None:
    host = ("--env-backend", "host", "--seeds", 2, "--run-dir", tmp_path)
    assert flatout("train", *SMALL, *host).code == 0
    path = tmp_path / "population.json"
    saved = json.loads(path.read_text())
    saved["strategy"] = {"name": "together", "size": 2}
    path.write_text(json.dumps(saved))
    result = flatout("train", "--resume", tmp_path, "--steps", 960)
    assert "--strategy together is not possible: one program needs" in result.message


def test_an_impossible_strategy_of_python(tmp_path: Path) -> None:
    import flatout

    made = flatout.Population("ppo", "CartPole-v1", seeds=2, strategy="best", run_dir=tmp_path)
    with pytest.raises(UsageError, match="neither auto nor"):
        made.learn(64)
