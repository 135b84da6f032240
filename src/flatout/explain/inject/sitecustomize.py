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
    except Exception as error:  # the program goes on without being observed
        try:
            with open(os.path.join(folder, "%d.failed" % os.getpid()), "w") as file:
                file.write("%s: %s" % (type(error).__name__, error))
        except Exception:
            pass
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    sys.path_importer_cache.pop(here, None)


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
