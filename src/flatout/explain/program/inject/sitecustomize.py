"""Starts the probe in every Python process of an explained program, then the user's own file.

This folder stands first on ``PYTHONPATH`` while `flatout explain` runs a program. It leaves the
path of modules as the program would have found it, and runs the `sitecustomize` that this one
hides, if there is one. Whatever fails here must not touch the program.
"""

import os
import sys


def _start():
    here = os.path.dirname(os.path.abspath(__file__))
    folder = os.environ.get("FLATOUT_EXPLAIN")
    try:
        if folder and os.path.isdir(folder):
            import _flatout_probe

            _flatout_probe.start(folder)
            if sys.version_info < (3, 13):  # from then on no signal interrupts the main thread
                _whole_output()
    except Exception as error:  # the program goes on without being observed
        try:
            with open(os.path.join(folder, "%d.failed" % os.getpid()), "w") as file:
                file.write("%s: %s" % (type(error).__name__, error))
        except Exception:
            pass
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    sys.path_importer_cache.pop(here, None)


def _whole_output():
    """Let unbuffered output be written whole.

    ``python -u`` hands each text to one write, and drops what a signal has cut off from it.
    """
    import io

    class Whole(io.FileIO):
        def write(self, data):
            view = memoryview(data).cast("B")
            done = 0
            while done < len(view):
                count = super().write(view[done:])
                if count is None:  # not blocking, and full
                    return done or None
                done += count
            return done

    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        if type(getattr(old, "buffer", None)) is not io.FileIO:
            continue  # buffered, which writes whole
        raw = Whole(old.fileno(), "w", closefd=False)
        raw.name = old.name
        new = io.TextIOWrapper(
            raw, encoding=old.encoding, errors=old.errors, newline="\n",
            line_buffering=old.line_buffering, write_through=True,
        )  # fmt: skip
        new.mode = "w"
        setattr(sys, name, new)
        setattr(sys, "__%s__" % name, new)


def _chain(mine):
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401  (the program's own)
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = mine


if os.environ.get("FLATOUT_EXPLAIN"):
    _start()
    _chain(sys.modules["sitecustomize"])
