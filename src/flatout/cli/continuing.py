"""``flatout train ... --run-dir DIR --continue``: resume the run in a folder, or start it."""

from __future__ import annotations

from pathlib import Path

from flatout.cli.carried import differing, on_free_cards, without_learn
from flatout.config.schema import RESUMABLE, TrainConfig
from flatout.config.settings import revise, with_run
from flatout.errors import UsageError
from flatout.storage.run_folder import POPULATION, load_config
from flatout.storage.trust import Consent
from flatout_explain.files.import_path import keep_out


def continued(config: TrainConfig, population: bool) -> tuple[TrainConfig, bool]:
    """Return the settings to train with, and whether a run is resumed.

    A resumed run keeps the placement that was chosen for it, unless the user names one. The other
    settings in `RESUMABLE`, such as steps and logging, have the values that the user gives now.

    Args:
        config: the settings that the user gives, as for a new run.
        population: whether the user asks for many agents (``--seeds``, ``--population``).

    Raises:
        UsageError: ``--run-dir`` is missing, or its folder holds a run with other settings.
        CheckpointError: the settings in the folder are damaged.
    """
    if config.run.run_dir is None:
        raise UsageError(
            "--continue needs --run-dir DIR: the folder of the run that it resumes or starts."
        )
    path = Path(config.run.run_dir)
    names = [name for name in (POPULATION, "config.json") if (path / name).exists()]
    if not names:
        return config, False
    if population != (names[0] == POPULATION):
        kinds = "a single run", "a population (--seeds, --population)"
        here, there = kinds if not population else kinds[::-1]
        raise UsageError(
            f"--continue: {path} holds {there}, not {here}; ask for that, or give another "
            "--run-dir."
        )
    keep_out(path)
    # Code that they name is code that the user named now, or they are refused.
    before = load_config(path, Consent(trust=True), names[0])
    if config.env.backend_open:  # where a run's environments step stays as it began
        config = revise(config, {"env_backend": before.env.env_backend})
    _refuse_others(before, config, path)
    if config.run.placed is None:
        kept = before.run.placement
        kept = on_free_cards(kept) if config.run.devices is None else without_learn(kept)
        config = with_run(config, placement=kept)
    return config, True


def _refuse_others(before: TrainConfig, config: TrainConfig, path: Path) -> None:
    """Refuse settings that a resume may not change, and that differ from the run's."""
    names = ["algorithm"]
    if before.algorithm == config.algorithm:  # others have other settings
        names = [name for name in config.flat() if name not in RESUMABLE]
    if words := differing(before, config, names):
        raise UsageError(
            f"--continue: {path} holds a run with other settings: {words}. Give the same settings, "
            "or another --run-dir."
        )
