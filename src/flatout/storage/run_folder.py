"""The run folder: who owns it, what lies where."""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from flatout.config.schema import TrainConfig
from flatout.config.settings import resolve
from flatout.errors import CheckpointError, FlatoutError, UsageError
from flatout.storage import nofollow, signing
from flatout.storage.agent_file import AGENT_FILES
from flatout.storage.checkpoint import FORMAT, recover, refuse_format, replace_file
from flatout.storage.durable import temporary_name
from flatout.storage.last_words import FAULT, RUNNING, LastWords
from flatout.storage.trust import NO_CONSENT, Consent, refuse_foreign

FILES = (
    "config.json", "summary.json", *AGENT_FILES, "metrics.jsonl", "episodes.jsonl", "spans.jsonl",
    "devices.jsonl", "error.log", "trace.json", ".lock", RUNNING, FAULT,
)  # fmt: skip
"""What Flatout writes into a run folder, beside folders and TensorBoard's events."""
FOLDERS = ("checkpoints", "replay")
MOST_CONFIG = 1 << 20
"""Bytes that a config.json may have."""
KEPT = ("config.json", "metrics.jsonl")
"""What a run writes once, or goes on writing."""


class RunFolder:
    """One run's folder, locked while the run lives.

    Args:
        path: the folder; made where it does not exist.
        resume: the folder must hold a run instead of being empty.
        report: what the process dies of may be written to stderr, see `LastWords`.

    Raises:
        FlatoutError: it is a file, not writable, in use, or already holds a run; or it holds
            links, pipes or devices where a run's files should be.
    """

    def __init__(self, path: Path, resume: bool = False, report: bool = False) -> None:
        self.path = path
        try:
            is_file = path.exists() and not path.is_dir()
        except OSError as error:
            raise FlatoutError(f"cannot write the run folder {path}: {error.strerror}.") from error
        if is_file:
            raise UsageError(f"the run folder {path} is a file; choose another --run-dir.")
        if resume and not (path / "config.json").is_file():
            raise UsageError(f"{path} holds no run to resume (there is no config.json in it).")
        if not resume and (path / "config.json").exists():
            raise UsageError(
                f"{path} already holds a run; go on with --resume {path}, or choose another "
                "--run-dir."
            )
        self._lock: IO[bytes] | None = None
        refuse_links(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = nofollow.open_stream(path / ".lock", nofollow.CHANGE)
        except OSError as error:
            raise FlatoutError(f"cannot write the run folder {path}: {error.strerror}.") from error
        try:  # the kernel lets go of it when the process ends, however it ends
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise FlatoutError(f"the run folder {path} is in use by another process.") from None
        try:
            recover(self.checkpoints)
            for name in FILES:  # of a run that was killed while it wrote
                (path / temporary_name(name)).unlink(missing_ok=True)
            self._words = LastWords(path, report)
        except OSError as error:
            self._lock.close()
            raise FlatoutError(f"cannot write the run folder {path}: {error.strerror}.") from error
        except FlatoutError:
            self._lock.close()
            raise

    @property
    def died_of(self) -> str:
        """What the process before died of, as a sentence; empty where it ended by itself."""
        return self._words.before

    def check(self) -> None:
        """See that the folder is still there before something is saved into it.

        Raises:
            FlatoutError: it, or a part that no save writes again, was deleted or moved.
        """
        assert self._lock is not None
        gone = [name for name in KEPT if not (self.path / name).is_file()]
        with suppress(OSError):  # there is none, or another one: another run's, or a copy
            here = os.stat(self.path / ".lock", follow_symlinks=False)
            if os.path.samestat(here, os.fstat(self._lock.fileno())) and not gone:
                return
        what = "the run folder" if not self.path.exists() or not gone else f"{gone[0]} in"
        raise FlatoutError(
            f"{what} {self.path} was deleted or moved while the run went on, which ends here: "
            "nothing more can be saved in it."
        )

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / "checkpoints"

    @property
    def has_saved(self) -> bool:
        """Whether the run came as far as its first checkpoint (which may since be lost)."""
        return self.checkpoints.exists() or (self.path / "summary.json").exists()

    @property
    def best(self) -> Path:
        """The best parameters by evaluation."""
        return self.path / "best.safetensors"

    @property
    def final(self) -> Path:
        """The final parameters."""
        return self.path / "params.safetensors"

    @property
    def ended(self) -> bool:
        """Whether a run came to its end here (and was not interrupted)."""
        try:
            said = json.loads(nofollow.read(self.path / "summary.json"))
            return said["ended"] != "signal"
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False

    def write_config(self, config: TrainConfig, placement: str) -> None:
        """Write ``config.json``, signed as this user's own.

        Raises:
            FlatoutError: it cannot be written.
        """
        values = {"format": FORMAT, "algorithm": config.algorithm, "settings": config.flat()}
        self.write_json("config.json", values | {"placement": placement}, signing.RUN)

    def write_json(self, name: str, value: dict[str, Any], sign: str | None = None) -> None:
        """Write one JSON file, complete or not at all; signed where a kind of signature is named.

        Raises:
            FlatoutError: it cannot be written.
        """
        try:
            text = json.dumps(signing.signed(sign, value) if sign else value, indent=2)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{name} cannot hold these settings ({error}); env_kwargs of a kept run are "
                "numbers, strings, flags and lists of them."
            ) from error
        replace_file(self.path / name, (text + "\n").encode())

    def close(self) -> None:
        """Let go of the folder; one in which no run has begun is removed."""
        if self._lock is None:
            return
        self._words.close()
        if not (self.path / "config.json").exists():
            (self.path / ".lock").unlink(missing_ok=True)
            with suppress(OSError):  # something else lies in it
                self.path.rmdir()
        self._lock.close()
        self._lock = None


def default_folder(config: TrainConfig) -> Path:
    """``runs/ALGORITHM-ENV-SEED-TIME``, not there yet."""
    env = re.sub(r"[^A-Za-z0-9.]+", "-", config.env.env).strip("-") or "env"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{config.algorithm}-{env}-{config.run.seed}-{stamp}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


def refuse_links(path: Path) -> None:
    """Refuse a run folder with links, pipes or devices in the place of what Flatout writes there.

    Whatever is opened later is checked once more as it is opened; this says so before a run starts.

    Raises:
        CheckpointError: which one it is.
    """
    for names, kind, what in ((FILES, stat.S_ISREG, "file"), (FOLDERS, stat.S_ISDIR, "folder")):
        for name in names:
            try:
                mode = os.lstat(path / name).st_mode
            except OSError:
                continue
            if not kind(mode):
                found = "a symbolic link" if stat.S_ISLNK(mode) else f"no ordinary {what}"
                raise CheckpointError(
                    f"{path / name} is {found}; a run folder holds files and folders of its own: "
                    f"remove it, or copy the {what} there."
                )


def load_config(run_dir: Path, said: Consent | None = NO_CONSENT) -> TrainConfig:
    """The resolved settings of a run.

    Args:
        run_dir: the run's folder.
        said: what the user said about what the settings name. None: nothing that they name is
            used, only read; then they may be of an older format, too.

    Raises:
        UsageError: there is no run.
        CheckpointError: its config.json is not one, or names what is not to be trusted.
    """
    path = run_dir / "config.json"
    if not os.path.lexists(path):
        raise UsageError(f"{run_dir} is not a run folder (there is no config.json in it).")
    refuse_links(run_dir)
    try:
        values = json.loads(nofollow.read(path, 1, MOST_CONFIG))
        if said is not None:
            refuse_format(values.get("format"), str(path))
        config = resolve(str(values["algorithm"]), values["settings"])
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        why = str(error)[:500]
        end = "" if why.endswith((".", "?")) else "."
        raise CheckpointError(f"{path} is corrupt: {why}{end}") from error
    if said is not None:
        refuse_foreign(config, path, signing.is_own(signing.RUN, values), said)
    return config
