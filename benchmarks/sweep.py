"""How much sooner are many trials done as a sweep than in a shell loop over `flatout train`?

Rounds in turns: the loop, then the sweep, with the same settings, seeds, and compiled programs in a
cache that both share. Environments step on the host (`--backend host`: a process for each trial) or
on the device (`--backend device`: trials of one shape as populations). Every trial of a sweep of
processes is compared with the loop's: the same parameters to the last bit, or there is no result.
With `--tune PYTHON`, a Python that has Flatout and Ray Tune, its functions train the same trials.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

from harness import HERE, BenchmarkError, Command, Row, Store, flatout, main, parser
from processes import run_checked
from report import per_round, provenance, spread, table, write_section

COMMON = ("ppo", "--env", "CartPole-v1", "--envs", "8", "--n-steps", "256", "--no-tensorboard",
          "--checkpoint-every", "0")  # fmt: skip
CACHE = HERE / "runs" / "sweep" / "cache"
ENV = {"JAX_COMPILATION_CACHE_DIR": str(CACHE / "xla"), "XDG_CACHE_HOME": str(CACHE)}


def settings(args: argparse.Namespace) -> list[str]:
    """Return the words of what both sides train."""
    steps = str(args.steps)
    words = [*COMMON, "--steps", steps, "--eval-every", steps]
    return [*words, "--env-backend", "device"] if args.backend == "device" else words


def loop(args: argparse.Namespace, number: int) -> Command:
    """Return one `flatout train` after another."""
    folder = HERE / "runs" / "sweep" / f"loop-{args.backend}-{number}"
    train = shlex.join([flatout(args), "train", *settings(args), "--quiet"])
    text = (
        f"for seed in $(seq 0 {args.trials - 1}); do {train} --seed $seed "
        f"--run-dir {shlex.quote(str(folder))}/seed=$seed || exit 1; done; echo '{{}}'"
    )
    return Command(["bash", "-c", text], ENV, folder)


def sweep(args: argparse.Namespace, number: int) -> Command:
    """Return the same trials as a sweep."""
    folder = HERE / "runs" / "sweep" / f"sweep-{args.backend}-{number}"
    argv = [flatout(args), "sweep", *settings(args), "--seeds", str(args.trials),
            "--run-dir", str(folder), "--json"]  # fmt: skip
    return Command(argv, ENV, folder, checked_sweep(args))


def tune(args: argparse.Namespace, number: int) -> Command:
    """Return the same trials as functions of Ray Tune."""
    argv = [args.tune, str(HERE / "peers" / "ray_tune.py"), "--trials", str(args.trials),
            "--steps", str(args.steps), "--backend", args.backend, "--seed", "0"]  # fmt: skip

    def check(command: Command, row: Row) -> Row:
        if row["trials"] != args.trials or row["fewest_steps"] < args.steps:
            raise BenchmarkError(f"Ray Tune finished {row['trials']} of {args.trials} trials.")
        return row

    return Command(argv, ENV, None, check)


def checked_sweep(args: argparse.Namespace) -> Callable[[Command, Row], Row]:
    """Return a function that refuses a sweep that did other work than the loop."""

    def check(command: Command, row: Row) -> Row:
        assert command.run_dir is not None
        paths = [path.parent for path in command.run_dir.rglob("summary.json")]
        summaries = [json.loads((path / "summary.json").read_text()) for path in paths]
        if len(paths) != args.trials or any(one["steps"] < args.steps for one in summaries):
            raise BenchmarkError(f"{len(paths)} of {args.trials} trials are whole.")
        other = Path(str(command.run_dir).replace("sweep-", "loop-"))
        if args.backend == "host" and other.is_dir():
            for path in paths:
                if parameters(path) != parameters(other / path.name):
                    raise BenchmarkError(f"{path.name} learned something else than alone.")
        return {name: row[name] for name in ("at_once", "rates", "each_mb")}

    return check


def parameters(path: Path) -> dict[str, bytes]:
    """Return a run's parameters by name."""
    from safetensors.numpy import load_file

    return {name: a.tobytes() for name, a in load_file(path / "params.safetensors").items()}


def warm_up(args: argparse.Namespace) -> None:
    """Fill the cache of compiled programs."""
    for make, trials in ((loop, 1), (sweep, 2)):
        made = make(argparse.Namespace(**vars(args) | {"trials": trials}), 99)
        shutil.rmtree(str(made.run_dir), ignore_errors=True)  # of a benchmark that was stopped
        run_checked(made.argv, made.env)


def benchmark(args: argparse.Namespace) -> None:
    """Run the rounds and write the section."""
    used = {"trials": args.trials, "steps": args.steps, "backend": args.backend}
    name = f"sweep_{args.backend}"
    store = Store(name, used, args)
    warm_up(args)
    sides = {"loop": lambda n: loop(args, n), "sweep": lambda n: sweep(args, n)}
    names = {"loop": "shell loop over `flatout train`", "sweep": "`flatout sweep`"}
    if args.tune:
        sides["tune"] = lambda n: tune(args, n)
        names["tune"] = "functions of Ray Tune"
    rows = store.alternate(sides, range(args.seeds))
    seconds = {side: [row["wall_s"] for row in some] for side, some in rows.items()}
    counts = sorted({row["result"]["at_once"] for row in rows["sweep"]})
    body = [
        [names[side], spread(some, 1), spread(per_round(some, seconds["sweep"]))]
        for side, some in seconds.items()
    ]
    write_section(args, name, f"""## Sweep: {args.trials} trials, environments on the {args.backend}

{table(["side", "seconds", "of a sweep's"], body)}

At a time, as measured: {", ".join(map(str, counts))}.

{provenance(args, rows)}
""")  # fmt: skip


if __name__ == "__main__":
    made = parser(__doc__, seeds=3, fewest=3)
    made.add_argument("--trials", type=int, default=32)
    made.add_argument("--steps", type=int, default=400_000, help="of each trial: about 20 s")
    made.add_argument("--backend", choices=("host", "device"), default="host")
    made.add_argument("--tune", help="a Python with Flatout and Ray Tune: as a third side")
    main(benchmark, made.parse_args())
