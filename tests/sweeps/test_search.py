"""Sweeps that Optuna proposes: groups are asked, told and given up; a kill changes nothing."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flatout.config.settings import resolve
from flatout.errors import CheckpointError, FlatoutError, UsageError
from flatout.installing import install
from flatout.sweeps.plan import Group, Job, Trial
from flatout.sweeps.slots import Slots
from flatout.sweeps.sweep import State, Sweep
from tests.conftest import Result
from tests.kills import finish, spawn, wait_for
from tests.runs_made import sweep_file

Cli = Callable[..., Result]
BASE = resolve("ppo", {"env": "CartPole-v1", "n_steps": 32, "batch_size": 32, "steps": 320})
SPACE = {"learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}, "n_epochs": [1, 2]}
TABLE = {"trials": 6, "space": SPACE}
BAD = 1e-4
"""Learning rates below it learn badly where a test says what is learned."""


@pytest.fixture
def optuna() -> Any:
    return pytest.importorskip("optuna", reason="needs Optuna: pip install 'flatout[optuna]'")


def made(folder: Path, table: dict[str, Any] | None = None, **more: Any) -> Any:
    from flatout.sweeps.search import Search, settings_of

    table = settings_of({**TABLE, **more}, BASE, "[optuna]") if table is None else table
    folder.mkdir(exist_ok=True)
    return Search(table, BASE, 32, folder), table


@pytest.mark.parametrize(
    ("limit", "words"), [("MOST_JOURNAL", "bytes"), ("LONGEST_RECORD", "line")]
)
def test_a_journal_that_is_too_large_is_refused(
    optuna: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, words: str
) -> None:
    from flatout.sweeps import optuna_storage

    _, table = made(tmp_path / "f")
    monkeypatch.setattr(optuna_storage, limit, 50)
    with pytest.raises(
        FlatoutError, match=f"cannot open optuna.log: .*{words}.* than 50|at most 50"
    ):
        made(tmp_path / "f", table)


def test_a_space_of_very_many_choices_is_refused(optuna: Any) -> None:
    from flatout.sweeps.search import settings_of

    space = {"n_epochs": list(range(1, 1002))}
    with pytest.raises(UsageError, match="1,001 choices and limits"):
        settings_of({**TABLE, "space": space}, BASE, "[optuna]")


def test_choices_that_need_each_other_are_tried_for_a_while(
    optuna: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pairs of many choices take long; what is impossible is found out when it is asked."""
    from flatout.sweeps import search

    tried = list[Mapping[str, Any]]()

    def refusal(base: Any, row: Mapping[str, Any]) -> str:
        tried.append(row)
        return "" if row.get("gamma") == 0.5 and "n_epochs" in row else "impossible"

    monkeypatch.setattr(search, "_refusal", refusal)
    monkeypatch.setattr(search, "MOST_PAIRS", 300)
    space = {"n_epochs": list(range(1, 101)), "gamma": [*np.linspace(0.9, 1, 99).tolist(), 0.5]}
    assert search.settings_of({**TABLE, "space": space}, BASE, "[optuna]")["space"] == space
    assert len(tried) <= 500
    with pytest.raises(UsageError, match="impossible"):
        search.settings_of({**TABLE, "space": {"n_epochs": [1, 2]}}, BASE, "[optuna]")


def value(group: Group) -> float:
    """What a group achieves."""
    return -abs(float(np.log(group.row["learning_rate"]) - np.log(1e-3)))


def rest(study: Any, value: Callable[[Group], float] = value) -> list[tuple[str, dict[str, Any]]]:
    """Ask and tell until there is no more."""
    found = list[tuple[str, dict[str, Any]]]()
    while asked := study.ask(1):
        for group in asked:
            found.append((group.name, dict(group.row)))
            study.tell(group.name, value(group))
    return found


@pytest.mark.parametrize("torn", [b"", b'{"op_code": 4, "worker_'])
def test_a_killed_study_asks_what_an_unbroken_one_asks(
    optuna: Any, tmp_path: Path, torn: bytes
) -> None:
    whole, table = made(tmp_path / "whole", trials=14)
    every = rest(whole)
    assert len(every) == 14
    killed, _ = made(tmp_path / "killed", table)
    for _ in range(11):
        (group,) = killed.ask(1)
        killed.tell(group.name, value(group))
    (running,) = killed.ask(1)
    with open(tmp_path / "killed" / "optuna.log", "ab") as file:
        file.write(torn)
    again, _ = made(tmp_path / "killed", table)
    before = again.ask(1)
    assert [(one.name, dict(one.row)) for one in before] == every[:12]
    assert before[-1].name == running.name
    again.tell(before[0].name, -5.0)  # it was told, and stays what it was
    again.tell(running.name, value(running))
    assert rest(again) == every[12:]
    assert again._study.best_value == whole._study.best_value
    assert not again.notes


def test_twins_are_trained_once(optuna: Any, tmp_path: Path) -> None:
    study, _ = made(tmp_path, space={"n_epochs": [1, 2]}, sampler="random", trials=8)
    names = [name for name, _ in rest(study, lambda group: float(group.row["n_epochs"]))]
    assert len(names) == 2
    found = study._study.trials
    assert len(found) == 8
    assert all(one.value == one.params["n_epochs"] for one in found)


def test_an_impossible_configuration_costs_itself_alone(optuna: Any, tmp_path: Path) -> None:
    space = {"batch_size": [16, 32], "n_steps": [16, 32]}  # a batch of 32 of 16 steps
    study, _ = made(tmp_path, space=space, sampler="random", trials=12)
    rows = [row for _, row in rest(study, lambda group: 1.0)]
    assert {"batch_size": 32, "n_steps": 16} not in rows
    assert len(rows) == 3
    assert len(study.notes) == 1
    states = {(one.params["batch_size"], one.params["n_steps"]): one.state.name
              for one in study._study.trials}  # fmt: skip
    assert states.pop((32, 16)) == "FAIL", "nobody tries it again"
    assert set(states.values()) == {"COMPLETE"}


def test_a_failed_configuration_that_is_tried_again_has_its_result(
    optuna: Any, tmp_path: Path
) -> None:
    """`sweep --resume` trains it again, and the study then learns what came of it."""
    study, table = made(tmp_path, space={"n_epochs": [1, 2]}, sampler="random", trials=8)
    first = dict(rest(study, lambda group: math.nan if group.row["n_epochs"] == 1 else 2.0))
    again, _ = made(tmp_path, table)
    assert dict(rest(again, lambda group: 1.0)) == first
    found = again._study.trials
    assert {one.state.name for one in found} == {"COMPLETE"}
    assert all(one.value == one.params["n_epochs"] for one in found), "twins too"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"trails": 3}, "Did you mean 'trials'"),
        ({"trials": 0}, "trials = N"),
        ({"space": {"learning_rat": [1e-3]}}, "learning_rat"),
        ({"space": {"learning_rate": {"low": 1e-3}}}, "write a list"),
        ({"space": {"learning_rate": [-1.0]}}, "learning_rate"),
        ({"space": {"seed": [1]}}, "seeds says"),
        ({"space": {"eval_every": [0, 64]}}, "eval_every is 0 in some configurations only"),
        ({"sampler": "cmaes"}, "none of tpe"),
        ({"pruner": {"name": "median", "startup": 3}}, "pruner median does not work with startup"),
        ({"pruner": {"name": "median", "n_min_trials": "x"}}, "with n_min_trials = 'x'"),
        ({"pruner": {"name": "hyperband", "reduction_factor": 1.5}}, "with reduction_factor = 1.5"),
        ({"pruner": "percentile"}, "pruner percentile does not work: "),
        ({"sampler": {"name": "tpe", "n_startup_trials": "x"}}, "with n_startup_trials = 'x'"),
        ({"sampler": {"name": "tpe", "gamma": 5}, "trials": 20}, "tpe does not work with gamma"),
        ({"sampler": {"name": "nsgaii", "constraints_func": "x"}}, "with constraints_func = 'x'"),
        ({"sampler": {"name": "tpe", "n_ei_candidates": 10**9}}, "= 1000000000 is .* up to 1,000"),
        ({"sampler": {"name": "tpe", "prior_weight": math.nan}}, "prior_weight = nan is impos"),
        ({"sampler": {"name": "nsgaii", "population_size": 10**400}}, "population_size = 10*"),
        ({"pruner": {"name": "halving", "min_early_stopping_rate": 10**9}}, "a number up to 64"),
        ({"pruner": {"name": "hyperband", "max_resource": math.inf}}, "up to 2,147,483,647"),
        ({"sampler": {"startup": 3}}, "none of tpe"),
        ({"seed": -5}, "sampler tpe does not work: Seed must be"),
        ({"storage": 3}, "is no str"),
    ],
)
def test_a_wrong_table_is_refused(
    optuna: Any, tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        made(tmp_path, **more)


def test_a_sampler_whose_package_is_missing_is_refused_before_the_sweep(
    optuna: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match="sampler gp needs the package torch"):
        made(tmp_path, sampler="gp", trials=20)


@pytest.mark.parametrize("where", ["journal", "database"])
def test_a_study_that_minimises_is_refused(optuna: Any, tmp_path: Path, where: str) -> None:
    """Also an empty one, which another program has made for this sweep."""
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "optuna.log"))
    storage = url if where == "database" else optuna.storages.JournalStorage(backend)
    optuna.create_study(storage=storage, study_name="flatout", direction="minimize")
    named: dict[str, Any] = {"storage": url} if where == "database" else {}
    with pytest.raises(UsageError, match=r"'flatout' in .* does not maximise one value, .* choose"):
        made(tmp_path, None, study="flatout", **named)


@pytest.mark.parametrize("where", ["journal", "database"])
def test_a_study_with_enqueued_trials_is_refused(optuna: Any, tmp_path: Path, where: str) -> None:
    """In a study that was made for this sweep, and in its own."""
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "optuna.log"))
    storage = url if where == "database" else optuna.storages.JournalStorage(backend)
    named: dict[str, Any] = {"storage": url} if where == "database" else {}
    words = r"'flatout' in .* holds trials \(1\) that .* \[\[list\]\] .* or another storage\.$"
    study = optuna.create_study(storage=storage, study_name="flatout", direction="maximize")
    study.enqueue_trial({"n_epochs": 1})
    with pytest.raises(UsageError, match=words):
        made(tmp_path, None, study="flatout", **named)
    optuna.delete_study(storage=storage, study_name="flatout")
    _, table = made(tmp_path, None, study="flatout", **named)
    study = optuna.load_study(storage=storage, study_name="flatout")
    study.enqueue_trial({"n_epochs": 1})
    with pytest.raises(UsageError, match=words):
        made(tmp_path, table)


@pytest.mark.parametrize(
    "code",
    ["create view endless as with recursive n(i) as (select 1 union all select i from n) "
     "select * from n",
     "create trigger added after insert on trials begin select 1; end"],
)  # fmt: skip
def test_a_database_with_code_of_its_own_is_refused(optuna: Any, tmp_path: Path, code: str) -> None:
    """A query of a view may never end, and its signal handlers wait for it."""
    with closing(sqlite3.connect(tmp_path / "studies.db")) as database:
        database.execute("create table trials (i integer)")
        database.execute(code)
        database.commit()
    words = r"it has the (view|trigger) '\w+', .* from studies\.db, or name another file\.$"
    with pytest.raises(FlatoutError, match=words):
        made(tmp_path, None, study="flatout", storage=f"sqlite:///{tmp_path / 'studies.db'}")


def test_configurations_with_missing_numbers_are_refused() -> None:
    from flatout.sweeps.search import _check_trials  # pyright: ignore[reportPrivateUsage]

    def trial(number: int) -> Any:
        return SimpleNamespace(number=number, value=1.0, intermediate_values={})

    _check_trials([trial(1), trial(0)], 4)
    with pytest.raises(CheckpointError, match="not numbered from 0 to 1"):
        _check_trials([trial(0), trial(7)], 4)


def test_another_sweeps_journal_is_refused(optuna: Any, tmp_path: Path) -> None:
    study, _ = made(tmp_path / "a")
    study.ask(1)
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / "optuna.log", tmp_path / "b")
    with pytest.raises(UsageError, match=r"'flatout' in optuna.log belongs to another sweep"):
        made(tmp_path / "b")


@pytest.mark.slow
def test_another_sweeps_study_is_refused(optuna: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    study, table = made(tmp_path / "a", storage=url, study="mine")
    asked = study.ask(1)
    again, _ = made(tmp_path / "a", table)
    assert again.ask(1) == asked
    with pytest.raises(UsageError, match=r"'mine' in .* belongs to another sweep; choose another"):
        made(tmp_path / "b", storage=url, study="mine")
    other, _ = made(tmp_path / "c", storage=url)  # a study of its own there
    assert other.ask(1)[0].name.startswith("0000_")
    with pytest.raises(Exception, match=r"cannot open the storage postgresql://...@nowhere"):
        made(tmp_path / "d", storage="postgresql://me:secret@nowhere/x")


def test_a_changed_journal_is_refused(optuna: Any, tmp_path: Path) -> None:
    study, table = made(tmp_path, space={"n_epochs": {"low": 1, "high": 2}}, trials=1)
    rest(study, lambda group: 1.0)
    path = tmp_path / "optuna.log"
    text = path.read_text()
    for number in (1, 2):
        text = text.replace(f'"param_value_internal":{number}.0', '"param_value_internal":9.0')
    text = text.replace('\\"high\\": 2', '\\"high\\": 10')
    path.write_text(text)
    with pytest.raises(CheckpointError, match="n_epochs = 9"):
        made(tmp_path, table)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"intermediate_value": "x"}, "holds the result 'x', which is no number"),
        ({"step": "x"}, "a result of step 'x'"),
        ({"op_code": 4, "study_id": 0, "datetime_start": "2026-01-01T00:00:00"}, "holds 7 conf"),
    ],
)
def test_results_that_no_sweep_writes_are_refused(
    optuna: Any, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """A stranger's journal: its trials would be trained, and its results compared."""
    study, table = made(tmp_path, trials=2, pruner="median")
    (group,) = study.ask(1)
    study.prune(group.name, 32, 1.0)
    path = tmp_path / "optuna.log"
    *lines, last = path.read_text().splitlines()
    row = json.dumps(json.loads(last) | change)
    path.write_text("\n".join([*lines, *[row] * (6 if "op_code" in change else 1)]) + "\n")
    with pytest.raises(CheckpointError, match=words):
        made(tmp_path, table)


def test_what_optuna_raises_in_a_sweep_is_one_sentence(
    optuna: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, _ = made(tmp_path, pruner="median")

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by zero")

    (group,) = study.ask(1)
    for owner, name, call, words in (
        (optuna.Trial, "should_prune", lambda: study.prune(group.name, 32, 1.0), "cannot judge a"),
        (optuna.Study, "tell", lambda: study.tell(group.name, 1.0), "cannot store a"),
        (optuna.Study, "ask", lambda: study.ask(1), "cannot propose a"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fail)
            with pytest.raises(FlatoutError, match=rf"{words} \w+ \(ZeroDivisionError: by zero"):
                call()


@pytest.mark.parametrize("line", [b'{"op_code": "\x01"}', b"[" * 100_000, b"[]", b"\xff"])
def test_the_damaged_line_of_a_journal_is_named(optuna: Any, tmp_path: Path, line: bytes) -> None:
    _, table = made(tmp_path)
    path = tmp_path / "optuna.log"
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + line + b"\n" + rest)
    with pytest.raises(FlatoutError, match=r"open optuna\.log: line 2 of it is damaged: restore"):
        made(tmp_path, table)


def test_a_damaged_journal_is_read_or_refused_in_a_sentence(optuna: Any, tmp_path: Path) -> None:
    study, table = made(tmp_path / "whole", trials=4)
    rest(study)
    lines = (tmp_path / "whole" / "optuna.log").read_bytes().splitlines()
    dice, refused = random.Random(0), 0
    for number in range(300):
        damaged = list(lines)
        at = dice.randrange(len(damaged))
        values = json.loads(damaged[at])
        key = dice.choice(list(values))
        if dice.random() < 0.3:
            del values[key]
        else:
            values[key] = dice.choice([None, -1, "x", [], {}, 1e308, 10**30, [[1]], {"a": None}])
        damaged[at] = dice.choice([json.dumps(values).encode(), damaged[at][:-3], b"[" * 10**5])
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "optuna.log").write_bytes(b"\n".join(damaged) + b"\n")
        try:
            again, _ = made(folder, table)
            rest(again)
        except FlatoutError as error:
            refused += 1
            assert "\n" not in str(error)  # noqa: PT017
    assert 0 < refused < 300


def test_only_a_storage_in_the_folder_is_used_without_trust(
    optuna: Any, flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "key")
    monkeypatch.chdir(tmp_path)
    section = """
    [optuna]
    trials = 1
    storage = "{}"
    [optuna.space]
    learning_rate = [1e-3]
    """
    outside = ["sqlite:////tmp/x-$SECRET.db", "sqlite:///x.db", "sqlite:///sweep/../x.db",
               "postgresql://me:secret@nowhere/$SECRET", "sqlite:///sweep-x/y.db"]  # fmt: skip
    for url in outside:
        file = sweep_file(tmp_path, section.format(url), steps=64)
        result = flatout("sweep", file, "--run-dir", "sweep", "--dry-run")
        assert result.code == 2
        for word in ("--trust", "outside", str(file)):
            assert word in result.message
        assert "secret" not in result.message
        assert "key" not in result.message
    inside = sweep_file(tmp_path, section.format("sqlite:///sweep/$SECRET.db"), steps=64)
    assert flatout("sweep", inside, "--run-dir", "sweep", "--dry-run").code == 0


@pytest.mark.parametrize("name", ["x.db", "x.db-journal", "x.db-wal", "x.db-shm"])
def test_a_database_that_was_there_before_the_sweep_is_not_used_without_trust(
    optuna: Any, flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """SQLite replays a journal next to its file, and a forged one deletes files elsewhere."""
    monkeypatch.chdir(tmp_path)
    section = """
    [optuna]
    trials = 1
    storage = "sqlite:///sweep/x.db"
    [optuna.space]
    learning_rate = [1e-3]
    """
    file = sweep_file(tmp_path, section, steps=64)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / name).write_bytes(b"stranger")
    result = flatout("sweep", file, "--run-dir", "sweep", "--dry-run")
    assert result.code == 2
    assert name in result.message
    assert "--trust" in result.message
    assert (tmp_path / "sweep" / name).read_bytes() == b"stranger"


def test_a_resumed_sweep_takes_no_journal_and_no_link_for_its_database(tmp_path: Path) -> None:
    from flatout.sweeps.optuna_storage import refuse_unsafe

    (tmp_path / "mine.db").write_bytes(b"mine")
    folder = tmp_path / "sweep"
    folder.mkdir()
    url = f"sqlite:///{folder}/x.db"
    (folder / "x.db").write_bytes(b"")
    refuse_unsafe(url, folder, "sweep.json", new=False)
    (folder / "x.db-journal").write_bytes(b"")
    with pytest.raises(UsageError, match=r"x\.db-journal"):
        refuse_unsafe(url, folder, "sweep.json", new=False)
    (folder / "x.db-journal").unlink()
    for link in (os.symlink, os.link):
        (folder / "x.db").unlink()
        link(tmp_path / "mine.db", folder / "x.db")
        with pytest.raises(UsageError, match="is a link"):
            refuse_unsafe(url, folder, "sweep.json", new=False)


def test_addresses_are_expanded_only_outside_of_the_folder(
    optuna: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "key")
    made(tmp_path / "a", storage=f"sqlite:///{tmp_path}/a/$SECRET.db")
    assert (tmp_path / "a" / "$SECRET.db").exists()
    made(tmp_path / "b", storage=f"sqlite:///{tmp_path}/$SECRET.db")  # with --trust
    assert (tmp_path / "key.db").exists()


def test_without_optuna_one_sentence_says_so(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = flatout("sweep", sweep(tmp_path), "--run-dir", tmp_path / "f")
    assert result.code == 2
    assert result.message == f"[optuna] needs its package: {install('optuna')}."
    assert not (tmp_path / "f").exists()


class Scripted:
    """An engine whose trials learn what they are told to: badly below a learning rate."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs = folder, dict[str, tuple[Trial, int]]()
        self.began, self.stopped = list[str](), list[str]()

    def start(self, job: Job) -> None:
        (self.folder / job.name).mkdir()
        self.jobs[job.name] = (job.trials[0], 0)
        self.began.append(job.name)

    def poll(self, timeout_s: float) -> list[Mapping[str, Any]]:
        events: list[Mapping[str, Any]] = [{"done": name} for name in self.stopped]
        self.stopped.clear()
        for name, (trial, before) in list(self.jobs.items()):
            steps, folder = before + 32, self.folder / name
            self.jobs[name] = (trial, steps)
            mean = steps * (0.1 if trial.settings["learning_rate"] < BAD else 1.0)
            with open(folder / "metrics.jsonl", "a") as file:
                row = {"step": steps, "time/wall_s": 1.0, "rollout/return_mean_100": mean}
                file.write(json.dumps(row) + "\n")
            events.append({"trial": name, "steps": steps, "updates": 1, "mean": mean, "busy": "",
                           "peak_mb": 1})  # fmt: skip
            if steps == BASE.run.steps:
                summary = {"ended": "steps", "steps": steps, "wall_s": 1.0}
                summary |= {"return_mean_last": mean}
                (folder / "summary.json").write_text(json.dumps(summary))
                del self.jobs[name]
                events += [{"trial": name, "ended": "steps", "steps": steps}, {"done": name}]
        return events

    def stop(self, job: str) -> None:
        if self.jobs.pop(job, None) is not None:  # of what was told in this poll it may have ended
            self.stopped.append(job)

    def close(self) -> None:
        pass


def test_bad_groups_are_given_up_as_groups(optuna: Any, tmp_path: Path) -> None:
    """With three seeds, two at a time: at the first look two of three are there."""
    study, table = made(
        tmp_path, trials=10, sampler="random", pruner={"name": "median", "n_startup_trials": 2}
    )

    engine = Scripted(tmp_path)
    sweep = Sweep(tmp_path, BASE, [0, 1, 2], study, engine, Slots(2, 2, 1e5, known=2))
    sweep.run(lambda: None)
    by = {name: [one.state for one in found] for name, found in sweep.groups.items()}
    rates = {name: found[0].trial.settings["learning_rate"] for name, found in sweep.groups.items()}
    assert study.pruned
    assert all(rates[name] < BAD for name in study.pruned)
    for name, found in by.items():
        assert set(found) <= ({"pruned", "done"} if name in study.pruned else {"done"})
    kinds = [one.state.name for one in study._study.trials]
    assert kinds.count("PRUNED") == len(study.pruned)
    assert kinds.count("COMPLETE") == 10 - len(study.pruned)
    again, _ = made(tmp_path, table)  # what was given up stays so
    engine = Scripted(tmp_path)
    sweep = Sweep(tmp_path, BASE, [0, 1, 2], again, engine, Slots(2, 2, 1e5, known=2))
    sweep.run(lambda: None)
    assert engine.began == []
    assert {name: [one.state for one in found] for name, found in sweep.groups.items()} == by


def test_scores_are_of_evaluations_where_trials_are_evaluated(tmp_path: Path) -> None:
    """The mean of training is no substitute for an evaluation that is missing."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 320, "time/wall_s": 1.0}\n')
    summary = {"ended": "return", "steps": 320, "wall_s": 1.0, "return_mean_last": 5.0}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    for every, score in ((0, 5.0), (320, None)):
        settings = BASE.flat() | {"eval_every": every}
        state = State(Trial("one", "all", "ppo", settings), tmp_path)
        assert state.finish()
        assert (state.mean, state.score) == (5.0, score)
        learned = {**summary, "return_mean_last": None, "test_accuracy": 0.75}
        (tmp_path / "b").mkdir(exist_ok=True)
        shutil.copy(tmp_path / "metrics.jsonl", tmp_path / "b")
        (tmp_path / "b" / "summary.json").write_text(json.dumps(learned))
        state = State(Trial("one", "all", "classify", settings), tmp_path / "b")
        assert state.finish()
        assert state.score == 0.75, "also with --eval-every 0"


def sweep(folder: Path, **more: Any) -> Path:
    section = """
    [optuna]
    trials = 3
    [optuna.space]
    learning_rate = { low = 1e-5, high = 1e-2, log = true }
    """
    return sweep_file(folder, section, steps=320, seeds=2, **more)


@pytest.mark.slow
@pytest.mark.fault
def test_a_sweep_of_optuna_that_is_killed_goes_on(
    optuna: Any, flatout: Cli, tmp_path: Path
) -> None:
    file = sweep(tmp_path, checkpoint_every=64)
    slow = ("--env", "tests.fault_envs:sleepy", "--env-kwargs", "seconds=0.004", "--at-once", "1")
    killed = tmp_path / "killed"
    process = spawn("sweep", str(file), *slow, "--run-dir", str(killed))
    wait_for(lambda: len(list(killed.glob("*/summary.json"))) >= 2)
    process.kill()
    finish(process)
    ended = {path: path.stat().st_mtime_ns for path in killed.glob("*/summary.json")}
    assert len(ended) < 6
    result = flatout("sweep", "--resume", killed, "--json")
    assert result.code == 0, result.err
    whole = flatout("sweep", file, *slow, "--run-dir", tmp_path / "whole", "--json")
    assert json.loads(result.out)["trials"] == json.loads(whole.out)["trials"]
    for path, written in ended.items():
        assert path.stat().st_mtime_ns == written
