"""``%load_ext flatout``: the magic commands ``%%explain`` and ``%explain`` of IPython.

IPython is not required: it is already loaded where one of these functions is called.
"""

from __future__ import annotations

from typing import Any

from flatout_explain.errors import FlatoutError
from flatout_explain.program.block import explaining


def register(shell: Any) -> None:
    """Add the commands to a shell of IPython."""

    def explain(line: str, cell: str | None = None) -> None:
        """Explain why the hardware idles while code runs: %explain STATEMENT, or a cell.

        %%explain NAME keeps the explanation under that name: NAME.verdict, NAME.save("x.html").
        """
        run(shell, line, cell)

    shell.register_magic_function(explain, "line_cell", "explain")


def run(shell: Any, line: str, cell: str | None) -> None:
    """Run a statement or a cell, and display its report.

    Raises:
        IPython.core.error.UsageError: there is nothing to run, the name is none, or the code
            raised an exception.
    """
    from IPython.core.error import UsageError  # pyright: ignore[reportMissingImports]
    from IPython.display import display  # pyright: ignore[reportMissingImports]

    name = line.strip() if cell is not None else ""
    code = line if cell is None else cell
    if name and not name.isidentifier():
        raise UsageError(f"%%explain {name}: write %%explain alone, or with a variable's name.")
    if not code.strip():
        raise UsageError("nothing follows: write %explain STATEMENT, or %%explain above a cell.")
    what = "a statement" if cell is None else "a cell"
    try:
        with explaining(show=False, subject=f"{what} of the notebook") as explanation:
            result = shell.run_cell(code, store_history=False)
    except FlatoutError as error:
        raise UsageError(str(error)) from None
    if explanation.diagnosis is not None:
        display(explanation)
    if name:
        shell.user_ns[name] = explanation
    if not result.success:  # its traceback is above
        raise UsageError(f"{what} raised an exception.")
