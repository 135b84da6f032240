"""Actor processes that cannot be started, or that read nothing, end the run in a sentence."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout import EnvironmentFailure
from flatout.config.schema import EnvConfig
from flatout.engine.workers import pool, protocol
from flatout.engine.workers.protocol import Job
from flatout.engine.workers.shared_memory import Fields, SharedArrays
from flatout.envs.vector import RARELY
from flatout.types import UserCode

FIELDS: Fields = {"beats": ((2, 2), "int64")}


def workers(notes: list[str], code: Any = None) -> pool.WorkerPool:
    """Return the pool of two workers, which are not started."""
    arrays = SharedArrays(FIELDS)
    shared, settings = (arrays.descriptor, FIELDS), EnvConfig(env="CartPole-v1", envs=2)
    jobs = [
        Job(None, settings, False, UserCode(env=code), first, 1, 0, RARELY, shared)
        for first in range(2)
    ]
    return pool.WorkerPool([pool.Worker(job, 60.0, arrays) for job in jobs], arrays, notes.append)


@pytest.mark.fault
@pytest.mark.parametrize("step", ["socket.socketpair", "subprocess.Popen"])
def test_a_process_that_the_system_refuses_is_a_failure(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any, **settings: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    notes = list[str]()
    made = workers(notes)
    opened = os.listdir("/proc/self/fd") if Path("/proc/self/fd").exists() else []
    monkeypatch.setattr(f"{pool.__name__}.{step}", refused)
    lost = pool.WorkerLost(made.workers[1], "was killed")
    with pytest.raises(EnvironmentFailure, match=r"worker 1 .* cannot be started .*Too many open"):
        made.restart(lost)
    assert len(notes) == pool.MAX_RESTARTS
    if opened:
        assert os.listdir("/proc/self/fd") == opened
    with pytest.raises(EnvironmentFailure, match=r"worker 0 .* cannot be started .*Too many open"):
        made.start()


@pytest.mark.fault
def test_a_process_that_does_not_read_its_job_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes are started before the first job is sent."""
    started = list[str]()

    def hanging(*given: str) -> list[str]:
        started.append(given[0])
        return [sys.executable, "-c", "import time; time.sleep(60)"]

    monkeypatch.setattr(pool, "SEND_S", 0.2)
    monkeypatch.setattr(pool, "GRACE_S", 0.0)
    monkeypatch.setattr(pool.child, "command", hanging)
    made = workers([], code=bytes(1 << 22))
    with pytest.raises(EnvironmentFailure, match=r"worker 0 .* its job .* within 0\.2 s"):
        made.start()
    assert len(started) == 2


def test_a_message_is_received_without_copies_of_its_parts() -> None:
    data = np.random.default_rng(0).bytes(1 << 23)
    near, far = socket.socketpair()
    sender = threading.Thread(target=far.sendall, args=(protocol.LENGTH.pack(len(data)) + data,))
    with near, far:
        sender.start()
        tracemalloc.start()
        try:
            received = protocol.receive_long(near)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        sender.join()
        assert received == data
        assert most < 1.1 * len(data)
        far.sendall(b"a")
        far.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            protocol.receive(near, 2)


def test_scalars_of_a_final_info_that_do_not_fit_are_named() -> None:
    row = np.zeros(protocol.INFO_BYTES, np.uint8)
    few = {"score": 1.0, "is_success": 1.0}
    assert protocol.write_info(row, few) == []
    assert list((protocol.read_info(row) or {}).items()) == list(few.items())
    many = {f"reward/{number}": number / 7 for number in range(40)} | {"is_success": 1.0}
    left_out = protocol.write_info(row, many)
    kept = protocol.read_info(row) or {}
    assert kept["is_success"] == 1.0
    assert left_out == list(many)[len(kept) - 1 : -1]
    assert {name: many[name] for name in kept} == kept
    assert protocol.write_info(row, {"a" * 2000: 1.0}) == ["a" * 2000]
    assert not protocol.read_info(row)
    assert protocol.write_info(row, None) == []
    assert protocol.read_info(row) is None
