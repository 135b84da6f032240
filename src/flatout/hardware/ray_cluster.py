"""The connection to a Ray cluster, for sweeps and for workers on several machines."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from flatout.errors import FlatoutError, UsageError, one_line
from flatout.installing import install

BEGIN_S = 60.0
"""Maximum time in which a connection is made."""

ANSWER_S = 3.0
"""Maximum time in which a cluster answers."""

VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # no messages about workers in the command's output
    "RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1",  # data files are often ignored by git
}
"""Ray's environment variables, unless the user sets them."""

STORE = 200_000_000
"""Bytes of the object store of a Ray that is started here. It holds pieces of run folders, and
parameters; the workers of this machine share the memory of their run."""


def connect(
    address: str | None, cpus: int | None, asked: str, environment: Mapping[str, Any] | None = None
) -> Any:
    """Return Ray, connected to a cluster or to one that is started here.

    Args:
        address: ``HOST:PORT`` or ``auto``; None starts one.
        cpus: the CPUs of a cluster that is started here; None for all.
        asked: the setting that needs Ray, for messages.
        environment: Ray's ``runtime_env``: code that Ray copies to the machines.

    Raises:
        UsageError: the package is not installed.
        FlatoutError: no Ray answers at the address, or Ray does not start.
    """
    if address not in (None, "auto"):
        refuse_silent(address)
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    before = signal.getsignal(signal.SIGTERM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise UsageError(f"{asked} needs its package: {install('ray')}.") from None
        if ray.is_initialized():
            raise UsageError(
                f"{asked}: this program is already connected to Ray; call ray.shutdown() before."
            )
        started = {"num_cpus": cpus, "object_store_memory": STORE, "include_dashboard": False}
        options: dict[str, Any] = {} if address else started
        if environment:
            options["runtime_env"] = dict(environment)
        errors, failed = os.dup(2), list[Exception]()

        def begin() -> None:
            try:
                ray.init(address=address or "local", logging_level="ERROR", log_to_driver=False,
                         **options)  # fmt: skip
            except Exception as error:  # of any of its parts
                failed.append(error)

        try:
            with open(os.devnull, "w") as nothing:  # what Ray says before it gives up
                os.dup2(nothing.fileno(), 2)
            if address is None:  # in this thread, with which Linux ends what it starts
                begin()
            else:  # a server that is silent would be waited for without end
                beginning = threading.Thread(target=begin, daemon=True)
                beginning.start()
                beginning.join(BEGIN_S)
                if beginning.is_alive():
                    raise FlatoutError(f"no Ray answered within {BEGIN_S:.0f} s")
            for error in failed:
                raise error
        except Exception as error:
            if address == "auto" and isinstance(error, ConnectionError):
                raise FlatoutError(
                    "--ray-address auto: no Ray runs on this machine; name HOST:PORT, or leave it "
                    "out to start one here."
                ) from None
            what = f"--ray-address {address}" if address else "Ray does not start"
            hint = "; if it asks for a token, set RAY_AUTH_MODE=token" if address else ""
            why = one_line(error)[:300].rstrip(".")
            if "Version mismatch" in why:
                hint = "; install the same Python and the same Ray on all machines"
            raise FlatoutError(f"{what}: {why}{hint}.") from None
        finally:
            os.dup2(errors, 2)
            os.close(errors)
            with suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGTERM, before)
    return ray


def refuse_silent(address: str) -> None:
    """Refuse an address where no gRPC server answers; Ray would keep trying for minutes.

    Raises:
        UsageError: it is no address.
        FlatoutError: nothing answers there.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise UsageError(f"--ray-address {address[:100]} is neither HOST:PORT nor auto.")
    why = "it does not speak Ray's protocol"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S) as line:
            line.settimeout(ANSWER_S)
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            head = line.recv(9, socket.MSG_WAITALL)
            if head[3:4] == b"\x04":  # the server's settings, which HTTP/2 begins with
                return
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or "it does not answer"
    raise FlatoutError(
        f"--ray-address {address}: no Ray answers there ({why}); see its address with: ray status, "
        "or leave it out to start one here."
    )
