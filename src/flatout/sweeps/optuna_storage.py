"""Storage of a sweep's Optuna study: a journal in the sweep's folder, or an SQL database."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from flatout.errors import FlatoutError, UsageError, one_line
from flatout_explain.files import nofollow

JOURNAL = "optuna.log"
"""The file of the study's journal in the sweep's folder, the default storage."""

MOST_JOURNAL, LONGEST_RECORD = 320 << 20, 1 << 20
"""Maximum bytes of a journal that is read, some 3,000 for each configuration of the largest sweep,
and of a line in it."""

IDENTITY = "flatout"
"""The attribute of a study that identifies its sweep."""

_SQLITE, _SIDE_FILES = "sqlite:///", ("-journal", "-wal", "-shm")


def hidden(url: str) -> str:
    """Return a storage's address for messages, without its user and password."""
    return re.sub("://.*@", "://...@", url)[:200]


def file_within(url: str, folder: Path) -> Path | None:
    """Return the file of an SQLite address if it is in the folder; None for other addresses."""
    path = os.path.abspath(url.removeprefix(_SQLITE))
    inside = path.startswith(os.path.abspath(folder) + os.sep)
    return Path(path) if url.startswith(_SQLITE) and inside and "?" not in url else None


def refuse_unsafe(url: str, folder: Path, where: str, new: bool) -> None:
    """Refuse an address that a file names and the user has not trusted.

    Only an SQLite file in the sweep's folder is safe, and only without a rollback journal or
    write-ahead log: SQLite replays these, and a forged one deletes files elsewhere.

    Args:
        folder: the sweep's folder.
        where: the table's name for messages.
        new: whether the sweep is new, so that it has no database yet.

    Raises:
        UsageError: the address is not safe; with advice.
    """
    file = file_within(url, folder)
    why = f"lies outside of the sweep's folder {folder}"
    if file is not None:
        why = _danger(file, folder, new)
    if why:
        raise UsageError(
            f"{where} storage = {hidden(url)} {why}; to use it, with the environment variables "
            "that its address names, say --trust."
        )


def _danger(file: Path, folder: Path, new: bool) -> str:
    """Return why SQLite must not open a database in the sweep's folder; empty if it may."""
    exists = os.path.lexists(file)
    left = [f"{file.name}{end}" for end in _SIDE_FILES if os.path.lexists(f"{file}{end}")]
    if new and (exists or left):
        return f"exists already ({file.name if exists else left[0]})"
    if left:
        return f"was left by a process that was killed, or was created by another user ({left[-1]})"
    below = os.path.relpath(file, os.path.abspath(folder))
    linked = os.path.realpath(file) != os.path.join(os.path.realpath(folder), below)
    return "is a link" if linked or (exists and file.stat().st_nlink > 1) else ""


def open_study(optuna: Any, settings: Mapping[str, Any], folder: Path) -> Any:
    """Open the study of a sweep, or create it.

    Args:
        optuna: the package `optuna`.
        settings: those that `flatout.sweeps.search.settings_of` returns.
        folder: the sweep's folder.

    Raises:
        FlatoutError: the storage cannot be opened.
        UsageError: the study belongs to another sweep, does not maximise, or has enqueued trials.
    """
    url, identity = settings["storage"], settings["identity"]
    name = settings["study"] or (f"flatout-{identity}" if url else "flatout")
    where = f"the storage {hidden(url)}" if url else JOURNAL
    try:
        storage = _database(optuna, url, folder) if url else _journal(optuna, folder / JOURNAL)
        study = optuna.create_study(
            storage=storage, study_name=name, direction="maximize", load_if_exists=True
        )
        maximises = study.directions == [optuna.study.StudyDirection.MAXIMIZE]
        owner, trials = study.user_attrs.get(IDENTITY), study.get_trials(deepcopy=False)
        if maximises and owner is None and not trials:
            study.set_user_attr(IDENTITY, owner := identity)
    except Exception as error:  # of any driver
        why = one_line(error)[:300].rstrip(".")
        raise FlatoutError(f"[optuna] cannot open {where}: {why}.") from None
    if not maximises:
        raise UsageError(
            f"[optuna] the study {name!r} in {where} does not maximise one value, as a sweep does; "
            "choose another study = NAME, or another storage."
        )
    waiting = sum(trial.state == optuna.trial.TrialState.WAITING for trial in trials)
    if waiting:
        raise UsageError(
            f"[optuna] the study {name!r} in {where} holds trials ({waiting:,}) that enqueue_trial "
            "has added and nothing has started, which a sweep does not train: write them as "
            "[[list]] into a sweep of their own, and choose another study = NAME, or another "
            "storage."
        )
    if owner != identity:
        raise UsageError(
            f"[optuna] the study {name!r} in {where} belongs to another sweep; choose another "
            "study = NAME, or another storage."
        )
    return study


def _database(optuna: Any, url: str, folder: Path) -> Any:
    # An address outside of the folder is the user's, or was trusted.
    file = file_within(url, folder)
    if file is not None and file.exists():
        _refuse_code(file)
    return optuna.storages.RDBStorage(os.path.expandvars(url) if file is None else url)


def _refuse_code(file: Path) -> None:
    """Refuse an SQLite file with views or triggers, which a query would run, perhaps endlessly.

    Raises:
        ValueError: it has a view or a trigger; Optuna makes none.
        sqlite3.Error: it is no database.
    """
    kinds = "select type, name from sqlite_master where type in ('view', 'trigger')"
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
        found = database.execute(kinds).fetchone()
    if found is not None:
        raise ValueError(
            f"it has the {found[0]} {str(found[1])[:40]!r}, which Optuna does not make and which "
            f"every query would run: remove it from {file.name}, or name another file"
        )


class _Held:
    """A journal lock that does nothing, because the sweep's lock protects the journal."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _check_record(line: bytes, number: int) -> None:
    """Refuse a line that is not a JSON object.

    Raises:
        ValueError: it is damaged.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise ValueError(
            f"line {number:,} of it is damaged: restore an earlier copy, or start the sweep again "
            "in another folder"
        )


def _journal(optuna: Any, path: Path) -> Any:
    """Open the journal, and remove an unfinished last line: the next record would continue it."""
    with nofollow.open_stream(path, nofollow.CHANGE) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_JOURNAL:
            raise ValueError(f"it has {size:,} bytes, and at most {MOST_JOURNAL:,} are read")
        whole = number = 0
        while line := file.readline(LONGEST_RECORD + 1):
            number += 1
            if len(line) > LONGEST_RECORD:
                raise ValueError(f"a line of it has more than {LONGEST_RECORD:,} bytes")
            if line.endswith(b"\n"):
                whole += len(line)
                _check_record(line, number)
        file.truncate(whole)
    backend = optuna.storages.journal.JournalFileBackend(str(path), _Held())
    return optuna.storages.JournalStorage(backend)
