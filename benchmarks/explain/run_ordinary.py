"""`flatout explain` on ordinary programs: first finding and shares, and the programs' own timers.

Each program of a folder (`ordinary`, or `--set later`) runs once, under explain, with its timers
on: both describe the same run, because some of the programs behave differently in each. With
`--repeat 5` each is observed five times, and the first findings are compared. With `--renamed` the
twin of each program, without telling names (`renamed.py`), is observed, too. It resumes: finished
runs are kept in benchmarks/results/explain_ordinary.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from renamed import twin  # noqa: E402

from harness import (  # noqa: E402
    NO_CACHE,
    BenchmarkError,
    Command,
    Row,
    Store,
    flatout,
    main,
    named,
    parser,
    peers_python,
)
from report import provenance, table, write_section  # noqa: E402

NAME = "explain_ordinary"
NEAR = 0.10  # a share is right within so much of the program's own
STARTING_S = 60.0  # a program runs this much longer than its loop, at most
LEAST = 0.02  # rows below this share on both sides are left out

OURS: Mapping[str, Sequence[str]] = {
    "env": ["env"], "acting": ["act"], "learning": ["learn", "transfer", "communicate", "compile"],
    "replay": ["replay"], "input": ["input"], "writing": ["io"], "saving": ["io"],
    "evaluation": ["eval"], "transfer": ["transfer"], "waiting": ["wait", "ipc"],
    "communication": ["communicate"], "own": ["other"], "processes": ["other"],
}  # fmt: skip
"""Explain's phases for each of the programs' timers."""


def pairs(
    truth: Row, explained: Mapping[str, float], waits: Sequence[str]
) -> list[tuple[str, float, float]]:
    """(phase, share by the program's timers, share by explain) of each phase that either has.

    Args:
        truth: seconds by timer, and in total.
        explained: explain's shares by phase.
        waits: explain's phases for the work that a program's main thread waits for.
    """
    total = truth["total"]
    own = {name: seconds / total for name, seconds in truth.items() if "@" not in name}
    del own["total"]
    rest, rows = dict(explained), []
    for name, share in own.items():
        phases = [*OURS[name], *(waits if name == "waiting" else ())]
        if name == "learning" and "transfer" in own:
            phases = ["learn", "communicate", "compile"]
        rows.append((name, share, sum(rest.pop(phase, 0.0) for phase in phases)))
    rows.append(("other", max(0.0, 1 - sum(own.values())), sum(rest.values())))
    return [row for row in rows if max(row[1:]) >= LEAST]


def agreeing(one: Mapping[str, float], other: Mapping[str, float]) -> tuple[int, int]:
    """In how many phases two shares of the time are near each other, and of how many."""
    both = [(one.get(phase, 0.0), other.get(phase, 0.0)) for phase in {*one, *other}]
    large = [pair for pair in both if max(pair) >= LEAST]
    return sum(abs(a - b) <= NEAR for a, b in large), len(large)


def interpreter(args: argparse.Namespace, case: Row) -> str:
    """The Python of a program.

    Raises:
        BenchmarkError: the peers' Python lacks what the program needs.
    """
    if case["interpreter"] in ("jax", "numpy"):
        return sys.executable
    python = peers_python(args)
    needed = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    if subprocess.run([python, "-c", needed, case["interpreter"]], check=False).returncode:
        raise BenchmarkError(f"the Python of --peers has no {case['interpreter']}")
    return python


def run(
    args: argparse.Namespace, name: str, case: Row, seed: int = 0, renamed: bool = False
) -> tuple[Row, Row, list[Row]]:
    """Observe once; return the program's own seconds, explain's JSON and the benchmark's rows."""
    results = Path(args.results) / NAME
    results.mkdir(parents=True, exist_ok=True)
    file, side, label = HERE / args.set / f"{name}.py", "both", name
    if renamed:
        file, side, label = twin(file, results / "twins" / name), "renamed", f"{name}.renamed"
    script = [interpreter(args, case), str(file), "--seconds", f"{args.seconds:g}"]
    phases, said, saved = (results / f"{label}.{kind}.json" for kind in ("phases", "said", "saved"))
    whole = ["--seconds", f"{args.seconds + STARTING_S:g}"]
    options = [*whole, "--json", str(said), "--save", str(saved)]

    def add(command: Command, row: Row) -> Row:
        return row | {
            side: json.loads(file.read_text()) for side, file in (("own", phases), ("said", said))
        }

    argv = [sys.executable, str(HERE / "quiet.py"), flatout(args), "explain", *options, "--"]
    command = Command([*argv, *script], {**NO_CACHE, "PHASES": str(phases)}, None, add)
    store = Store(f"{NAME}/{name}", {"seconds": args.seconds}, args)
    rows = store.alternate({side: lambda _: command}, [seed])[side]
    result = rows[0]["result"]
    return result["own"], result["said"], rows


def causes(case: Row, truth: Row) -> list[str]:
    """The first findings that are right, where a case has them by its longest timer: those."""
    right = case["causes"]
    if isinstance(right, list):
        return right
    return right[max(right, key=lambda phase: truth.get(phase, 0.0))]


def first_finding(said: Row) -> str:
    """Return the id of the first finding that is not about other programs on the machine."""
    return next((one["id"] for one in said["findings"] if one["id"] != "contended"), "unknown")


def chosen_cases(args: argparse.Namespace) -> dict[str, Row]:
    """Return the table of each program of the set, or of those that ``--cases`` names.

    Raises:
        BenchmarkError: a name is not among them.
    """
    cases = tomllib.loads((HERE / args.set / f"{args.set}.toml").read_text())
    return named(cases, args.cases)


def repeated(args: argparse.Namespace) -> None:
    """Observe each program several times, compare its first findings and write the section."""
    body, every = [], list[Row]()
    for name, case in chosen_cases(args).items():
        found: list[str] = []
        for seed in range(args.repeat):
            _, said, rows = run(args, name, case, seed)
            found.append(first_finding(said))
            every += rows
        same = "yes" if len(set(found)) == 1 else "**no**"
        body.append([name, case["expected"], ", ".join(dict.fromkeys(found)), same])
    where = provenance(args, {"both": every})
    text = f"""## Explaining one program {args.repeat} times

{where}
- Each program is observed {args.repeat} times, without a compilation cache, from its start.

{table(["program", "expected", "first finding", "the same each time"], body)}
"""
    write_section(args, f"{NAME}_repeated", text)


def benchmark(args: argparse.Namespace) -> None:
    """Run all programs of the set and write the section."""
    if args.repeat > 1:
        repeated(args)
        return
    args.no_write |= bool(args.cases)
    body, right, near, rows_total, every = [], 0, 0, 0, list[Row]()
    failed: list[str] = []
    right_on_both, agree, shares_total = 0, 0, 0
    for name, case in chosen_cases(args).items():
        try:
            truth, said, rows = run(args, name, case)
            other = run(args, name, case, renamed=True) if args.renamed else None
        except BenchmarkError as error:
            failed.append(f"- Not run: {name}: {str(error).splitlines()[-1]}")
            continue
        every += rows
        first = first_finding(said)
        compared = pairs(truth, said["phases"], case.get("waits", ()))
        is_right = first in causes(case, truth)
        right += is_right
        near += sum(abs(own - share) <= NEAR for _, own, share in compared)
        rows_total += len(compared)
        shares = ", ".join(f"{phase} {own:.0%} / {share:.0%}" for phase, own, share in compared)
        wrong = "" if is_right else " **wrong**"
        remedy = said["findings"][0]["remedy"] if said["findings"] else ""
        body.append([name, case["expected"], first + wrong, shares, remedy.split(":")[0][:90]])
        if other is not None:
            its_truth, its_said, its_rows = other
            every += its_rows
            its_first = first_finding(its_said)
            its_right = its_first in causes(case, its_truth)
            right_on_both += is_right and its_right
            same, of = agreeing(said["phases"], its_said["phases"])
            agree, shares_total = agree + same, shares_total + of
            its_shares = ", ".join(
                f"{phase} {own:.0%} / {share:.0%}"
                for phase, own, share in pairs(its_truth, its_said["phases"], case.get("waits", ()))
            )
            its_cells = [its_first + ("" if its_right else " **wrong**"), its_shares]
            body[-1][4:] = [*its_cells, f"{same} of {of}"]
    if not every:
        raise BenchmarkError(f"nothing ran: {failed}")
    head = ["program", "expected", "first finding", "timers / explain", "remedy"]
    both, whose = "", args.set
    if args.renamed:
        whose += " and their twins"
        head[4:] = ["its twin's first finding", "timers / explain", "equal rows"]
        both = f"""
- Each program's twin, without telling names, runs once, too. First finding right on both in
  **{right_on_both} of {len(body)}**; explain's shares of program and twin within {NEAR:.0%} of
  each other in **{agree} of {shares_total}** rows."""
    where = provenance(args, {"both": every})
    text = f"""## Explaining ordinary programs: {whose}

{where}
- First finding right in **{right} of {len(body)}**; shares within {NEAR:.0%} of the programs' own
  timers in **{near} of {rows_total}** rows. Each program runs once, with both.{both}

{table(head, body)}
""" + "\n".join(failed)
    write_section(args, f"{NAME}_{args.set}{'_renamed' if args.renamed else ''}", text)


if __name__ == "__main__":
    options = parser(__doc__)
    add = options.add_argument
    add("--set", default="ordinary", help="which folder of programs")
    add("--cases", nargs="+", default=None, help="only these; then RESULTS.md stays as it is")
    add("--repeat", type=int, default=1, help="observations of each program, compared")
    add("--seconds", type=float, default=20.0, help="that each program's loop runs")
    add("--renamed", action="store_true", help="observe each program's twin, too")
    main(benchmark, options.parse_args())
