"""`flatout explain` on programs that people run: CleanRL, Stable-Baselines3, SBX, PureJaxRL, Keras.

Each program runs twice: unchanged under explain, and with timers around its phases, which are the
truth. Programs of other projects are read from a checkout (`--checkout cleanrl=PATH`), and the
timers are inserted into a copy; see examples/examples.toml. It resumes: finished runs are kept in
benchmarks/results/explain_examples. With `--renamed` each program's twin (`renamed.py`) is
explained, too. With `--gpu` the PyTorch programs compute on a GPU. With `--gains` programs whose
first remedy is a line are compared with their remedied copy instead, by `flatout explain
--against`.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shlex
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from renamed import twin  # noqa: E402
from run_against import words  # noqa: E402
from run_ordinary import NEAR, agreeing, causes, pairs  # noqa: E402

from harness import (  # noqa: E402
    BenchmarkError,
    Command,
    Row,
    Store,
    flatout,
    main,
    named,
    parser,
)
from report import provenance, table, write_section  # noqa: E402

NAME = "explain_examples"
FOLDER = HERE / "examples"
TIMERS = HERE / "ordinary" / "phases.py"
STARTING_S = 15.0
"""Time of a timed run beyond its observation: imports, compiling, and the first steps."""

END = "import signal, sys; signal.signal(signal.SIGALRM, lambda *_: sys.exit()); signal.alarm({})"
"""First line of a timed copy: it ends after so many seconds, as a program ends by itself."""

RUN = """
import json, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=sys.stderr)
print(json.dumps({"code": done.returncode}))
"""
"""Runs a program whose output is not the benchmark's."""


# --- Timers -----------------------------------------------------------------------------------


def timed(source: str, wraps: Sequence[Sequence[str]], waits: Mapping[str, str]) -> str:
    """A script with timers around statements.

    Args:
        source: the script.
        wraps: phase, text in the first line of the first statement, and of the last one.
        waits: by phase, an expression of JAX arrays that its timer waits for.

    Raises:
        BenchmarkError: no statements fit.
    """
    lines = source.splitlines()
    found = sorted(((*_statements(source, lines, wrap), wrap[0]) for wrap in wraps), reverse=True)
    for first, last, phase in found:  # from the end on: line numbers before it stay
        indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
        body = ["    " + line if line.strip() else line for line in lines[first - 1 : last]]
        if phase in waits:
            body.append(f"{indent}    _timer.block({waits[phase]})")
        lines[first - 1 : last] = [f'{indent}with _phase("{phase}") as _timer:', *body]
    return "\n".join(["from phases import phase as _phase", *lines, ""])


def _statements(source: str, lines: Sequence[str], wrap: Sequence[str]) -> tuple[int, int]:
    """The lines of the statements that a timer encloses: the first and the last one."""
    _, first, *rest = wrap
    for block in _blocks(ast.parse(source)):
        starts = [n for n, one in enumerate(block) if first in lines[one.lineno - 1]]
        for start in starts:
            ends = [one for one in block[start:] if (rest or [first])[0] in lines[one.lineno - 1]]
            if ends:
                return block[start].lineno, ends[0].end_lineno or ends[0].lineno
    raise BenchmarkError(f"no statements from {first!r} to {(rest or [first])[0]!r}")


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """All blocks of statements of a module, inner ones last."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


# --- Running ----------------------------------------------------------------------------------


class Runner:
    """Runs programs with their interpreters, and keeps what was finished."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.pythons = _named(args.pythons, "--python")
        self.checkouts = _named(args.checkouts, "--checkout")
        self.results = Path(args.results) / NAME
        self.results.mkdir(parents=True, exist_ok=True)

    def gain(self, name: str, case: Row) -> Row:
        """The row of a comparison with the remedied program.

        Raises:
            BenchmarkError: a checkout or an interpreter is not named, or the comparison failed.
        """
        self.refuse_unnamed(case)
        said, change = self.results / f"{name}.against.json", case["remedy"]
        fixed = case | {"replace": [*case.get("replace", ()), *change.get("replace", ())]}
        with tempfile.TemporaryDirectory() as folder:
            commands, paths = [], [folder]
            for at, version in enumerate((case, fixed)):
                inner = Path(folder) / str(at)
                inner.mkdir()
                script, _, origin = self.scripts(name, version, inner)
                words = [*case.get("arguments", ()), *(change.get("arguments", ()) if at else ())]
                commands.append([self.pythons[case["python"]], str(script), *words])
                paths += [str(inner), str(origin), str(origin.parent)]
            argv = [
                "env", "-C", folder, sys.executable, "-c", RUN, flatout(self.args), "explain",
                "--minutes", f"{self.args.minutes:g}", "--json", str(said),
                "--against", shlex.join(commands[1]), "--", *commands[0],
            ]  # fmt: skip
            settings = {"minutes": self.args.minutes, "case": case, "gpu": self.args.gpu}
            store = Store(f"{NAME}/{name}-against", settings, self.args)
            path = {"PYTHONPATH": os.pathsep.join(paths)}
            return store.run("against", 0, Command(argv, path, None, _adding("said", said)))

    def refuse_unnamed(self, case: Row) -> None:
        """Raise `BenchmarkError` if a program's checkout or interpreter is not named."""
        for what, known in (("project", self.checkouts), ("python", self.pythons)):
            if case.get(what, "") not in {"", *known}:
                raise BenchmarkError(f"{what} {case[what]} is not named")

    def run(self, name: str, case: Row) -> tuple[Row, Row, Row, list[Row]]:
        """Seconds by timer, explain's JSON, that of the twin (or empty), and the benchmark's rows.

        Raises:
            BenchmarkError: a checkout or an interpreter is not named, or a run failed.
        """
        self.refuse_unnamed(case)
        said, saved = (self.results / f"{name}.{kind}.json" for kind in ("said", "saved"))
        phases = self.results / f"{name}.phases.json"
        with tempfile.TemporaryDirectory() as folder:
            script, copy, origin = self.scripts(name, case, Path(folder))
            imported = [folder, str(origin), str(origin.parent)]
            paths = {"PYTHONPATH": os.pathsep.join(imported)}
            python, words = self.pythons[case["python"]], case.get("arguments", [])
            explain = [
                flatout(self.args), "explain", "--seconds", f"{self.args.seconds:g}", "--stop",
                "--json", str(said),
            ]  # fmt: skip
            program = ["--save", str(saved), "--", python, str(script), *words]
            plain = [python, str(copy), *words]
            inside = ["env", "-C", folder, sys.executable, "-c", RUN]
            sides = {
                "explain": Command(
                    [*inside, *explain, *program], paths, None, _adding("said", said)
                ),
                "timers": Command(
                    [*inside, *plain], {**paths, "PHASES": str(phases)}, None,
                    _adding("own", phases),
                ),
            }  # fmt: skip
            if self.args.renamed:
                other = twin(script, Path(folder) / "twin")
                argv = [*inside, *explain, "--", python, str(other), *words]
                sides["renamed"] = Command(argv, paths, None, _adding("said", said))
            settings = {"seconds": self.args.seconds, "case": case, "gpu": self.args.gpu}
            store = Store(f"{NAME}/{name}", settings, self.args)
            rows = store.alternate({side: lambda _, c=c: c for side, c in sides.items()}, [0])
        results = {side: found[0]["result"] for side, found in rows.items()}
        renamed = results["renamed"]["said"] if self.args.renamed else {}
        every = [found[0] for found in rows.values()]
        return results["timers"]["own"], results["explain"]["said"], renamed, every

    def scripts(self, name: str, case: Row, folder: Path) -> tuple[Path, Path, Path]:
        """The program as it is, the copy that times itself and ends after a while, and the
        program's folder."""
        shutil.copy(TIMERS, folder)
        shutil.copy(FOLDER / "methods.py", folder)
        origin = Path(self.checkouts[case["project"]]) if "project" in case else FOLDER
        script = (origin / case["file"]).resolve()
        source, home = script.read_text(), script.parent
        for before, after in case.get("replace", ()):
            if before not in source:
                raise BenchmarkError(f"{script.name} has no {before!r}")
            source = source.replace(before, after)
        if case.get("replace"):  # then the explained program is a copy, too
            script = folder / "as_it_is" / script.name
            script.parent.mkdir()
            script.write_text(source)
        if "wrap" in case:
            source = timed(source, case["wrap"], case.get("block", {}))
        copy = folder / f"{name}_timed.py"
        copy.write_text(END.format(round(self.args.seconds + STARTING_S)) + "\n" + source)
        return script, copy, home


def _named(words: Sequence[str], flag: str) -> dict[str, str]:
    """The values of ``NAME=PATH`` words.

    Raises:
        BenchmarkError: a word is none, or its path does not exist.
    """
    found = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not Path(path).exists():
            raise BenchmarkError(f"{flag} takes NAME=PATH of something that exists, not {word!r}")
        found[name] = path
    return found


def _adding(name: str, file: Path) -> Any:
    """A function that adds a file's JSON to a run's result."""

    def add(_: Command, row: Row) -> Row:
        if not file.exists():
            raise BenchmarkError(f"{file.name} was not written: the program ended early")
        found = json.loads(file.read_text())
        if name == "own" and not found["total"]:
            raise BenchmarkError("its timers saw nothing: it takes longer to start")
        return row | {name: found}

    return add


def gpu_name() -> str:
    """The first card's name.

    Raises:
        BenchmarkError: there is none.
    """
    from flatout.hardware.inventory import inventory

    gpus = inventory().usable_gpus
    if not gpus:
        raise BenchmarkError("--gpu: no GPU is usable here")
    return gpus[0].name


def chosen(args: argparse.Namespace) -> tuple[dict[str, Row], str]:
    """The programs that were asked for, and the card on which they run, or an empty text.

    Raises:
        BenchmarkError: a name is not among them, or there is no GPU.
    """
    cases = tomllib.loads((FOLDER / "examples.toml").read_text())
    card = gpu_name() if args.gpu else ""
    if args.gpu:
        cases = {key: case | case.get("gpu", {}) for key, case in cases.items()}
    return named(cases, args.cases), card


def gains(args: argparse.Namespace) -> None:
    """Compare programs with their remedied copies, and write the section.

    Raises:
        BenchmarkError: none ran.
    """
    cases, card = chosen(args)
    args.no_write = args.no_write or bool(args.cases)
    runner, every, body, failed = Runner(args), list[Row](), list[list[str]](), list[str]()
    for key, case in cases.items():
        if "remedy" not in case:
            continue
        try:
            row = runner.gain(key, case)
        except BenchmarkError as error:
            failed.append(f"- Not run: {key}: {str(error).splitlines()[-1]}")
            continue
        every.append(row)
        outcome: Any = row["result"]["said"]["against"]
        body.append([
            key, case["remedy"]["change"], words(outcome), str(outcome["pairs"]),
            outcome["unit"], f"{row['wall_s']:.0f}",
        ])  # fmt: skip
    if not every:
        raise BenchmarkError(f"nothing ran: {failed}")
    name, where_run = (f"{NAME}_gains {card}", f", on {card}") if card else (f"{NAME}_gains", "")
    head = ["program", "change", "--against", "pairs", "speed in", "s"]
    write_section(args, name, f"""## The gain of a remedy in programs that people run{where_run}

{provenance(args, {"against": every})}
- The first remedy, where it is one line, for at most {args.minutes:g} min each.

{table(head, body)}
""" + "\n".join(failed))  # fmt: skip


def first_finding(said: Row) -> tuple[Row | None, str]:
    """The first finding that is not about other programs, and its id or else the verdict."""
    first = next((one for one in said["findings"] if one["id"] != "contended"), None)
    return first, said["verdict"] if first is None else first["id"]


def benchmark(args: argparse.Namespace) -> None:
    """Run all programs and write the section.

    Raises:
        BenchmarkError: none ran.
    """
    if args.gains:
        gains(args)
        return
    cases, card = chosen(args)
    name, where_run = (f"{NAME} {card}", f", on {card}") if card else (NAME, "")
    args.no_write = args.no_write or bool(args.cases and not args.gpu)
    runner, body, failed = Runner(args), list[list[str]](), list[str]()
    every, right, near, total = list[Row](), 0, 0, 0
    right_on_both, agree, shares_total = 0, 0, 0
    for key, case in cases.items():
        try:
            truth, said, other, rows = runner.run(key, case)
        except BenchmarkError as error:
            failed.append(f"- Not run: {key}: {str(error).splitlines()[-1]}")
            continue
        every += rows
        first, verdict = first_finding(said)
        compared = pairs(truth, said["phases"], ())
        is_right = verdict in causes(case, truth)
        right += is_right
        near += sum(abs(own - share) <= NEAR for _, own, share in compared)
        total += len(compared)
        shares = ", ".join(f"{phase} {own:.0%} / {share:.0%}" for phase, own, share in compared)
        remedy = "" if first is None else first["remedy"][:120]
        last = said["headline"] if args.gpu else remedy
        body.append([key, verdict + ("" if is_right else " **wrong**"), shares, last])
        if other:
            _, its_verdict = first_finding(other)
            its_right = its_verdict in causes(case, truth)
            right_on_both += is_right and its_right
            same, of = agreeing(said["phases"], other["phases"])
            agree, shares_total = agree + same, shares_total + of
            body[-1] += [its_verdict + ("" if its_right else " **wrong**"), f"{same} of {of}"]
    if not every:
        raise BenchmarkError(f"nothing ran: {failed}")
    where = provenance(args, {"both": every})
    head = ["program", "first finding", "timers / explain", "headline" if args.gpu else "remedy"]
    both = ""
    if args.renamed:
        head += ["its twin's first finding", "equal rows"]
        both = f"""
- Each program's twin, without telling names, is explained, too. First finding right on both in
  **{right_on_both} of {len(body)}**; shares of program and twin within {NEAR:.0%} of each other in
  **{agree} of {shares_total}** rows."""
        name, where_run = f"{name}_renamed", f" and their twins{where_run}"
    text = f"""## Explaining programs that people run{where_run}

{where}
- First finding right in **{right} of {len(body)}**; shares within {NEAR:.0%} of the timers' in
  **{near} of {total}** rows. Each program runs once as it is, under explain, and once with
  timers.{both}

{table(head, body)}
""" + "\n".join(failed)
    write_section(args, name, text)


if __name__ == "__main__":
    options = parser(__doc__)
    add = options.add_argument
    add("--gains", action="store_true", help="what the first remedy gains")
    add("--minutes", type=float, default=3.0, help="with --gains: that a comparison may take")
    add("--renamed", action="store_true", help="explain each program's twin, too")
    add("--gpu", action="store_true", help="PyTorch programs compute on the first GPU")
    add(
        "--cases",
        nargs="+",
        default=None,
        help="only these; RESULTS.md then changes only with --gpu",
    )
    add("--seconds", type=float, default=30.0, help="that each program is observed, or timed")
    add("--python", nargs="+", default=[], help="NAME=PATH of the interpreters")
    add("--checkout", nargs="+", default=[], help="NAME=PATH of the projects")
    arguments = options.parse_args()
    # Paths are not for RESULTS.md.
    arguments.pythons, arguments.python = arguments.python, []
    arguments.checkouts, arguments.checkout = arguments.checkout, []
    main(benchmark, arguments)
