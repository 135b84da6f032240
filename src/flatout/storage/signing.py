"""Signatures of the user's files: a keyed hash over their content.

The key is in the user's configuration folder; the first signature creates it. The hash covers a
file's content, never its path: folders move, and homes are shared.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.errors import FlatoutError
from flatout_explain.files import locks, nofollow
from flatout_explain.files.user_folders import user_folder

SIGNATURE = "signature"
"""Name of the keyed hash beside the values that it covers."""
CODE = "code"
"""Name of the hashes of the user's code that the values name, by module."""
RUN, AGENT = "run", "agent"
"""Kinds of signed values; a signature is valid for one kind."""

_SIZE = 32

WAIT_S = 5.0
"""Another process makes the key within this time."""


def signed(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values with their keyed hash (of kind `RUN` or `AGENT`) if a key can be stored."""
    key = _key(make=True)
    return {**values} if key is None else {**values, SIGNATURE: _hash(key, kind, values)}


def is_own(kind: str, values: Mapping[str, Any]) -> bool:
    """Whether this user's key signed these values."""
    signature, key = values.get(SIGNATURE), _key(make=False)
    if key is None or not isinstance(signature, str) or not signature.isascii():
        return False
    rest = {name: value for name, value in values.items() if name != SIGNATURE}
    return hmac.compare_digest(signature, _hash(key, kind, rest))


def signed_code(kind: str, values: Mapping[str, Any]) -> dict[str, str] | None:
    """The hashes of code (`CODE`) that this user's key signed with these values; None if it did not
    sign them."""
    code = values.get(CODE)
    return (code if isinstance(code, dict) else {}) if is_own(kind, values) else None


def _hash(key: bytes, kind: str, values: Mapping[str, Any]) -> str:
    # JSON, as the values are read back: tuples become lists.
    text = json.dumps(values, sort_keys=True)
    return hmac.new(key, f"flatout {kind}\n{text}".encode(), hashlib.sha256).hexdigest()


def _key(make: bool) -> bytes | None:
    """The key in the user's configuration folder; None if there is none (or no home), or other
    users could read it."""
    try:
        path = user_folder("config") / "key"
        key = _read(path)
        if key is not None or not make:
            return key
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locks.held(path.with_name(locks.LOCK), WAIT_S) as lock:
            if not os.path.lexists(path):  # no other process was first
                nofollow.replace(path, secrets.token_bytes(_SIZE), private=True)
            lock.remove()
        return _read(path)
    except (OSError, FlatoutError):
        return None


def _read(path: Path) -> bytes | None:
    try:
        file = nofollow.open_stream(path, nofollow.READ)
    except OSError:
        return None
    with file:
        status = os.fstat(file.fileno())
        # Windows has neither: there the user's own folder is closed to others.
        if hasattr(os, "geteuid") and (status.st_mode & 0o077 or status.st_uid != os.geteuid()):
            return None
        content = file.read(_SIZE + 1)
    return content if len(content) == _SIZE else None
