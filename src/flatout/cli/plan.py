"""The command line of ``flatout plan``."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.cli.arguments import read_settings, settle
from flatout.cli.compare_devices import compare_devices
from flatout.cli.flags import out_files, write_out
from flatout.cli.plan_arguments import PlanArguments, refuse_unused
from flatout.config.schema import TrainConfig
from flatout.envs.source import EnvSource
from flatout.errors import FlatoutError, UsageError, damage, with_full_stop
from flatout.output import json_text, print_json, reserve_stdout
from flatout.planning.answer import Answer
from flatout.planning.machine import known_network
from flatout.planning.what_if import (
    MEASURED_ANEW,
    SPARES,
    Change,
    Outcome,
    changed,
    outcome,
    refuse_cards,
    refuse_unmeasured,
)
from flatout.planning.what_if import parse as parse_changes
from flatout.reports.figure import PICTURES
from flatout.storage.trust import import_here
from flatout_explain import output_file
from flatout_explain.documents import read_json

if TYPE_CHECKING:
    from rich.console import Console

    from flatout.hardware.inventory import Hardware


def plan(argv: list[str]) -> int:
    """Run the command; return the exit code."""
    asked, given = read_settings(PlanArguments, "flatout plan", argv)
    refuse_unused(asked)
    if asked.table:
        from flatout.cli.plan_table import plan_table

        return plan_table(asked, given)
    if asked.compare_devices:
        return compare_devices(asked, given)
    outs = out_files(asked.out, ".json", *PICTURES)
    if asked.save_machine is not None:
        output_file.check_writable(Path(asked.save_machine))  # before anything is measured
    machine, budget = asked.machine, asked.seconds
    changes = parse_changes(asked.what_if)
    if asked.algorithm is None and asked.preset is None and asked.config is None:
        raise UsageError(
            "plan needs an algorithm and an environment: flatout plan ppo --env CartPole-v1 "
            "--envs 8."
        )
    config, _ = settle(asked, given)
    if not config.env.env:
        raise UsageError("plan needs an environment: pass --env ID, or --preset NAME.")
    if not config.hyper.acts:
        raise UsageError(f"{config.algorithm} has no environment: there is one way to place it.")
    if asked.json:
        reserve_stdout()
    from rich.console import Console

    from flatout.hardware import backend
    from flatout.hardware.inventory import inventory
    from flatout.hardware.ray_cluster import refuse_silent

    backend.show_virtual_devices(config.run.virtual_devices)
    hardware, console = inventory(), Console(stderr=asked.json)
    refuse_cards(changes, len(hardware.usable_gpus))
    others = [_with(change, config, machine) for change in changes]
    if not console.is_terminal:  # a file or a pipe has room for the whole table
        console.width = max(console.width, 200)
    if machine is not None:
        answer, where = _read_machine(Path(machine), config)
    else:
        import_here(config.env.env, config.algorithm)
        if (address := config.run.ray_address) not in (None, "auto"):
            refuse_silent(address)  # before anything is measured
        answer = _answer(config, hardware, budget)
        where = f"{hardware.cpu_name}, {hardware.cores} cores"
    show(answer, where, console)
    outcomes, failed = list[Outcome](), None
    try:
        for change, other in zip(changes, others, strict=True):
            outcomes.append(_outcome(change, other, config, answer, hardware, budget))
            show_outcome(outcomes[-1], console)
    except FlatoutError as error:  # raised once what was measured is written
        failed = error
    if asked.allow_batch_changes and answer.larger is not None:
        envs, p = answer.larger
        console.print(
            f"--envs {envs} with {p.placement}: {p.rate:,.0f} steps/s predicted "
            f"({p.low:,.0f} - {p.high:,.0f}); what is learned changes",
            soft_wrap=True, highlight=False,
        )  # fmt: skip
    values = answer.as_json() | {
        "machine": where, "chosen": str(answer.chosen.placement),
        "what_if": [asdict(o) | {"then": str(o.then.placement)} for o in outcomes],
    }  # fmt: skip
    if asked.json:
        print_json(values)
    write_out(outs, values, partial(draw, answer))
    if asked.save_machine is not None:
        saved = {"machine": where, "settings": _compared(config), "how": "flatout plan",
                 "answer": answer.as_json()}  # fmt: skip
        output_file.write(Path(asked.save_machine), json_text(saved, indent=2) + "\n")
    if failed is not None:
        raise failed
    return 0


def _answer(config: TrainConfig, hardware: Hardware, budget: float) -> Answer:
    from flatout.run import auto, planner
    from flatout.types import NAMED

    found, _ = auto.recall(config, hardware, NAMED)
    return found or planner.measured(config, config.run.placement, hardware, budget)


def _with(change: Change, config: TrainConfig, machine: str | None) -> TrainConfig | None:
    """Return the settings that must be measured to answer; None if none must be.

    Raises:
        UsageError: they are impossible, or cannot be measured.
    """
    from flatout.config.settings import revise

    if change.key == SPARES and EnvSource.of(config.env).atari:
        raise UsageError(
            f"--what-if {change}: resets of Atari games are a part of their steps, and not timed: "
            "compare two runs, with --spare-envs all and --spare-envs 0."
        )
    name = MEASURED_ANEW.get(change.key)
    if name is None:
        return None
    if machine is not None:
        raise UsageError(
            f"--what-if {change} has to be measured, which --machine {machine} rules out."
        )
    if name not in config.flat():
        raise UsageError(f"--what-if {change}: {config.algorithm} has no {name}.")
    value = change.value if name == "hidden" else int(change.value)
    try:
        return revise(config, {name: value})
    except UsageError as error:
        raise UsageError(f"--what-if {change}: {error}") from None


def _outcome(
    change: Change, other: TrainConfig | None, config: TrainConfig, answer: Answer,
    hardware: Hardware, budget: float,
) -> Outcome:  # fmt: skip
    refuse_unmeasured(change, answer.stages)
    stages, wider = changed(answer.stages, [change], known_network())
    then = replace(answer, stages=stages)
    if other is not None:
        then = _answer(other, hardware, budget)
    lag = config.run.allow_lag and not config.hyper.only_serial
    return outcome(str(change), answer, then, wider, lag)


def _compared(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that a machine's file must share with a run."""
    from flatout.run.auto import UNIMPORTANT

    values = {name: v for name, v in config.flat().items() if name not in UNIMPORTANT}
    return json.loads(json.dumps(values | {"algorithm": config.algorithm}, default=str))


def _read_machine(path: Path, config: TrainConfig) -> tuple[Answer, str]:
    """Return the measurements of another machine.

    Raises:
        UsageError: the file holds no measurements, or those of another run.
    """
    try:
        values = read_json(path)
    except OSError as error:
        raise UsageError(f"--machine {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UsageError(
            f"--machine {path} cannot be read as JSON: {with_full_stop(error)}"
        ) from None
    try:
        answer, settings = Answer.from_json(values["answer"]), dict(values["settings"])
        where = str(values["machine"])[:200]
    except (ValueError, KeyError, TypeError) as error:
        why = damage(error) if isinstance(values, dict) else "its JSON is not an object"
        raise UsageError(
            f"--machine {path} does not hold a machine's measurements ({why}); flatout plan with "
            "--save-machine FILE writes them on that machine."
        ) from None
    mine = _compared(config)
    other = [name for name in mine if settings.get(name) != mine[name]]
    if other:
        name = other[0]
        raise UsageError(
            f"--machine {path} was measured with {name} = {settings.get(name)}, and this run has "
            f"{mine[name]}: speeds of other work are not guessed; measure this run there."
        )
    return answer, where


def show_outcome(o: Outcome, console: Console) -> None:
    """Print the answer to one question."""
    console.print(
        f"what if {o.change}: {o.gain:.2f} times as fast ({o.low:.2f} - {o.high:.2f}) with "
        f"{o.then.placement}; then {o.bottleneck} holds it up",
        soft_wrap=True, highlight=False, markup=False,
    )  # fmt: skip
    for note in o.notes:
        console.print(f"  {note}", soft_wrap=True, highlight=False, markup=False)


def show(answer: Answer, where: str, console: Console) -> None:
    """Print the table and the choice."""
    from rich.table import Table
    from rich.text import Text

    from flatout.output import on_one_line, printable
    from flatout.planning.plan import why

    table = Table(box=None, padding=(0, 2), pad_edge=False)
    headings = ("placement", "steps/s predicted", "interval", "measured", "error", "memory",
                "waits")  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("placement", "waits") else "right")
    chosen = answer.chosen
    for p in answer.predictions:
        error = "" if p.measured is None else f"{100 * (p.rate / p.measured - 1):+.0f} %"
        memory = ", ".join(f"{device} {size:,.0f} MiB" for device, size in p.memory.items())
        waits = ", ".join(f"{n} {100 * s:.0f} %" for n, s in p.waits.items() if s >= 0.01)
        table.add_row(
            ("* " if p.placement == chosen.placement else "  ") + str(p.placement),
            f"{p.rate:,.0f}", f"{p.low:,.0f} - {p.high:,.0f}",
            "" if p.measured is None else f"{p.measured:,.0f}", error, memory, waits,
        )  # fmt: skip
    console.print(f"measured on {printable(where)} in {answer.spent_s:.1f} s", markup=False)
    console.print(table)
    for note in answer.notes:
        console.print(Text(on_one_line(note), style="yellow"), soft_wrap=True)
    console.print(f"take {answer.words()}", soft_wrap=True, highlight=False, markup=False)
    console.print(why(chosen, answer.stages), soft_wrap=True, highlight=False, markup=False)


def draw(answer: Answer, file: Path) -> None:
    """Write the table as bars with their intervals.

    Raises:
        FlatoutError: the file cannot be written.
    """
    from flatout.reports.figure import figure, save

    rows = answer.predictions[::-1]
    rates = [p.best_known for p in rows]
    errors = [[max(p.best_known - p.low, 0.0) for p in rows],
              [max(p.high - p.best_known, 0.0) for p in rows]]  # fmt: skip
    colors = ["C0" if p.placement == answer.chosen.placement else "0.7" for p in rows]
    with figure(8, 1.2 + 0.35 * len(rows)) as drawn:
        axes = drawn.add_subplot()
        axes.barh(
            [str(p.placement) for p in rows],
            rates,
            xerr=errors,
            color=colors,
            capsize=3,
        )
        axes.set(xlabel="steps/s, measured where it was run, else predicted", xlim=(0, None))
        save(drawn, file)
