"""`flatout plan --compare-devices`: the same work on several numbers of devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.cli.arguments import settle
from flatout.cli.flags import out_files, write_out
from flatout.cli.plan_arguments import PlanArguments
from flatout.config.hyper import OnPolicyConfig
from flatout.config.schema import RESUMABLE, TrainConfig
from flatout.config.settings import revise, with_run
from flatout.errors import UsageError, damage
from flatout.measurements.measure import examples
from flatout.measurements.scaling import Row, Scaling, refuse_unequal, split, training_s
from flatout.output import print_json, reserve_stdout
from flatout.reports.figure import PICTURES
from flatout.run.probe_process import run as run_in_child
from flatout.storage.trust import import_here, named_code
from flatout_explain.documents import plain_number
from flatout_explain.files import nofollow

if TYPE_CHECKING:
    from rich.console import Console

    from flatout.hardware.inventory import Hardware

IGNORED = RESUMABLE | {"seed"}  # settings on which no speed depends
FACTORS = (2, 4, 8, 16)  # by how much the search enlarges batches


def compare_devices(asked: PlanArguments, given: Mapping[str, Any]) -> int:
    """Run ``flatout plan --compare-devices``; return the exit code.

    Args:
        asked, given: see `flatout.cli.arguments.read_settings`.
    """
    counts = sorted({*asked.compare_devices})
    if not all(1 <= count < 1000 for count in counts):
        raise UsageError(f"--compare-devices {asked.compare_devices}: numbers from 1 to 999.")
    if asked.out and not asked.run:
        raise UsageError("--compare-devices: --out needs measurements; add --run.")
    outs = out_files(asked.out, ".json", *PICTURES)
    from rich.console import Console

    if asked.json:
        reserve_stdout()
    console = Console(stderr=asked.json)
    config, hardware = _settings(asked, given, counts)
    virtual = len(hardware.usable_gpus) < max(counts)
    if not asked.run:
        return _dry_run(config, counts, virtual, asked.json)
    scaling, larger = _new(config, hardware, counts, asked.search, console)
    values = scaling.as_json() | {"crossover": larger}
    if asked.json:
        print_json(values)
    from flatout.measurements.scaling_report import draw, show

    show(scaling, larger, console)
    write_out(outs, values, partial(draw, scaling))
    return 0


def _dry_run(config: TrainConfig, counts: list[int], virtual: bool, as_json: bool) -> int:
    """Print the run on each number of devices; return the exit code."""
    batch = getattr(config.hyper, "batch_size", None)
    rows = [
        {
            "devices": count,
            "envs_each": config.env.envs // count if config.hyper.acts else None,
            "batch_rows_each": None if batch is None else batch // count,
        }
        for count in counts
    ]
    if as_json:
        print_json({"rows": rows, "steps": config.run.steps, "shards": config.run.shards,
                    "virtual": virtual})  # fmt: skip
        return 0
    for count, row in zip(counts, rows, strict=True):
        parts = [f"{row['envs_each']} environments"] if config.hyper.acts else []
        parts += [] if batch is None else [f"{row['batch_rows_each']} rows of each batch"]
        print(f"{_count(count)}: {' and '.join(parts)} on each")
    where = "a CPU's virtual devices" if virtual else "GPUs"
    print(
        f"each runs {config.run.steps:,} steps with --shards {config.run.shards}, on {where}; "
        "add --run to measure them"
    )
    return 0


def _settings(
    asked: PlanArguments, given: Mapping[str, Any], counts: list[int]
) -> tuple[TrainConfig, Hardware]:
    """Return the settings with which all numbers of devices run, and the hardware here."""
    from flatout.config.placement import DeviceName, Placement
    from flatout.config.placement_checks import refuse_shards
    from flatout.hardware.inventory import inventory

    least = {"shards": str(math.lcm(*counts))}
    config, _ = settle(asked, least | dict(given) | {"quiet": True})
    import_here(*(code for _, code in named_code(config)))
    for count in counts:  # before anything runs
        learn = tuple(DeviceName("cpu", number) for number in range(count))
        refuse_shards(Placement(learn=learn), config.run.shards)
    hardware = inventory()
    if len(hardware.usable_gpus) < max(counts) and "gpu" in config.run.placement:
        raise UsageError(
            f"--compare-devices {max(counts)}: this machine has {len(hardware.usable_gpus)} usable "
            "GPUs."
        )
    return with_run(config, checkpoint_every=0, tensorboard=False), hardware


def _new(
    config: TrainConfig,
    hardware: Hardware,
    counts: list[int],
    search: bool,
    console: Console,
) -> tuple[Scaling, dict[str, Any] | None]:
    """Run the work on each number of devices; with `search`, find the batch for which the largest
    number is faster."""
    virtual = len(hardware.usable_gpus) < max(counts)

    def run(config: TrainConfig, count: int) -> Row:
        console.print(f"[dim]· {_count(count)} ...[/dim]")
        settings: dict[str, Any] = {"devices": count}
        if virtual:
            settings = _on_cpu(config, count, bool(hardware.usable_gpus))
            settings["virtual_devices"] = max(counts)
        done = row(count, **measured(config, count, settings))
        rate = f"{done.seconds:.1f} s, {done.steps_per_s:,.0f} steps/s"
        console.print(f"  {rate}", highlight=False)  # a stop loses nothing that was measured
        return done

    rows = [run(config, count) for count in counts]
    scaling = Scaling(rows, hardware.cores, virtual)
    larger = None
    if search and len(rows) > 1 and scaling.speed_up(rows[-1]) < 1:
        larger = crossover(config, run, counts[0], counts[-1])
    return scaling, larger


def _on_cpu(config: TrainConfig, count: int, beside_gpus: bool) -> dict[str, Any]:
    """Return the settings of a run that learns on `count` of the CPU's devices. Where there are
    GPUs, ``devices`` would mean those: the placement names the CPU's."""
    from flatout.config.placement import DeviceName, parse

    run = config.run
    if not beside_gpus or "learn=" in run.placement:  # the second is refused: it names them itself
        return {"devices": count} | ({"placement": "cpu"} if run.placed is None else {})
    placed = run.placed or parse("cpu")
    cpus = tuple(DeviceName("cpu", number) for number in range(count))
    placed = replace(placed, learn=cpus, act=cpus if placed.fused else placed.act)
    return {"placement": str(placed)}


def _count(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def measured(config: TrainConfig, count: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the measurements of one run on `count` devices, in a process of its own.

    Raises:
        FlatoutError: the run failed.
    """
    what = f"the run with {_count(count)}"
    changed = with_run(config, **settings)
    return run_in_child(what, "flatout.measurements.measure:measured", (changed,))


def row(devices: int, summary: dict[str, Any], costs: dict[str, float], examples: int) -> Row:
    """Return a run's summary as a row."""
    seconds, rate = training_s(summary), summary["steps_per_s"]
    return Row(devices, seconds, rate, examples / seconds, split(summary, costs))


def crossover(config: TrainConfig, run: Any, fewest: int, most: int) -> dict[str, Any]:
    """Find the smallest measured batch with which the larger number of devices is faster.

    Returns:
        `batch`, or None for no batch, and `tried`: for each batch that was measured, the batch and
        the examples per second on the smallest and on the largest number of devices.
    """
    tried: list[tuple[int, float, float]] = []
    for factor in FACTORS:
        larger = enlarged(config, factor)
        if larger is None:
            break
        few, many = run(larger, fewest), run(larger, most)
        batch = int(getattr(larger.hyper, "batch_size", 0)) or larger.hyper.n_steps
        tried.append((batch, few.examples_per_s, many.examples_per_s))
        if many.examples_per_s > few.examples_per_s:
            return {"batch": batch, "tried": tried}
    return {"batch": None, "tried": tried}


def enlarged(config: TrainConfig, factor: int) -> TrainConfig | None:
    """Return the settings with a larger batch and about as many examples; None if impossible."""
    flat, hyper = config.flat(), config.hyper
    if not hyper.differentiates:
        return None
    if on_policy := isinstance(hyper, OnPolicyConfig):
        flat["n_steps"] *= factor
        rollout = flat["n_steps"] * flat["envs"]
        flat["steps"] = max(flat["steps"] // rollout, 1) * rollout
    if "batch_size" in flat:
        flat["batch_size"] *= factor
    if not hyper.acts:
        flat["steps"] = max(flat["steps"] // factor, 20)
    elif not on_policy:
        flat["buffer_size"] = max(flat["buffer_size"], flat["batch_size"])
    try:
        return revise(config, flat)
    except UsageError:
        return None


def compared(folders: Sequence[Path]) -> Scaling:
    """Return finished runs as one comparison.

    Raises:
        UsageError: the runs did different work, or a folder holds no finished run.
    """
    from flatout.config.placement import parse
    from flatout.storage.run_folder import load_config

    work: dict[str, dict[str, Any]] = {}
    rows: list[Row] = []
    virtual = False
    # What averaging and dispatching cost was not measured beside finished runs.
    costs = {"average_s": 0.0, "dispatch_s": 0.0, "averages": 0.0, "dispatches": 0.0}
    for folder in folders:
        try:
            summary = nofollow.read_json(folder / "summary.json")
            placement = parse(summary["placement"])
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ):
            raise UsageError(f"{folder} holds no finished run (no summary.json).") from None
        config = load_config(folder, None)
        try:
            work[str(folder)] = work_of(config, summary)
            rows.append(row(len(placement.learn), summary, costs, examples(config, summary)))
            _refuse_impossible(rows[-1])
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            raise UsageError(f"{folder / 'summary.json'} is damaged ({damage(error)}).") from error
        virtual |= not placement.learn[0].is_gpu and len(placement.learn) > 1
    _refuse_equal(folders, rows)
    refuse_unequal(work)
    from flatout.hardware.inventory import inventory

    return Scaling(sorted(rows, key=lambda row: row.devices), inventory().cores, virtual)


def _refuse_impossible(row: Row) -> None:
    """Raise `ValueError` for times and rates that no run has."""
    if not row.seconds > 0:
        raise ValueError("it took no time")
    plain_number(1 / row.seconds, "the rate")
    for number in (
        row.seconds,
        row.steps_per_s,
        row.examples_per_s,
        *row.parts.values(),
    ):
        if plain_number(number, "a time or rate") < 0:
            raise ValueError(f"{number:.3g} is a negative time or rate")


def _refuse_equal(folders: Sequence[Path], rows: Sequence[Row]) -> None:
    """Refuse two runs on the same number of devices, because nothing can be compared.

    Raises:
        UsageError: the message names the runs.
    """
    first = dict[int, Path]()
    for folder, row in zip(folders, rows, strict=True):
        other = first.setdefault(row.devices, folder)
        if other is not folder:
            raise UsageError(
                f"{other} and {folder} both ran on {_count(row.devices)}, so that there is nothing "
                "to compare; name runs on different numbers of devices."
            )


def work_of(config: TrainConfig, summary: dict[str, Any]) -> dict[str, Any]:
    """Return the values on which a run's speed depends."""
    done = {"steps": summary["steps"], "updates": summary["updates"]}
    settings = {name: value for name, value in config.flat().items() if name not in IGNORED}
    return {"examples": examples(config, summary)} | done | settings
