"""A barrier for members' threads: a request waits until all members that still train
have made one.

`FusedPopulation` answers the requests."""

from __future__ import annotations

import threading
from typing import Any


class Barrier:
    """A barrier that answers all members' requests at once, in the thread that makes the last one.

    Args:
        count: the number of members; each must call `leave` when it has ended.
    """

    def __init__(self, count: int) -> None:
        self._live = count
        self._condition = threading.Condition()
        self._requests: dict[int, Any] = {}
        self._answers: dict[int, Any] = {}

    def ask(self, member: int, request: Any) -> Any:
        """Return the answer to a member's request; if it is an exception, raise it."""
        with self._condition:
            self._requests[member] = request
            self._answer_if_complete()
            while member not in self._answers:
                self._condition.wait()
            answer = self._answers.pop(member)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def leave(self, member: int, error: str = "", lost: bool = False) -> None:
        """Remove a member that has ended; the others continue.

        Args:
            error: why it failed; empty if it did not.
            lost: whether its state cannot be saved.
        """
        with self._condition:
            self._live -= 1
            self._note_end(member, error, lost)
            self._answer_if_complete()

    def _note_end(self, member: int, error: str, lost: bool) -> None:
        """Note that a member has ended."""

    def _answer(self, asked: dict[int, Any]) -> dict[int, Any]:
        """Return answers to members' requests; a member without an answer keeps waiting."""
        raise NotImplementedError

    def _answer_if_complete(self) -> None:
        if not self._requests or len(self._requests) < self._live:
            return
        asked, self._requests = self._requests, {}
        try:
            answers = self._answer(asked)
            self._requests |= {m: r for m, r in asked.items() if m not in answers}
        except BaseException as error:
            answers = dict.fromkeys(asked, error)
        self._answers |= answers
        self._condition.notify_all()
