"""The facts on which a machine's results depend, and where two machines differ in them."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES

from flatout.version import __version__
from flatout_explain.files.kernel import kernel_text

Facts = Mapping[str, str]
"""A machine's facts by their names in messages, for example ``{"jax": "0.10.1"}``."""

COMPUTING = ("jax", "jaxlib", "numpy", "gymnasium")
"""Packages that compute a run's results, in addition to the environment's own."""

_VARIABLES = re.compile(
    r"XLA_FLAGS|OPENBLAS_CORETYPE|NPY_(DIS|EN)ABLE_CPU_FEATURES|"
    r"JAX_(?!PLATFORM|\w*CACHE|LOG|DEBUG|TRACEBACK|DUMP|CUDA|ROCM|TPU|MOCK|NUM_CPU_DEVICES)\w+"
)
"""Environment variables on which a CPU's results may depend."""

_WITHOUT_EFFECT = re.compile(r"--xla_(gpu|dump|force_host_platform_device_count)\w*(=\S*)?")
"""Parts of `XLA_FLAGS` on which a CPU's results do not depend."""

NOT_SET = "not set"

_ARITHMETIC = re.compile(r"(sse|avx|fma|f16c|amx|sve|asimd|neon)\w*")


def facts_here(packages: Sequence[str] = ()) -> Facts:
    """Return this machine's facts.

    Args:
        packages: distributions in addition to `COMPUTING`, for example that of the environment.
    """
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "Flatout": __version__,
    }
    for name in dict.fromkeys((*COMPUTING, *packages)):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    for name, value in os.environ.items():
        if _VARIABLES.fullmatch(name):
            words = " ".join(sorted(_WITHOUT_EFFECT.sub("", value).split()))
            if words:
                found[name] = words
    flags = re.search(r"^(?:flags|Features)\s*: *(.*)", kernel_text("/proc/cpuinfo"), re.M)
    words = flags[1].split() if flags else ()
    found["CPU flags"] = " ".join(sorted(word for word in words if _ARITHMETIC.fullmatch(word)))
    return found


def differences(here: Facts, there: Facts) -> list[str]:
    """Return phrases for what differs, for example ``numpy 2.2.1 instead of 2.3.0``."""
    found: list[str] = []
    for name in dict.fromkeys((*here, *there)):
        mine, other = here.get(name, NOT_SET), there.get(name, NOT_SET)
        if mine == other:
            continue
        if name != "CPU flags":
            found.append(f"{name} {other} instead of {mine}")
            continue
        ours, theirs = set(mine.split()), set(other.split())
        parts = [
            f"{word} {', '.join(sorted(flags))}"
            for word, flags in (("without", ours - theirs), ("with", theirs - ours))
            if flags
        ]
        found.append(f"a CPU {' and '.join(parts)}")
    return found


def loaded_with(packages: Iterable[str]) -> list[str]:
    """Return the distributions of some packages, and those distributions with compiled code which
    these require, if only optionally, and this process has loaded: simulators, for example.

    Args:
        packages: names as in an import. Flatout and unknown ones are left out.
    """
    names = metadata.packages_distributions()
    loaded = {name.partition(".")[0] for name in list(sys.modules)}
    compiled = {
        name.partition(".")[0]
        for name, module in list(sys.modules.items())
        if str(getattr(module, "__file__", "")).endswith(tuple(EXTENSION_SUFFIXES))
    }
    known = {_normal(name): name for package in loaded for name in names.get(package, ())}
    counted = {_normal(name) for package in compiled for name in names.get(package, ())}
    due = [name for package in sorted(packages) for name in names.get(package, ())]
    counted |= {*map(_normal, due)}
    found: dict[str, str] = {}
    while due:
        name = due.pop()
        if _normal(name) in (*found, "flatout"):
            continue
        found[_normal(name)] = name
        required = [_REQUIRED.match(text) for text in metadata.requires(name) or ()]
        due += [known[key] for one in required if one and (key := _normal(one[0])) in known]
    return sorted(name for key, name in found.items() if key in counted)


_REQUIRED = re.compile(r"[\w.-]+")


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
