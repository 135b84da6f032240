"""`flatout export`: a trained agent as one file for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from flatout.cli.flags import Word, out_files, parse
from flatout.errors import UsageError
from flatout_explain.cli.parsing import existing


@dataclass(frozen=True)
class ExportArguments:
    """Write a trained agent as one Python file that needs NumPy alone."""

    usage: ClassVar[tuple[str, ...]] = ("RUN_DIR --out policy.py",)

    path: Annotated[str | None, Word("RUN_DIR")] = None
    """A run folder or a saved agent."""
    out: Annotated[str | None, "FILE.py"] = None
    """The .py file to write: its predict takes and returns the same as the agent's."""
    checkpoint: Literal["best", "final"] = "best"
    """best (by evaluation; the final parameters where none was made) or final."""
    env: Annotated[str | None, "ID|MODULE:FACTORY"] = None
    """Another environment with the same spaces, if the agent's own was passed as a Python object;
    or the agent's again, if it is module:factory and another user created the agent."""
    trust: bool = False
    """Run the code that the agent names, although another user created it."""


def export(argv: list[str]) -> int:
    """Run ``flatout export``; return the exit code."""
    asked = parse(ExportArguments, "flatout export", argv)
    if asked.path is None or asked.out is None:
        raise UsageError("export needs a run and a file: flatout export RUN_DIR --out policy.py.")
    out_files([asked.out], ".py")
    path = existing(asked.path)
    from flatout.api.load import load_any

    file = Path(asked.out).absolute()  # the environment may change the working folder
    agent, _ = load_any(path, asked.checkpoint, asked.env, asked.trust, command=True)
    agent.export(file)
    print(asked.out)
    return 0
