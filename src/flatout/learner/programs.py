"""What several runs of one shape share: their compiled programs, or one program for all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Programs:
    """Compiled programs by name; the runs that share them have the same shapes.

    Args:
        together: dispatches chunks for several members at once (`flatout.schedules.together`).
        member: this run's number among them.
        several: other runs go on beside this one.
        announce: receives a sentence when something is compiled; else each run's own does.
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
        self._making: dict[Any, threading.RLock] = {}  # one may be made of others

    def get(self, name: Any, make: Callable[[], Any]) -> Any:
        """The program; who asks first makes it, and others wait."""
        if self._shared is not None:
            return self._shared.get(name, make)
        with self._lock:
            making = self._making.setdefault(name, threading.RLock())
        with making:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]

    def place(self, env_backend: str | None) -> bool:
        """Whether a population has decided where its members, whose environments step there, are:
        how they share a device is chosen before they are made."""
        return self.together is not None or (self.several and env_backend not in (None, "host"))

    def first(self, name: str) -> bool:
        """Whether nobody has asked this before."""
        with self._lock:
            before = len(self._asked)
            self._asked.add(name)
            return len(self._asked) > before
