"""The first question to a Ray at an address: does it answer, with TLS or without?"""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flatout.errors import FlatoutError, UsageError
from flatout.hardware import ray_cluster


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two self-signed certificates, ``own`` and ``foreign``, and their keys."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("own", "foreign"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
             "-nodes", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt",
             "-subj", "/CN=ray"],
            check=True, capture_output=True,
        )  # fmt: skip
    return folder


def use_tls(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> None:
    """Let Ray use TLS with one of the certificates."""
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", str(folder / f"{name}.crt"))
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", str(folder / f"{name}.key"))
    monkeypatch.setenv("RAY_TLS_CA_CERT", str(folder / "own.crt"))


@contextmanager
def tls_server(folder: Path) -> Iterator[str]:
    """Yield the address of a server of one connection that demands the certificate ``own`` of its
    clients, as a Ray that uses TLS does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "own.crt", folder / "own.key")
    context.load_verify_locations(folder / "own.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])

    def serve() -> None:
        accepted, _ = server.accept()
        with accepted, suppress(OSError), context.wrap_socket(accepted, server_side=True) as line:
            assert line.selected_alpn_protocol() == "h2"
            assert line.recv(14) == b"PRI * HTTP/2.0"
            line.sendall(bytes(3) + b"\x04" + bytes(5))
            line.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


def test_a_ray_that_uses_tls_is_not_refused(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_tls(monkeypatch, certificates, "own")
    with tls_server(certificates) as there:
        ray_cluster.refuse_silent(there)


def test_a_failure_of_tls_is_explained(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        tls_server(certificates) as there,
        pytest.raises(FlatoutError, match="no Ray answers there"),
    ):
        ray_cluster.refuse_silent(there)  # without TLS
    use_tls(monkeypatch, certificates, "foreign")
    with (
        tls_server(certificates) as there,
        pytest.raises(FlatoutError, match="no Ray answers there"),
    ):
        ray_cluster.refuse_silent(there)
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", str(certificates / "own.key"))
    with pytest.raises(UsageError, match="no certificate in PEM format with its private key"):
        ray_cluster.refuse_silent("127.0.0.1:1")
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", str(certificates / "no.key"))
    with pytest.raises(UsageError, match="No such file"):
        ray_cluster.refuse_silent("127.0.0.1:1")
    monkeypatch.delenv("RAY_TLS_CA_CERT")
    with pytest.raises(UsageError, match="RAY_TLS_CA_CERT is not"):
        ray_cluster.refuse_silent("127.0.0.1:1")
