"""Nothing in a run folder leads out of it: links, pipes and devices are refused at once."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flatout.errors import CheckpointError, FlatoutError
from flatout.storage import checkpoint, trees
from flatout.storage.joint import Joint
from flatout.storage.run_folder import FILES, MARK, RunFolder
from flatout.storage.segments import SegmentStore
from flatout.types import Snapshot
from flatout_explain.files import nofollow
from flatout_explain.output_file import temporary_name
from tests.cli.test_bad_input import Cli, contents, sentence
from tests.conftest import replay_run

STEP = "step_000000000256"
WRITTEN = ("config.json", "metrics.jsonl", "episodes.jsonl", "spans.jsonl", "devices.jsonl",
           "summary.json", "params.safetensors", ".lock")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with replay; not to be changed."""
    return replay_run(tmp_path_factory.mktemp("made") / "run", "--checkpoint-every", "128")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of it beside a folder that is precious."""
    precious = tmp_path / "precious"
    shutil.copytree(made, precious)
    (precious / "keys").write_text("secret\n")
    return Path(shutil.copytree(made, tmp_path / "run"))


def link(path: Path) -> None:
    """In the place of a file or folder of the run a link to what is precious."""
    target = path.parents[1] / "precious" / path.name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def hang_up(path: Path) -> None:
    """A link that leads nowhere: writing through it would make a file there."""
    path.unlink(missing_ok=True)
    path.symlink_to(path.parents[1] / "precious" / "new")


@pytest.mark.parametrize("how", [link, pipe, device, hang_up])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_that_is_something_else(
    run: Path, flatout: Cli, name: str, how: Callable[[Path], None]
) -> None:
    how(run / name)
    before = contents(run.parent / "precious")
    sentence(flatout("train", "--resume", run, "--steps", "320"), 1, f"{run / name}| is ")
    assert contents(run.parent / "precious") == before
    assert (run.parent / "precious" / ".lock").read_bytes() == MARK


@pytest.mark.parametrize("name", ["replay", "checkpoints"])
@pytest.mark.parametrize("command", ["resume", "eval", "explain"])
def test_a_folder_that_is_a_link(run: Path, flatout: Cli, name: str, command: str) -> None:
    link(run / name)
    before = contents(run.parent / "precious")
    if command == "resume":
        sentence(flatout("train", "--resume", run), 1, f"{run / name}|symbolic link")
    else:  # which may have no need of it
        result = flatout(command, run, *(() if command == "explain" else ("--episodes", "1")))
        assert result.code == 0 or result.message
    assert contents(run.parent / "precious") == before


@pytest.mark.parametrize(
    "name", [f"checkpoints/{STEP}", f"checkpoints/{STEP}/state.json", "replay/*"]
)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_deeper_ones(run: Path, flatout: Cli, name: str, kind: str) -> None:
    for path in sorted(run.glob(name)):
        target = run.parent / "precious" / path.relative_to(run)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        if kind == "link":
            path.symlink_to(target)
        else:
            os.mkfifo(path)
    before = contents(run.parent / "precious")
    if (name, kind) == (f"checkpoints/{STEP}", "pipe"):  # no checkpoint: there is an earlier one
        assert flatout("train", "--resume", run, "--quiet").code == 0
    else:
        words = "symbolic link" if kind == "link" else "pipe"
        more = ("--steps", "320", "--quiet")  # of a run without a step left, replay is not read
        sentence(flatout("train", "--resume", run, *more), 1, f"{run}|{words}")
    assert contents(run.parent / "precious") == before


def test_a_hard_link_is_not_written_to(run: Path, flatout: Cli) -> None:
    """Of a backup that shares its files (cp -al): nothing in it changes."""
    backup = run.parent / "backup"
    shutil.copytree(run, backup, copy_function=os.link)
    before = contents(backup)
    assert "hard link" in flatout("train", "--resume", run, "--steps", "320", "--quiet").message
    assert contents(backup) == before


@pytest.mark.parametrize("flags", [(), ("--show",)])
@pytest.mark.parametrize("how", [link, pipe, device])
def test_an_agent_that_is_something_else(
    run: Path, flatout: Cli, flags: tuple[str, ...], how: Callable[[Path], None]
) -> None:
    how(run / "params.safetensors")
    sentence(flatout("eval", run, "--episodes", "1", *flags), 1, "params.safetensors| is ")
    lone = run.parent / "lone.safetensors"
    os.mkfifo(lone)  # named by the user, and yet no file
    sentence(flatout("eval", lone, "--episodes", "1", *flags), 1, "lone.safetensors|pipe")


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "spans.jsonl", "devices.jsonl"])
def test_explaining_does_not_wait_for_a_pipe(run: Path, flatout: Cli, name: str) -> None:
    pipe(run / name)
    sentence(flatout("explain", run), 1, f"{run / name}|no ordinary file")


def test_only_what_flatout_names_is_deleted(run: Path, flatout: Cli) -> None:
    kept = [
        run / ".notes.tmp", run / "replay" / "notes.txt", run / "replay" / ".git",
        run / "replay" / "rows-1-2.safetensors", run / "checkpoints" / "step_old" / "a",
        run / "checkpoints" / ".step_x.tmp" / "a", run / "checkpoints" / "notes",
        run / "checkpoints" / ".step_000000000007.tmp" / "mine",
        run / "checkpoints" / ".step_000000000320.tmp" / "mine",
    ]  # fmt: skip
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    (run / "checkpoints" / ".step_000000000007.tmp" / "state.json").write_text("left by a kill")
    left = run / temporary_name("config.json")
    left.write_text("left by a kill")
    flags = ("--steps", "512", "--checkpoint-every", "64", "--keep-checkpoints", "1", "--quiet")
    assert flatout("train", "--resume", run, *flags).code == 0
    moved = run / "checkpoints" / ".step_000000000320.tmp" / "mine"
    assert [path for path in kept if not path.exists() and path != moved] == []
    assert [path.read_text() for path in run.rglob("mine")] == ["mine"] * 2
    assert not left.exists()
    assert [path.name for path in checkpoint.checkpoints(run / "checkpoints")] == [
        "step_000000000512"
    ]


# Names that are swapped after they were looked at


def snapshot() -> Snapshot:
    return Snapshot({"learner.x": np.zeros(3, np.float32)}, {"a": 1})


def test_saving_never_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "state.json").write_text("mine")
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / ".step_000000000001.tmp").symlink_to(precious)
    with pytest.raises(FlatoutError, match="cannot write the checkpoint of step 1"):
        checkpoint.save(folder, 1, snapshot(), 3)
    (folder / ".step_000000000001.tmp").unlink()
    checkpoint.save(folder, 1, snapshot(), 3)
    shutil.rmtree(folder)
    folder.symlink_to(precious)
    with pytest.raises(FlatoutError, match="symbolic link"):
        checkpoint.save(folder, 1, snapshot(), 3)
    with pytest.raises(CheckpointError, match="symbolic link"):
        checkpoint.checkpoints(folder)
    store = tmp_path / "run" / "replay"
    store.symlink_to(precious)
    SegmentStore(store).keep_only([])
    file = tmp_path / "run" / "summary.json"
    monkeypatch.setattr(secrets, "token_hex", lambda count: "0" * 2 * count)  # a name as guessed
    (tmp_path / "run" / temporary_name("summary.json")).symlink_to(precious / "state.json")
    nofollow.replace(file, b"new")
    file.unlink()
    file.symlink_to(precious / "state.json")
    nofollow.replace(file, b"newer")
    assert file.read_bytes() == b"newer"
    assert not file.is_symlink()
    assert [(path.name, path.read_text()) for path in precious.iterdir()] == [
        ("state.json", "mine")
    ]


def test_the_way_above_the_run_folder_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk" / "run").mkdir(parents=True)
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    (tmp_path / "latest").symlink_to(tmp_path / "runs" / "run")
    for run in (tmp_path / "runs" / "run", tmp_path / "latest"):
        checkpoint.save(run / "checkpoints", 1, snapshot(), 3)
        assert checkpoint.load(checkpoint.latest(run))[0] == 1


@pytest.mark.parametrize("held", [nofollow.HELD, False])
def test_below_a_confined_folder_nothing_is_entered_through_a_link(
    held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nofollow, "HELD", held)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "a").mkdir(parents=True)
    (tmp_path / "mine" / "a" / "file").write_text("mine")
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    (tmp_path / "disk" / "file").write_text("theirs")
    (tmp_path / "disk" / "deep" / "away").symlink_to(tmp_path / "mine")
    (tmp_path / "theirs").symlink_to("disk")  # which the user may have made
    before = contents(tmp_path / "mine")
    for root in (tmp_path / "theirs", Path("theirs")):
        away = root / "deep" / "away" / "a"
        refused: list[Callable[[], object]] = [
            lambda away=away: nofollow.read(away / "file"),
            lambda away=away: nofollow.open_file(away / "file", nofollow.CHANGE, 0),
            lambda away=away: nofollow.replace(away / "file", b"new"),
            lambda away=away: trees.remove_file(away / "file"),
            lambda away=away: trees.remove_tree(away),
            lambda away=away, root=root: trees.move(away, root / "new"),
            lambda away=away, root=root: trees.move(root / "deep", away / "new"),
            lambda away=away: trees.walk(away),
            lambda away=away: RunFolder(away / "run"),
            lambda away=away: Joint(away / "groups" / "0", 1),
        ]
        with nofollow.confined(root):
            for action in refused:
                with pytest.raises((nofollow.NotOrdinaryError, FlatoutError), match="symbolic"):
                    action()
            assert nofollow.read(root / "file") == b"theirs"
            assert [*map(str, trees.walk(root))] == ["file"]
    trees.remove_tree(tmp_path / "disk" / "deep")
    assert not (tmp_path / "disk" / "deep").exists()
    trees.remove_tree(tmp_path / "theirs")
    assert not (tmp_path / "theirs").is_symlink()
    assert (tmp_path / "disk" / "file").read_text() == "theirs"
    assert contents(tmp_path / "mine") == before


def test_a_file_too_large_for_memory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    path.touch()
    os.truncate(path, 1 << 42)  # sparse: it takes no room on the disk
    with pytest.raises(OSError, match="4,398,046,511,104 bytes"):
        nofollow.read(path)


def test_every_file_of_a_run_is_known(made: Path) -> None:
    found = {path.name for path in made.iterdir() if path.is_file()}
    assert {name for name in found if not name.startswith("events.")} <= set(FILES)
