"""The `flatout` command: errors become one sentence and an exit code."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # as little as may be is imported before `main`
    from types import FrameType


PATIENCE_S = 30.0
"""How long a process may take to end once its command is done."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (0, 1, 2, 129, 130 or 143)."""
    if argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # In force until a command has something to lose: an exception amid JAX's imports has ended
        # in segmentation faults, or in nothing at all.
        signal.signal(signal.SIGINT, _leave)
    from flatout.output import guarded, trouble

    arguments = sys.argv[1:] if argv is None else argv
    with guarded(ends=argv is None) as stdout:
        code = _run(arguments)
        if stdout is not None and code == 0:
            stdout.flush()
            if not stdout.told and not stdout.unread:
                code = 1 if trouble(stdout, "nobody has seen all of it") else 0
    if argv is None:
        _end_within(PATIENCE_S, code)
    return code


def _end_within(seconds: float, code: int) -> None:
    """End the process also where a thread that an environment left behind, or a handler of exits,
    would keep it for ever."""
    import threading

    def end() -> None:
        main = threading.main_thread()
        alive = [thread for thread in threading.enumerate() if thread is not main]
        names = ", ".join(thread.name for thread in alive if not thread.daemon)
        hung = f"({names or 'a handler of exits'} hung)"
        line = f"flatout: ended {seconds:g} s after its work {hung}\n"
        os.write(2, line.encode(errors="replace"))
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _leave(signum: int, frame: FrameType | None) -> None:
    """Ctrl-C where there is nothing to lose."""
    os.write(2, b"flatout: interrupted\n")
    os._exit(128 + signum)


def _run(arguments: list[str]) -> int:
    """Run one command; what it raises becomes a sentence."""
    from flatout.cli.commands import dispatch
    from flatout.errors import FlatoutError, Interrupt
    from flatout.output import say

    try:
        return dispatch(arguments)
    except SystemExit as stop:  # --help, of the parser
        return stop.code if isinstance(stop.code, int) else 1
    except FlatoutError as error:
        say(error)
        return error.exit_code
    except (Interrupt, KeyboardInterrupt) as stop:
        say("interrupted")
        return 128 + getattr(stop, "signum", signal.SIGINT)
    except RuntimeError as error:  # JAX's own, of a device whose memory is full
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        say(
            f"the device's memory is full ({reason}); lower --envs, --batch-size or the network's "
            "size, or raise memory="
        )
        return 1
    except MemoryError:
        say("out of memory; lower --envs, --buffer-size (--n-steps for ppo) or the network's size")
        return 1


if __name__ == "__main__":
    sys.exit(main())
