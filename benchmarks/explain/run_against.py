"""`flatout explain --against` on the zoo: does its interval contain the truth?

Each script that has a fixed version is compared with it for `--minutes`. The truth is the ratio of
their speeds in plain runs, one after the other, without explain; a script's pairs of such runs lie
as far apart as possible, so that a slow minute of the machine meets only one of them. `--equal`
compares scripts with themselves instead: the outcome should be "no difference". Finished cases are
kept, so that the same command resumes; `--cases` measures some.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from run_zoo import FIXED, NAME, PLAIN, ZOO, Case, Runner, load, parsed, rates  # noqa: E402

from harness import BenchmarkError, Command, Row, Store, flatout, main, parser  # noqa: E402
from report import provenance, spread, table, write_section  # noqa: E402

COUNT = "pace:Pace.add(work)"
LONG = 3600.0
"""Seconds that a compared script is asked for: explain ends it."""

SAID = {True: "no difference", False: "**a difference**", None: "**the interval is too wide**"}
"""The table's words for what `--against` says of equal programs."""

CHOSEN = (
    "- By how much two starts of a program differ, which each interval includes, and its formula "
    "were\n  chosen with earlier runs of these programs."
)
"""A line of both tables: the intervals are not independent of the measured programs."""

RUN_AGAINST = """
import json, subprocess, sys
file, *command = sys.argv[1:]
done = subprocess.run(command, stdout=sys.stderr)
if done.returncode:
    sys.exit(done.returncode)
print(json.dumps({"against": json.load(open(file))["against"]}))
"""
"""Runs explain and prints the outcome that it writes, as `Store.run` reads it."""


def compare(args: argparse.Namespace, runner: Runner, case: Case, equal: bool) -> Row | None:
    """The outcome of one case, measured or from before; None where it failed."""
    options = argparse.Namespace(**vars(args))
    side = "equal" if equal else "against"
    settings: Row = {"minutes": args.minutes, "digest": case.digest()}
    store = Store(f"{NAME}/{case.name}-{side}", settings, options)
    python = runner.pythons[case.framework]
    first, second = (case.command(python, LONG, fixed=fixed) for fixed in (False, not equal))
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "outcome.json")
        argv = [
            sys.executable, "-c", RUN_AGAINST, file, flatout(args), "explain", "--against",
            shlex.join(second), "--minutes", f"{args.minutes:g}", "--json", file,
            *(() if case.rate else ("--count", COUNT)), "--", *first,
        ]  # fmt: skip
        try:
            row = store.run(side, 0, Command(argv, {"TF_CPP_MIN_LOG_LEVEL": "2"}))
        except BenchmarkError as error:
            runner.failed[case.name] = str(error).splitlines()[-1]
            print(f"{case.name}: {error}", file=sys.stderr)
            return None
    runner.rows.setdefault(side, []).append(row)
    return row


def interval(outcome: Row) -> tuple[float, float] | None:
    """The interval of an outcome's gain; None with too few pairs for one."""
    low, high = outcome["low"], outcome["high"]
    return None if low is None or high is None else (low, high)


def words(outcome: Row) -> str:
    """Gain and interval for a table."""
    found = interval(outcome)
    more = "(no interval)" if found is None else f"({found[0]:.2f}-{found[1]:.2f})"
    return f"{outcome['gain']:.2f} {more}"


def fixed(args: argparse.Namespace, cases: Sequence[Case], runner: Runner) -> str:
    """The table of pairs, each next to the ratio of long runs."""
    body, right = [], 0
    for number in range(1, args.seeds):
        for case in cases:
            if not runner.missing(case):
                runner.run(case, [PLAIN, FIXED], number)
    for case in cases:
        if runner.missing(case) or (row := compare(args, runner, case, False)) is None:
            continue
        if not (long := runner.run(case, [PLAIN, FIXED], args.seeds)):
            continue
        pairs = zip(rates(long[FIXED]), rates(long[PLAIN]), strict=True)
        ratios = [after / before for after, before in pairs]
        outcome: Any = row["result"]["against"]
        found, truth = interval(outcome), statistics.median(ratios)
        inside = found is not None and found[0] <= truth <= found[1]
        right += inside
        body.append([
            case.name, words(outcome), str(outcome["pairs"]), spread(ratios),
            "yes" if inside else "**no**", f"{row['wall_s']:.0f}",
        ])  # fmt: skip
    head = ["case", "--against", "pairs", "long runs", "in the interval", "s"]
    return (
        f"- Each script against its fixed version for at most {args.minutes:g} min; long runs last "
        f"{args.seconds + 5:g} s, {args.seeds} pairs. The median ratio of the long runs "
        f"lies in the interval in **{right} of {len(body)}**, of {len(cases)} cases.\n{CHOSEN}\n\n"
        + table(head, body)
    )


def equal(args: argparse.Namespace, cases: Sequence[Case], runner: Runner) -> str:
    """The table of scripts that are compared with themselves."""
    body, right = [], 0
    for case in cases:
        if runner.missing(case) or (row := compare(args, runner, case, True)) is None:
            continue
        outcome: Any = row["result"]["against"]
        right += outcome["same"] is True
        said = SAID[outcome["same"]]
        pairs = str(outcome["pairs"])
        body.append([case.name, words(outcome), pairs, said, f"{row['wall_s']:.0f}"])
    return (
        f"- Each script against itself for at most {args.minutes:g} min: in **{right} of "
        f"{len(body)}** the outcome is no difference.\n"
        f"{CHOSEN}\n\n" + table(["case", "--against", "pairs", "outcome", "s"], body)
    )


def benchmark(args: argparse.Namespace) -> None:
    """Answer the question that was asked and write its section.

    Raises:
        BenchmarkError: nothing ran at all.
    """
    cases, runner = load(ZOO, args.cases), Runner(args)
    if args.equal:
        cases = cases[: args.most]
        text = equal(args, cases, runner)
    else:
        cases = [case for case in cases if case.fixed][: args.most]
        text = fixed(args, cases, runner)
    if not runner.rows:
        raise BenchmarkError(f"nothing ran: {runner.failed}.")
    where = provenance(args, runner.rows)
    failures = "\n".join(f"- Not run: {case}: {why}" for case, why in runner.failed.items())
    name = "explain_against_equal" if args.equal else "explain_against"
    title = "scripts against themselves" if args.equal else "scripts against their fixed versions"
    write_section(args, name, "\n".join([f"## --against: {title}\n", where, text, failures]))


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    add = options.add_argument
    add("--cases", nargs="+", default=None, help="only these")
    add("--most", type=int, default=None, help="the first N cases only")
    add("--seconds", type=float, default=15.0, help="a long run lasts 5 s more")
    add("--minutes", type=float, default=1.0, help="that each comparison may take")
    add("--equal", action="store_true", help="scripts against themselves")
    arguments = parsed(options)
    main(benchmark, arguments)
