"""The `flatout` command: errors become one sentence and an exit code."""

from __future__ import annotations

import os
import sys


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (0, 1, 2, 130 or 143)."""
    from flatout.cli import dispatch
    from flatout.errors import FlatoutError

    arguments = sys.argv[1:] if argv is None else argv
    try:
        return dispatch(arguments)
    except FlatoutError as error:
        print(f"flatout: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("flatout: interrupted", file=sys.stderr)
        return 130
    except RuntimeError as error:  # JAX's own, of a device whose memory is full
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        print(f"flatout: the device's memory is full ({reason}); lower --envs, --batch-size or "
              "the network's size, or raise memory=", file=sys.stderr)  # fmt: skip
        return 1
    except MemoryError:
        print("flatout: out of memory; lower --envs, --buffer-size (--n-steps for ppo) or the "
              "network's size", file=sys.stderr)  # fmt: skip
        return 1


if __name__ == "__main__":
    sys.exit(main())
