"""Do scripts of the zoo end with the same parameters with `flatout explain` and without?

Each script of one process runs three times: for some seconds; then plainly for as many turns of its
main loop; then for as many under explain. Where the first two end with the same arrays the script
is repeatable, and the third must end with them, too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from run_zoo import VARIABLES, ZOO, Case, load, parsed, pythons  # noqa: E402

from harness import (  # noqa: E402
    BenchmarkError,
    Row,
    flatout,
    main,
    parser,
    run_child,
    source_id,
)
from report import provenance, table, write_section  # noqa: E402

NAME = "explain_same"


class Ends:
    """Runs scripts, and remembers what each run was like."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.pythons = pythons(args)
        self.source = source_id()
        self.rows: list[Row] = []

    def run(self, case: Case, turns: int | None, explained: bool) -> Row:
        """Run a script; return its number of turns, and the digest and number of its arrays.

        Raises:
            BenchmarkError: it failed, or does not come to its end in this way.
        """
        python, *script = case.command(self.pythons[case.framework], self.args.seconds)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "end.json"
            argv = [python, str(HERE / "counted.py"), "--to", str(file)]
            argv += [] if turns is None else ["--turns", str(turns)]
            argv += ["--", *script]
            if explained:
                argv = [flatout(self.args), "explain", "--seconds", "600", "--", *argv]
            child = run_child(argv, VARIABLES, self.args.timeout)
            self.rows.append({
                "when": time.strftime("%Y-%m-%d"), "other_load": child.other_load,
                "source": self.source, "result": {},
            })  # fmt: skip
            if child.code or not file.exists():
                last = (child.stderr.strip().splitlines() or ["nothing was written"])[-1]
                raise BenchmarkError(f"{case.name}: {last}")
            return json.loads(file.read_text())


def compare(ends: Ends, case: Case) -> tuple[list[str], bool, bool] | str:
    """The row of a script, whether it is repeatable, and the same under explain; why it failed."""
    try:
        first = ends.run(case, None, explained=False)
        turns = first["turns"]
        again, explained = (ends.run(case, turns, explained=side) for side in (False, True))
    except BenchmarkError as error:
        return f"- Not run: {error}"
    if not again["arrays"]:
        return f"- Not compared: {case.name}: its main loop's variables lead to no array."
    repeatable = first["digest"] == again["digest"]
    same = repeatable and again["digest"] == explained["digest"]
    verdict = ("yes" if same else "**no**") if repeatable else "not repeatable"
    row = [case.name, case.framework, f"{turns:,}", str(again["arrays"]), verdict]
    return row, repeatable, same


def benchmark(args: argparse.Namespace) -> None:
    """Compare the ends of each script, two scripts at a time, and write the section."""
    ends = Ends(args)
    cases = [
        case
        for case in load(ZOO, args.cases)
        if case.processes == 1 and not case.budget and case.framework in ends.pythons
    ]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda case: compare(ends, case), cases))
    failed = [result for result in results if isinstance(result, str)]
    compared = [result for result in results if not isinstance(result, str)]
    if not compared:
        raise BenchmarkError(f"nothing ran: {' '.join(failed)}")
    body = [row for row, _, _ in compared]
    repeatable, same = (sum(each[i] for each in compared) for i in (1, 2))
    where = provenance(args, {"all": ends.rows})
    text = f"""\
- Each script of one process runs twice without explain and once under it, for the same number of
  turns of its main loop. All arrays that the loop's variables lead to are compared, bit for bit.
  Of {len(body)} scripts {repeatable} end equally in both plain runs; **{same} of these
  {repeatable}** end so under explain, too.

{table(["case", "framework", "turns", "arrays", "the same under explain"], body)}"""
    title = "## Explaining the zoo: the same parameters\n"
    write_section(args, NAME, "\n".join([title, where, text, *failed]))


if __name__ == "__main__":
    options = parser(__doc__)
    add = options.add_argument
    add("--cases", nargs="+", default=None, help="only these")
    add("--seconds", type=float, default=3.0, help="that the first run of each script lasts")
    arguments = parsed(options)
    arguments.no_write |= bool(arguments.cases)
    main(benchmark, arguments)
