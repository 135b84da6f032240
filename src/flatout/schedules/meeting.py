"""Where members' threads meet: who asks waits until all that still train have asked."""

from __future__ import annotations

import threading
from typing import Any


class Meeting:
    """Answers the requests of several members at once, in the thread that asks last.

    Args:
        count: how many members there are; each leaves when it has ended.
    """

    def __init__(self, count: int) -> None:
        self._live = count
        self._turn = threading.Condition()
        self._asked: dict[int, Any] = {}
        self._answers: dict[int, Any] = {}

    def ask(self, member: int, request: Any) -> Any:
        """The answer, which an exception is raised for, to what this member asks."""
        with self._turn:
            self._asked[member] = request
            self._try()
            while member not in self._answers:
                self._turn.wait()
            answer = self._answers.pop(member)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def leave(self, member: int, error: str = "", lost: bool = False) -> None:
        """A member has ended; the others go on.

        Args:
            error: why it failed.
            lost: nothing of it can be kept.
        """
        with self._turn:
            self._live -= 1
            self._left(member, error, lost)
            self._try()

    def _left(self, member: int, error: str, lost: bool) -> None:
        """Note that a member has ended."""

    def _answered(self, asked: dict[int, Any]) -> dict[int, Any]:
        """The answers to what members asked; who gets none asks on."""
        raise NotImplementedError

    def _try(self) -> None:
        if not self._asked or len(self._asked) < self._live:
            return
        asked, self._asked = self._asked, {}
        try:
            answers = self._answered(asked)
            self._asked |= {m: r for m, r in asked.items() if m not in answers}
        except BaseException as error:
            answers = dict.fromkeys(asked, error)
        self._answers |= answers
        self._turn.notify_all()
