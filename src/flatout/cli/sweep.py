"""The command line of ``flatout sweep``: starts or resumes a sweep, and prints its table."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from flatout.cli.arguments import SettingsArguments, given_settings, read_settings, settle
from flatout.cli.flags import Word, out_files, run_folder
from flatout.cli.sweep_plan import (
    cards_of,
    cores_of,
    dry_run,
    on_gpu,
    slots_of,
    study_of,
)
from flatout.config.settings import change, load_file, parse_grid, revise, with_run
from flatout.config.values import Range
from flatout.errors import UsageError
from flatout.output import reserve_stdout
from flatout.storage.trust import Consent, named_code, refuse_unconfirmed
from flatout.sweeps import plan
from flatout.sweeps.plan import SweepPlan
from flatout.sweeps.sections import MOST
from flatout_explain.cli.parsing import option

if TYPE_CHECKING:
    from rich.console import Console

    from flatout.hardware.inventory import Hardware
    from flatout.run.interrupts import Interrupts
    from flatout.sweeps.folder import Folder


@dataclass(frozen=True)
class SweepArguments(SettingsArguments):
    """Train many configurations with many seeds, and rank the configurations.

    As many trials run at a time as gain anything. The table ranks the configurations by the
    interquartile mean (IQM) of their seeds' last evaluations. Each trial is an ordinary run folder:
    what `flatout train` makes with its settings.

      flatout sweep ppo --env CartPole-v1 --grid learning-rate=1e-4,3e-4 --seeds 5
      flatout sweep sweep.toml --steps 100000
    """

    usage: ClassVar[tuple[str, ...]] = (
        "SWEEP.toml [--run-dir DIR] [settings of train]",
        "ALGORITHM --grid KEY=V1,V2 --seeds N [--run-dir DIR] [settings of train]",
        "--resume DIR",
    )

    algorithm: Annotated[str | None, Word("ALGORITHM|SWEEP.toml")] = None
    """The algorithm, or the file of the sweep."""
    grid: Annotated[tuple[str, ...], "KEY=V1,V2"] = ()
    """Every combination of these values; repeat it for each setting."""
    seeds: Annotated[int | None, Range(1, MOST)] = None
    """Number of seeds for each configuration, from --seed on."""
    resume: Annotated[str | None, "DIR"] = None
    """Resume a sweep that was stopped or killed; failed trials are tried again."""
    dry_run: bool = False
    """Say what would be trained, how long that takes, and its memory."""
    at_once: Annotated[int | None, Range(1, 1024)] = None
    """Number of trials at a time, instead of measuring how many gain anything."""
    engine: Literal["local", "ray"] = "local"
    """ray: on a Ray cluster, which is started here unless --ray-address names one; run folders come
    back."""
    strategy: Literal["auto", "together", "spread", "apart"] | None = None
    """How trials that one program can train (--env-backend device) share the machine: auto,
    together, spread; or apart, each in a process of its own."""
    out: Annotated[tuple[str, ...], "FILE"] = ()
    """At the end, write the table: .html (one page with curves and verdicts), .csv, .json or .png;
    may be repeated."""
    quiet: bool = False
    """No display while it runs."""
    json: bool = False
    """Print the result as one JSON object, alone on stdout."""


def sweep(argv: list[str], interrupts: Interrupts) -> int:
    """Run the command; return the exit code.

    Args:
        interrupts: at a signal, every trial saves its state and ends.
    """
    asked, given = read_settings(SweepArguments, "flatout sweep", argv)
    at_once, resumed = asked.at_once, asked.resume
    on_ray, dry, as_json = asked.engine == "ray", asked.dry_run, asked.json
    # With --engine ray it is the cluster of whole trials; otherwise of each trial's workers.
    address = given.pop("ray_address", None) if on_ray or resumed is not None else None
    if asked.algorithm is None and asked.preset is None and asked.config is None and not resumed:
        raise UsageError(
            "sweep needs a file or an algorithm: flatout sweep SWEEP.toml, or flatout sweep ppo "
            "--env CartPole-v1 --grid gamma=0.98,0.99 --seeds 5."
        )
    if dry and on_ray:
        raise UsageError("--dry-run plans for this machine: leave out --engine ray.")
    outs = out_files(asked.out, ".html", ".csv", ".json", ".png")
    if resumed is not None:
        _refuse_more(asked, given)
        run_folder(resumed, "--resume", "a sweep")
    if as_json:
        reserve_stdout()
    from rich.console import Console

    from flatout.hardware.inventory import inventory
    from flatout.storage.trust import import_here
    from flatout.sweeps.folder import Folder

    console, hardware = Console(stderr=as_json), inventory()
    planned = None
    if resumed is None:
        with interrupts.discardable():
            planned = new_plan(asked, given)
        import_here(*_code(planned), folder=planned.path)
        planned.strategy = asked.strategy or "auto"
        _refuse_clusters(planned, on_ray, planned.base.run.ray_address)
        if on_ray:
            planned.ray = _ray(address or planned.base.run.ray_address, at_once, interrupts)
        parts = cards_of(planned, hardware) or cores_of(planned, hardware)
        if asked.strategy != "apart":
            planned.populations = plan.populations(planned.trials, parts)
        if dry:
            with interrupts.discardable():
                return dry_run(planned, hardware, at_once, console)
        folder = new_folder(planned)
    else:
        folder = Folder(Path(resumed), True)
    with closing(folder):
        if planned is None:
            planned = folder.load(Consent(trust=asked.trust))
            import_here(*_code(planned), folder=planned.path)
            if address is not None and not on_ray:  # their cluster may have another one now
                planned.base = with_run(planned.base, ray_address=address)
            _refuse_clusters(planned, on_ray, address)
        else:
            planned.study = study_of(planned)  # refused before there is a plan
            folder.save(planned)
        if dry:
            with interrupts.discardable():
                return dry_run(planned, hardware, at_once, console)
        if on_ray and planned.ray is None:
            planned.ray = _ray(address or planned.base.run.ray_address, at_once, interrupts)
        return _run(planned, folder.descriptor, hardware, asked, outs, console, interrupts)


def new_folder(planned: SweepPlan) -> Folder:
    """Return the folder of a new sweep; one that the user did not name is no other's.

    Raises:
        UsageError, FlatoutError: as of `Folder`.
    """
    from flatout.storage.run_folder import open_unused
    from flatout.sweeps.folder import LOCK, Folder

    if planned.named:
        return Folder(planned.path, False)
    folder = open_unused(planned.path, lambda path: Folder(path, False), LOCK)
    planned.path = folder.path
    return folder


def _code(planned: SweepPlan) -> list[str]:
    """Return the code that a sweep names."""
    rows = [dict(group.row) for group in planned.groups]
    named = [code for _, code in named_code(planned.base)]
    return [*named, *plan.named_in([rows, planned.optuna])]


def _refuse_clusters(planned: SweepPlan, on_ray: bool, address: str | None) -> None:
    """Refuse trials that would start a Ray cluster each, and an address that none would use."""
    rows = [dict(group.row) for group in planned.groups] or [{}]
    runs = [change(planned.base, row).run for row in rows]
    clusters = [run for run in runs if run.placed is not None and run.placed.on_cluster]
    if clusters and on_ray:
        raise UsageError(
            "--engine ray trains each trial on one machine of the cluster, and with "
            "sampler=cluster each has workers on several: leave one of the two out. Without "
            "--engine ray, the trials' workers share the cluster of --ray-address."
        )
    if any(run.ray_address is None for run in clusters):
        raise UsageError(
            "each trial with sampler=cluster would start a Ray of its own: start one with: ray "
            "start --head, and name it with --ray-address auto, so that the trials share it."
        )
    if address is not None and not clusters and not on_ray:
        raise UsageError("--ray-address needs --engine ray (give both), or sampler=cluster.")


def _ray(address: str | None, at_once: int | None, interrupts: Interrupts) -> Any:
    """Return Ray, connected to the cluster that the flags name."""
    from flatout.hardware.ray_cluster import connect

    with interrupts.discardable():
        return connect(address, at_once, "--engine ray")


def _refuse_more(asked: SweepArguments, given: Mapping[str, Any]) -> None:
    """Refuse flags that would change a resumed sweep."""
    there = {"resume", "trust", "at_once", "engine", "out", "quiet", "json",
             "dry_run"}  # fmt: skip
    more = [
        spec.name for spec in fields(asked)
        if spec.name not in there and getattr(asked, spec.name) != spec.default
    ]  # fmt: skip
    words = [str(asked.algorithm) if name == "algorithm" else option(name) for name in more]
    if words := [*words, *map(option, given)]:
        raise UsageError(
            "--resume continues the sweep that is in its folder; leave out "
            f"{' '.join(words)[:200]}."
        )


def new_plan(asked: SweepArguments, given: Mapping[str, Any]) -> SweepPlan:
    """Return the plan of a new sweep; see `read_settings` for the arguments."""
    sections, where, common = dict[str, Any](), "--grid", None
    if asked.algorithm is not None and asked.algorithm.endswith(".toml"):
        where = asked.algorithm
        values = load_file(where, "the sweep")
        sections = {name: values.pop(name) for name in plan.SECTIONS if name in values}
        preset = values.pop("preset", None)
        preset = asked.preset if preset is None or asked.preset is not None else str(preset)
        if preset is None and not isinstance(values.get("algorithm"), str):
            raise UsageError(f'{where} names no algorithm; write algorithm = "ppo", for example.')
        common = where, values
        asked = replace(asked, algorithm=None, preset=preset)
    chosen = list(plan.choices(sections))  # by the file alone
    if asked.grid:
        grid = parse_grid(asked.grid, "--grid")
        sections["grid"] = {key: list(values.values()) for key, values in grid.items()}
    try:
        base, _ = settle(asked, given, common)
    except UsageError as error:
        raise UsageError(str(error) if common is None else f"{where}: {error}") from None
    common_to_all = base.flat()
    for name, value in chosen:
        named = {name: value} if common_to_all.get(name) == value else {}
        refuse_unconfirmed(where, {name: value}, Consent(named, asked.trust))
    if base.hyper.acts and not base.env.env:
        raise UsageError("no environment: pass --env ID, or write env = ... in the sweep's file.")
    named_there = {*given_settings(asked, given), *(common or ("", ()))[1]}
    if "eval_every" not in named_there and base.run.eval_every == 0:
        base = with_run(base, eval_every=base.run.steps)  # each trial is evaluated at its end
    if asked.seeds is not None:
        sections["seeds"] = asked.seeds
    seeds = plan.seeds_of(sections.pop("seeds", 1), base.run.seed)
    for seed in (min(seeds), max(seeds)):
        revise(base, {"seed": seed})
    path, named = base.run.run_dir, base.run.run_dir is not None
    if path is None:
        from flatout.storage.run_folder import default_folder

        path = str(default_folder(base, "sweep-"))
    base = with_run(base, run_dir=None, quiet=False, json=False)
    if "optuna" in sections:
        if more := sections.keys() - {"optuna"}:
            raise UsageError(
                f"{where}: [optuna] proposes all configurations; leave out [{min(more)}]."
            )
        from flatout.sweeps.optuna_storage import refuse_unsafe
        from flatout.sweeps.search import settings_of

        optuna = settings_of(sections["optuna"], base, f"{where}: [optuna]")
        if optuna["storage"] and not asked.trust:
            refuse_unsafe(optuna["storage"], Path(path), f"{where}: [optuna]", new=True)
        return SweepPlan(base, seeds, [], Path(path), optuna=optuna, named=named)
    groups = plan.groups(base, sections, where)
    plan.refuse_many(len(groups) * len(seeds), where)
    return SweepPlan(base, seeds, groups, Path(path), named=named)


def _run(
    planned: SweepPlan, lock: int, hardware: Hardware, asked: SweepArguments, outs: list[Path],
    console: Console, interrupts: Interrupts,
) -> int:  # fmt: skip
    """Train all trials, and show their progress."""
    from flatout.cli.sweep_screen import SweepScreen, result
    from flatout.sweeps import engine
    from flatout.sweeps.measured import keep
    from flatout.sweeps.sweep import Sweep

    slots = slots_of(planned, hardware, asked.at_once)
    per = max(-(-slots.most // max(len(hardware.usable_gpus), 1)), 1)
    if planned.ray is None:
        runner = engine.Local(lock, engine.cards(hardware, per), engine.cards(hardware, 1))
    else:
        from flatout.sweeps.cluster import Cluster

        cards = cards_of(planned, hardware)
        runner = Cluster(planned.ray, planned.path, -(-slots.most // cards) if cards else 0)
    made = Sweep(
        planned.path, planned.base, planned.seeds, planned.study or study_of(planned), runner,
        slots, planned.populations, planned.strategy,
    )  # fmt: skip
    screen = SweepScreen(made, console, asked.quiet)
    if planned.ray is None and hardware.usable_gpus and on_gpu(planned.base):
        screen.note(engine.mps_words())
    try:
        runner.warm(slots.early)
        made.run(screen.look, lambda: interrupts.signum is not None)
        if interrupts.signum is not None:
            screen.note("stopping: every trial is saved after its last whole iteration")
            made.stop()
    finally:
        runner.close()
        screen.close()
    keep(planned, made, hardware)
    return result(made, console, asked.json, outs, interrupts.signum)
