"""Speed of SAC and TD3 on Pendulum-v1 at equal work, and the machine's arithmetic limit.

One environment, minibatches of 256, one update per step, Stable-Baselines3's defaults and networks
(SAC 256x256, TD3 400x300): Flatout, Stable-Baselines3 and SBX in turn. Between them
``arithmetic.py`` times the matrix products of one update alone, in JAX and in NumPy; the faster of
the two is what this machine's arithmetic allows. Training writes what each program writes by
default: Flatout metrics, TensorBoard events and checkpoints; the peers nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

from harness import (
    HERE,
    NO_CACHE,
    BenchmarkError,
    Command,
    Row,
    Store,
    main,
    parser,
    peer_command,
    train_command,
)
from report import RATIO_HEAD, per_round, provenance, ratio_row, spread, table, write_section
from window import SPEED_HEAD, Work, figures, phase_table, rates, shares, speed_row, windowed

NAME, FUSED_NAME = "sac_td3_pendulum", "sac_td3_fused"
BATCH = 256
HIDDEN = {"sac": ("256", "256"), "td3": ("400", "300")}
LEARNING_STARTS, WINDOW_FROM, LOG_EVERY = 100, 600, 100
ENGINES = ("jax", "numpy")


def benchmark(args: argparse.Namespace) -> None:
    """Run all sides in turn, algorithm by algorithm, and write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    work = Work(args.steps, LEARNING_STARTS, WINDOW_FROM, log_every=LOG_EVERY)
    rows: dict[str, list[Row]] = {}
    for algorithm in args.algorithms:
        rows |= run(args, algorithm, work)
    if args.fused:
        write_section(args, FUSED_NAME, fused_section(args, rows, work))
    else:
        write_section(args, NAME, section(args, rows, work))


def run(args: argparse.Namespace, algorithm: str, work: Work) -> dict[str, list[Row]]:
    """Every side of one algorithm; rows by side."""
    hidden = ("--hidden", ",".join(HIDDEN[algorithm]))
    flags = (
        "--env", "Pendulum-v1", *work.flags(), "--batch-size", str(BATCH), *hidden,
        "--buffer-size", "1000000", "--gamma", "0.99", "--tau", "0.005",
        "--learning-rate", "1e-3" if algorithm == "td3" else "3e-4",
    )  # fmt: skip
    settings: Row = {
        "algorithm": algorithm, "flags": list(flags), "window_from": work.window_from,
        "extra": args.flatout_args, "threads": args.peer_threads,
    }  # fmt: skip
    store = Store(FUSED_NAME if args.fused else NAME, settings, args)
    args.fresh = False  # the algorithms share one file, which the first has put aside

    def peer(library: str) -> Callable[[int], Command]:
        return lambda seed: peer_command(
            args, "sb3_offpolicy.py", seed, "--library", library, "--algo", algorithm, *flags,
            "--window-from", str(work.window_from), "--threads", str(args.peer_threads),
        )  # fmt: skip

    def arithmetic(engine: str) -> Callable[[int], Command]:
        argv = [
            sys.executable, str(HERE / "arithmetic.py"), "--algo", algorithm, "--engine", engine,
            *hidden, "--batch-size", str(BATCH),
        ]  # fmt: skip
        return lambda seed: Command([*argv, "--seed", str(seed)], NO_CACHE)

    sides: dict[str, Callable[[int], Command]] = {
        f"{algorithm}, flatout": lambda seed: train_command(
            args, NAME, f"{algorithm}-flatout", seed, *flags, "--log-every", str(LOG_EVERY),
            algorithm=algorithm, finish=windowed(work.window_from),
        ),
        f"{algorithm}, one program": lambda seed: train_command(
            args, NAME, f"{algorithm}-fused", seed, *flags, "--log-every", str(LOG_EVERY),
            "--env-backend", "device", algorithm=algorithm, finish=windowed(work.window_from),
        ),
        f"{algorithm}, sb3": peer("sb3"),
        f"{algorithm}, sbx": peer("sbx"),
    }  # fmt: skip
    if args.fused:
        sides = {name: side for name, side in sides.items() if name.endswith("one program")}
    sides |= {f"{algorithm}, products in {engine}": arithmetic(engine) for engine in ENGINES}

    def check(row: Row) -> None:
        if "products" not in row["side"]:
            work.check(row)

    return store.alternate(sides, range(args.seeds), check=check)


def limits_of(rows: dict[str, list[Row]], algorithm: str) -> tuple[list[list[float]], list[float]]:
    """Updates per second of the products alone by engine, and the faster one's."""
    engines = [
        figures(rows[f"{algorithm}, products in {engine}"], "updates_per_s") for engine in ENGINES
    ]
    return engines, [max(pair) for pair in zip(*engines, strict=True)]


def fused_section(args: argparse.Namespace, rows: dict[str, list[Row]], work: Work) -> str:
    """The Markdown of the whole loop in one program against the limit."""
    body, ratios = [], []
    for algorithm in args.algorithms:
        _, limit = limits_of(rows, algorithm)
        ours = rates(rows[f"{algorithm}, one program"], "updates")
        body.append([algorithm, spread(ours, 0), spread(limit, 0)])
        label = f"{algorithm}: one program / arithmetic limit, updates/s"
        ratios.append(ratio_row(label, per_round(ours, limit)))
    return f"""## SAC and TD3 on Pendulum-v1 in one program, and the arithmetic limit

{provenance(args, rows)}
- {work.steps:,} steps, {work.updates:,} updates of {BATCH} transitions, checked; one environment,
  one update per step, Stable-Baselines3's defaults. The limit is the rate of one update's matrix
  products alone (`arithmetic.py`), the faster of JAX and NumPy in each round.

{table(["algorithm", "updates/s in one program", "limit"], body)}

{table(RATIO_HEAD, ratios)}
"""


def section(args: argparse.Namespace, rows: dict[str, list[Row]], work: Work) -> str:
    """The Markdown of this benchmark."""
    ratios, limits = [], []
    for algorithm in args.algorithms:
        ours, sb3, sbx = (rows[f"{algorithm}, {side}"] for side in ("flatout", "sb3", "sbx"))
        whole = [[row["wall_s"] for row in runs] for runs in (ours, sb3)]
        engines, limit = limits_of(rows, algorithm)
        learning = [
            rate / share
            for rate, share in zip(rates(ours, "updates"), shares(ours, "learn"), strict=True)
        ]
        ratios += [
            (f"{algorithm}: flatout / sb3, while learning", per_round(rates(ours), rates(sb3))),
            (f"{algorithm}: flatout / sbx, while learning", per_round(rates(ours), rates(sbx))),
            (
                f"{algorithm}: one program / arithmetic limit, updates/s",
                per_round(rates(rows[f"{algorithm}, one program"], "updates"), limit),
            ),
            (f"{algorithm}: sb3 / flatout, whole process time", per_round(whole[1], whole[0])),
            (
                f"{algorithm}: flatout / arithmetic limit, updates/s",
                per_round(rates(ours, "updates"), limit),
            ),
            (
                f"{algorithm}: flatout's gradient steps alone / arithmetic limit",
                per_round(learning, limit),
            ),
        ]
        made = rows[f"{algorithm}, products in jax"][0]["result"]
        limits.append(
            [
                algorithm, f"{made['products_per_update']:.1f}",
                f"{made['flop_per_update'] / 1e6:.0f}",
                *(spread(values, 0) for values in (*engines, limit)),
                f"{statistics.median(limit) * made['flop_per_update'] / 1e9:.0f}",
            ]
        )  # fmt: skip
    speeds = {side: runs for side, runs in rows.items() if "products" not in side}
    limit_head = [
        "one update's products", "products", "MFLOP", "updates/s in JAX", "updates/s in NumPy",
        "limit: the faster", "GFLOP/s",
    ]  # fmt: skip
    return f"""## SAC and TD3 on Pendulum-v1: speed at equal work

{provenance(args, rows)}
- {work.steps:,} steps and {work.updates:,} updates of {BATCH} transitions on every side, checked;
  one environment, one update per step, Stable-Baselines3's defaults (SAC 256x256, TD3 400x300); on
  the CPU, no compilation cache. PyTorch has {args.peer_threads or "its default number of"}
  thread(s).
- "While learning" is from step {work.window_from:,} to the end. The arithmetic limit is the rate of
  one update's matrix products alone, run one after another (`arithmetic.py` lists them): the
  faster of JAX and NumPy, in each round.

{table(SPEED_HEAD, [speed_row(side, runs) for side, runs in speeds.items()])}

{table(limit_head, limits)}

{table(RATIO_HEAD, [ratio_row(label, values) for label, values in ratios])}

{phase_table({side: runs for side, runs in rows.items() if side.endswith("flatout")})}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument("--steps", type=int, default=2600, help="steps of every side")
    options.add_argument("--algorithms", nargs="+", choices=tuple(HIDDEN), default=list(HIDDEN))
    options.add_argument(
        "--fused", action="store_true", help="only Flatout's one program, and the limit"
    )
    options.add_argument(
        "--peer-threads", type=int, default=0, help="PyTorch's threads (0: its default)"
    )
    main(benchmark, options.parse_args())
