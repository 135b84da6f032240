"""Count how far an iteration and a setting travel through the code.

    python tools/ways.py            # the figures
    python tools/ways.py --list     # and the files, functions and lines behind them

- *An iteration of PPO*: the files whose functions run in one iteration after the first ones, and
  those that JAX traces for the programs which it dispatches; once with `schedule=serial
  sampler=inline`, once with `schedule=fused`.
- *The settings' way*: from the command line to the first iteration, the files with functions that
  take or return all settings of a run (`TrainConfig`), and how often a function returns them.
- *Questions*: comparisons of a placement's fields with texts outside of `config/`, which each ask
  again what the placement means.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = str(ROOT / "src" / "flatout") + "/"
TOOL = str(ROOT / "explain" / "src") + "/"
"""The folder of `flatout_explain`, whose files count, too."""
TRACING = "jax/_src/interpreters/partial_eval.py"
"""JAX's file that is on the stack while a function is traced."""

PPO = {"n_steps": 32, "batch_size": 32, "n_epochs": 1, "hidden": (8,), "seed": 0}
COMMAND = ["train", "ppo", "--env", "CartPole-v1", "--envs", "2", "--n-steps", "32", "--batch-size",
           "32", "--hidden", "8", "--steps", "128", "--placement", "cpu"]  # fmt: skip


# --- In a process of its own ----------------------------------------------------------------


class Files:
    """The package's files in which functions are called, for use with `sys.setprofile`."""

    def __init__(self) -> None:
        self.traced: set[str] = set()
        self.run: set[str] = set()
        self.counts = False

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith((PACKAGE, TOOL)):
            return
        if self.counts:
            self.run.add(file)
        if file not in self.traced and _is_traced(frame):
            self.traced.add(file)


def _is_traced(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(TRACING):
            return True
        frame = frame.f_back
    return False


def iteration(placement: str) -> list[str]:
    """Train a small agent; return the files of its third iteration, and those traced before."""
    import flatout
    from flatout.run.callbacks import Callback

    files = Files()

    class Third(Callback):
        """Counts during the third iteration."""

        def on_iteration(self, run: Any) -> None:
            files.counts = run.progress.steps == 2 * 64

    backend = "device" if "fused" in placement else "host"
    agent = flatout.PPO("CartPole-v1", envs=2, env_backend=backend, placement=placement, **PPO)
    threading.setprofile(files)  # programs are compiled in threads of their own
    sys.setprofile(files)
    agent.learn(6 * 64, callback=Third())
    sys.setprofile(None)
    return sorted(files.traced | files.run)


def settings() -> tuple[list[str], list[str]]:
    """Start a run; return the files that its settings come to, and the functions that return them,
    each as often as it does."""
    from flatout.__main__ import main
    from flatout.config.schema import TrainConfig

    files, returns = set[str](), list[str]()

    def note(frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith((PACKAGE, TOOL)):
            return
        if event == "call":
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(isinstance(frame.f_locals.get(name), TrainConfig) for name in names):
                files.add(code.co_filename)
        elif event == "return" and isinstance(value, TrainConfig):
            files.add(code.co_filename)
            file = code.co_filename.removeprefix(PACKAGE).removeprefix(TOOL)
            returns.append(f"{file}: {code.co_qualname}")

    threading.setprofile(note)
    sys.setprofile(note)
    main(COMMAND)
    sys.setprofile(None)
    return sorted(files), returns


# --- The figures ----------------------------------------------------------------------------


def questions() -> list[str]:
    """The places outside of `config/` that compare a field of a placement with a text."""
    from flatout.config.placement import Placement

    asked = {spec.name for spec in fields(Placement)}
    found = []
    for file in sorted(Path(PACKAGE).rglob("*.py")):
        short = str(file).removeprefix(PACKAGE)
        if short.startswith("config/"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            field = any(isinstance(side, ast.Attribute) and side.attr in asked for side in sides)
            if field and any(map(_is_text, sides)):
                found.append(f"{short}:{node.lineno}: {ast.unparse(node)}")
    return found


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return bool(node.elts) and all(map(_is_text, node.elts))
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def elsewhere(expression: str) -> Any:
    """The value of an expression of this module, from a process of its own."""
    code = f"import json, ways; print('@' + json.dumps(ways.{expression}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "tools", text=True, capture_output=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("@")]
    if not lines:
        raise SystemExit(done.stderr)
    return json.loads(lines[-1][1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print what is behind the figures")
    asked = parser.parse_args()

    def tell(title: str, rows: list[str]) -> None:
        print(title)
        for row in rows if asked.list else ():
            print(f"    {row.removeprefix(PACKAGE).removeprefix(TOOL)}")

    for placement in ("sampler=inline", "sampler=device schedule=fused"):
        files = elsewhere(f"iteration({placement!r})")
        lines = sum(len(Path(file).read_text().splitlines()) for file in files)
        tell(f"an iteration of PPO, {placement}: {len(files)} files, {lines:,} lines", files)
    files, returns = elsewhere("settings()")
    tell(f"the settings' way: {len(files)} files", files)
    rows = [f"{times} x {name}" for name, times in Counter(returns).most_common()]
    tell(f"the settings' way: {len(returns)} returns of {len(rows)} functions", rows)
    places = questions()
    in_files = len({row.partition(":")[0] for row in places})
    tell(f"comparisons of placements with texts: {len(places)} in {in_files} files", places)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
