"""Notes on compiling: which programs, and how long they took with the same cache last time."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flatout.config.placement import Placement
from flatout.config.schema import TrainConfig
from flatout.config.settings import changeable
from flatout.hardware.compile_cache import compile_cache
from flatout.hardware.inventory import Hardware
from flatout.run.auto import key
from flatout_explain.files.kept_numbers import keep_number, numbers


def shape_key(config: TrainConfig, hardware: Hardware, placement: Placement) -> str:
    """Return the key under which a compiled program's times are saved: `auto.key` without the
    settings that change no program, and the placement."""
    free = changeable(config)
    given = [name for name in free if config.flat().get(name) is not None]
    text = f"{key(config, hardware, free)} {given} {placement}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@contextmanager
def compiling(what: str, under: str, announce: Callable[[str], None]) -> Iterator[None]:
    """Say what is being compiled and how long it took last time; save how long it takes now.

    The time is kept in the folder of compiled programs: with another folder, or an emptied one,
    the program is compiled for the first time.

    Args:
        what: in words.
        under: `shape_key`.
    """
    name, folder = f"{under} {what}", compile_cache()
    before = numbers(folder).get(name)
    last = "for the first time here" if before is None else f"{before:.1f} s here last time"
    announce(f"compiling {what} ({last})")
    began = time.perf_counter()
    yield
    keep_number(name, time.perf_counter() - began, folder)
