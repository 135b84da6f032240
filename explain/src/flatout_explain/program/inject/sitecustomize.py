"""Starts the probe in every Python process of an explained program, then the user's own file.

This folder stands first on ``PYTHONPATH`` while `flatout explain` runs a program. It leaves the
path of modules as the program would have found it, and runs the `sitecustomize` that this one
hides, if there is one. Whatever fails here must not touch the program.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _start():
    folder = os.environ.get("FLATOUT_EXPLAIN")
    try:
        if os.path.isdir(folder) and not os.path.exists(os.path.join(folder, "stop")):
            import _flatout_probe

            _flatout_probe.start(folder, _restore)
        else:  # observing has ended
            _restore(os.environ)
    except Exception as error:  # the program goes on without being observed
        try:
            with open(os.path.join(folder, "%d.failed" % os.getpid()), "w") as file:
                file.write("%s: %s" % (type(error).__name__, error))
        except Exception:
            pass
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    sys.path_importer_cache.pop(HERE, None)


def _restore(variables):
    """Leave the environment as it was before; processes started from now on are not observed."""
    variables.pop("FLATOUT_EXPLAIN", None)
    paths = variables.get("PYTHONPATH", "").split(os.pathsep)
    if HERE in paths:
        paths.remove(HERE)
        if paths:
            variables["PYTHONPATH"] = os.pathsep.join(paths)
        else:
            del variables["PYTHONPATH"]


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
