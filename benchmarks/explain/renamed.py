"""Makes the twin of a program: the same program with names that say nothing.

    python benchmarks/explain/renamed.py FILE [--out DIR] [--check [--python PATH]] [-- ARGUMENTS]

Functions, classes, methods, attributes, variables, parameters and modules of the program become
`f1`, `C1`, `a1`, `v1`, `m1`; comments and docstrings go. Names stay where something outside of the
program reads them: methods and attributes of a library's protocol (`step` of a gymnasium.Env,
`training_step`, `action_space`), strings, dictionary keys, command-line flags, keywords of
libraries' functions, and whatever cannot be attributed with certainty. With the same seed the twin
prints the same, which `--check` tests: it runs the program twice and the twin once.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from renaming.neutral import Renaming  # noqa: E402

HARNESS = ("phases", "pace", "methods")
"""Modules of the benchmarks that programs import: copied as they are."""


def twin(script: Path, out: Path) -> Path:
    """Write a script's twin, with those of the modules next to it that it imports, into a folder.

    Returns:
        The twin's script.
    """
    trees, copied, waiting = dict[str, ast.Module](), set[Path](), [script]
    while waiting:
        file = waiting.pop()
        trees[file.stem] = ast.parse(file.read_text(), str(file))
        for node in ast.walk(trees[file.stem]):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                found = file.parent / f"{name}.py"
                if name in HARNESS:
                    copied.add(next(f for f in (found, *HERE.glob(f"*/{name}.py")) if f.exists()))
                elif found.exists() and name not in trees:
                    waiting.append(found)
    out.mkdir(parents=True, exist_ok=True)
    for name, source in Renaming(trees, script.stem).apply().items():
        (out / f"{name}.py").write_text(source)
    for file in copied:
        shutil.copy(file.resolve(), out / file.name)
    if any(file.stem == "methods" for file in copied):
        shutil.copy((HERE / "ordinary" / "phases.py"), out)
    return out / "m0.py"


def check(script: Path, other: Path, python: str, words: list[str]) -> str:
    """Run a program twice and its twin once, and say whether they print the same.

    Returns:
        One sentence; it begins with "different" if the twin failed or printed something else.
    """
    outputs, codes = [], []
    for file in (script, other, script):
        child = subprocess.run(
            [python, file.name, *words], cwd=file.parent, capture_output=True, text=True,
            check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        codes.append(child.returncode)
        outputs.append([line for line in child.stdout.splitlines() if not line.startswith("work=")])
        if codes[0] or codes[-1]:
            where = "the twin" if file == other else "the program itself"
            error = (child.stderr.splitlines() or [""])[-1]
            return f"different: {where} ended with {codes[-1]}: {error}"
    same, again = (_common(outputs[0], one) for one in outputs[1:])
    least = min(map(len, outputs)) - 1  # the last line may be the last one for one only
    if same >= max(least, 0):
        return f"the same {same} lines" if same else "ran; nothing is printed before the end"
    if again >= least or same < min(again, 1):
        return f"different: line {same + 1} of {least}"
    return f"ran; the program itself is the same in {again} lines only, its twin in {same}"


def _common(lines: list[str], others: list[str]) -> int:
    pairs = list(zip(lines, others, strict=False))
    return next((n for n, (one, other) in enumerate(pairs) if one != other), len(pairs))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("file", type=Path)
    options.add_argument("--out", type=Path, help="folder (default: benchmarks/results/twins/NAME)")
    options.add_argument("--check", action="store_true", help="compare what both print")
    options.add_argument("--python", default=sys.executable, help="with --check: runs both")
    options.epilog = "With --check, arguments after -- are the program's (default: --seconds 5)."
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    args = options.parse_args(words[:end])
    results = HERE.parent / "results" / "twins" / args.file.stem
    written = twin(args.file, args.out or results)
    print(written)
    if args.check:
        given = words[end + 1 :] or ["--seconds", "5"]
        answer = check(args.file.absolute(), written.absolute(), args.python, given)
        print(answer)
        sys.exit(answer.startswith("different"))
