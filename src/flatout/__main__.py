"""The `flatout` command: it runs one command line; an error becomes a sentence and an exit code."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # few modules are imported before `main`, so that it handles Ctrl-C early
    from types import FrameType


PATIENCE_S = 30.0
"""Seconds that the process may take to end after its command."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code (0, 1, 2, 129, 130 or 143).

    Args:
        argv: the arguments; None for those of this process, which is ended if it hangs afterwards.
    """
    if argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until a command installs its own handler. An exception within JAX's imports caused
        # segmentation faults, or had no effect.
        signal.signal(signal.SIGINT, _interrupt)
    if argv is None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # Also after a command has saved: job managers send several, and the exit code is one.
        signal.signal(signal.SIGTERM, _interrupt)
    from flatout.output import guarded, trouble

    arguments = sys.argv[1:] if argv is None else argv
    with guarded(ends=argv is None) as stdout:
        code = _run(arguments)
        if stdout is not None and code == 0:
            stdout.flush()
            if not stdout.reported and not stdout.unread:
                code = 1 if trouble(stdout, "the output is incomplete") else 0
    if argv is None:
        if code == 128 + signal.SIGTERM:
            # Python gives signals their default effect as it ends: another exit code would follow.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_within(PATIENCE_S, code)
    return code


def _end_within(seconds: float, code: int) -> None:
    """End the process after `seconds`, even if a thread or an exit handler would keep it alive.

    Such a thread may be one that an environment has started.
    """
    import threading

    def end() -> None:
        main = threading.main_thread()
        alive = [thread for thread in threading.enumerate() if thread is not main]
        names = ", ".join(thread.name for thread in alive if not thread.daemon)
        hung = f"({names or 'an exit handler'} hung)"
        line = f"flatout: ended {seconds:g} s after its work {hung}\n"
        os.write(2, line.encode(errors="replace"))
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """End the process at a signal, before a command has anything to save or after it has saved."""
    os.write(2, b"flatout: interrupted\n")
    os._exit(128 + signum)


def _run(arguments: list[str]) -> int:
    """Run one command and return its exit code; print a sentence for an expected exception."""
    from flatout.cli.commands import dispatch
    from flatout.errors import FlatoutError, Interrupt, failure, full_memory
    from flatout.output import say
    from flatout_explain.cli.parsing import HelpShown

    try:
        return dispatch(arguments)
    except HelpShown:
        return 0
    except SystemExit as stop:  # the user's code ended the command, perhaps with exit code 0
        say(f"code that the command called ended it: {failure(stop)}.")
        return 1
    except FlatoutError as error:
        say(error)
        return error.exit_code
    except (Interrupt, KeyboardInterrupt) as stop:
        say("interrupted")
        return 128 + getattr(stop, "signum", signal.SIGINT)
    except (RuntimeError, MemoryError) as error:
        if not (sentence := full_memory(error)):
            raise
        say(sentence)
        return 1


if __name__ == "__main__":
    sys.exit(main())
