"""Remedies for particular calls: one line to change, where a rule for the whole phase would propose
a rewrite."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flatout.explain.program.evidence import Process

MAINLY = 0.3  # share of a phase from which on a call is what to change


@dataclass(frozen=True)
class CallRemedy:
    """A remedy for lines that make a particular call."""

    line: re.Pattern[str]  # matches the source of such a line
    words: str  # the remedy
    libraries: tuple[str, ...]  # of which the process has loaded one
    call: str = ".*"  # matches the name of the function that runs


CALL_REMEDIES: tuple[CallRemedy, ...] = (
    CallRemedy(
        re.compile(r"\.predict(_on_batch)?\("),
        "Call the model itself, model(x, training=False), in place of model.predict(x), which "
        "builds a data pipeline and its callbacks for each call.",
        libraries=("keras", "tensorflow"),
    ),
    CallRemedy(
        re.compile(r"torch\.(tensor|as_tensor|Tensor|FloatTensor|LongTensor|BoolTensor)\("
                   r"(?!\s*(np|numpy)\.)"),
        "Make one array of the list first, torch.as_tensor(np.array(...)): PyTorch copies a list "
        "of arrays element by element.",
        libraries=("torch",), call="tensor|as_tensor|Tensor|FloatTensor|LongTensor|BoolTensor",
    ),
    CallRemedy(
        re.compile(r"(float|int|bool)\(\s*[\w.]+\[[^\]:]+\]\s*\)"),
        "Copy the array to the host once, np.asarray(x), and take elements of that: each element "
        "of a JAX array is a call of the device.",
        libraries=("jax",),
    ),
)  # fmt: skip


def call_remedy(process: Process, line: str, call: str) -> str | None:
    """Return the remedy for a line of a process in which `call` runs, or None."""
    for rule in CALL_REMEDIES:
        loaded = any(name in process.libraries for name in rule.libraries)
        if loaded and rule.line.search(line) and re.fullmatch(rule.call, call):
            return rule.words
    return None
