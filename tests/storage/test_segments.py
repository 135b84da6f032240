"""Replay on disk: only new rows are written, nothing that is needed is lost or silently changed."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flatout.engine.replay.counters import STORED
from flatout.engine.replay.ring import RingLayout
from flatout.errors import CheckpointError, FlatoutError
from flatout.storage import checkpoint, segments
from flatout.storage.segments import SavedRows, SegmentStore
from flatout.types import ObservationSpec, RowSource, Snapshot
from flatout_explain.output_file import temporary_name
from tests.worlds import VECTOR, Rates, Store, World, assert_right, image

ROWS = 12
RATES = Rates(0.05, 0.3, 0.1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def each_save_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No segment is small."""
    monkeypatch.setattr(segments, "SMALL", 0)


def geometry(spec: ObservationSpec = VECTOR, rows: int = ROWS) -> RingLayout:
    return RingLayout(spec, 2, rows, 3)


def rows_of(store: Store) -> RowSource:
    """The rows that a checkpoint would save."""
    _, _, rows = store.ring_counters.saved(store.ring)
    assert rows is not None
    return rows


class Run:
    """A world, its ring, and the ring's way to disk."""

    def __init__(self, folder: Path, sizes: RingLayout | None = None, seed: int = 0) -> None:
        self.folder = folder
        self.sizes = sizes or geometry()
        self.world = World(self.sizes.spec, 2, seed, RATES)
        self.store, self.disk = Store(self.sizes), SegmentStore(folder)

    def collect(self, *lengths: int) -> None:
        """Trajectories of these lengths."""
        for rows in lengths:
            self.store.take(self.world.collect(rows))

    @property
    def rows(self) -> RowSource:
        return rows_of(self.store)

    def snapshot(self) -> Snapshot:
        """As the buffers make it."""
        return Snapshot(*self.store.ring_counters.saved(self.store.ring))

    def restored(self, snapshot: Snapshot) -> Store:
        """A new ring from a snapshot."""
        store = Store(self.sizes)
        data = json.loads(json.dumps(snapshot.data))
        store.ring = store.ring_counters.restore(store.ring, snapshot.arrays, data, snapshot.rows)
        return store

    def assert_right(self, store: Store | None = None) -> None:
        """Everything that can be sampled is what happened."""
        store = store or self.store
        assert_right(self.world, self.sizes, store.ring, store.ring_counters.rows_written)


def assert_same_rows(one: RowSource, other: RowSource, rows: int = ROWS) -> None:
    """All rows are equal, and the final observations of those that can be sampled."""
    assert one.stored == other.stored
    first, end = one.stored
    a, b = one.read(first, end), other.read(first, end)
    assert set(a) == set(b) == {*STORED, "finals"}
    for name in STORED:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name, strict=True)
    late = max(end - rows, first) - first
    since = int(a["truncated"][:late].sum())
    np.testing.assert_array_equal(a["finals"][since:], b["finals"][since:])


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Name, time and size of every segment."""
    found = {path.name: path.stat() for path in folder.iterdir()}
    return {name: (stat.st_mtime_ns, stat.st_size) for name, stat in found.items()}


@pytest.mark.parametrize("spec", [VECTOR, image(3), image(4, "zeros")], ids=["1", "3", "4"])
@pytest.mark.parametrize("lengths", [(1,), (3, 4), (5, 5, 5), (7,) * 9])
def test_rows_are_read_back_as_they_were(
    spec: ObservationSpec, lengths: tuple[int, ...], tmp_path: Path
) -> None:
    run = Run(tmp_path, geometry(spec))
    run.collect(*lengths)
    saved = SavedRows(tmp_path, run.disk.save(run.rows), run.rows.stored)
    assert run.rows.stored == (max(sum(lengths) - ROWS - spec.stack + 1, 0), sum(lengths))
    assert_same_rows(run.rows, saved)
    run.assert_right(run.restored(run.snapshot()))


@pytest.mark.usefixtures("each_save_its_own")
def test_only_new_rows_are_written(tmp_path: Path) -> None:
    run = Run(tmp_path, geometry(image(3, side=20), 100))
    run.collect(60)
    first = run.disk.save(run.rows)
    before = files(tmp_path)
    assert [(one["first"], one["end"]) for one in first] == [(0, 60)]
    run.collect(5, 4)
    second = run.disk.save(run.rows)
    after = files(tmp_path)
    assert second[:1] == first
    assert [(one["first"], one["end"]) for one in second[1:]] == [(60, 69)]
    assert {name: after[name] for name in before} == before
    (new,) = after.keys() - before.keys()
    assert (new, after[new][1]) == (second[1]["file"], second[1]["bytes"])
    assert after[new][1] < 0.25 * before[first[0]["file"]][1]
    assert run.disk.save(run.rows) == second  # nothing new: nothing written
    assert files(tmp_path) == after
    assert_same_rows(run.rows, SavedRows(tmp_path, second, run.rows.stored), 100)


@pytest.mark.usefixtures("each_save_its_own")
def test_segments_that_have_left_the_window_are_no_longer_referred_to(tmp_path: Path) -> None:
    run = Run(tmp_path, geometry(image(3)))
    for _ in range(12):
        run.collect(5)
        found = run.disk.save(run.rows)
        assert all(one["end"] > run.rows.stored[0] for one in found)
        assert_same_rows(run.rows, SavedRows(tmp_path, found, run.rows.stored))
    run.collect(12, 12)  # so late a save that nothing of before is needed
    (only,) = run.disk.save(run.rows)
    assert (only["first"], only["end"]) == run.rows.stored


def test_small_segments_are_written_again_with_what_follows(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(9):
        run.collect(3)
        found = run.disk.save(run.rows)
        assert [(one["first"], one["end"]) for one in found] == [run.rows.stored]
    assert len(files(tmp_path)) == 9  # until nobody refers to them
    run.disk.keep_only(found)
    assert list(files(tmp_path)) == [found[0]["file"]]
    assert_same_rows(run.rows, SavedRows(tmp_path, found, run.rows.stored))


def test_large_rows_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SMALL", 1500)
    monkeypatch.setattr(segments, "PIECE", 1000)
    run = Run(tmp_path, geometry(image(2, side=30)))
    for _ in range(6):
        run.collect(7)
        found = run.disk.save(run.rows)
        assert all(one["end"] - one["first"] < 7 for one in found)
        assert_same_rows(run.rows, SavedRows(tmp_path, found, run.rows.stored))


def saved_run(tmp_path: Path) -> tuple[Run, Path]:
    """A run of two segments with one checkpoint."""
    run = Run(tmp_path / "replay")
    with mock.patch.object(segments, "SMALL", 0):
        run.collect(6)
        run.disk.save(run.rows)
        run.collect(5)
        return run, checkpoint.save(tmp_path / "checkpoints", 11, run.snapshot(), 3, run.disk)


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("damage", [change, Path.unlink, lambda path: os.truncate(path, 10)])
def test_a_damaged_segment_is_refused_in_one_sentence(
    which: int, damage: Any, tmp_path: Path
) -> None:
    run, path = saved_run(tmp_path)
    segment = sorted((tmp_path / "replay").iterdir())[which]
    damage(segment)
    _, snapshot = checkpoint.load(path)
    with pytest.raises(CheckpointError) as refused, checkpoint.reading(path):
        run.restored(snapshot)
    message = str(refused.value)
    assert str(segment) in message
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize("name", ["../{}", "{folder}/{}", "../other/{}"])
def test_segments_outside_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "other")
    run.collect(4)
    (one,) = run.disk.save(run.rows)
    outside = one | {"file": name.format(one["file"], folder=tmp_path / "other")}
    with pytest.raises(CheckpointError, match="a replay segment is called"):
        SavedRows(tmp_path / "replay", [outside], (0, 4)).read(0, 4)


@pytest.mark.parametrize("spans", [[], [(0, 4)], [(1, 9)], [(0, 4), (5, 9)]])
def test_rows_that_no_segment_holds_are_noticed_at_once(
    spans: list[tuple[int, int]], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"rows from . on are missing"):
        SavedRows(tmp_path, [{"first": a, "end": b} for a, b in spans], (0, 9))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    run, path = saved_run(tmp_path)
    _, snapshot = checkpoint.load(path)
    with pytest.raises(CheckpointError, match="no replayed experience"):
        run.restored(Snapshot(snapshot.arrays, snapshot.data, None))
    run.sizes = RingLayout(VECTOR, 3, ROWS, 1)
    with pytest.raises(CheckpointError, match="but this number of environments needs"):
        run.restored(snapshot)


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_no_checkpoint_that_is_kept_loses_a_row(
    small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is pruned, every kept checkpoint restores what it saved, and nothing is left."""
    monkeypatch.setattr(segments, "SMALL", small)
    run, worlds = Run(tmp_path / "replay", geometry(image(3))), {}
    for number in range(12):
        run.collect(4)
        path = checkpoint.save(tmp_path / "checkpoints", number, run.snapshot(), 3, run.disk)
        worlds[path] = copy.deepcopy(run.world)
        kept = checkpoint.checkpoints(tmp_path / "checkpoints")
        assert len(kept) == min(number + 1, 3)
        wanted = {one["file"] for path in kept for one in checkpoint.references(path)}
        assert {path.name for path in (tmp_path / "replay").iterdir()} == wanted
        for one in kept:
            store = run.restored(checkpoint.load(one)[1])
            assert_right(worlds[one], run.sizes, store.ring, store.ring_counters.rows_written)


@pytest.mark.usefixtures("each_save_its_own")
def test_where_a_checkpoint_cannot_be_read_everything_stays(tmp_path: Path) -> None:
    run = Run(tmp_path / "replay")
    for number in range(4):
        run.collect(7)
        path = checkpoint.save(tmp_path / "checkpoints", number, run.snapshot(), 3, run.disk)
        if number == 1:
            (path / checkpoint.DATA).write_text("{")
    assert len(list((tmp_path / "replay").iterdir())) == 4
    run.assert_right(run.restored(checkpoint.load(path)[1]))


def test_what_a_kill_left_behind_is_passed_over_and_removed(tmp_path: Path) -> None:
    run, path = saved_run(tmp_path)
    name = "rows-000000000011-000000000020-01234567.safetensors"
    for left in (name, temporary_name(name)):
        (tmp_path / "replay" / left).write_bytes(b"half a segm")
    run.assert_right(run.restored(checkpoint.load(path)[1]))
    run.collect(4)
    path = checkpoint.save(tmp_path / "checkpoints", 15, run.snapshot(), 3, run.disk)
    assert not list((tmp_path / "replay").glob(f"*{name}*"))
    run.assert_right(run.restored(checkpoint.load(path)[1]))


@pytest.mark.usefixtures("each_save_its_own")
def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save fails; what was saved is intact, no room is wasted, and the next save is whole."""
    run, path = saved_run(tmp_path)
    before, world = files(tmp_path / "replay"), copy.deepcopy(run.world)
    run.collect(4)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(Exception, match="No space left on device; the checkpoint at step 11"):
            checkpoint.save(tmp_path / "checkpoints", 15, run.snapshot(), 3, run.disk)
    assert files(tmp_path / "replay") == before
    store = run.restored(checkpoint.load(path)[1])
    assert_right(world, run.sizes, store.ring, store.ring_counters.rows_written)
    path = checkpoint.save(tmp_path / "checkpoints", 15, run.snapshot(), 3, run.disk)
    run.assert_right(run.restored(checkpoint.load(path)[1]))


@pytest.mark.parametrize("piece", [1, 2, 3])
def test_a_disk_that_fills_up_on_the_way_keeps_no_orphans(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = saved_run(tmp_path)
    run.collect(4, 4)
    before = files(tmp_path / "replay")
    monkeypatch.setattr(segments, "PIECE", 1)  # every row is a piece
    write, written = SegmentStore._write, list[int]()

    def full(*arguments: Any) -> Any:
        written.append(1)
        if len(written) == piece:
            raise OSError(28, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(SegmentStore, "_write", full)
    with pytest.raises(Exception, match="No space left on device"):
        checkpoint.save(tmp_path / "checkpoints", 15, run.snapshot(), 3, run.disk)
    assert files(tmp_path / "replay") == before
    (tmp_path / "replay" / f"rows-{0:012d}-{9:012d}-0badcafe.safetensors").write_bytes(
        b"left by a kill"
    )
    checkpoint.remove_unused(tmp_path / "checkpoints", run.disk)
    assert files(tmp_path / "replay") == before


def test_a_restored_ring_goes_on_as_the_original(tmp_path: Path) -> None:
    run = Run(tmp_path, geometry(image(3)))
    run.collect(5, 5, 5, 5)
    other = run.restored(run.snapshot())
    for rows in (3, 1, 6, 12, 2, 2, 9):
        trajectory = run.world.collect(rows)
        run.store.take(trajectory)
        other.take(trajectory)
        assert (
            other.ring_counters.saved(other.ring)[1]
            == run.store.ring_counters.saved(run.store.ring)[1]
        )
        assert other.ring_counters.updates_due == run.store.ring_counters.updates_due
        run.assert_right()
        run.assert_right(other)
        assert_same_rows(run.rows, rows_of(other))


moves = st.one_of(
    st.tuples(st.just("collect"), st.integers(1, ROWS)),
    st.tuples(st.just("save"), st.just(0)),
    st.tuples(st.just("resume"), st.integers(0, 3)),
    st.tuples(st.just("lose"), st.integers(0, 1)),
)
LOST_THEN_SAVED = [("collect", 5), ("save", 0), ("resume", 1), ("save", 0), ("resume", 0)]
LOST_THEN_ON = [*LOST_THEN_SAVED[:3], ("collect", 2), ("save", 0), ("resume", 0), ("collect", 3)]
SAVED_THEN_LOST = [*LOST_THEN_SAVED[:2], ("lose", 0), ("lose", 1), *LOST_THEN_ON[3:]]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([VECTOR, image(3)]), st.sampled_from([0, 1500, 1 << 20]),
    st.integers(0, 99), st.lists(moves, min_size=3, max_size=14),
)  # fmt: skip
@example(VECTOR, 0, 0, LOST_THEN_SAVED)
@example(VECTOR, 1 << 20, 0, LOST_THEN_SAVED)
@example(VECTOR, 0, 0, LOST_THEN_ON)
@example(VECTOR, 0, 0, SAVED_THEN_LOST)
def test_any_sequence_of_saves_and_resumes_keeps_what_happened(
    spec: ObservationSpec, small: int, seed: int, sequence: list[tuple[str, int]]
) -> None:
    """Also where some environments' episodes do not reproduce on resume (the bits of `number`), and
    where an environment is lost with its process right after a checkpoint."""
    with tempfile.TemporaryDirectory() as name, mock.patch.object(segments, "SMALL", small):
        folder = Path(name)
        run, path, world = Run(folder / "replay", geometry(spec), seed), None, None
        for step, (move, number) in enumerate(sequence):
            if move == "collect":
                run.collect(number)
            elif move == "save":
                path = checkpoint.save(folder / "checkpoints", step, run.snapshot(), 2, run.disk)
                world = copy.deepcopy(run.world)
            elif move == "lose":
                run.store.cut(run.world, number)
            elif path is not None:  # killed, and resumed from the newest checkpoint
                run.store = run.restored(checkpoint.load(path)[1])
                run.disk = SegmentStore(folder / "replay")
                run.disk.resume(checkpoint.references(path))
                run.world = copy.deepcopy(world)
                for lane in range(2):
                    if number >> lane & 1:
                        run.store.cut(run.world, lane)
            if run.store.ring_counters.rows_written:
                run.assert_right()


def test_a_checkpoint_that_could_not_be_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = checkpoint.save(tmp_path, 1, Snapshot({}, {}), 3)
    monkeypatch.setattr(checkpoint, "MOST_JSON", 1000)
    with pytest.raises(FlatoutError, match="at most 1,000 are read"):
        checkpoint.save(tmp_path, 2, Snapshot({}, {"text": "x" * 1000}), 3)
    assert checkpoint.checkpoints(tmp_path) == [kept]
    assert checkpoint.load(kept)[0] == 1
