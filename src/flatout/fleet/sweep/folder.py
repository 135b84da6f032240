"""A fleet's folder: what it trains, and who holds it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flatout.config.schema import TrainConfig
from flatout.errors import CheckpointError, FlatoutError, UsageError, one_line, writing
from flatout.fleet.sweep.optuna_storage import file_within, refuse_unsafe
from flatout.fleet.sweep.plan import SHARED, Group, refuse_many, trials
from flatout.fleet.sweep.search import examples, settings_of
from flatout.storage import nofollow, signing
from flatout.storage.checkpoint import FORMAT
from flatout.storage.run_folder import POPULATION, load_config
from flatout.storage.trust import Consent, refuse_foreign

PLAN, LOCK = "fleet.json", ".fleet"
MOST_PLAN = 1 << 26
"""Maximum bytes of a `PLAN`."""

WAIT_S = 5.0
"""Processes of a fleet that was killed end within this time."""


class Folder:
    """A fleet's folder: its plan, and a lock that its processes hold, too.

    No link in it is followed until it is closed.

    Raises:
        UsageError, FlatoutError: it holds a fleet or a run, holds none to resume, or is in use.
    """

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self._refuse_taken(resume)
        with writing(f"the fleet's folder {path}"):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = nofollow.open_stream(path / LOCK, nofollow.CHANGE)
        began = time.monotonic()
        while True:  # the kernel releases it when the last of a killed fleet's processes has ended
            try:
                self._lock.seek(0)  # Windows locks the byte that is next
                nofollow.lock(self._lock)
                break
            except OSError:
                # One that was just killed may not be buried yet.
                if time.monotonic() - began > (1.0 if self._holder_lives() else WAIT_S):
                    self._lock.close()
                    raise FlatoutError(
                        f"the fleet's folder {path} is in use by another fleet; wait for it, or "
                        "choose another --run-dir."
                    ) from None
                time.sleep(0.05)
        try:
            self._refuse_taken(resume)  # by what held the lock until now
        except UsageError:
            self._lock.close()
            raise
        with writing(path / LOCK):
            self._lock.seek(0)
            self._lock.truncate()
            self._lock.write(str(os.getpid()).encode())
            self._lock.flush()
        self._open = ExitStack()
        self._open.enter_context(nofollow.confined(path))

    def _refuse_taken(self, resume: bool) -> None:
        path, there = self.path, (self.path / PLAN).exists()
        if resume and not there:
            raise UsageError(f"{path} holds no fleet to resume (there is no {PLAN} in it).")
        if not resume and (there or (path / "config.json").exists()):
            what = f"a fleet; go on with: flatout fleet --resume {path}" if there else "a run"
            raise UsageError(f"{path} already holds {what}; or choose another --run-dir.")
        if not resume:  # which would count as this fleet's, whatever its settings
            left = [*path.glob("*seed=*/config.json"), *path.glob(f"{SHARED}*/{POPULATION}")]
            if left:
                raise UsageError(
                    f"{left[0].parent} already holds a run, of another fleet; choose another "
                    "--run-dir."
                )

    def _holder_lives(self) -> bool:
        """Whether the fleet that took the lock still runs, not only what it has started."""
        self._lock.seek(0)
        try:
            os.kill(int(self._lock.read(20)), 0)
        except (ValueError, OverflowError, ProcessLookupError):
            return False
        except OSError:  # another user's
            return True
        return True

    @property
    def descriptor(self) -> int:
        return self._lock.fileno()

    def close(self) -> None:
        self._lock.close()
        self._open.close()

    def save(
        self, base: TrainConfig, seeds: Sequence[int], groups: Sequence[Group], strategy: str,
        populations: Mapping[str, Sequence[str]], optuna: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Write the plan, signed with this user's key.

        Raises:
            FlatoutError: it cannot be written.
        """
        values = {
            "format": FORMAT, "algorithm": base.algorithm, "settings": base.flat(),
            "seeds": list(seeds), "groups": {group.name: dict(group.row) for group in groups},
            "strategy": strategy, "populations": dict(populations), "optuna": optuna,
        }  # fmt: skip
        with writing(self.path):
            text = json.dumps(signing.signed(signing.RUN, values), default=str)
            nofollow.replace(self.path / PLAN, text.encode())

    def load(
        self, consent: Consent
    ) -> tuple[
        TrainConfig, list[int], list[Group], Path, str, dict[str, list[str]], dict[str, Any] | None
    ]:
        """What `save` wrote, with the folder.

        Raises:
            CheckpointError: it is damaged, or names code without consent.
        """
        path = self.path / PLAN
        base = load_config(self.path, consent, PLAN, MOST_PLAN)
        try:
            values = json.loads(nofollow.read(path, 1, MOST_PLAN))
            found = [Group(str(name), dict(row)) for name, row in values["groups"].items()]
            seeds = [int(seed) for seed in values["seeds"]]
            shared = {str(k): [str(one) for one in v] for k, v in values["populations"].items()}
            if not seeds or not (found or values.get("optuna")):
                raise ValueError("it names no trials")
            refuse_many(len(found) * len(seeds), "the sweep")
            known = [trials(base, group, seeds) for group in found]
            names = {trial.name for some in known for trial in some}
            if not {name for some in shared.values() for name in some} <= names:
                raise ValueError("a population of unknown trials")
            for name in shared:
                if not nofollow.is_plain_name(name) or not name.startswith(SHARED):
                    raise ValueError(
                        f"{name[:100]!r} is no folder's name of a population, such as population-1"
                    )
            own = signing.is_own(signing.RUN, values)
            for some in known:  # a configuration may name another environment
                refuse_foreign(some[0].config(), path, own, consent)
            strategy, optuna = str(values["strategy"]), values.get("optuna")
        except CheckpointError:
            raise
        except (
            ArithmeticError, OSError, ValueError, LookupError, TypeError, AttributeError,
            RecursionError, UsageError,
        ) as error:  # fmt: skip
            raise CheckpointError(f"{path} is corrupt: {one_line(error)[:300]}") from error
        if optuna is not None:
            optuna = settings_of(optuna, base, f"{path}: [optuna]")
            for row in examples(optuna["space"], "[optuna]"):
                (trial,) = trials(base, Group("", row), seeds[:1])
                refuse_foreign(trial.config(), path, own, consent)
            if optuna["storage"] and not (own or consent.trust):
                raise CheckpointError(
                    f"{path} is not of this user's making and names a storage, which lies outside "
                    "of it; to allow that, say --trust."
                )
            inside = file_within(optuna["storage"], self.path)
            if inside is not None and not consent.trust:
                refuse_unsafe(optuna["storage"], self.path, f"{path}: [optuna]", new=False)
        return base, seeds, found, self.path, strategy, shared, optuna
