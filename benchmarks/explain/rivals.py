"""py-spy, scalene and `flatout explain` on ordinary programs: is the line to change named first?

The criterion, which was fixed before anything was measured. Each program of `ordinary` runs for
some seconds under each tool. `LINES` names the lines of its own file that belong to its planted
cause: those that do the costly work (of a network, its forward pass, too), the line that sets that
work up, and the line that calls it. A line that only waits for it is none of them. A tool names

- **the line**, if the line that a user sees first is one of these;
- the function, if it is another line of a function in which one of these is (the top level of a
  file is no function);
- another line, or none.

What a user sees first: of explain the line of the first finding (about other programs on the
machine excepted), which stands beside TRY; of scalene the line with the largest share of CPU time
(Python, native and system together); of py-spy the better one of two views: the frame with most
samples of its own, and the line of the program's file with most samples in it or in what it calls.
The rivals are not asked for a cause, which they do not claim to find. All three observe all
processes of a program, with their usual settings.

`rivals_traces.py` reads traces with HolisticTraceAnalysis, and says how that is judged.

    python -m venv /tmp/rivals && /tmp/rivals/bin/pip install \\
        py-spy scalene HolisticTraceAnalysis "pandas<3"  # its version 0.5.0 fails with pandas 3
    python benchmarks/explain/rivals.py --rivals /tmp/rivals/bin/python
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from rivals_traces import TRACES_HEAD, traces  # noqa: E402
from run_ordinary import STARTING_S, chosen_cases, interpreter  # noqa: E402

from harness import (  # noqa: E402
    NO_CACHE,
    BenchmarkError,
    Command,
    Row,
    Store,
    flatout,
    main,
    parser,
)
from report import provenance, table, write_section  # noqa: E402

NAME = "explain_rivals"
PACKAGES = ("py-spy", "scalene", "HolisticTraceAnalysis")


LINES = {
    "reinforce_torch": ("33-35 39-42 69", "`select_action`, its network and its call"),
    "actor_critic_torch": ("30 61-70", "the update after each step, and its network"),
    "dqn_deque_torch": ("53-62 78", "the update without the replay, and its call"),
    "ppo_minibatch_torch": ("67-78", "the loop over minibatches"),
    "mlp_metrics_jax": (
        "17-18 37-42 45-48 54-58 71",
        "sizes, network, loss, `train_step`, its call",
    ),
    "reinforce_jax": ("31-35 39-42 76-77", "`act`, its call, the transfer of its action"),
    "dqn_jax": ("37-40 47-56 82", "`update`, its network and its call"),
    "dataloader_torch": ("33-53 71 78", "`__getitem__`, the loader, the loop over its batches"),
    "es_pool": ("29 56", "the step in the workers, and the call that hands them out"),
    "writer_thread_torch": ("38-48 72-77", "the histograms, and what is put into the queue"),
    "a2c_subproc_torch": ("40 56", "the start of the processes, and the step that they take"),
    "evaluate_each_update_torch": ("19 29-40 80", "`evaluate`, its episodes, and its call"),
}
"""Lines of each program, and what they are."""

VERDICTS = ("the line", "the function", "another line", "none")  # the best first


class Seen(NamedTuple):
    """The line that a tool shows first, and its share of the time."""

    file: str
    line: int
    share: float


# --- What each tool shows first ---------------------------------------------------------------


def first_of_explain(text: str, program: Path) -> list[Seen]:
    """Return the place of the first finding of a JSON report."""
    for finding in json.loads(text)["findings"]:
        if finding["id"] != "contended":
            place = finding["place"]
            return [] if place is None else [Seen(place[0], place[1], finding["share"])]
    return []


FRAME = re.compile(r"^.* \((?P<file>.+):(?P<line>\d+)\)$")


def first_of_py_spy(text: str, program: Path) -> list[Seen]:
    """Return the frame with most samples of its own, and the line of the program with most samples
    in it or in what it calls, of ``py-spy record --format raw``: stacks, the outermost frame first,
    each with its number of samples."""
    own, within = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    total = 0
    for row in text.splitlines():
        stack, _, number = row.rpartition(" ")
        found = [FRAME.match(frame) for frame in stack.split(";")]
        frames = [(match["file"], int(match["line"])) for match in found if match]
        if not frames:
            continue
        total += int(number)
        own[frames[-1]] += int(number)
        mine = [frame for frame in frames if Path(frame[0]).name == program.name]
        if mine:
            within[mine[-1]] += int(number)
    views = [view.most_common(1) for view in (own, within)]
    return [Seen(*place, count / total) for view in views for place, count in view]


def first_of_scalene(text: str, program: Path) -> list[Seen]:
    """Return the line with the largest share of CPU time in scalene's JSON."""
    shares = {
        (file, line["lineno"]): sum(
            line[f"n_{part}"] for part in ("cpu_percent_python", "cpu_percent_c", "sys_percent")
        ) / 100
        for file, about in json.loads(text).get("files", {}).items()
        for line in about["lines"]
    }  # fmt: skip
    best = max(shares, key=lambda place: shares[place], default=None)
    return [] if best is None or not shares[best] else [Seen(*best, shares[best])]


class Tool(NamedTuple):
    """A profiler: its command, given the file to write and the program, and how it is read."""

    command: Callable[[argparse.Namespace, Path, Sequence[str]], list[str]]
    read: Callable[[str, Path], list[Seen]]


def under_explain(args: argparse.Namespace, file: Path, script: Sequence[str]) -> list[str]:
    """Return the command that observes a whole run."""
    whole = f"{args.seconds + STARTING_S:g}"
    return [flatout(args), "explain", "--seconds", whole, "--json", str(file), "--", *script]


def under_py_spy(args: argparse.Namespace, file: Path, script: Sequence[str]) -> list[str]:
    """Return the command that samples a program and its child processes."""
    command = str(Path(args.rivals).with_name("py-spy"))
    options = ["--format", "raw", "--subprocesses", "--full-filenames", "--output", str(file)]
    return [command, "record", *options, "--", *script]


def under_scalene(args: argparse.Namespace, file: Path, script: Sequence[str]) -> list[str]:
    """Return the command that profiles a program's CPU time."""
    _, program, *rest = script
    return [
        args.rivals,
        "-m",
        "scalene",
        "run",
        "--cpu-only",
        "-o",
        str(file),
        program,
        "---",
        *rest,
    ]


TOOLS = {
    "explain": Tool(under_explain, first_of_explain),
    "py-spy": Tool(under_py_spy, first_of_py_spy),
    "scalene": Tool(under_scalene, first_of_scalene),
}


# --- The verdict ------------------------------------------------------------------------------


def lines_of(words: str) -> frozenset[int]:
    """Return the lines of a text such as ``39-42 69``, with both ends of each range."""
    ends = [part.partition("-") for part in words.split()]
    return frozenset(n for one, _, end in ends for n in range(int(one), int(end or one) + 1))


def function_of(source: str, line: int) -> str:
    """Return the name of the innermost function that a line is in; empty at the top level."""
    found = ""
    for node in ast.walk(ast.parse(source)):  # outer nodes come before inner ones
        inside = isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
        found = getattr(node, "name", "") if inside else found
    return found


def verdict(seen: Sequence[Seen], program: Path, right: frozenset[int]) -> tuple[str, Seen | None]:
    """Return the best of `VERDICTS` for the lines that a tool shows first, and its line."""
    source = program.read_text()
    functions = {function_of(source, line) for line in right} - {""}

    def judged(one: Seen) -> str:
        if Path(one.file).name != program.name:
            return "another line"
        if one.line in right:
            return "the line"
        return "the function" if function_of(source, one.line) in functions else "another line"

    best = min(seen, key=lambda one: VERDICTS.index(judged(one)), default=None)
    return ("none", None) if best is None else (judged(best), best)


def run(args: argparse.Namespace, name: str, case: Row, tool: str) -> Row:
    """Run a program under a tool; return the benchmark's row, with the lines that are first.

    Raises:
        BenchmarkError: the tool or the program failed.
    """
    program = HERE / args.set / f"{name}.py"
    python, variables = interpreter(args, case), dict[str, str | None](NO_CACHE)
    if tool == "scalene":  # runs in the program's Python, with the packages of both
        ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        found = subprocess.run(ask, check=True, capture_output=True, text=True)
        variables["PYTHONPATH"] = found.stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "first.json"

        def add(command: Command, row: Row) -> Row:
            if not file.is_file():
                raise BenchmarkError(f"{tool} has written no file")
            return row | {
                "seen": [list(one) for one in TOOLS[tool].read(file.read_text(), program)]
            }

        script = [python, str(program), "--seconds", f"{args.seconds:g}"]
        argv = TOOLS[tool].command(args, file, script)
        command = Command([sys.executable, str(HERE / "quiet.py"), *argv], variables, None, add)
        store = Store(f"{NAME}/{name}", {"seconds": args.seconds}, args)
        return store.run(tool, 0, command)


# --- The section ------------------------------------------------------------------------------


def versions(args: argparse.Namespace) -> dict[str, str]:
    """Return the versions of the rivals; a rival that is not installed has none."""
    ask = (
        "import importlib.metadata as m, json; found = {d.metadata['Name'].lower(): d.version for "
        "d in m.distributions()}; print(json.dumps(found))"
    )
    child = subprocess.run([args.rivals, "-c", ask], check=True, capture_output=True, text=True)
    found = json.loads(child.stdout)
    return {name: found[name.lower()] for name in PACKAGES if name.lower() in found}


def benchmark(args: argparse.Namespace) -> None:
    """Run all programs under all tools, read the traces, and write the section."""
    if not Path(args.rivals).is_file():
        raise BenchmarkError(f"no rivals at {args.rivals}: install them as this file says.")
    args.no_write |= bool(args.cases)
    args.timeout = args.seconds + STARTING_S
    installed, body, every = versions(args), [], list[Row]()
    counts = {tool: Counter[str]() for tool in TOOLS}
    for name, case in chosen_cases(args).items():
        program, cells = HERE / args.set / f"{name}.py", []
        for tool in TOOLS:
            if tool != "explain" and tool not in installed:
                cells.append("not installed")
                continue
            try:
                row = run(args, name, case, tool)
            except BenchmarkError as error:
                cells.append(f"fails ({str(error).splitlines()[-1]})")
                counts[tool]["fails"] += 1
                continue
            every.append(row)
            said, best = verdict([Seen(*one) for one in row["result"]["seen"]], program,
                                 lines_of(LINES[name][0]))  # fmt: skip
            counts[tool][said] += 1
            shown = f"**{said}**" if said == VERDICTS[0] else said
            where = (
                "" if best is None else f": {Path(best.file).name}:{best.line}, {best.share:.0%}"
            )
            cells.append(shown + where)
        body.append([name, LINES[name][1], *cells])
    if args.cases:
        print(table(["program", "lines of the cause", *TOOLS], body))
        return
    totals = [[said, *(str(counts[tool][said]) for tool in TOOLS)] for said in (*VERDICTS, "fails")]
    if "HolisticTraceAnalysis" in installed:
        about_traces = table(TRACES_HEAD, traces(args.rivals))
    else:
        about_traces = "HolisticTraceAnalysis is not installed."
    text = f"""## Explaining ordinary programs: py-spy, scalene and HolisticTraceAnalysis

{provenance(args, {"all": every})}
- Versions: {", ".join(f"{name} {version}" for name, version in installed.items())}.
- The criterion is in the docstring of `explain/rivals.py`. **Explain's rules were changed on these
  programs and traces; the rivals never saw them.** Each program runs once under each tool.

{table(["first line shown is", *TOOLS], totals)}

{table(["program", "lines of the cause", *TOOLS], body)}

{about_traces}
"""
    write_section(args, NAME, text)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--set", default="ordinary", help="which folder of programs")
    options.add_argument("--cases", nargs="+", default=None, help="only these; nothing is written")
    options.add_argument("--seconds", type=float, default=14.0, help="that each program runs")
    options.add_argument("--rivals", required=True, help="the Python that has the rivals")
    main(benchmark, options.parse_args())
