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
    """

    def __init__(self, together: Any = None, member: int = 0, several: bool = False) -> None:
        self.together, self.member, self.several = together, member, several
        self._made: dict[str, Any] = {}
        self._lock = threading.Lock()

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The program; who asks first makes it, and others wait."""
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]
