"""The connection to a Ray cluster, for sweeps and for workers on several machines."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import ssl
import threading
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
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

CERTIFICATE, KEY, AUTHORITY = "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"
"""Ray's environment variables for the files of its certificate, the private key and the CA."""

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
            if address and _uses_tls():
                hint = f"; its certificate must name that host and be signed by {AUTHORITY}{hint}"
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
    why, tls = "it does not speak Ray's protocol", _tls()
    try:
        with ExitStack() as opened:
            line = opened.enter_context(
                socket.create_connection((host.strip("[]"), int(port)), ANSWER_S)
            )
            line.settimeout(ANSWER_S)
            if tls:
                line = opened.enter_context(tls.wrap_socket(line))
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            head = opened.enter_context(line.makefile("rb")).read(9)
            if head[3:4] == b"\x04":  # the server's settings, which HTTP/2 begins with
                return
            if not head:  # a Ray that uses TLS closes connections without a known certificate
                why = "it closed the connection; with TLS, set RAY_USE_TLS=1"
                if tls:
                    why = f"it closed the connection; its CA must have signed {CERTIFICATE}"
    except ssl.SSLError as error:
        reason = (error.reason or "the connection was closed").replace("_", " ").lower()
        why = f"RAY_USE_TLS is set, and TLS fails: {reason}"
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or "it does not answer"
    raise FlatoutError(
        f"--ray-address {address}: no Ray answers there ({why}); see its address with: ray status, "
        "or leave it out to start one here."
    )


def _uses_tls() -> bool:
    """Return whether Ray uses TLS in this process; it reads the variable in the same way."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _tls() -> ssl.SSLContext | None:
    """Return the settings of TLS with the certificate that Ray presents, or None if Ray uses none.

    Raises:
        UsageError: a variable is missing, or its file cannot be used.
    """
    if not _uses_tls():
        return None
    for name in (CERTIFICATE, KEY, AUTHORITY):
        if not os.environ.get(name):
            raise UsageError(
                f"RAY_USE_TLS is set, but {name} is not: it names a file in PEM format."
            )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # Ray verifies the server
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # Ray accepts short keys
    context.set_alpn_protocols(["h2"])
    certificate, key = os.environ[CERTIFICATE], os.environ[KEY]
    try:
        context.load_cert_chain(certificate, key, password="")  # without one, OpenSSL would ask
    except OSError as error:
        why = error.strerror
        if isinstance(error, ssl.SSLError):
            why = "no certificate in PEM format with its private key, unencrypted"
        raise UsageError(f"{CERTIFICATE}={certificate}, {KEY}={key}: {why}.") from None
    return context
