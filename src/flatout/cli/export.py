"""`flatout export`: a trained agent as one file for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from flatout.cli.flags import parse, refuse_json
from flatout.errors import UsageError, refuse_empty
from flatout_explain.cli.parsing import existing


@dataclass(frozen=True)
class ExportArguments:
    """Write a trained agent as one Python file that needs NumPy alone."""

    path: Annotated[Positional[str | None], arg(metavar="RUN_DIR")] = None
    """A run folder or a saved agent."""
    numpy: str | None = None
    """The .py file to write: its predict takes and returns the same as the agent's."""
    checkpoint: Literal["best", "final"] = "best"
    """best (by evaluation; the final parameters where none was made) or final."""
    env: str | None = None
    """The environment once more, where it is module:factory and the agent not of your making."""
    trust: bool = False
    """Run the code that the agent names, though it is not of your making."""


def export(argv: list[str]) -> int:
    """Run ``flatout export``; returns the exit code."""
    refuse_json(argv, "export has no --json: it prints the name of the file that it has written.")
    asked = parse(ExportArguments(), "flatout export", argv)
    if asked.path is None or asked.numpy is None:
        raise UsageError("export needs a run and a file: flatout export RUN_DIR --numpy policy.py.")
    refuse_empty("--numpy", asked.numpy)
    path = existing(asked.path)
    from flatout.api.load import load_any

    file = Path(asked.numpy).absolute()  # the environment may change the working folder
    agent, _ = load_any(path, asked.checkpoint, asked.env, asked.trust)
    agent.export(file)
    print(asked.numpy)
    return 0
