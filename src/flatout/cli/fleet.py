"""The command line of ``flatout fleet``: a sweep from its file or flags, to its table."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.cli.arguments import train_config
from flatout.cli.flags import take, take_all, take_file, take_switch
from flatout.cli.fleet_plan import Sweep, cards_of, cores_of, dry_run, on_gpu, slots_of, study_of
from flatout.config.settings import revise, with_run
from flatout.errors import UsageError
from flatout.output import reserve_stdout
from flatout.storage.trust import Consent, named_code, refuse_unconfirmed
from flatout.sweeps import plan
from flatout_explain.cli.parsing import existing

if TYPE_CHECKING:
    from rich.console import Console

    from flatout.hardware.inventory import Hardware
    from flatout.run.interrupts import Interrupts

HELP = """\
usage: flatout fleet SWEEP.toml [--run-dir DIR] [settings of train]
       flatout fleet ALGORITHM --grid KEY=V1,V2 ... --seeds N [--run-dir DIR] [settings of train]
       flatout fleet --resume DIR

Trains every configuration with every seed, as many at a time as gain anything, and ranks the
configurations by the interquartile mean (IQM) of their seeds' last evaluations. Each trial is an
ordinary run folder: what `flatout train` makes with its settings.

  --grid KEY=V1,V2 ...   every combination of these values
  --seeds N              so many seeds for each configuration, from --seed on
  --resume DIR           go on with a fleet that was stopped or killed; failed trials once more
  --dry-run              say what would be trained, how long that takes, and its memory
  --at-once N            so many trials at a time, instead of measuring how many gain anything
  --engine ray           on a Ray cluster: at --ray-address HOST:PORT (or auto), else one that is
                         started here; run folders come back
  --strategy NAME        of trials that one program can train (--env-backend device): auto,
                         together, spread; or apart, each in a process of its own
  --html FILE.html       one page with the table, curves and verdicts, at the end
  --quiet                no display while it runs
  --json                 the result as one JSON object, alone on stdout

  flatout fleet ppo --env CartPole-v1 --grid learning-rate=1e-4,3e-4 --seeds 5
  flatout fleet sweep.toml --steps 100000
"""


def fleet(argv: list[str], interrupts: Interrupts) -> int:
    """Run the command; returns the exit code.

    Args:
        interrupts: a signal lets every trial save what it has.
    """
    if not argv or any(word in argv for word in ("-h", "--help")):
        print(HELP, end="")
        return 0 if argv else 2
    at_once, argv = take(argv, "--at-once")
    strategy, argv = take(argv, "--strategy")
    named, argv = take(argv, "--engine")
    address, argv = take(argv, "--ray-address")
    html, argv = take_file(argv, "--html")
    resumed, argv = take(argv, "--resume")
    as_json, argv = take_switch(argv, "--json")
    quiet, argv = take_switch(argv, "--quiet")
    dry, argv = take_switch(argv, "--dry-run")
    if at_once is not None and not (at_once.isdecimal() and 1 <= int(at_once) <= 1024):
        raise UsageError(f"--at-once {at_once}: a number of trials from 1 to 1024.")
    if named not in (None, "local", "ray"):
        raise UsageError(f"--engine {named[:100]} is neither local nor ray.")
    if address is not None and named != "ray":
        raise UsageError("--ray-address is of --engine ray: give both.")
    if dry and named == "ray":
        raise UsageError("--dry-run plans for this machine: leave out --engine ray.")
    if html is not None:
        from flatout.reports.ranking_tables import writable

        if not html.endswith(".html"):
            raise UsageError(f"--html {html}: name a .html file.")
        writable(Path(html))
    if strategy not in (None, *plan.STRATEGIES):
        raise UsageError(f"--strategy {strategy[:100]} is none of {', '.join(plan.STRATEGIES)}.")
    if resumed is not None and (strategy or [word for word in argv if word != "--trust"]):
        words = [*argv, *(["--strategy"] if strategy else [])]
        raise UsageError(
            f"--resume goes on with the sweep that there is; leave out {' '.join(words)[:200]}."
        )
    if resumed is not None:
        existing(resumed, "--resume")
    if as_json:
        reserve_stdout()
    from rich.console import Console

    from flatout.hardware.inventory import inventory
    from flatout.storage.trust import import_here
    from flatout.sweeps.folder import Folder

    console, hardware = Console(stderr=as_json), inventory()
    sweep = None
    if resumed is None:
        with interrupts.discardable():
            sweep = _new(argv)
        import_here(*_code(sweep), folder=sweep.path)
        sweep.strategy = strategy or "auto"
        if named == "ray":
            sweep.ray = _ray(address, at_once, interrupts)
        parts = cards_of(sweep, hardware) or cores_of(sweep, hardware)
        sweep.populations = {} if strategy == "apart" else plan.populations(sweep.trials, parts)
        if dry:
            with interrupts.discardable():
                return dry_run(sweep, hardware, at_once, console)
        folder = Folder(sweep.path, False)
    else:
        folder = Folder(Path(resumed), True)
    with closing(folder):
        if sweep is None:
            sweep = Sweep(*folder.load(Consent(trust="--trust" in argv)))
            import_here(*_code(sweep), folder=sweep.path)
        else:
            sweep.study = study_of(sweep)  # refused before there is a plan
            folder.save(sweep.base, sweep.seeds, sweep.groups, sweep.strategy, sweep.populations,
                        sweep.optuna)  # fmt: skip
        if dry:
            with interrupts.discardable():
                return dry_run(sweep, hardware, at_once, console)
        if named == "ray" and sweep.ray is None:
            sweep.ray = _ray(address, at_once, interrupts)
        return _run(
            sweep, folder.descriptor, hardware, at_once, console, quiet, as_json, html, interrupts
        )


def _code(sweep: Sweep) -> list[str]:
    """The code that a sweep names."""
    rows = [dict(group.row) for group in sweep.groups]
    named = [code for _, code in named_code(sweep.base)]
    return [*named, *plan.named_in([rows, sweep.optuna])]


def _ray(address: str | None, at_once: str | None, interrupts: Interrupts) -> Any:
    """Ray, connected."""
    from flatout.sweeps.cluster import connect

    with interrupts.discardable():
        return connect(address, None if at_once is None else int(at_once))


def _new(argv: list[str]) -> Sweep:
    """Interpret the command line of a new fleet."""
    if any(word.partition("=")[0] == "--from" for word in argv):
        raise UsageError("--from starts one run; leave it out of a sweep.")
    words, argv = take_all(argv, "--grid")
    count, argv = take(argv, "--seeds")
    sections, where, common = dict[str, Any](), "--grid", None
    if argv and argv[0].endswith(".toml"):
        where = argv.pop(0)
        values = plan.read(Path(where))
        sections = {name: values.pop(name) for name in plan.SECTIONS if name in values}
        if "preset" in values:
            argv = ["--preset", str(values.pop("preset")), *argv]
        elif not isinstance(values.get("algorithm"), str):
            raise UsageError(f'{where} names no algorithm; write algorithm = "ppo", for example.')
        common = where, values
    chosen = list(plan.choices(sections))  # by the file alone
    if words:
        sections["grid"] = plan.grid_of(words)
    try:
        base, resumed = train_config(argv, common)
    except UsageError as error:
        raise UsageError(str(error) if common is None else f"{where}: {error}") from None
    common_to_all = base.flat()
    for name, value in chosen:
        named = {name: value} if common_to_all.get(name) == value else {}
        refuse_unconfirmed(where, {name: value}, Consent(named, "--trust" in argv))
    if resumed or (base.hyper.acts and not base.env.env):
        raise UsageError("no environment: pass --env ID, or write env = ... in the sweep's file.")
    given = {word.partition("=")[0] for word in argv} | {*(common or ("", ()))[1]}
    if not given & {"--eval-every", "eval_every"} and base.run.eval_every == 0:
        base = with_run(base, eval_every=base.run.steps)  # each trial is evaluated at its end
    if count is not None:
        sections["seeds"] = int(count) if count.isdecimal() else count
    seeds = plan.seeds_of(sections.pop("seeds", 1), base.run.seed)
    for seed in (min(seeds), max(seeds)):
        revise(base, {"seed": seed})
    path = base.run.run_dir
    if path is None:
        from flatout.storage.run_folder import default_folder

        path = str(default_folder(base)).replace("runs/", "runs/fleet-", 1)
    base = with_run(base, run_dir=None, quiet=False, json=False)
    if "optuna" in sections:
        if more := sections.keys() - {"optuna"}:
            raise UsageError(
                f"{where}: [optuna] proposes all configurations; leave out [{min(more)}]."
            )
        from flatout.sweeps.optuna_storage import refuse_unsafe
        from flatout.sweeps.search import settings_of

        optuna = settings_of(sections["optuna"], base, f"{where}: [optuna]")
        if optuna["storage"] and "--trust" not in argv:
            refuse_unsafe(optuna["storage"], Path(path), f"{where}: [optuna]", new=True)
        return Sweep(base, seeds, [], Path(path), optuna=optuna)
    groups = plan.groups(base, sections, where)
    plan.refuse_many(len(groups) * len(seeds), where)
    return Sweep(base, seeds, groups, Path(path))


def _run(
    sweep: Sweep, lock: int, hardware: Hardware, at_once: str | None, console: Console,
    quiet: bool, as_json: bool, html: str | None, interrupts: Interrupts,
) -> int:  # fmt: skip
    """Train all of it, and show it."""
    from flatout.cli.fleet_screen import Screen, result
    from flatout.sweeps import engine
    from flatout.sweeps.fleet import Fleet
    from flatout.sweeps.measured import keep

    slots = slots_of(sweep, hardware, at_once)
    per = max(-(-slots.most // max(len(hardware.usable_gpus), 1)), 1)
    if sweep.ray is None:
        runner = engine.Local(lock, engine.cards(hardware, per), engine.cards(hardware, 1))
    else:
        from flatout.sweeps.cluster import Cluster

        cards = cards_of(sweep, hardware)
        runner = Cluster(sweep.ray, sweep.path, -(-slots.most // cards) if cards else 0)
    made = Fleet(
        sweep.path, sweep.base, sweep.seeds, sweep.study or study_of(sweep), runner, slots,
        sweep.populations, sweep.strategy,
    )  # fmt: skip
    screen = Screen(made, console, quiet)
    if sweep.ray is None and hardware.usable_gpus and on_gpu(sweep.base):
        screen.note(engine.mps_words())
    try:
        runner.warm(min(slots.cores, slots.most))
        made.run(screen.look, lambda: interrupts.signum is not None)
        if interrupts.signum is not None:
            screen.note("stopping: every trial saves its last iteration's boundary")
            made.stop()
    finally:
        runner.close()
        screen.close()
    keep(made, hardware)
    return result(made, console, as_json, html, interrupts.signum)
