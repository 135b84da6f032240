"""The fastest placement by network and algorithm, measured by training on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flatout.config.schema import TrainConfig
from flatout.config.settings import load_preset, resolve
from flatout.errors import FlatoutError
from flatout.explain.facts import mean_use
from flatout.hardware.inventory import Hardware, resolve_placement
from flatout.reports.figure import figure, save
from flatout.run.probe_process import Report, run
from flatout.storage.span_records import DEVICES, json_lines, read_samples
from flatout_explain import output_file
from flatout_explain.files import nofollow

HIDDEN = ((64,), (64, 64), (128,), (128, 128), (256,), (256, 256))
PLACEMENTS = ("cpu", "gpu", "cpu+gpu")
HERE_NOT = "not here"
LIMIT_S = 3600.0


@dataclass(frozen=True)
class Mode:
    """A way to learn whose placements are compared.

    Attributes:
        episodes: the number of episodes whose time is measured.
        goal: the return up to which the time is also measured.
        changes: changes to the preset's settings.
    """

    name: str
    preset: str
    episodes: int
    goal: float
    changes: dict[str, Any] = field(default_factory=dict[str, Any])


MODES = (
    Mode("PPO, on-policy", "cartpole-ppo-w2", 500, 195.0),
    Mode("PPO, last 4 trajectories", "cartpole-ppo-w2", 500, 195.0, {"replay_trajectories": 4}),
    Mode("DDPG, update each step", "pendulum-ddpg-w2", 200, -200.0),
    Mode("DDPG, sample then update", "pendulum-ddpg-w2", 200, -200.0,
         {"train_freq": 200, "gradient_steps": 200}),
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One run: seconds after start-up to the end of the episodes and to the goal, and the shares of
    the CPU and the GPU in use. None stands for a time not reached or a share not measured."""

    placement: str
    seconds: float | None
    to_goal: float | None
    cpu: float | None
    gpu: float | None


@dataclass(frozen=True)
class Row:
    """The placements of one network and mode, and the one that planning chose.

    Attributes:
        cells: the measured cells in the order of `PLACEMENTS`; None for a placement that is
            impossible on this machine.
        planned: the placement that planning chose; empty until the row is finished.
    """

    hidden: str
    mode: str
    cells: tuple[Cell | None, ...] = ()
    planned: str = ""

    @property
    def finished(self) -> bool:
        """Whether all placements were measured and planning has chosen one."""
        return bool(self.planned)

    @property
    def winner(self) -> str:
        """The fastest placement."""
        done = [cell for cell in self.cells if cell is not None and cell.seconds is not None]
        return min(done, key=lambda cell: cell.seconds or 0.0).placement if done else ""


def settings(mode: Mode, hidden: Sequence[int], episodes: int) -> dict[str, Any]:
    """Return the settings of one row, by name."""
    preset = load_preset(mode.preset)
    steps = int(preset["steps"]) * episodes // mode.episodes
    changes = {"hidden": tuple(hidden), "steps": max(steps, 2000), "threshold": (mode.goal,)}
    return preset | mode.changes | changes


def measured(mode: Mode, hidden: Sequence[int], episodes: int, placement: str) -> Cell:
    """Train one cell in a child process, and return its times.

    Raises:
        FlatoutError: the run failed.
    """
    values = settings(mode, hidden, episodes)
    with output_file.temporary_folder("flatout-bench-") as temporary:
        folder = temporary / "run"
        values |= {"placement": placement, "run_dir": str(folder), "quiet": True, "log_every": 1,
                   "tensorboard": False}  # fmt: skip
        config = resolve(str(values["algorithm"]), values)
        what = f"{mode.name}, hidden {list(hidden)}, on {placement}"
        run(what, "flatout.measurements.placement_table:train", (config,), LIMIT_S)
        summary = nofollow.read_json(folder / "summary.json")
        rows = json_lines(folder / "metrics.jsonl")
        use = mean_use(read_samples(folder / DEVICES))
    enough = (row for row in rows if row.get("rollout/episodes", 0) >= episodes)
    last = next(enough, None)
    startup = float(summary["startup_s"])
    reached = summary["time_to_return_s"].get(str(mode.goal))
    return Cell(
        placement, None if last is None else float(last["time/wall_s"]) - startup,
        None if reached is None else float(reached) - startup, use.cpu, use.gpu_busy,
    )  # fmt: skip


def names(sizes: Sequence[Sequence[int]]) -> list[tuple[str, str]]:
    """Return the network and mode of each row of a table."""
    return [("x".join(map(str, hidden)), mode.name) for hidden in sizes for mode in MODES]


def rows(
    hardware: Hardware, share: float, seconds: float, sizes: Sequence[Sequence[int]] = HIDDEN,
    before: Mapping[tuple[str, str], Row] = MappingProxyType({}),
) -> Iterator[Row]:  # fmt: skip
    """Yield each row after each of its cells, and again when it is finished.

    Args:
        share: the share of each mode's episodes that is played.
        seconds: the time to plan each row.
        before: rows that were measured before, perhaps in part, by network and mode.
    """
    here = [p == "cpu" or bool(hardware.usable_gpus) for p in PLACEMENTS]
    pairs = [(hidden, mode) for hidden in sizes for mode in MODES]
    for (hidden, mode), name in zip(pairs, names(sizes), strict=True):
        row = before.get(name, Row(*name))
        if row.finished:
            continue
        episodes = max(int(mode.episodes * share), 10)
        for placement, possible in [*zip(PLACEMENTS, here, strict=True)][len(row.cells) :]:
            cell = measured(mode, hidden, episodes, placement) if possible else None
            row = replace(row, cells=(*row.cells, cell))
            yield row
        yield replace(row, planned=planned(mode, hidden, episodes, hardware, seconds))


def planned(
    mode: Mode, hidden: Sequence[int], episodes: int, hardware: Hardware, seconds: float
) -> str:
    """Return the placement that planning chooses, or why it chose none."""
    from flatout.run.auto import question
    from flatout.run.planner import ask
    from flatout.types import NAMED

    values = settings(mode, hidden, episodes)
    config = resolve(str(values["algorithm"]), values)
    base, _ = resolve_placement("cpu", hardware)
    try:
        answer = ask(question(config, base, hardware, seconds), NAMED, 2 * seconds + 60.0)
    except FlatoutError as error:
        return f"none ({error})"
    return str(answer.chosen.placement)


def draw(table: Sequence[Row], file: Path) -> None:
    """Write the seconds as a picture with bars.

    Raises:
        FlatoutError: the file cannot be written.
    """
    with figure(8, 1.5 + 0.35 * len(table)) as drawn:
        axes = drawn.add_subplot()
        for number, placement in enumerate(PLACEMENTS):
            seconds = [cell.seconds if (cell := row.cells[number]) else None for row in table]
            if any(seconds):
                places = [place + 0.25 * number for place in range(len(table))]
                axes.barh(places, [s or 0.0 for s in seconds], height=0.25, label=placement)
        axes.set_yticks(range(len(table)), [f"{row.mode}, {row.hidden}" for row in table])
        axes.invert_yaxis()
        axes.set(xlabel="seconds for the episodes, after start-up")
        axes.legend()
        save(drawn, file)


def train(config: TrainConfig, report: Report) -> None:
    """Train one cell in its folder."""
    from flatout.run.trainer import Trainer
    from flatout.storage.run_folder import RunFolder

    report("training")
    with closing(RunFolder(Path(str(config.run.run_dir)))) as folder:
        Trainer(config, folder=folder).run()
