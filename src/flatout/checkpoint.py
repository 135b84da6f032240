"""Checkpoints: arrays as safetensors, the rest as JSON; complete or not there; never pickle.

A checkpoint is a folder that is written under another name, synced, and renamed. Its JSON holds
the arrays' SHA-256 and its own, so that what a crash, a full disk or a stranger changed is
refused.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as dump_tensors

from flatout import durable
from flatout.errors import CheckpointError, DamagedError, FlatoutError
from flatout.segments import Reference, SavedRows, SegmentStore
from flatout.types import Snapshot

FORMAT = 1
ARRAYS, DATA = "state.safetensors", "state.json"
REPLAY = "replay"
"""The folder of a run's replay segments, beside its checkpoints."""
PREFIX = "learner"
"""What the learning state's arrays are named after in snapshots and saved agents."""


def named_leaves(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """A pytree's arrays by their paths."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def leaf_names(shapes: Any, prefix: str) -> Any:
    """The same pytree with each leaf replaced by the name that `named_leaves` gives it."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
    return jax.tree.unflatten(tree, [prefix + jax.tree_util.keystr(path) for path, _ in leaves])


def rebuild(names: Any, shapes: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """A pytree from named arrays.

    Args:
        names: the pytree of names (all of `leaf_names`, or a part of it).
        shapes: the same pytree of shapes and dtypes.
        arrays: by name.

    Raises:
        CheckpointError: an array is missing or of another shape or type.
    """

    def pick(name: str, leaf: Any) -> np.ndarray:
        array = arrays.get(name)
        if array is None:
            raise CheckpointError(
                f"the array {name} is missing: it was saved by another network or version."
            )
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise CheckpointError(
                f"the array {name} is {array.dtype}{list(array.shape)}, but this network needs "
                f"{leaf.dtype}{list(leaf.shape)}."
            )
        return array

    return jax.tree.map(pick, names, shapes)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that it is the old one or the new one, never a part.

    Raises:
        FlatoutError: it cannot be written; the old one is intact.
    """
    try:
        durable.replace(path, content)
    except OSError as error:
        raise FlatoutError(f"cannot write {path}: {error.strerror}.") from error


def save(
    folder: Path, step: int, snapshot: Snapshot, keep: int, store: SegmentStore | None = None
) -> Path:
    """Write a checkpoint and remove all but the newest `keep`.

    Args:
        folder: of all checkpoints.
        step: the run's.
        snapshot: what to save.
        keep: how many checkpoints stay.
        store: where the snapshot's rows of experience go.

    Raises:
        FlatoutError: the disk is full or the folder not writable; earlier checkpoints are intact.
    """
    final = folder / f"step_{step:012d}"
    temporary = folder / f".{final.name}.tmp"
    tensors = dump_tensors({n: np.asarray(a, order="C") for n, a in snapshot.arrays.items()})
    data = {"format": FORMAT, "step": step, "sha256": hashlib.sha256(tensors).hexdigest()}
    data |= {"data": snapshot.data}
    try:
        if snapshot.rows is not None and store is not None:
            data["replay"] = {"stored": snapshot.rows.stored, "segments": store.save(snapshot.rows)}
        data = json.loads(json.dumps(data))
        text = json.dumps(data | {"digest": _digest(data)})
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        durable.write_file(temporary / ARRAYS, tensors)
        durable.write_file(temporary / DATA, text.encode())
        durable.sync_folder(temporary)
        old = folder / f".{final.name}.old"
        if final.exists():  # the same step again, after a resume; `recover` knows both names
            final.rename(old)
        temporary.rename(final)
        durable.sync_folder(folder)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        kept = checkpoints(folder)
        saved = f"the checkpoint at step {_step(kept[-1]):,} is intact" if kept else "none is saved"
        raise FlatoutError(
            f"cannot write the checkpoint of step {step:,} in {folder}: {error.strerror}; {saved}."
        ) from error
    for surplus in checkpoints(folder)[:-keep]:  # never half a checkpoint under its own name
        doomed = folder / f".{surplus.name}.tmp"
        with suppress(OSError):
            surplus.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    if snapshot.rows is not None and store is not None:
        remove_unused(folder, store)
    return final


def remove_unused(folder: Path, store: SegmentStore) -> None:
    """Remove the replay segments that no checkpoint refers to."""
    with suppress(CheckpointError):  # where one cannot be read, everything stays
        store.keep_only([one for path in checkpoints(folder) for one in references(path)])


def references(path: Path) -> list[Reference]:
    """The replay segments that a checkpoint refers to.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        data = json.loads((path / DATA).read_bytes())
        return list(data.get("replay", {}).get("segments", []))
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {error}.") from error


def recover(folder: Path) -> None:
    """Finish what a kill interrupted: take back a replaced checkpoint, remove unfinished ones."""
    for old in folder.glob(".step_*.old"):
        final = folder / old.name.removeprefix(".").removesuffix(".old")
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(final)
    unfinished = list(folder.glob(".step_*.tmp"))
    for left in unfinished:
        shutil.rmtree(left, ignore_errors=True)
    if unfinished and not checkpoints(folder):  # killed within its very first save
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what a checkpoint's contents cause into a sentence that names it."""
    try:
        yield
    except DamagedError as error:
        raise CheckpointError(
            f"the checkpoint {path} is damaged: {error}{_way_out(path)}"
        ) from error
    except CheckpointError as error:
        raise CheckpointError(f"the checkpoint {path} does not fit this run: {error}") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint {path} does not fit this run: {type(error).__name__} {error}."
        ) from error


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.glob("step_*") if path.is_dir())


def load(path: Path) -> tuple[int, Snapshot]:
    """Read a checkpoint: its step and its snapshot.

    Raises:
        CheckpointError: it is incomplete, changed, or of another format.
    """
    hint = _way_out(path)
    try:
        tensors = (path / ARRAYS).read_bytes()
        data = json.loads((path / DATA).read_bytes())
        if not isinstance(data, dict) or data.pop("digest", None) != _digest(data):
            raise CheckpointError(f"the checkpoint {path} is corrupt: {DATA} was changed.{hint}")
        if data.get("format") != FORMAT:
            raise CheckpointError(
                f"the checkpoint {path} has format {data.get('format')}, this version reads "
                f"{FORMAT}.{hint}"
            )
        if data["sha256"] != hashlib.sha256(tensors).hexdigest():
            raise CheckpointError(
                f"the checkpoint {path} is corrupt: {ARRAYS} is not what was saved.{hint}"
            )
        arrays = load_tensors(tensors)
        rows = None
        if "replay" in data:
            replay = data["replay"]
            first, end = (int(number) for number in replay["stored"])
            segments = path.parent.parent / REPLAY
            rows = SavedRows(segments, list(replay["segments"]), (first, end))
        return int(data["step"]), Snapshot(dict(arrays), data["data"], rows)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {path} cannot be read: {error.strerror}.{hint}"
        ) from error
    except KeyError as error:
        raise CheckpointError(
            f"the checkpoint {path} is corrupt: it lacks or does not know {error}.{hint}"
        ) from error
    except (ValueError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"the checkpoint {path} is corrupt: {error}.{hint}") from error


def _way_out(path: Path) -> str:
    """What to do about a damaged checkpoint, where there is an earlier one."""
    earlier = [one for one in checkpoints(path.parent) if one < path]
    return f" Remove that folder to go on from step {_step(earlier[-1]):,}." if earlier else ""


def latest(run_dir: Path) -> Path:
    """The newest checkpoint of a run.

    Raises:
        CheckpointError: there is none.
    """
    found = checkpoints(run_dir / "checkpoints")
    if not found:
        raise CheckpointError(f"{run_dir} holds no checkpoint to resume from.")
    return found[-1]


def save_agent(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Write named arrays and JSON metadata as one safetensors file, complete or not there."""
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = {name: json.dumps(value) for name, value in metadata.items()}
    text["sha256"] = json.dumps(_contents(contiguous))
    replace_file(path, dump_tensors(contiguous, text))


def load_agent(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `save_agent` wrote: arrays and metadata.

    Raises:
        CheckpointError: the file is missing, or not such a file.
    """
    try:
        with safetensors.safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = {n: json.loads(text) for n, text in (file.metadata() or {}).items()}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is not a saved agent: {error}.") from error
    if metadata.get("sha256") != _contents(arrays):
        raise CheckpointError(
            f"{path} is not a saved agent, or is corrupt: its arrays are not what was saved."
        )
    if "config" not in metadata:
        raise CheckpointError(f"{path} is not a saved agent: it names no settings.")
    return arrays, metadata


def _contents(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of named arrays, their names, shapes and types included."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step_"))
