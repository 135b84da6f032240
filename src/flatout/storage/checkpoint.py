"""Checkpoints: arrays as safetensors, the rest as JSON; complete or absent; never pickle.

A checkpoint is a folder that is written under a temporary name, synced, and renamed. Its JSON
holds SHA-256 digests of the arrays and of itself, so damage and tampering are detected.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as dump_tensors

from flatout.errors import CheckpointError, DamagedError, FlatoutError, damage, writing
from flatout.randomness import is_typed_key, raw
from flatout.storage import signing, trees
from flatout.storage.segments import Reference, SavedRows, SegmentStore
from flatout.types import Snapshot
from flatout_explain.documents import parse_json
from flatout_explain.files import nofollow

FORMAT = 5
"""Format of checkpoints, run folders, sweeps and saved agents; no other is read."""
MOST_HEADER = 4 << 20
"""Maximum bytes of the names, shapes and settings before an agent's arrays."""
ARRAYS, DATA = "state.safetensors", "state.json"
MOST_JSON = 32 << 20
"""Maximum bytes of a checkpoint's JSON, with some 20 bytes for each environment."""
ATTEMPTS, REPLACED_S = 10, 0.02
"""How often a checkpoint is read that is removed meanwhile, and seconds between two attempts."""
_STEP = re.compile(r"step_\d{12,}")
_UNFINISHED = re.compile(r"\.(step_\d{12,})\.(old|tmp)")
REPLAY = "replay"
"""The folder of a run's replay segments, beside its checkpoints."""
PREFIX = "learner"
"""Prefix of the learning state's arrays in snapshots and saved agents."""


def named_leaves(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """A pytree's arrays by their paths; typed random keys as their words."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(raw(leaf)) for path, leaf in leaves}


def _as_keys(words: np.ndarray, dtype: Any) -> jax.Array:
    """Typed random keys from their words."""
    for impl in ("threefry2x32", "rbg", "unsafe_rbg"):
        if jax.eval_shape(partial(jax.random.key, 0, impl=impl)).dtype == dtype:
            return jax.random.wrap_key_data(jnp.asarray(words), impl=impl)
    raise CheckpointError(f"random keys of the type {dtype} cannot be made here.")


def leaf_names(shapes: Any, prefix: str) -> Any:
    """The same pytree with each leaf replaced by the name that `named_leaves` gives it."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
    return jax.tree.unflatten(tree, [prefix + jax.tree_util.keystr(path) for path, _ in leaves])


def rebuild(names: Any, shapes: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """A pytree from named arrays, in the form of `names` (`leaf_names`, or a subtree) and `shapes`.

    Raises:
        CheckpointError: an array is missing, has another shape or type, or holds NaN or infinities.
    """

    def pick(name: str, leaf: Any) -> np.ndarray | jax.Array:
        array = arrays.get(name)
        if array is None:
            raise CheckpointError(
                f"the array {name} is missing: it was saved by another network or version."
            )
        kept = jax.eval_shape(jax.random.key_data, leaf) if is_typed_key(leaf) else leaf
        refuse_other(name, array, kept, "this network")
        refuse_nonsense(name, array)
        return _as_keys(array, leaf.dtype) if is_typed_key(leaf) else array

    return jax.tree.map(pick, names, shapes)


def unmatched(names: Iterable[str], arrays: Iterable[str]) -> str:
    """Return the first parameter that only one of a network (`names`) and a saved agent has, or an
    empty string. Statistics of rewards do not count: they change no action."""
    params, rewards = f"{PREFIX}.params", f"{PREFIX}.params.reward_moments"
    different = sorted(set(names) ^ set(arrays))
    found = (name for name in different if name.startswith(params))
    return next((name for name in found if not name.startswith(rewards)), "")


def refuse_other(name: str, array: np.ndarray, like: Any, who: str) -> None:
    """Refuse an array that has another shape or type than the one in whose place it comes.

    Args:
        who: needs it, for the message.
    """
    if array.shape != like.shape or array.dtype != like.dtype:
        raise CheckpointError(
            f"the array {name} is {array.dtype}{list(array.shape)}, but {who} needs "
            f"{like.dtype}{list(like.shape)}."
        )


def refuse_format(number_read: Any, what: str) -> None:
    """Refuse a format that this version does not read."""
    if number_read != FORMAT:
        number = "no format number" if number_read is None else f"format {str(number_read)[:20]}"
        raise CheckpointError(
            f"{what} has {number}, and this version reads format {FORMAT}: it was written by "
            "another version; use that one, or train again."
        )


def refuse_nonsense(name: str, array: np.ndarray) -> None:
    """Refuse NaN and infinities: a run ends before it saves any."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CheckpointError(f"the array {name} holds NaN or infinite numbers.")


def save(
    folder: Path, step: int, snapshot: Snapshot, keep: int, store: SegmentStore | None = None
) -> Path:
    """Write a checkpoint (its rows of experience to `store`); remove all but the newest `keep`.

    Raises:
        FlatoutError: the folder cannot be written; earlier checkpoints are intact.
    """
    final = folder / f"step_{step:012d}"
    name, temporary, old = final.name, f".{final.name}.tmp", f".{final.name}.old"
    tensors = dump_tensors({n: np.asarray(a, order="C") for n, a in snapshot.arrays.items()})
    data = {"format": FORMAT, "step": step, "sha256": hashlib.sha256(tensors).hexdigest()}
    data |= {"data": snapshot.data}
    first = not folder.exists()
    try:
        if snapshot.rows is not None and store is not None:
            data["replay"] = {"stored": snapshot.rows.stored, "segments": store.save(snapshot.rows)}
        data = json.loads(json.dumps(data))
        text = json.dumps(data | {"digest": _digest(data)})
        if len(text) > MOST_JSON:
            raise FlatoutError(
                f"cannot write the checkpoint of step {step:,}: its {DATA} would have "
                f"{len(text):,} bytes, and at most {MOST_JSON:,} are read; callbacks with a large "
                "state, or very many environments, are the cause."
            )
        if first:
            _make_with(folder, temporary)
        with nofollow.folder(folder) as parent:
            if not first:
                _remove(temporary, parent)
            try:
                with suppress(FileExistsError):  # it holds files of other programs
                    parent.mkdir(temporary)
                with nofollow.folder(folder / temporary, 2) as inside:
                    nofollow.write_file(ARRAYS, tensors, inside)
                    nofollow.write_file(DATA, text.encode(), inside)
                    inside.sync()
                with suppress(FileNotFoundError):  # the same step again, after a resume
                    parent.rename(name, old)  # `recover` handles both names
                try:
                    parent.rename(temporary, name)
                except OSError:
                    with suppress(OSError):
                        parent.rename(old, name)
                    raise
                parent.sync()
                _remove(old, parent)
            except OSError:
                _remove(temporary, parent)
                raise
    except OSError as error:
        kept = checkpoints(folder)
        if first:  # an empty folder would mean that its checkpoints were lost
            with suppress(OSError):
                folder.rmdir()
        saved = f"the checkpoint at step {_step(kept[-1]):,} is intact" if kept else "none is saved"
        raise FlatoutError(
            f"cannot write the checkpoint of step {step:,} in {folder}: {error.strerror}; {saved}."
        ) from error
    with suppress(OSError), nofollow.folder(folder) as parent:
        for surplus in checkpoints(folder)[:-keep]:  # rename first: no partial checkpoint is seen
            doomed = f".{surplus.name}.tmp"
            with suppress(OSError):
                parent.rename(surplus.name, doomed)
            _remove(doomed, parent)
    if snapshot.rows is not None and store is not None:
        remove_unused(folder, store)
    return final


def _make_with(folder: Path, name: str) -> None:
    """Make a folder that holds an empty one from the start: a kill never leaves it empty, which
    would mean that its checkpoints were lost."""
    staged = f".{folder.name}.tmp"
    with nofollow.folder(folder.parent, 0) as parent:
        with suppress(FileExistsError):
            parent.mkdir(staged)
        with nofollow.folder(folder.parent / staged) as inside, suppress(FileExistsError):
            inside.mkdir(name)
        parent.rename(staged, folder.name)


def _remove(name: str, parent: nofollow.Folder) -> None:
    """Remove a checkpoint, but no files of other programs."""
    nofollow.remove_folder(name, (ARRAYS, DATA), parent)


def discard(folder: Path) -> None:
    """Remove all checkpoints. A kill meanwhile leaves all or none of them (see `recover`)."""
    staged = folder.with_name(f".{folder.name}.tmp")
    trees.remove_tree(staged)
    with suppress(FileNotFoundError), nofollow.folder(folder.parent, 0) as parent:
        parent.rename(folder.name, staged.name)
    trees.remove_tree(staged)


def remove_unused(folder: Path, store: SegmentStore) -> None:
    """Remove the replay segments that no checkpoint refers to."""
    with suppress(CheckpointError):  # keep everything if a checkpoint cannot be read
        store.keep_only([ref for path in checkpoints(folder) for ref in references(path)])


def references(path: Path) -> list[Reference]:
    """The replay segments that a checkpoint refers to."""
    try:
        data = nofollow.read_json(path / DATA, 3, MOST_JSON)
        segments = list(data.get("replay", {}).get("segments", []))
        for segment in segments:
            if not isinstance(segment, dict) or not isinstance(segment.get("file"), str):
                raise ValueError("a replay segment has no name")
        return segments
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {damage(error)}.") from error


def recover(folder: Path) -> None:
    """Clean up after a kill: restore a replaced checkpoint, remove unfinished ones."""
    unfinished, staged = 0, folder.with_name(f".{folder.name}.tmp")
    with suppress(FileNotFoundError), nofollow.folder(folder) as parent:
        names = os.listdir(parent.listed)
        found = [match for name in sorted(names) if (match := _UNFINISHED.fullmatch(name))]
        unfinished = sum(match[2] == "tmp" for match in found)
        if unfinished and unfinished == len(names):  # killed within its very first save
            with nofollow.folder(folder.parent, 0) as above:
                above.rename(folder.name, staged.name)
        for match in found:
            if match[2] == "tmp" or match[1] in names:
                _remove(match[0], parent)
            else:
                parent.rename(match[0], match[1])
    with suppress(OSError):
        with nofollow.folder(staged) as parent:
            for name in os.listdir(parent.listed):
                if _STEP.fullmatch(name) or _UNFINISHED.fullmatch(name):
                    _remove(name, parent)
        staged.rmdir()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn exceptions from a checkpoint's contents into errors that name the checkpoint."""
    try:
        yield
    except DamagedError as error:
        passes = _may_pass(error.__cause__)
        what, advice = ("cannot be read", "") if passes else ("is damaged", _advice(path))
        raise CheckpointError(f"the checkpoint {path} {what}: {error}{advice}") from error
    except (
        CheckpointError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError,
    ) as error:  # fmt: skip
        why = error if isinstance(error, CheckpointError) else f"{type(error).__name__} {error}."
        raise CheckpointError(f"the checkpoint {path} does not fit this run: {why}") from error


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    try:
        with nofollow.folder(folder) as parent, os.scandir(parent.listed) as entries:
            named = [entry for entry in entries if _STEP.fullmatch(entry.name)]
            # Links are listed, so that reading them is an error instead of skipping them.
            names = [entry.name for entry in named if entry.is_symlink() or entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}.") from error
    return sorted((folder / name for name in names), key=_step)


def load(path: Path) -> tuple[int, Snapshot]:
    """Read a checkpoint's step and snapshot; `CheckpointError` if it is damaged."""
    hint = _advice(path)
    try:
        tensors = nofollow.read(path / ARRAYS, 3)
        data = nofollow.read_json(path / DATA, 3, MOST_JSON)
        if not isinstance(data, dict) or data.pop("digest", None) != _digest(data):
            raise ValueError(f"{DATA} was changed")
        refuse_format(data.get("format"), f"the checkpoint {path}")
        if data["sha256"] != hashlib.sha256(tensors).hexdigest():
            raise ValueError(f"{ARRAYS} is not what was saved")
        step = data["step"]
        if type(step) is not int or step != _step(path) or step >= 2**31:
            raise ValueError(f"it says that it is of step {str(step)[:40]}")
        rows = None
        if "replay" in data:
            first, end = map(int, data["replay"]["stored"])
            segments = list(data["replay"]["segments"])
            rows = SavedRows(path.parent.parent / REPLAY, segments, (first, end))
        return step, Snapshot(load_tensors(tensors), data["data"], rows)
    except OSError as error:
        advice = "" if _may_pass(error) else hint
        raise CheckpointError(
            f"the checkpoint {path} cannot be read: {error.strerror}.{advice}"
        ) from error
    except (KeyError, ValueError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        why = damage(error)
        raise CheckpointError(f"the checkpoint {path} is corrupt: {why}.{hint}") from error


def _may_pass(error: BaseException | None) -> bool:
    """Return whether a file that could not be read may be whole: a disk, a network or its
    permissions refused, and it should not be removed for that."""
    return isinstance(error, OSError) and not isinstance(
        error, FileNotFoundError | nofollow.NotOrdinaryError
    )


def _advice(path: Path) -> str:
    """Advice for a damaged checkpoint if there is an earlier one."""
    earlier = [path_ for path_ in checkpoints(path.parent) if path_ < path]
    return f" Remove that folder to continue from step {_step(earlier[-1]):,}." if earlier else ""


def latest(run_dir: Path) -> Path:
    """The newest checkpoint of a run; `CheckpointError` if there is none."""
    saved = checkpoints(run_dir / "checkpoints")
    if not saved:
        raise CheckpointError(f"{run_dir} holds no checkpoint to resume from.")
    return saved[-1]


def load_latest(run_dir: Path) -> tuple[Path, int, Snapshot]:
    """Read the newest checkpoint of a run: its path, step and snapshot.

    The run may be learning. If it removes the checkpoint while it is read, the next one is read;
    if it replaces its only one, there is none for a moment.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    for _ in range(ATTEMPTS - 1):
        path = None
        try:
            path = latest(run_dir)
            return path, *load(path)
        except CheckpointError:
            if path is not None and path.exists():
                raise
            time.sleep(REPLACED_S)
    path = latest(run_dir)
    return path, *load(path)


def save_agent(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Write named arrays and JSON metadata as one safetensors file, atomically.

    Raises:
        FlatoutError: it cannot be written.
    """
    if path.is_dir():
        raise FlatoutError(
            f"{path} is a folder; name a file, such as {path / 'agent.safetensors'}."
        )
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    values = json.loads(json.dumps({**metadata, "sha256": _contents(contiguous)}))
    signed_values = signing.signed(signing.AGENT, values)
    text = {name: json.dumps(value) for name, value in signed_values.items()}
    with writing(path):
        nofollow.replace(path, dump_tensors(contiguous, text))


def load_agent(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read `save_agent`'s arrays and metadata; `CheckpointError` if the file is damaged."""
    try:
        # Follow a link that the user names, but none in a run folder.
        content = nofollow.read(path, int((path.parent / "config.json").exists()))
        size = int.from_bytes(content[:8], "little")
        if size > MOST_HEADER:
            raise ValueError(f"its header has {size:,} bytes, and at most {MOST_HEADER:,} are read")
        arrays = load_tensors(content)
        header = parse_json(content[8 : 8 + size])
        texts = header.get("__metadata__") or {}
        metadata = {name: parse_json(text, finite=False) for name, text in texts.items()}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is not a saved agent: {damage(error)}.") from error
    refuse_format(metadata.get("format") if "config" in metadata else FORMAT, str(path))
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
