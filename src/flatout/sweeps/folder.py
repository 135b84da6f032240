"""A sweep's folder: the plan of what is trained, and a lock against a second process."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from flatout.config.settings import revise
from flatout.errors import CheckpointError, FlatoutError, UsageError, damage, writing
from flatout.output import shell_word
from flatout.storage import signing
from flatout.storage.checkpoint import FORMAT
from flatout.storage.run_folder import POPULATION, SWEEP, load_values, refuse_among_runs
from flatout.storage.trust import Consent, code_of, named_code, reaching_of, refuse_foreign
from flatout.sweeps.gathered import ARRIVING, recover
from flatout.sweeps.optuna_storage import file_within, refuse_unsafe
from flatout.sweeps.plan import SHARED, STRATEGIES, Group, SweepPlan, named_in, trial_names
from flatout.sweeps.search import examples, settings_of
from flatout.sweeps.sections import refuse_many
from flatout_explain.files import locks, nofollow

PLAN, LOCK = SWEEP, ".sweep"

WAIT_S = 5.0
"""Maximum time until the processes of a killed sweep have ended."""


class Folder:
    """A sweep's folder: its plan, and a lock that the sweep's worker processes hold as well.

    Links in the folder are not followed while it is open.

    Raises:
        UsageError, FlatoutError: it holds a sweep or a run already, has no sweep to resume, or is
            in use.
    """

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self._refuse_taken(resume)
        if not resume:
            self._refuse_strange()
        with writing(f"the sweep's folder {path}"):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
        try:
            self._refuse_taken(resume)  # by what held the lock until now
        except UsageError:
            self._lock.close()
            raise
        with writing(path / LOCK):
            self._lock.file.truncate()
            self._lock.file.write(str(os.getpid()).encode())
            self._lock.file.flush()
        self._open = ExitStack()
        self._open.enter_context(nofollow.confined(path))
        with writing(path):
            recover(path)

    def _locked(self) -> locks.Lock:
        """Return the lock; wait for the processes of a killed sweep to end."""
        began = time.monotonic()
        while True:
            try:
                return locks.Lock(self.path / LOCK)
            except locks.InUseError as error:
                # One that was just killed may not be buried yet.
                if time.monotonic() - began > (1.0 if self._holder_lives() else WAIT_S):
                    raise FlatoutError(
                        f"the sweep's folder {self.path} is in use by another "
                        f"sweep{error.owner}; wait for it, or choose another --run-dir."
                    ) from None
                time.sleep(0.05)

    def _refuse_taken(self, resume: bool) -> None:
        path, there = self.path, (self.path / PLAN).exists()
        if resume and not there:
            raise UsageError(f"{path} holds no sweep to resume (there is no {PLAN} in it).")
        if not resume and (there or (path / "config.json").exists()):
            again = f"flatout sweep --resume {shell_word(path)}"
            what = f"a sweep; resume it with: {again}" if there else "a run"
            raise UsageError(f"{path} already holds {what}; or choose another --run-dir.")
        if not resume:  # which would count as this sweep's, whatever its settings
            left = [*path.glob("*seed=*/config.json"), *path.glob(f"{SHARED}*/{POPULATION}")]
            if left:
                raise UsageError(
                    f"{left[0].parent} already holds a run of another sweep; choose another "
                    "--run-dir."
                )
            refuse_among_runs(path)

    def _refuse_strange(self) -> None:
        """Refuse a new sweep's folder that already has entries under names that a sweep uses."""
        path = self.path
        strange = [*path.glob(ARRIVING), *path.glob(f"{SHARED}[0-9]*")]
        with suppress(
            OSError
        ):  # a sweep that was killed before it had a plan has written its number
            if not re.fullmatch(rb"\d*", nofollow.read(path / LOCK, 1)):
                strange.append(path / LOCK)
        if strange:
            raise UsageError(
                f"{strange[0]} does not belong to a sweep of Flatout, and a new sweep would "
                "write into it; choose another --run-dir, or move it away."
            )

    def _holder_lives(self) -> bool:
        """Return whether the sweep that took the lock still runs, and not only its workers."""
        try:
            return psutil.pid_exists(int(nofollow.read(self.path / LOCK, 1, 20)))
        except (OSError, ValueError, OverflowError):
            return False

    @property
    def descriptor(self) -> int:
        return self._lock.fileno()

    def close(self) -> None:
        """Release the folder; remove it if it has no plan and nothing else is there."""
        if not (self.path / PLAN).exists():
            with suppress(OSError):  # others' files are in it, or it is gone
                if {LOCK, locks.OWNER.format(LOCK)}.issuperset(os.listdir(self.path)):
                    self._lock.remove()
                    self.path.rmdir()
        self._lock.close()
        self._open.close()

    def save(self, plan: SweepPlan) -> None:
        """Write the plan, signed with this user's key.

        Raises:
            FlatoutError: it cannot be written.
        """
        base, groups = plan.base, {group.name: dict(group.row) for group in plan.groups}
        values = {
            "format": FORMAT, "algorithm": base.algorithm, "settings": base.flat(),
            "seeds": list(plan.seeds), "groups": groups, "strategy": plan.strategy,
            "populations": plan.populations, "optuna": plan.optuna,
        }  # fmt: skip
        named = [name for _, name in named_code(base)]
        named += named_in([groups, plan.optuna])
        values[signing.CODE] = code_of(named)
        with writing(self.path):
            text = json.dumps(signing.signed(signing.RUN, values), default=str)
            nofollow.replace(self.path / PLAN, text.encode())

    def load(self, consent: Consent) -> SweepPlan:
        """Return the plan that `save` wrote.

        Raises:
            CheckpointError: it is damaged, or names code without consent to run it.
        """
        path = self.path / PLAN
        base, values = load_values(self.path, consent, PLAN)
        code = signing.signed_code(signing.RUN, values)
        try:
            found = [Group(str(name), dict(row)) for name, row in values["groups"].items()]
            seeds, strategy = list(values["seeds"]), values["strategy"]
            shared = {str(k): [str(one) for one in v] for k, v in values["populations"].items()}
            optuna = values.get("optuna")
            if not seeds or not (found or optuna):
                raise ValueError("it names no trials")
            if any(type(seed) is not int for seed in seeds) or len({*seeds}) < len(seeds):
                raise ValueError("its seeds are not different whole numbers")
            if strategy not in STRATEGIES:
                raise ValueError(
                    f"its strategy {str(strategy)[:100]!r} is none of {', '.join(STRATEGIES)}"
                )
            refuse_many(max(len(found), 1) * len(seeds), "the sweep")
            _refuse_populations(
                shared, {name for group in found for name in trial_names(group, seeds)}
            )
            known = set[str]()
            for group in found:  # each may name another environment
                config = revise(base, group.row)
                names = repr(reaching_of(config))
                if names not in known:
                    refuse_foreign(config, path, code, consent)
                    known.add(names)
        except CheckpointError:
            raise
        except (
            ArithmeticError, OSError, ValueError, LookupError, TypeError, AttributeError,
            UsageError,
        ) as error:  # fmt: skip
            raise CheckpointError(f"{path} is corrupt: {damage(error)}") from error
        if optuna is not None:
            optuna = settings_of(optuna, base, f"{path}: [optuna]")
            for row in examples(optuna["space"], "[optuna]"):
                refuse_foreign(revise(base, row), path, code, consent)
            if optuna["storage"] and code is None and not consent.trust:
                raise CheckpointError(
                    f"{path} was created by another user and names a storage, which lies outside "
                    "of it; to allow that, say --trust."
                )
            inside = file_within(optuna["storage"], self.path)
            if inside is not None and not consent.trust:
                refuse_unsafe(optuna["storage"], self.path, f"{path}: [optuna]", new=False)
        return SweepPlan(base, seeds, found, self.path, strategy, shared, optuna)


def _refuse_populations(populations: Mapping[str, Sequence[str]], trials: set[str]) -> None:
    """Refuse populations in a plan that this sweep cannot have written.

    Raises:
        ValueError: an impossible name, or a trial that is unknown or in two populations.
    """
    placed = set[str]()
    for name, members in populations.items():
        if not nofollow.is_plain_name(name) or not name.startswith(SHARED):
            raise ValueError(
                f"{name[:100]!r} is no folder's name of a population, such as population-1"
            )
        for member in members:
            if member not in trials:
                raise ValueError(f"the trial {member[:100]!r} of {name} is not one of the sweep")
            if member in placed:
                raise ValueError(f"the trial {member[:100]!r} is in populations twice")
            placed.add(member)
