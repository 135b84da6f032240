"""The run folder: its lock and its files."""

from __future__ import annotations

import json
import os
import re
import stat
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from flatout.config.schema import TrainConfig
from flatout.config.settings import resolve
from flatout.errors import (
    CheckpointError,
    FlatoutError,
    NotInstalledError,
    UsageError,
    damage,
    writing,
)
from flatout.output import json_text, shell_word
from flatout.storage import signing, trees
from flatout.storage.agent_file import AGENT_FILES
from flatout.storage.checkpoint import FORMAT, discard, recover, refuse_format
from flatout.storage.last_words import FAULT, RUNNING, LastWords
from flatout.storage.trust import NO_CONSENT, Consent, code_of_run, refuse_foreign
from flatout_explain.documents import Number, WholeNumber, convert
from flatout_explain.files import locks, nofollow

FILES = (
    "config.json", "summary.json", *AGENT_FILES, "metrics.jsonl", "episodes.jsonl", "spans.jsonl",
    "devices.jsonl", "error.log", "trace.json", locks.LOCK, locks.OWNER.format(locks.LOCK),
    RUNNING, FAULT, "curve.svg", "README.md",
)  # fmt: skip
"""Files that Flatout writes into a run folder, except TensorBoard's events."""
FOLDERS = ("checkpoints", "replay")
MARK = b"flatout run folder\n"
"""The content of a run folder's `LOCK`: the other files are Flatout's."""
HARMLESS = ("README.md", locks.OWNER.format(locks.LOCK))
"""Those of `FILES` whose content says whether they are Flatout's; others' are left as they are."""
POPULATION = "population.json"
"""In the place of a config.json, in a folder of a population's members."""
SWEEP = "sweep.json"
"""The same in a sweep's folder."""
GROUPS = "groups"
"""In a population's folder: a folder for each group of members that one program trains, with their
checkpoints."""
MOST_CONFIG, MOST_PLAN = 1 << 20, 1 << 26
"""Maximum bytes of a config.json, and of the same file of a population or a sweep."""
KEPT = ("config.json", "metrics.jsonl")
"""Files that a save does not write again."""


T = TypeVar("T")

MOST_AT_ONCE = 100
"""Runs that begin at the same moment, by whose names a new one looks for another."""


class RunFolder:
    """One run's folder, locked while the run lives.

    Args:
        path: created if it does not exist.
        resume: the folder must hold a run; else it must hold none.
        report: write fatal signals to stderr too, see `LastWords`.
        python: the agent's class if a Python program opens it: messages then advise in Python.

    Attributes:
        path: absolute, since an environment may change the working folder.
        named: as the user named it, for messages.

    Raises:
        FlatoutError: it is a file, not writable, in use, already holds a run, or holds links,
            pipes or devices in the place of a run's files.
    """

    def __init__(
        self, path: Path, resume: bool = False, report: bool = False, python: str = ""
    ) -> None:
        with writing(f"the run folder {path}"), ExitStack() as undo:
            self.named, self.path, self._python = path, path.absolute(), python
            self.checkpoints = self.path / "checkpoints"
            if path.exists() and not path.is_dir():
                raise UsageError(
                    f"the run folder {path} is a file; choose another {_flag(python)}."
                )
            self._refuse_taken(resume)
            refuse_links(path)
            if not resume:
                refuse_strange(path, python)
            with nofollow.folder(path, 0, make=True):
                pass
            try:
                self._lock = undo.enter_context(closing(locks.Lock(path / locks.LOCK)))
            except locks.InUseError as error:
                raise FlatoutError(
                    f"the run folder {path} is in use by another process{error.owner}."
                ) from None
            self._refuse_taken(resume)  # by the process that held the lock until now
            if not os.fstat(self._lock.fileno()).st_size:
                self._lock.file.write(MARK)
                self._lock.file.flush()
            recover(self.checkpoints)
            with nofollow.folder(path, 0) as opened:
                nofollow.remove_left(FILES, opened)
            self._words = LastWords(self.path, report)
            undo.pop_all()
        self._begun = resume
        self.died_of = self._words.before  # a sentence, or empty

    def _refuse_taken(self, resume: bool) -> None:
        if not resume:
            refuse_taken(self.named, self._python)
        elif not (self.named / "config.json").is_file():
            raise UsageError(without_settings(self.named))

    def check(self) -> None:
        """Check before a save that the folder and its `KEPT` files were not deleted or moved."""
        gone = [name for name in KEPT if not (self.path / name).is_file()]
        with suppress(OSError):  # the lock file is missing, or belongs to another run or a copy
            lock_file = os.stat(self.path / locks.LOCK, follow_symlinks=False)
            if os.path.samestat(lock_file, os.fstat(self._lock.fileno())) and not gone:
                return
        what = "the run folder" if not self.path.exists() or not gone else f"{gone[0]} in"
        raise FlatoutError(
            f"{what} {self.named} was deleted or moved while the run went on, which ends here: "
            "nothing more can be saved in it."
        )

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Return a context in which the run saves; `check` says why an error is raised in it, too,
        if the folder is deleted meanwhile."""
        self.check()
        try:
            yield
        except FlatoutError:
            self.check()
            raise

    @property
    def has_saved(self) -> bool:
        """Whether the run has saved a checkpoint (which may be lost since)."""
        return self.checkpoints.exists() or (self.path / "summary.json").exists()

    @property
    def ended(self) -> bool:
        """Whether the run ended without a signal."""
        return final_summary(self.path) is not None

    def empty(self) -> None:
        """Remove what a run has saved that begins again; its logs are cut off when it opens them.

        Raises:
            FlatoutError: it cannot be removed.
        """
        with writing(self.path):
            discard(self.checkpoints)
            for name in FOLDERS:
                trees.remove_tree(self.path / name)
            for name in AGENT_FILES:
                trees.remove_file(self.path / name)

    def keep_traceback(self, error: FlatoutError) -> None:
        """Keep the traceback of what a user's code raised, where its author can read it."""
        if error.__cause__ is None or isinstance(error, NotInstalledError):
            return
        text = "".join(traceback.format_exception(error.__cause__))
        with suppress(OSError):
            nofollow.replace(self.path / "error.log", text.encode(errors="replace"))
            error.args = (f"{error} The traceback is in {self.named / 'error.log'}.",)

    @property
    def parent(self) -> str | None:
        """The run that this one started from, as its ``config.json`` names it."""
        parent = self._named("parent")
        return parent if isinstance(parent, str) else None

    @property
    def wandb(self) -> Any:
        """Its run in Weights & Biases, as its ``config.json`` names it; see `wandb_run`."""
        return self._named("wandb")

    def _named(self, name: str) -> Any:
        try:
            return nofollow.read_json(self.path / "config.json", 1, MOST_CONFIG)[name]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def prepare(
        self, config: TrainConfig, parent: str | None, wandb: dict[str, str] | None
    ) -> None:
        """Write the settings of a new run before it is planned and compiled, so that the run can be
        resumed if this process is killed before the first step. `close` removes them if the run
        ends before that step in another way."""
        if not self._begun:
            self.write_config(config, config.run.placement, parent, wandb)
            self._begun = False

    def write_config(
        self, config: TrainConfig, placement: str, parent: str | None = None,
        wandb: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Write ``config.json``, signed with this user's key."""
        values = {"format": FORMAT, "algorithm": config.algorithm, "settings": config.flat()}
        values |= {"placement": placement, "parent": parent}
        values[signing.CODE] = code_of_run(config)
        values |= {} if wandb is None else {"wandb": wandb}
        try:
            self.write_json("config.json", values, signing.RUN)
        except FlatoutError:
            if not self.path.exists():
                self.check()  # says so
            raise
        self._begun = True

    def write_json(self, name: str, value: dict[str, Any], sign: str | None = None) -> None:
        """Write a JSON file atomically, signed if `sign` names a kind of signature."""
        try:
            # What is signed is read back exactly; other files are for all programs.
            text = (
                json.dumps(signing.signed(sign, value), indent=2)
                if sign
                else json_text(value, indent=2)
            )
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{name} cannot hold these settings ({error}); env_kwargs of a kept run are "
                "numbers, strings, flags and lists of them."
            ) from error
        content = (text + "\n").encode()
        if sign and len(content) > MOST_CONFIG:
            raise UsageError(
                f"{name} would have {len(content):,} bytes with these settings, and at most "
                f"{MOST_CONFIG:,} are read; let the environment read what is as long from a file."
            )
        with writing(self.path / name):
            nofollow.replace(self.path / name, content)

    def close(self) -> None:
        """Release the folder; remove it if no run has begun in it and nothing else is there."""
        self._words.close()
        if not self._begun:
            with suppress(OSError):
                trees.remove_file(self.path / "config.json")
        with suppress(OSError):  # others' files are in it, or it is gone
            mine = {locks.LOCK, locks.OWNER.format(locks.LOCK), "README.md"}
            if {*FILES, *FOLDERS}.isdisjoint({*os.listdir(self.path)} - mine):
                self._lock.remove()  # Windows removes no open file
                self.path.rmdir()
        with suppress(OSError):  # user code may have closed its descriptor
            self._lock.close()


def _flag(python: str) -> str:
    return "run_dir" if python else "--run-dir"


def refuse_taken(folder: Path, python: str = "") -> None:
    """Refuse a folder that holds a run or a population, or folders of other runs.

    Args:
        python: as of `RunFolder`.

    Raises:
        UsageError: it does.
    """
    for name in (POPULATION, "config.json"):
        if (folder / name).exists():
            again = f"resume it with --resume {shell_word(folder)}"
            if python:
                named = repr(str(folder))
                again = f"continue it with {python}.load({named}).learn(..., run_dir={named})"
            raise UsageError(
                f"{folder} already holds a run; {again}, or choose another {_flag(python)}."
            )
    refuse_among_runs(folder, python)


def refuse_among_runs(folder: Path, python: str = "") -> None:
    """Refuse a folder for something new in which there are folders of runs, populations or sweeps.

    Args:
        python: as of `RunFolder`.

    Raises:
        UsageError: the message names one of them.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and _is_taken(folder / entry.name):
                own = folder / "NAME"
                words = f"run_dir={str(own)!r}" if python else f"--run-dir {shell_word(own)}"
                raise UsageError(
                    f"{folder} holds other runs, such as {entry.name}, and a new one would write "
                    f"its files among them; name a folder of its own, such as {words}."
                )


def _is_taken(folder: Path) -> bool:
    """Return whether a folder holds a run, a population or a sweep."""
    for name in ("config.json", POPULATION, SWEEP):
        with suppress(OSError, ValueError):
            values = nofollow.read_json(folder / name, 2)
            return isinstance(values, dict) and {"format", "algorithm"} <= values.keys()
    return False


def refuse_strange(path: Path, python: str = "") -> None:
    """Refuse a folder for a new run in which files or folders have the names of a run's, unless
    Flatout wrote them for a run that ended before it had begun.

    Args:
        python: as of `RunFolder`.

    Raises:
        UsageError: it has some.
    """
    try:
        entries = [entry for entry in os.scandir(path) if entry.name in (*FILES, *FOLDERS)]
    except FileNotFoundError:
        return
    mark = path / locks.LOCK
    with suppress(OSError):
        if nofollow.read(mark, 1, len(MARK)) == MARK:
            return
    for entry in entries:
        file = entry.is_file(follow_symlinks=False)
        if entry.name in HARMLESS or not (
            entry.stat(follow_symlinks=False).st_size if file else os.listdir(entry.path)
        ):
            continue
        raise UsageError(
            f"{path / entry.name} does not belong to a run of Flatout, and a new run would replace "
            f"it; choose another {_flag(python)}, or move it away."
        )


def without_settings(path: Path, name: str = "config.json") -> str:
    """Return a sentence about a folder that lacks the file with a run's settings."""
    if name != POPULATION and (path / POPULATION).exists():
        return f"{path} holds a population: name the folder of one of its members."
    with suppress(OSError):
        if nofollow.read(path / locks.LOCK, 1, len(MARK)) == MARK:
            return (
                f"{path} holds no run: the command that made this folder ended before the first "
                f"step and left no settings (no {name}); start the run again with --run-dir {path}."
            )
    return f"{path} is not a run folder (there is no {name} in it)."


def mark_own(path: Path, depth: int) -> None:
    """Mark a folder in which a run is to begin as one of Flatout's.

    Args:
        depth: as in `flatout_explain.files.nofollow`.
    """
    with (
        suppress(FileExistsError),
        nofollow.open_stream(path / locks.LOCK, nofollow.NEW, depth) as file,
    ):
        file.write(MARK)


class _Summary(msgspec.Struct):
    """The entries of a ``summary.json`` on which Flatout relies."""

    ended: str
    steps: WholeNumber
    wall_s: Number | None = None
    return_mean_last: Number | None = None
    last_eval_return: Number | None = None
    test_accuracy: Number | None = None


def final_summary(path: Path) -> dict[str, Any] | None:
    """The summary of a run that ended without a signal; None of any other, or if its numbers are
    damaged."""
    try:
        summary = nofollow.read_json(path / "summary.json")
        return None if convert(summary, _Summary).ended == "signal" else summary
    except (OSError, ValueError):
        return None


def default_folder(config: TrainConfig, prefix: str = "") -> Path:
    """A new ``runs/ALGORITHM-ENV-SEED-TIME``, or with a prefix of this name."""
    algorithm, env = (
        re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "env"
        for name in (config.algorithm, config.env.env)
    )
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return unused(Path("runs") / f"{prefix}{algorithm}-{env}-{config.run.seed}-{stamp}")


def unused(base: Path) -> Path:
    """The path, with a number at its end if there is something already."""
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


def new_folder(config: TrainConfig) -> RunFolder:
    """A run folder of the default name, which no other process takes in the same second.

    Raises:
        FlatoutError: as of `RunFolder`.
    """
    base = default_folder(config)
    return open_unused(base, lambda path: RunFolder(path, report=True))


def open_unused(base: Path, opens: Callable[[Path], T], lock: str = locks.LOCK) -> T:
    """Return what `opens` makes of the first unused path (`unused`), also if other processes take
    the same one at the same moment.

    Args:
        opens: takes the folder's lock, or raises `FlatoutError`.
        lock: the name of the lock's file.
    """
    for _ in range(MOST_AT_ONCE):
        path = unused(base)
        try:
            return opens(path)
        except FlatoutError:
            if not (path / lock).exists():  # nobody else has begun there
                raise
    return opens(unused(base))


def refuse_links(path: Path) -> None:
    """Refuse a run folder with links, pipes or devices in the place of Flatout's files.

    Opening a file checks this once more; this reports it before the run starts.
    """
    for names, kind, what in ((FILES, stat.S_ISREG, "file"), (FOLDERS, stat.S_ISDIR, "folder")):
        for name in names:
            try:
                mode = os.lstat(path / name).st_mode
            except OSError:
                continue
            if not kind(mode):
                actual = "a symbolic link" if stat.S_ISLNK(mode) else f"no ordinary {what}"
                raise CheckpointError(
                    f"{path / name} is {actual}; a run folder holds files and folders of its own: "
                    f"remove it, or copy the {what} there."
                )


def load_config(
    run_dir: Path, consent: Consent | None = NO_CONSENT, name: str = "config.json"
) -> TrainConfig:
    """The resolved settings of a run; see `load_values`."""
    return load_values(run_dir, consent, name)[0]


def load_values(
    run_dir: Path, consent: Consent | None, name: str
) -> tuple[TrainConfig, dict[str, Any]]:
    """The resolved settings of a run, and all values of the file that holds them.

    Args:
        consent: the user's consent to code that the settings name; None if they are only read.
        name: of the file that holds them.

    Raises:
        UsageError: there is no run.
        CheckpointError: the file is corrupt, of another format, or names code without consent.
    """
    path, most = run_dir / name, MOST_PLAN if name in (POPULATION, SWEEP) else MOST_CONFIG
    if not os.path.lexists(path):
        raise UsageError(without_settings(run_dir, name))
    refuse_links(run_dir)
    try:
        values = nofollow.read_json(path, 1, most)
        if not isinstance(values, dict):
            raise ValueError("it holds no table")
        refuse_format(values.get("format"), str(path))
        if not isinstance(values.get("settings"), dict):
            raise ValueError("it holds no table of settings")
        config = resolve(str(values["algorithm"]), values["settings"])
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        why = damage(error)
        end = "" if why.endswith((".", "?")) else "."
        raise CheckpointError(f"{path} is corrupt: {why}{end}") from error
    if consent is not None:
        refuse_foreign(config, path, signing.signed_code(signing.RUN, values), consent)
    return config, values
