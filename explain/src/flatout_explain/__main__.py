"""The `flatout-explain` command: an error becomes a sentence and an exit code."""

from __future__ import annotations

import signal
import sys


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        argv: the arguments; None for those of this process.
    """
    from flatout_explain.output import guarded, trouble

    with guarded() as stdout:
        code = _run(sys.argv[1:] if argv is None else argv)
        if stdout is not None and code == 0:
            stdout.flush()
            if not stdout.reported and not stdout.unread:
                code = 1 if trouble(stdout, "the output is incomplete") else 0
    return code


def _run(arguments: list[str]) -> int:
    from flatout_explain.cli.command import Runs, explain
    from flatout_explain.cli.parsing import HelpShown
    from flatout_explain.errors import FlatoutError, Interrupt
    from flatout_explain.output import say
    from flatout_explain.version import __version__

    if arguments == ["--version"]:
        print(f"flatout-explain {__version__}")
        return 0
    try:
        return explain(arguments or ["--help"], Runs())
    except HelpShown:
        return 0 if arguments else 2
    except FlatoutError as error:
        say(error)
        return error.exit_code
    except (Interrupt, KeyboardInterrupt) as stop:
        say("interrupted")
        return 128 + getattr(stop, "signum", signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
