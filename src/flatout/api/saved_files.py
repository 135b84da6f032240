"""Reading of saved agents, with a clear sentence about a file that is none."""

from __future__ import annotations

import os
from pathlib import Path

from flatout.errors import CheckpointError
from flatout.run.resume import Saved, saved_agent
from flatout.storage.agent_file import AGENT_FILES
from flatout.storage.checkpoint import MOST_HEADER
from flatout.storage.trust import Consent
from flatout_explain.documents import parse_json

START = 8
"""Bytes of a safetensors file that hold the size of its header."""

KINDS = "an agent is a .safetensors file that Flatout saved, or the folder of a run"


def read_agent(path: Path, prefer: str, consent: Consent | None) -> Saved:
    """Return a saved agent: a file's, or a run folder's.

    Args:
        prefer: see `flatout.run.resume.saved_agent`.
        consent: to code that it names.

    Raises:
        UsageError, CheckpointError: there is none, or it is corrupt.
    """
    try:
        return saved_agent(path, prefer, consent)
    except CheckpointError:
        for file in [path / name for name in AGENT_FILES] if path.is_dir() else [path]:
            if file.is_file() and (why := _refusal(file)):
                raise CheckpointError(f"{file} {why}.") from None
        raise


def _refusal(file: Path) -> str:
    """Return why a file holds no whole arrays in safetensors' form; empty if it does."""
    try:
        with open(file, "rb") as opened:
            there = os.fstat(opened.fileno()).st_size
            size = int.from_bytes(opened.read(START), "little")
            text = opened.read(size) if 0 < size <= MOST_HEADER else b""
    except OSError:
        return ""
    if not text.startswith(b"{"):
        return f"is empty; {KINDS}" if not there else f"is not a saved agent; {KINDS}"
    if len(text) == size:
        try:
            arrays = [one for name, one in parse_json(text).items() if name != "__metadata__"]
            ends = [int(array["data_offsets"][1]) for array in arrays]
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            return ""  # the first reading has said what is wrong
        if there >= START + size + max(ends, default=0):
            return ""
    return "is not a whole saved agent: it ends before its arrays do; copy it or save it again"
