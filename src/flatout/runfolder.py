"""The run folder: who owns it, what lies where."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from flatout.checkpoint import recover, replace_file
from flatout.config import TrainConfig
from flatout.envs.trust import refuse_foreign
from flatout.errors import CheckpointError, FlatoutError, UsageError
from flatout.lastwords import LastWords
from flatout.settings import resolve

KEPT = ("config.json", "metrics.jsonl")
"""What a run writes once, or goes on writing."""


class RunFolder:
    """One run's folder, locked while the run lives.

    Args:
        path: the folder; made where it does not exist.
        resume: the folder must hold a run instead of being empty.
        report: what the process dies of may be written to stderr, see `LastWords`.

    Raises:
        FlatoutError: it is a file, not writable, in use, or already holds a run.
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
        self._lock: IO[str] | None = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = open(path / ".lock", "w")  # noqa: SIM115 - held for the run
        except OSError as error:
            raise FlatoutError(f"cannot write the run folder {path}: {error.strerror}.") from error
        try:  # the kernel lets go of it when the process ends, however it ends
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise FlatoutError(f"the run folder {path} is in use by another process.") from None
        recover(self.checkpoints)
        for left in path.glob(".*.tmp"):  # of a run that was killed while it wrote
            left.unlink(missing_ok=True)
        self._words = LastWords(path, report)

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
            return json.loads((self.path / "summary.json").read_bytes())["ended"] != "signal"
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write one JSON file, complete or not at all.

        Raises:
            FlatoutError: it cannot be written.
        """
        try:
            text = json.dumps(value, indent=2)
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


def load_config(run_dir: Path, trusted: str | None = None) -> TrainConfig:
    """The resolved settings of a run.

    Args:
        run_dir: the run's folder.
        trusted: an environment that the user named: it may come from anywhere.

    Raises:
        UsageError: there is no run.
        CheckpointError: its config.json is not one.
    """
    path = run_dir / "config.json"
    if not path.is_file():
        raise UsageError(f"{run_dir} is not a run folder (there is no config.json in it).")
    try:
        values = json.loads(path.read_bytes())
        config = resolve(str(values["algorithm"]), values["settings"])
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        why = str(error)
        end = "" if why.endswith((".", "?")) else "."
        raise CheckpointError(f"{path} is corrupt: {why}{end}") from error
    if config.env.env != trusted:
        refuse_foreign(config.env.env, path)
    return config
