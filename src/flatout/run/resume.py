"""The start of a run: from its own checkpoint, from what an agent learned before, or from another
run."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flatout.config.schema import TrainConfig
from flatout.engine.schedule import Schedule
from flatout.errors import UsageError
from flatout.run.progress import Progress
from flatout.storage import checkpoint
from flatout.storage.agent_file import BEST, FINAL, find_agent, saved_config
from flatout.storage.run_folder import load_config
from flatout.storage.trust import Consent
from flatout.types import Snapshot


@dataclass(frozen=True)
class Start:
    """A state from which a run starts.

    Attributes:
        state: the earlier run's.
        continues: whether everything is continued: counters, schedules, environments and replay.
            Otherwise a new run starts from the parameters, the optimiser and the replay, if there
            are any.
        parent: the folder or file of that state, as config.json and the new run's summary name it.
        notes: sentences for the user.
        steps: environment steps that a new run counts as made before, with the counters of the
            algorithm, on which schedules and exploration depend; None begins all at 0.
    """

    state: Snapshot
    continues: bool = False
    parent: str | None = None
    notes: tuple[str, ...] = ()
    steps: int | None = None

    @property
    def made(self) -> int:
        """The steps that the run counts as made before."""
        return int(self.state.data["progress"]["steps"]) if self.continues else self.steps or 0


def begin(
    schedule: Schedule, start: Start | None, parent: str | None
) -> tuple[list[str], Progress]:
    """Begin a run that has no checkpoint of its own; return sentences for the user, and the
    counters.

    Args:
        parent: the folder or file from which it starts.

    Raises:
        CheckpointError: the state does not fit the run.
    """
    if start is None or not start.continues:
        schedule.start()
    notes, progress = list[str](), Progress()
    with checkpoint.reading(Path(parent or "of this agent")):
        if start is not None and start.continues:
            notes = [*start.notes, *schedule.restore(start.state)]
            progress = Progress.from_json(start.state.data["progress"])
        elif start is not None:
            schedule.adopt(start.state, counters=start.steps is not None)
            progress = Progress(steps=start.made)
            notes = list(start.notes)
    return notes, progress


@dataclass(frozen=True)
class Saved:
    """A saved agent: its file, settings, learning state, in how many runs it learned, and from how
    many environment steps (None: unknown)."""

    file: Path
    config: TrainConfig
    arrays: dict[str, np.ndarray]
    learned: int = 1
    steps: int | None = None


def saved_agent(path: Path, prefer: str, consent: Consent | None) -> Saved:
    """Return a saved agent: a file's, or a run folder's.

    Args:
        prefer: ``best``, ``final`` or ``newest``. The newest checkpoint takes the place of final
            parameters that there are not, or that are older: a run that had ended was resumed.
        consent: to code that it names.

    Raises:
        UsageError, CheckpointError: there is none, or it is corrupt.
    """
    file = path / FINAL
    if prefer == "best" and os.path.lexists(path / BEST):
        file = path / BEST
    if not os.path.lexists(file):
        if path.is_dir() and checkpoint.checkpoints(path / "checkpoints"):
            return _newest(path, consent)
        file = find_agent(path)
    arrays, metadata = checkpoint.load_agent(file)
    learned = metadata.get("learned")
    learned = learned if isinstance(learned, int) and learned >= 0 else 1
    steps = metadata.get("steps")
    steps = steps if type(steps) is int and steps >= 0 else None
    if file.name == FINAL and steps is not None and newest_step(path) > steps:
        return _newest(path, consent)
    return Saved(file, saved_config(metadata, file, consent), arrays, learned, steps)


def _newest(path: Path, consent: Consent | None) -> Saved:
    """Return the agent of a run folder's newest checkpoint."""
    found, step, state = checkpoint.load_latest(path)
    return Saved(found, load_config(path, consent), state.arrays, steps=step)


def newest_step(path: Path) -> int:
    """Return the step of a run folder's newest checkpoint; 0 where there is none."""
    saved = checkpoint.checkpoints(path / "checkpoints") if path.is_dir() else []
    return int(saved[-1].name.removeprefix("step_")) if saved else 0


def begun_from(
    folder: Path, before: TrainConfig, config: TrainConfig, given: Collection[str]
) -> tuple[TrainConfig, Start]:
    """Return the settings and the start of a new run that begins with another run's newest
    checkpoint.

    A run that takes over replay has no warm-up. Its seed is another one, or it would see the
    same episodes again.

    Args:
        folder: of the other run.
        before: that run's settings.
        config: the new run's.
        given: the settings that the user gave.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    _, _, state = checkpoint.load_latest(folder)
    hyper, notes = config.hyper, ()
    if why := _left_behind(before, config):
        if state.rows is not None:
            notes = (f"the replay of {folder} is not used: {why}",)
        state = Snapshot(state.arrays, state.data)
    if state.rows is not None and "learning_starts" not in given:
        hyper = replace(hyper, learning_starts=0)
    seed = config.run.seed if "seed" in given else continued_seed(config.run.seed, 1)
    config = replace(config, hyper=hyper, run=replace(config.run, seed=seed))
    return config, Start(state, parent=str(folder), notes=notes)


def continue_counters(
    file: Path, config: TrainConfig, arrays: dict[str, np.ndarray], steps: int | None,
    given: Collection[str],
) -> Start:  # fmt: skip
    """Return a start that continues the counters of a saved agent, which has no replay.

    The agent then acts as it did, without the random actions of a warm-up, until its replay has
    `learning_starts` steps again: what was learned would be lost to updates from a few rows.

    Args:
        config: the new run's settings.
        arrays: the learning state.
        steps: that it has learned from, if the file says so.
        given: the settings that the user gave.

    Raises:
        UsageError: nothing says how many steps there were.
    """
    counted = arrays.get(f"{checkpoint.PREFIX}.counters.step")
    if steps is None and (counted is None or counted.ndim):
        raise UsageError(
            f"{file} does not say how many steps the agent has learned from, so that they cannot "
            "be counted on: leave reset_num_timesteps=False out."
        )
    warm_up, notes = getattr(config.hyper, "learning_starts", 0), ()
    if warm_up and "learning_starts" not in given:
        notes = (
            f"{file} holds no replay: the agent acts as it did, and learns again after {warm_up:,} "
            "steps (learning_starts); load(path, learning_starts=...) takes another number, and a "
            "run folder keeps the replay",
        )
    done = int(counted) if steps is None and counted is not None else steps
    return Start(Snapshot(arrays, {}), parent=str(file), notes=notes, steps=done)


def _left_behind(before: TrainConfig, config: TrainConfig) -> str:
    """Return why a run's replay cannot be used with other settings, or an empty string."""
    old, new = before.flat(), config.flat()
    if before.env != replace(config.env, envs=before.env.envs, spare_envs=before.env.spare_envs):
        return "it is of another environment"
    for name in ("envs", "shards"):
        if old[name] != new[name]:
            return f"it was filled with {name} {old[name]}, not {new[name]}"
    if new.get("buffer_size", 0) < old.get("buffer_size", 0):
        return f"it is larger than buffer_size {new['buffer_size']}"
    if new.get("prioritized") and not old["prioritized"]:
        return "it has no priorities"
    return ""


def continued_seed(seed: int, learned: int) -> int:
    """Return the seed of an agent's k-th run: the given seed for the first, then seeds derived from
    it."""
    if not learned:
        return seed
    return int(np.random.SeedSequence(seed, spawn_key=(learned,)).generate_state(1)[0])


Found = tuple[Path, Snapshot, Progress]
"""A checkpoint's file, its content, and the run's counters at that time."""
