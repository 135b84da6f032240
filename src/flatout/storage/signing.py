"""Which files are one's own: a keyed hash over their content.

The key lies in the user's configuration folder and is made when something is first signed. The
hash covers what a file says, never where it lies: folders move, and homes are shared.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.storage import nofollow

SIGNATURE = "signature"
"""What the keyed hash is called beside the values that it covers."""
RUN, AGENT = "run", "agent"
"""Kinds of signed values: one says nothing about the other."""

_SIZE = 32


def key_file() -> Path:
    """Where the key lies: ``$XDG_CONFIG_HOME/flatout/key``, by default below ``~/.config``.

    Raises:
        RuntimeError: there is no home.
    """
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    return folder / "flatout" / "key"


def signed(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values with their keyed hash; without one where no key can be kept.

    Args:
        kind: `RUN` or `AGENT`.
        values: by name.
    """
    key = _key(make=True)
    return {**values} if key is None else {**values, SIGNATURE: _hash(key, kind, values)}


def is_own(kind: str, values: Mapping[str, Any]) -> bool:
    """Whether this user's key signed these values, which hold their hash."""
    said, key = values.get(SIGNATURE), _key(make=False)
    if key is None or not isinstance(said, str) or not said.isascii():
        return False
    rest = {name: value for name, value in values.items() if name != SIGNATURE}
    return hmac.compare_digest(said, _hash(key, kind, rest))


def _hash(key: bytes, kind: str, values: Mapping[str, Any]) -> str:
    # As the values are read back: tuples are lists in JSON.
    text = json.dumps(values, sort_keys=True)
    return hmac.new(key, f"flatout {kind}\n{text}".encode(), hashlib.sha256).hexdigest()


def _key(make: bool) -> bytes | None:
    """The key; None where there is none, or one that others could read."""
    try:
        path = key_file()
        key = _read(path)
        if key is not None or not make:
            return key
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_name(f".key.{secrets.token_hex(8)}")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_SIZE))
                file.flush()
                os.fsync(descriptor)
            with suppress(FileExistsError):  # another process was first: then its key counts
                os.link(new, path)
        finally:
            new.unlink()
        return _read(path)
    except (OSError, RuntimeError):
        return None


def _read(path: Path) -> bytes | None:
    try:
        file = nofollow.open_stream(path, nofollow.READ)
    except OSError:
        return None
    with file:
        status = os.fstat(file.fileno())
        if status.st_mode & 0o077 or status.st_uid != os.geteuid():
            return None
        content = file.read(_SIZE + 1)
    return content if len(content) == _SIZE else None
