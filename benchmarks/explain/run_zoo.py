"""`flatout explain` on the zoo: is the cause found, what do remedies gain, what does it cost?

Without a flag each case runs once under explain, and its verdict stands beside the planted cause;
With `--any-source` recordings of other versions are judged again instead of made anew.
With `--renamed` each case's twin, without telling names (`renamed.py`), is observed, too.
`--fixed` runs each script that has one in turn with its fixed version, plainly: the measured gain
stands next to the share of the time that explain gave the planted cause. `--overhead` runs each
script with explain and without at the same time, on a core each. All three resume: finished runs
are kept in benchmarks/results/explain_zoo.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from renamed import twin  # noqa: E402
from run_ordinary import NEAR, agreeing  # noqa: E402

from flatout_explain.program.diagnose import diagnose as judge  # noqa: E402
from flatout_explain.program.evidence import load as load_evidence  # noqa: E402
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
from report import provenance, spread, table, write_section  # noqa: E402

NAME = "explain_zoo"
ZOO = HERE / "zoo"
"""The folder of scripts; the table of cases is next to it, zoo.toml."""

PLAIN, EXPLAINED, FIXED, RENAMED = "plain", "explained", "fixed", "renamed"
BOTH, CONTROL = "both", "control"
"""Two runs at the same time: without explain and under it; twice without, which shows by how much
two equal runs differ."""

HEALTHY = ("healthy", "compute-bound")
"""Verdicts that are right for a case whose planted cause is compute-bound."""

VARIABLES = {**NO_CACHE, "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Both versions of JAX's cache and TensorFlow's greetings off: neither belongs to a case."""

SPARE_S = 5.0
"""A script runs this much longer than explain samples it."""


@dataclass(frozen=True)
class Case:
    """One table of zoo.toml.

    Attributes:
        folder: where its scripts are.
        name: the table's name.
        file: the script, relative to the folder.
        cause: the planted cause.
        framework: torch, jax, numpy or tensorflow: which Python runs it.
        processes: how many processes it has, its own included.
        remedy: what to change, in words.
        description: one sentence.
        fixed: the script with the remedy applied, or empty.
        arguments: more command line arguments.
        budget: for a script without --seconds, the flag that says how much it does, and how much
            of that fits in a second on the reference machine.
        rate: for such a script, the keys of work and seconds in the JSON object that it prints.
    """

    folder: Path
    name: str
    file: str
    cause: str
    framework: str
    processes: int
    remedy: str
    description: str
    fixed: str = ""
    arguments: Sequence[str] = ()
    budget: Mapping[str, Any] = field(default_factory=dict)
    rate: Sequence[str] = ()

    def command(self, python: str, seconds: float, fixed: bool = False) -> list[str]:
        """The command line of the script, or of its fixed version."""
        script = (self.folder / (self.fixed if fixed else self.file)).resolve()
        amount = ["--seconds", f"{seconds:g}"]
        if self.budget:
            amount = [self.budget["flag"], str(round(self.budget["per_second"] * seconds))]
        return [python, str(script), *self.arguments, *amount]

    def digest(self) -> str:
        """Twelve hex digits over the case's files: an edited script's runs start over."""
        files = [self.folder / self.file, ZOO / "pace.py"]
        files += [self.folder / self.fixed] if self.fixed else []
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def load(folder: Path, names: Sequence[str] | None) -> list[Case]:
    """The cases of a folder of scripts, or those named.

    Raises:
        BenchmarkError: a name is not among them.
    """
    file = folder.with_suffix(".toml")
    tables = tomllib.loads(file.read_text())["case"]
    return [Case(folder, name, **values) for name, values in named(tables, names).items()]


# --- Running ----------------------------------------------------------------------------------


class Runner:
    """Runs cases with the Python of each one's framework, and keeps what was finished."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.record = getattr(args, "record", 0.0)  # only of `--overhead`
        self.pythons = pythons(args)
        self.failed: dict[str, str] = {}
        self.rows: dict[str, list[Row]] = {}

    def missing(self, case: Case) -> bool:
        """Whether no Python has the case's framework; then the report says so."""
        if case.framework in self.pythons:
            return False
        self.failed[case.name] = f"no Python with {case.framework} (`--python`)"
        return True

    def run(self, case: Case, sides: Sequence[str], rounds: int) -> dict[str, list[Row]] | None:
        """The case's runs by side, A B A B; None where one failed, which the report then says."""
        # Plain pairs have nothing to do with Flatout's source, which may change meanwhile.
        ours = FIXED not in sides
        options = argparse.Namespace(**{**vars(self.args), "any_source": not ours})
        options.any_source |= self.args.any_source
        settings: Row = {"seconds": self.args.seconds, "digest": case.digest()}
        recorded = "-record" if self.record else ""
        if recorded:
            settings["record"] = self.record
        store = Store(f"{NAME}/{case.name}-{'-'.join(sides)}{recorded}", settings, options)
        try:
            rows = store.alternate(
                {side: lambda seed, side=side: self.command(case, side, seed) for side in sides},
                range(rounds),
            )
        except BenchmarkError as error:
            self.failed[case.name] = str(error).splitlines()[-1]
            print(f"{case.name}: {error}", file=sys.stderr)
            return None
        for side, runs in rows.items():
            self.rows.setdefault(side, []).extend(runs)
        return rows

    def recall(self, case: Case, side: str) -> bool:
        """Whether a case was recorded and is to be judged again; its row says when and where."""
        file = Path(self.args.results) / NAME / f"{case.name}-{side}.jsonl"
        if not (self.args.any_source and self.evidence(case, side).exists() and file.exists()):
            return False
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows = [row for row in rows if row["settings"]["digest"] == case.digest()]
        self.rows.setdefault(side, []).extend(rows[-1:])
        return bool(rows)

    def evidence(self, case: Case, side: str = EXPLAINED) -> Path:
        """Where what explain recorded of a case, or of its twin, is kept."""
        folder = Path(self.args.results) / NAME / "evidence"
        folder.mkdir(parents=True, exist_ok=True)
        suffix = f"-{RENAMED}" if side == RENAMED else ""
        return folder / f"{case.name}-{case.digest()}{suffix}.json"

    def command(self, case: Case, side: str, seed: int) -> Command:
        """One run of a script by way of one_run.py, or two by way of side_by_side.py.

        The seed says which of two is first, so that neither gains by it.
        """
        sampled = self.args.seconds
        lasts = sampled + SPARE_S
        script = case.command(self.pythons[case.framework], lasts, fixed=side == FIXED)
        rate = ["--rate", *case.rate] if case.rate else []
        one_run = [sys.executable, str(HERE / "one_run.py"), *rate]
        if side in (BOTH, CONTROL):
            record = ["--record", f"{self.record:g}"] if self.record else []
            observed = f"{lasts + 600:g}"
            whole = [flatout(self.args), "explain", "--seconds", observed, *record, "--", *script]
            argv = [sys.executable, str(HERE / "side_by_side.py"), *rate]
            argv += ["--second-first"] * (seed % 2) + ["--"]
            argv += [json.dumps(script), json.dumps(whole if side == BOTH else script)]
        elif side in (EXPLAINED, RENAMED):
            if side == RENAMED:
                folder = Path(self.args.results) / NAME / "twins" / case.name
                script[1] = str(twin(Path(script[1]), folder).resolve())
            explain = ["--explain", flatout(self.args), "--seconds", f"{sampled:g}"]
            argv = [*one_run, *explain, "--save", str(self.evidence(case, side)), "--", *script]
        else:
            argv = [*one_run, "--", *script]
        return Command(argv, VARIABLES)


def parsed(options: argparse.ArgumentParser) -> argparse.Namespace:
    """Add ``--python`` and parse the command line; its paths are kept out of RESULTS.md."""
    what = "FRAMEWORK=PATH: the Python of its scripts"
    options.add_argument("--python", nargs="+", default=[], help=what)
    arguments = options.parse_args()
    arguments.pythons, arguments.python = arguments.python, []
    return arguments


def pythons(args: argparse.Namespace) -> dict[str, str]:
    """The interpreter of each framework: ours, the peers' for PyTorch, or what --python says.

    Raises:
        BenchmarkError: a --python is not FRAMEWORK=PATH.
    """
    found = {"jax": sys.executable, "numpy": sys.executable}
    for word in args.pythons:
        framework, equals, path = word.partition("=")
        if not equals or framework not in ("torch", "jax", "numpy", "tensorflow"):
            raise BenchmarkError(f"--python takes FRAMEWORK=PATH, not {word!r}.")
        found[framework] = path
    if "torch" not in found:
        found["torch"] = peers_python(args)
    return found


def rates(rows: Sequence[Row]) -> list[float]:
    """Work per second of each run, from the script's own last line.

    Raises:
        BenchmarkError: a script did not print it.
    """
    results = [row["result"] for row in rows]
    if any(not result["seconds"] for result in results):
        raise BenchmarkError(f"{rows[0]['name']}: the script did not say its rate.")
    return [result["work"] / result["seconds"] for result in results]


# --- The three questions ----------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What explain said of a case.

    Attributes:
        verdict: its verdict.
        rank: the planted cause's place among the findings, from 1; None where it is not there.
        finding: the planted cause's finding; empty where it is not there.
        phases: explain's shares of the time.
    """

    verdict: str
    rank: int | None
    finding: Row
    phases: Mapping[str, float]

    @classmethod
    def of(cls, case: Case, explained: Row) -> Verdict:
        """Read explain's JSON."""
        found = explained["findings"]
        rank = next((n for n, one in enumerate(found, 1) if one["id"] == case.cause), None)
        finding = found[rank - 1] if rank else {}
        return cls(explained["verdict"], rank, finding, explained["phases"])

    @property
    def share(self) -> str:
        """The planted cause's share of the time, for a table."""
        return f"{self.finding['share']:.0%}" if self.finding else "-"

    def right(self, case: Case) -> bool:
        """Whether the planted cause was the verdict."""
        return self.verdict in (HEALTHY if case.cause in HEALTHY else (case.cause,))


def diagnose(runner: Runner, cases: Sequence[Case], side: str = EXPLAINED) -> dict[str, Verdict]:
    """Each case, or its twin, once under explain; with --any-source recordings, judged again."""
    found = {}
    for case in cases:
        if runner.missing(case):
            continue
        if not runner.recall(case, side) and not runner.run(case, [side], 1):
            continue
        recorded = load_evidence(runner.evidence(case, side))
        found[case.name] = Verdict.of(case, judge(recorded).as_json())
    return found


def verdicts(args: argparse.Namespace, cases: Sequence[Case], runner: Runner) -> None:
    """The planted cause and the verdict of each case."""
    found = diagnose(runner, cases)
    twins = diagnose(runner, cases, RENAMED) if args.renamed else {}
    body, right_on_both, agree, rows_total = [], 0, 0, 0
    for case in cases:
        if (one := found.get(case.name)) is None:
            continue
        body.append([
            case.name, case.framework, str(case.processes), case.cause, one.verdict,
            "yes" if one.right(case) else "**no**", str(one.rank or "-"),
            one.share,
        ])  # fmt: skip
        if args.renamed and (other := twins.get(case.name)) is None:
            body[-1] += ["not run", "-", "-"]
        elif args.renamed:
            same, of = agreeing(one.phases, other.phases)
            agree, rows_total = agree + same, rows_total + of
            right_on_both += one.right(case) and other.right(case)
            its_right = "yes" if other.right(case) else "**no**"
            body[-1] += [other.verdict, its_right, f"{same} of {of}"]
    right = sum(one.right(case) for case in cases if (one := found.get(case.name)))
    head = [
        "case", "framework", "processes", "planted", "verdict", "right", "rank of planted",
        "its share",
    ]  # fmt: skip
    both, asked, title = "", "", "planted causes and verdicts"
    if args.renamed:
        head += ["its twin's verdict", "right", "equal rows"]
        asked, title = "_renamed", title + " of programs and their twins"
        both = f"""
- Each script's twin, without telling names, is sampled, too. The verdict is right on both in
  **{right_on_both} of {len(twins)}**; explain's shares of script and twin are within {NEAR:.0%}
  of each other in **{agree} of {rows_total}** rows."""
    write(args, runner, asked, title, f"""\
- Each script is sampled for {args.seconds:g} s; its planted cause is the verdict in
  **{right} of {len(found)}**.{both}

{table(head, body)}""")  # fmt: skip


def gains(args: argparse.Namespace, cases: Sequence[Case], runner: Runner) -> None:
    """The measured gain of each case that has a fixed version."""
    cases = [case for case in cases if case.fixed]
    found = {} if args.measure_only else diagnose(runner, cases)
    body = []
    for case in cases:
        if runner.missing(case) or not (rows := runner.run(case, [PLAIN, FIXED], args.seeds)):
            continue
        plain = rates(rows[PLAIN])
        ratios = [one / other for one, other in zip(rates(rows[FIXED]), plain, strict=True)]
        one = found.get(case.name)
        body.append([
            case.name, case.cause, one.share if one else "-", case.remedy, spread(plain, 1),
            spread(ratios),
        ])  # fmt: skip
    head = ["case", "planted", "its share", "remedy", "work/s as it was", "measured gain"]
    write(args, runner, "_fixed", "measured gains", f"""\
- Each script and its fixed version run in turn, {args.seeds} times, {args.seconds + SPARE_S:g} s
  each, without explain.

{table(head, body)}""")  # fmt: skip


def overhead(args: argparse.Namespace, cases: Sequence[Case], runner: Runner) -> None:
    """The cost of explain for each script; with --control, the difference of two equal runs."""
    side = CONTROL if args.control else BOTH
    body, medians = [], []
    for case in cases:
        if runner.missing(case) or not (rows := runner.run(case, [side], args.seeds)):
            continue
        pairs = [[run["work"] / run["seconds"] for run in row["result"]["sides"]]
                 for row in rows[side]]  # fmt: skip
        ratios = [explained / plain for plain, explained in pairs]
        medians.append(1 - statistics.median(ratios))
        body.append([
            case.name, case.framework, str(case.processes), spread([pair[0] for pair in pairs], 1),
            spread(ratios, 3), f"{medians[-1]:.1%}",
        ])  # fmt: skip
    cost = statistics.median(medians) if medians else 0.0
    what = "second / first" if args.control else "explained / plain"
    head = ["case", "framework", "processes", "work/s plainly", what, "overhead"]
    summary = "none measured"
    if medians:
        # A script that becomes faster is disturbed, too.
        within = " and ".join(
            f"within {bar:.0%} in {sum(abs(one) < bar for one in medians)}" for bar in (0.02, 0.05)
        )
        summary = (
            f"median {statistics.median(medians):.1%}, between {min(medians):.1%} and "
            f"{max(medians):.1%}; speeds {within} of {len(medians)}"
        )
    name, title, runs = "_overhead", "overhead", "without explain and under it"
    own = " The process of explain itself runs on its side's core."
    if args.control:
        name, title, runs = name + "_control", "equal runs for comparison", "twice without explain"
        own = ""
    elif args.cases and not args.record:
        name, title = name + "_chosen", "overhead of chosen scripts"
    if args.record:
        name, title = name + "_record", "the cost of --record"
        own += (
            f"\n  Under explain its profiler records for {args.record:g} s of that; the median "
            f"costs {cost * (args.seconds + SPARE_S):.1f} s of work."
        )
    write(args, runner, name, title, f"""\
- Each script runs {runs} at the same time, on a core each, which the two
  exchange every quarter of a second (`side_by_side.py`).{own}
  {args.seeds} such pairs of {args.seconds + SPARE_S:g} s; rates are the scripts' own.
  Overhead over all cases: **{summary}**.

{table(head, body)}""")  # fmt: skip


def write(args: argparse.Namespace, runner: Runner, asked: str, title: str, text: str) -> None:
    """A section of RESULTS.md, with what failed in it.

    Args:
        args: the command line.
        runner: what ran.
        asked: which of the three questions, for the section's name.
        title: of the section, without what the cases are.
        text: the section.

    Raises:
        BenchmarkError: nothing ran at all.
    """
    if not runner.rows:
        raise BenchmarkError(f"nothing ran: {runner.failed or 'no case has a fixed version'}.")
    where = provenance(args, runner.rows)
    failures = "\n".join(f"- Not run: {case}: {why}" for case, why in runner.failed.items())
    name, cases = NAME, "the zoo"
    head = f"## Explaining {cases}: {title}\n"
    write_section(args, name + asked, "\n".join([head, where, text, failures]))


def benchmark(args: argparse.Namespace) -> None:
    """Answer the question that was asked."""
    if args.cases and not args.overhead:  # a part of the zoo is for looking at
        args.no_write = True
    answer = gains if args.fixed else overhead if args.overhead else verdicts
    answer(args, load(ZOO, args.cases), Runner(args))


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    add = options.add_argument
    add("--cases", nargs="+", default=None, help="only these; not in RESULTS.md but for overhead")
    add("--seconds", type=float, default=15.0, help="that explain samples each script for")
    add("--renamed", action="store_true", help="observe each script's twin, too")
    add("--fixed", action="store_true", help="what the remedies gain")
    add("--measure-only", action="store_true", help="with --fixed: measured gains, no explain")
    add("--overhead", action="store_true", help="with explain against without")
    add("--record", type=float, default=0.0, help="with --overhead: seconds of explain --record")
    add("--control", action="store_true", help="with --overhead: without explain on both sides")
    arguments = parsed(options)
    main(benchmark, arguments)
