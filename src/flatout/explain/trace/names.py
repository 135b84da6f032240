"""Kinds of events, and the part of a program that they belong to, from their names."""

from __future__ import annotations

import re
import sys
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from flatout.explain.program import tags
from flatout.explain.program.codes import Code
from flatout.explain.trace.events import Kind
from flatout.spans import MARKABLE

COLLECTIVE = re.compile(
    r"nccl|rccl|oneccl|msccl|all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all",
    re.IGNORECASE,
)
COPY = re.compile(r"memcpy|copyBuffer|copyimage", re.IGNORECASE)
SET = re.compile(r"memset|fillBuffer", re.IGNORECASE)
WAIT = re.compile(
    r"(cuda|hip|cu|ze|sycl)\w*Synchronize|(cu|hip)\w*(Event|Stream)Query|block_until_ready"
    r"|BlockHostUntil|\bAwait\b|_local_scalar_dense|aten::item$|cuda(Memcpy)$|hipMemcpyWithStream"
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
    r"backend_compile|XlaCompile|\bCompile(To|Single|d?Module|AndLoad)|xla_compile|TorchDynamo"
    r"|_compile_fx|torch/_(dynamo|inductor)|Inductor|lower_sharding|trace_to_jaxpr"
)
BACKWARD = re.compile(r"backward|autograd::engine|Engine", re.IGNORECASE)
"""Functions that wait for another thread, which runs the backward pass."""

PYTORCH_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d{1,9})\): (?P<name>.+)")
JAX_FRAME = re.compile(r"\$(?P<file>\S+):(?P<line>\d{1,9}) (?P<name>.+)")
"""Python functions in PyTorch's and in JAX's traces."""


@lru_cache(maxsize=100_000)
def device_kind(name: str, kind: Kind = Kind.KERNEL) -> Kind:
    """The kind of a device's event; `kind` is the one that the profiler gives."""
    if kind is not Kind.KERNEL:
        return kind
    if COPY.search(name):
        return Kind.COPY
    if SET.search(name):
        return Kind.SET
    return Kind.COLLECTIVE if COLLECTIVE.search(name) else Kind.KERNEL


def frame(name: str) -> tuple[str, int, str] | None:
    """File, line and name of a Python function; None if it is not one."""
    found = PYTORCH_FRAME.fullmatch(name) or JAX_FRAME.fullmatch(name)
    return None if found is None else (found["file"], int(found["line"]), found["name"])


MARKED_PART = {phase: phase for phase in MARKABLE} | {"learn": "launch", "other": "host"}
"""The part of the time that belongs to a phase which the program has marked. What a device computes
is learning; the host launches that."""


def marked_part(name: str, kind: Kind) -> str | None:
    """Return the part of the time decided by a range whose name is a phase; None for other
    events."""
    return MARKED_PART.get(name) if kind in (Kind.RANGE, Kind.OPERATION) else None


@lru_cache(maxsize=100_000)
def part(name: str, kind: Kind) -> str | None:
    """The phase that an event of the host belongs to with all that happens in it; None if that is
    for the events around it to say."""
    if kind is Kind.PYTHON and (found := frame(name)) is not None:
        file, line, function = found
        package = file.partition("/")[0]
        if package in tags.CORE:  # PyTorch shortens the names of modules' files
            file = f"/site-packages/{file}"
        if COMPILE.search(file) or tags.COMPILERS.search(file):
            return "compile"
        if package in ("gymnasium", "gym"):
            return "env"
        tag = tags.frame_tag(Code(file, function, line), "/usr/lib/python3")
        if tag == "env" and "env" not in f"{file}.{function}".lower():
            return None  # a function named `step` is often one that learns
        return tag if tag in ("env", "input", "io") else None
    if INPUT.search(name):
        return "input"
    if COMPILE.search(name):
        return "compile"
    if kind is Kind.RANGE and ENV.search(name):
        return "env"
    return None


def is_wait(name: str) -> bool:
    """Return whether a call of the host waits for a device."""
    return WAIT.search(name) is not None


@lru_cache(maxsize=100_000)
def is_program(name: str) -> bool:
    """Whether a Python function is the user's: of no library that is known."""
    found = frame(name)
    if found is None or found[2] == "<module>":
        return False
    file = found[0].replace("\\", "/")
    package, stem = file.partition("/")[0], Path(file).stem
    if "/site-packages/" in file or package in tags.CORE or file.startswith("<"):
        return False
    # PyTorch shortens the names of the standard library's files, JAX those of all files.
    return not (package == file and (stem in sys.stdlib_module_names or stem in _jax_files()))


@cache
def _jax_files() -> frozenset[str]:
    spec = find_spec("jax")
    folders = spec.submodule_search_locations or [] if spec is not None else []
    return frozenset(path.stem for folder in folders for path in Path(folder).rglob("*.py"))
