"""Kinds of events, and the part of a program that they belong to, from their names."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from flatout_explain.libraries import ENVIRONMENTS, LIBRARIES
from flatout_explain.phases import MARKABLE
from flatout_explain.program import tags
from flatout_explain.program.codes import Code
from flatout_explain.program.evidence import program_folder
from flatout_explain.trace.events import Kind

DEVICE_KINDS = {
    Kind.COPY: re.compile(r"memcpy|copyBuffer|copyimage", re.IGNORECASE),
    Kind.SET: re.compile(r"memset|fillBuffer", re.IGNORECASE),
    Kind.COLLECTIVE: re.compile(
        r"nccl|rccl|oneccl|msccl|all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter"
        r"|all[_-]?to[_-]?all",
        re.IGNORECASE,
    ),
}
WAIT = re.compile(
    r"(cuda|hip|cu|ze|sycl)\w*Synchronize|(cu|hip)\w*(Event|Stream)Query|BlockHostUntil|\bAwait\b"
    rf"|{'|'.join(sorted(tags.BLOCKS))}|_local_scalar_dense|aten::item$|cuda(Memcpy)$"
    r"|hipMemcpyWithStream"
)
"""Calls that return when a device has finished; the last ones copy at once."""

INPUT = re.compile(
    r"DataLoader|data_?loader|_next_data|tf_data|Iterator::|IteratorGetNext|PrefetchDataset"
    r"|MultiDeviceIterator|InputPipeline",
)
ENV = re.compile(
    r"(^|[.:# ])(envs?|environments?|gym|gymnasium)\w*([.:_ ](step|reset)|$)"
    r"|(^|[.:# ])(step|reset)_env",
    re.IGNORECASE,
)
COMPILE = re.compile(
    r"backend_compile|XlaCompile|\bCompile(To|Single|d?Module|AndLoad)|xla_compile"
    r"|compile_inner|compile_fx|lower_sharding|trace_to_jaxpr"
)
TORCH_COMPILES = re.compile(
    r"/torch/_dynamo/\S+ (_compile|_?compile_inner)"
    r"|/torch/_inductor/\S+ (compile_fx\w*|precompile|autotune_to_one_config)"
)
"""Functions of PyTorch, behind their files, that compile and tune; all that they call is within
them. Others of those folders run in each call of what has been compiled."""

BACKWARD = re.compile(r"backward|autograd::engine|Engine", re.IGNORECASE)
"""Functions that wait for another thread, which runs the backward pass."""

FRAME = re.compile(
    r"\$(?P<jax>\S+):(?P<at>\d{1,9}) (?P<what>.+)|(?P<file>.+)\((?P<line>\d{1,9})\): (?P<name>.+)"
)
"""Python functions in JAX's and in PyTorch's traces."""

STDLIB = os.path.dirname(os.__file__)


@lru_cache(maxsize=100_000)
def device_kind(name: str) -> Kind:
    """Return the kind of a device's event that its profiler calls a kernel."""
    kinds = (kind for kind, pattern in DEVICE_KINDS.items() if pattern.search(name))
    return next(kinds, Kind.KERNEL)


@lru_cache(maxsize=100_000)
def frame(name: str) -> tuple[str, int, str] | None:
    """Return file, line and name of a Python function; None for other names."""
    found = FRAME.fullmatch(name)
    if found is None:
        return None
    file, line, function = found.group(*(1, 2, 3) if found["jax"] else (4, 5, 6))
    return file.replace("\\", "/"), int(line), function


MARKED_PART = {phase: phase for phase in MARKABLE} | {"learn": "launch"}
"""The part of the time that belongs to a phase which the program has marked. What a device computes
is learning; the host launches that."""


def marked_part(name: str, kind: Kind) -> str | None:
    """Return the part of the time decided by a range whose name is a phase; None for other
    events."""
    return MARKED_PART.get(name) if kind in (Kind.RANGE, Kind.OPERATION) else None


@lru_cache(maxsize=100_000)
def part(name: str, kind: Kind) -> str | None:
    """Return the phase of an event of the host and of all that happens in it; None if the events
    around it decide."""
    if kind is Kind.PYTHON and (found := frame(name)) is not None:
        file, line, function = found
        path = whole_path(file)
        if tags.COMPILERS.search(path) or TORCH_COMPILES.fullmatch(
            f"{path[max(path.rfind('/torch/'), 0) :]} {function}"
        ):
            return "compile"
        if tags.installed(path).partition("/")[0] in ENVIRONMENTS:
            return "env"
        if function in tags.BLOCKS and tags.installed(path):
            return "transfer"
        tag = tags.frame_tag(Code(path, function, line), STDLIB)
        return tag if tag in ("input", "io") else None
    if INPUT.search(name):
        return "input"
    if COMPILE.search(name):
        return "compile"
    if kind is Kind.WAIT:
        return "transfer"
    return "env" if kind is Kind.RANGE and ENV.search(name) else None


def is_wait(name: str) -> bool:
    """Return whether a call of the host waits for a device."""
    return WAIT.search(name) is not None


# --- The program ------------------------------------------------------------------------------


def folder(names: Iterable[str]) -> str:
    """Return the folder of the program's own files, from a thread's Python functions in order;
    empty if it is unknown. A recording begins with the functions that run already, the main
    module's top-level code first."""
    for found in map(frame, names):
        if found is None:
            continue
        file, _, function = found
        path = whole_path(file)
        if tags.package(path, STDLIB) == "stdlib":
            continue
        module = "" if path == file and file.startswith("/") else file.removesuffix(".py")
        main = function == "<module>" and tags.package(path, STDLIB) == "program"
        return program_folder(path, module.replace("/", ".")) if main else ""
    return ""


@lru_cache(maxsize=100_000)
def is_own(name: str, folder: str) -> bool:
    """Return whether a Python function is the program's own, by the definition for observed
    programs (`tags.is_own`)."""
    found = frame(name)
    if found is None or found[2] == "<module>" or found[0].startswith("<"):
        return False
    return tags.is_own(Code(whole_path(found[0]), found[2], found[1]), STDLIB, folder)


@cache
def whole_path(file: str) -> str:
    """Return the path of a file whose folders a profiler has left out: PyTorch leaves out those in
    which modules are searched for, and JAX all of them."""
    top, _, inner = file.partition("/")
    name = top.removesuffix(".py")
    if not top or file.startswith("<"):
        return file
    if name in sys.stdlib_module_names and (not inner or Path(STDLIB, top).is_dir()):
        return f"{STDLIB}/{file}"
    if name in LIBRARIES or (_is_installed(name) if inner else name in _jax_files()):
        return f"/site-packages/{file}"
    return file


def _is_installed(name: str) -> bool:
    """Return whether a package is installed here."""
    try:
        spec = find_spec(name) if name.isidentifier() else None
    except (ImportError, ValueError):  # a module without a specification
        return False
    return spec is not None and bool(tags.installed(spec.origin or ""))


@cache
def _jax_files() -> frozenset[str]:
    """Return the names of JAX's files."""
    spec = find_spec("jax")
    folders = spec.submodule_search_locations or [] if spec is not None else []
    return frozenset(path.stem for folder in folders for path in Path(folder).rglob("*.py"))
