"""One checkpoint for all members of one program: killed or stopped, they end with the same bits."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout import PPO
from flatout.engine.members import FusedPopulation
from flatout.errors import CheckpointError
from flatout.populations import population
from flatout.populations.members import FOLDER, Strategy, members
from flatout.populations.population import Population
from flatout.run.interrupts import Interrupts
from flatout.storage import checkpoint
from flatout.storage.joint import Beside, Joint, OneOf
from flatout.types import Snapshot
from tests.conftest import Result, furthest
from tests.kills import finish, spawn
from tests.populations.test_population import REPLAY, SMALL
from tests.tiny import train_config

Cli = Callable[..., Result]


def trained(path: Path, words: Any, seeds: int, resume: bool = False, stop: int = 0) -> Population:
    """Members as one program; a signal comes in the chunk with the number `stop`."""
    config, _ = train_config([str(word) for word in words])
    signals, called, chunks = Interrupts(), FusedPopulation._call, itertools.count(1)

    def counted(self: Any, *given: Any) -> Any:
        if next(chunks) == stop:
            signals.signum = signal.SIGINT
        return called(self, *given)

    made = Population(
        members(config, seeds, [], path), Strategy("together", seeds), resume, signals
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedPopulation, "_call", counted)
        made.run()
    return made


def kept(path: Path) -> dict[str, np.ndarray]:
    """The arrays of all members at the end."""
    return checkpoint.load(checkpoint.latest(path / "groups" / "0"))[1].arrays


@pytest.mark.parametrize(
    "words",
    [pytest.param(SMALL, id="ppo"),
     pytest.param((*REPLAY, "--checkpoint-every", 160), marks=pytest.mark.slow, id="dqn")],
)  # fmt: skip
def test_members_that_a_signal_stops_go_on_to_the_same_bits(words: Any, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for state in trained(whole, words, 2).states:  # the program of all was compiled after start-up
        assert state.summary["compile_later_s"] > 0
    made = trained(stopped, words, 2, stop=4)
    at = {state.steps for state in made.states}
    assert len(at) == 1, "all at the same boundary"
    assert checkpoint.checkpoints(stopped / "groups" / "0" / "checkpoints")
    assert {state.ended for state in made.states} == {"signal"}
    states = trained(stopped, words, 2, resume=True).states
    assert [(state.error, state.ended) for state in states] == [("", "steps")] * 2
    assert furthest(kept(whole), kept(stopped)) == 0.0
    for seed in range(2):  # so few have whole checkpoints of their own at the end
        ends = [checkpoint.latest(run / FOLDER / f"seed={seed}") for run in (whole, stopped)]
        one, other = (checkpoint.load(end)[1] for end in ends)
        assert furthest(one.arrays, other.arrays) == 0.0
        if one.rows is not None and other.rows is not None:
            mine, theirs = (rows.read(*rows.stored) for rows in (one.rows, other.rows))
            assert furthest(mine, theirs) == 0.0


def test_a_member_goes_on_alone_only_where_nothing_is_lost(flatout: Cli, tmp_path: Path) -> None:
    """It was resumed from the end of the first training, and the later steps were gone."""
    path = tmp_path / "p"
    member, new = path / FOLDER / "seed=1", ("--run-dir", tmp_path / "new")
    words = (*SMALL, "--seeds", 2, "--strategy", "together", "--run-dir", path)
    assert flatout("train", *words).code == 0
    longer = tuple(1920 if word == 640 else word for word in SMALL)
    stopped = {state.steps for state in trained(path, longer, 2, resume=True, stop=2).states}
    assert 640 < min(stopped) < 1920
    rows = (member / "metrics.jsonl").read_text()
    for words in (("--resume", member, "--steps", 1920), (*SMALL, "--from", member, *new)):
        refused = flatout("train", *words)
        assert refused.code == 1
        said = f"of step 640, and one of all members is of step {max(stopped):,}"
        assert said in refused.message
        assert f"flatout train --resume {path}" in refused.message
    with pytest.raises(CheckpointError, match="one of all members"):
        PPO.load(member).learn(640)
    assert (member / "metrics.jsonl").read_text() == rows
    trained(path, longer, 2, resume=True)
    assert flatout("train", "--resume", member, "--steps", 2560, "--quiet").code == 0
    assert json.loads((member / "summary.json").read_text())["steps"] == 2560


@pytest.mark.slow
def test_many_members_keep_only_parameters_apart(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(population, "KEPT_APART", 1)
    words = ("--seeds", 2, "--strategy", "together", "--run-dir", tmp_path)
    assert flatout("train", *SMALL, *words).code == 0
    member = tmp_path / FOLDER / "seed=1"
    assert not (member / "checkpoints").exists()
    assert json.loads((member / "summary.json").read_text())["steps"] == 640
    assert flatout("eval", member, "--episodes", 2).code == 0
    assert flatout("explain", member).code == 0
    alone = flatout("train", "--resume", member, "--quiet")
    assert alone.code == 1
    assert f"flatout train --resume {tmp_path}" in alone.message
    assert flatout("train", "--resume", tmp_path, "--quiet", "--steps", 960).code == 0
    assert json.loads((member / "summary.json").read_text())["steps"] == 960


@pytest.mark.slow
def test_many_members_killed_at_any_moment_end_with_the_same_bits(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stops where its return is high enough."""
    monkeypatch.setattr(population, "KEPT_APART", 2)
    words = [str(word) for word in SMALL] + ["--seeds", "6", "--strategy", "together"]
    words += ["--steps", "9600", "--checkpoint-every", "640"]
    words += ["--stop-at-return", "24"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert flatout("train", *words, "--run-dir", whole).code == 0
    first = ["train", *words, "--run-dir", str(killed)]
    again = ["train", "--resume", str(killed), "--quiet"]
    codes = list[int]()
    for number, command in enumerate([first, again, again]):  # each time at another moment
        process = spawn(*command, module="tests.populations.few_apart")
        folder = killed / "groups" / "0" / "checkpoints"
        before, until = set(checkpoint.checkpoints(folder)), time.monotonic() + 300
        while set(checkpoint.checkpoints(folder)) <= before and time.monotonic() < until:
            if process.poll() is not None:
                break
            time.sleep(0.01)
        time.sleep(0.05 * number)
        process.kill()
        codes.append(finish(process).code)
    assert codes[0] == -signal.SIGKILL
    assert set(codes) <= {0, -signal.SIGKILL}
    assert flatout("train", "--resume", killed, "--quiet").code == 0
    steps = set[int]()
    for seed in range(6):
        mine, theirs = (run / FOLDER / f"seed={seed}" for run in (whole, killed))
        one, other = (
            checkpoint.load_agent(run / "params.safetensors")[0] for run in (mine, theirs)
        )
        assert furthest(one, other) == 0.0, seed
        ends = [json.loads((run / "summary.json").read_text()) for run in (mine, theirs)]
        assert ends[0]["steps"] == ends[1]["steps"]
        steps.add(ends[0]["steps"])
    assert len(steps) > 1


@pytest.mark.parametrize("earlier", [False, True])
def test_names_of_arrays_may_have_a_hash(earlier: bool, tmp_path: Path) -> None:
    """A Dict observation's entry is one; a separate array of a member has the member's number."""
    names = ["plain"] if earlier else ["plain", "obs/cam#1", "obs/cam"]
    each = {
        f"seed={member}": Snapshot(
            {name: np.full(2, member) for name in names} | {"finals": np.zeros(member)},
            {"member": member},
        )
        for member in range(2)
    }
    slots = {name: place for place, name in enumerate(each)}
    if earlier:  # as version 0.1.0 has written it
        data = {"members": [*each], "each": [one.data for one in each.values()],
                "slots": slots, "size": 2, "failed": {}}  # fmt: skip
        arrays = {"plain": np.array([[0, 0], [1, 1]]), "finals#0": np.zeros(0)}
        arrays["finals#1"] = np.zeros(1)
        checkpoint.save(tmp_path / "checkpoints", 7, Snapshot(arrays, data), 1)
    else:
        with closing(Joint(tmp_path, 1)) as joint:
            joint.save(7, each, slots, 2, {})
    with closing(Joint(tmp_path, 1)) as joint:
        saved = joint.newest
    assert saved is not None
    for name, snapshot in each.items():
        found = saved.of(name)
        assert found.data == snapshot.data
        assert found.arrays.keys() == snapshot.arrays.keys()
        for array in snapshot.arrays:
            np.testing.assert_array_equal(found.arrays[array], snapshot.arrays[array])


def test_rows_of_several_members_are_read_back_one_by_one() -> None:
    class Rows:
        """Rows of two environments; an episode's final observation where a flag is set."""

        stored = (3, 8)

        def __init__(self, member: int) -> None:
            random = np.random.default_rng(member)
            self.frames = random.normal(size=(10, 2, 4))
            self.truncated = random.random((10, 2)) < 0.4
            self.finals = random.normal(size=(int(self.truncated.sum()), 4))

        def read(self, first: int, end: int) -> dict[str, Any]:
            before = self.truncated[:first].sum()
            flags = self.truncated[first:end]
            finals = self.finals[before : before + flags.sum()]
            return {"frames": self.frames[first:end], "truncated": flags, "finals": finals}

    parts = [Rows(member) for member in range(3)]
    whole = Beside(parts)
    assert whole.stored == (3, 8)
    for member, part in enumerate(parts):
        found, mine = OneOf(whole, member).read(3, 8), part.read(3, 8)
        assert found.keys() == mine.keys()
        for name, array in mine.items():
            np.testing.assert_array_equal(found[name], array)
