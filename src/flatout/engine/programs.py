"""The compiled programs that runs of one shape share; learners, policies and samplers use them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Programs:
    """Compiled programs by name. The runs that share them have the same shapes.

    Args:
        together: dispatches chunks for several members at once
            (`flatout.engine.members`).
        member: this run's number among these members.
        several: whether other runs of this process share the programs.
        announce: receives sentences for the user; if None, each run uses its own.
        shared: the programs of all members that are dispatched together.
    """

    def __init__(
        self, together: Any = None, member: int = 0, several: bool = False,
        announce: Callable[[str], None] | None = None, shared: Programs | None = None,
    ) -> None:  # fmt: skip
        self.together, self.member, self.several = together, member, several
        self.announce, self._shared = announce, shared
        self._made: dict[Any, Any] = {}
        self._asked: set[str] = set()
        self._lock = threading.Lock()
        self._making: dict[Any, threading.RLock] = {}  # reentrant: `make` may call `get`

    def get(self, name: Any, make: Callable[[], Any]) -> Any:
        """Return the program `name`. The first thread that asks makes it; others wait."""
        if self._shared is not None:
            return self._shared.get(name, make)
        with self._lock:
            making = self._making.setdefault(name, threading.RLock())
        with making:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]

    def place(self, on_device: bool) -> bool:
        """Return whether a population has already chosen this run's placement. That is so if its
        members share a program, or if their environments step on a device."""
        return self.together is not None or (self.several and on_device)

    def first(self, name: str) -> bool:
        """Return whether this is the first call with `name`."""
        with self._lock:
            before = len(self._asked)
            self._asked.add(name)
            return len(self._asked) > before
