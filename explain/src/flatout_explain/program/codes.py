"""Descriptions of a program's functions and lines, as the probe has read them from their source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Statement:
    """A statement of a function; of a block its first lines alone.

    Names are dotted. `RETURNED` is made by what a function returns or yields.
    """

    first: int  # its lines
    last: int
    made: tuple[str, ...]  # names of the values that it makes or changes, in order
    used: frozenset[str]
    # its calls: names of the function and of each argument, empty for what is no name
    calls: tuple[tuple[str, ...], ...] = ()
    block: int = 0  # the statements that run one after the other


RETURNED = "return"


@dataclass(frozen=True)
class Flow:
    """The values of a function's statements, in the order of their lines."""

    args: tuple[str, ...]
    statements: tuple[Statement, ...]
    blocks: tuple[int, ...] = (-1,)  # the block around each; -1 around the first

    def encloses(self, outer: int, inner: int) -> bool:
        """Return whether a block is another one, or around it."""
        while inner > outer:
            inner = self.blocks[inner]
        return inner == outer


@dataclass(frozen=True)
class LineValues:
    """The values that a line made."""

    kinds: str = ""  # where it unpacks three or more, as in the probe's `kinds_of`
    grad: bool | None = None  # whether a tensor among them has gradients; None without a tensor
    parameter: bool = False  # whether the line uses a network's parameters themselves


@dataclass(frozen=True)
class Code:
    """One function of the program."""

    file: str
    plain: str  # its name, without its class's
    line: int
    owner: dict[str, Any] | None = None  # name and bases of the class of its first argument
    learns: bool = False  # whether it, or another method of that class, takes gradients
    loops: tuple[tuple[int, int], ...] = ()  # first and last line of each loop, outer ones first
    flow: Flow | None = None  # the values of its statements, if its source is known
    qualname: str = ""  # its name with its class's; empty before Python 3.11
    yields: bool = False  # whether it is a generator

    @property
    def cls(self) -> tuple[str, str] | None:
        """Module and name of the class of its first argument, if any."""
        return None if self.owner is None else (self.owner["module"], self.owner["name"])


GENERATED = "<frozen generated>"
"""The file of functions that libraries made from a text, such as those of named tuples."""

UNKNOWN = Code("<unknown>", "<unknown>", 0)


@dataclass(frozen=True)
class Leaf:
    """The expression that a frame was executing."""

    text: str = ""  # its source
    call: str = ""  # dotted name of its call; ``@`` for a matrix product, ``+`` for other operators
    # type of the called object (``type``), of compiled functions also ``learns``
    kind: dict[str, Any] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """The last part of the call's name."""
        return self.call.rpartition(".")[2]


@dataclass(frozen=True)
class Made:
    """The call of a compiled function that made the values which a line uses."""

    call: str  # its dotted name
    line: int
    learns: bool  # whether it takes gradients
