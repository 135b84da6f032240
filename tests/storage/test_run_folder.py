"""A run's folder by default: a name that nobody else has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from flatout import CheckpointError, FlatoutError, UsageError
from flatout.config.settings import resolve
from flatout.storage.checkpoint import FORMAT
from flatout.storage.run_folder import KEPT, RunFolder, load_config, mark_own

BEGIN = """
import multiprocessing, os
from flatout.config.settings import resolve
from flatout.storage.run_folder import new_folder

config = resolve("ppo", {"env": "CartPole-v1"})
forking = multiprocessing.get_context("fork")
all_are_there = forking.Barrier(4)

def begin():
    all_are_there.wait()
    folder = new_folder(config)
    os.write(1, f"{folder.path}\\n".encode())
    all_are_there.wait()
    folder.write_config(config, "cpu")
    folder.close()

begun = [forking.Process(target=begin) for _ in range(4)]
for process in begun:
    process.start()
for process in begun:
    process.join()
    assert process.exitcode == 0
"""


def test_runs_that_begin_at_the_same_moment_have_folders_of_their_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    paths = done.stdout.split()
    assert len(set(paths)) == len(paths) == 4
    assert all((tmp_path / path / "config.json").is_file() for path in paths)


def test_a_folder_that_was_deleted_moved_or_replaced_is_not_saved_into(tmp_path: Path) -> None:
    path = tmp_path / "run"
    folder = RunFolder(path)
    try:
        for name in KEPT:
            (path / name).write_text("")
        folder.check()
        shutil.copytree(path, tmp_path / "copy")
        path.rename(tmp_path / "moved")
        with pytest.raises(FlatoutError, match="deleted or moved"):
            folder.check()
        (tmp_path / "copy").rename(path)  # with files of the same names, of which none is its own
        with pytest.raises(FlatoutError, match="deleted or moved"):
            folder.check()
    finally:
        folder.close()


def test_a_lock_that_user_code_has_closed_is_no_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    os.close(folder._lock.fileno())
    folder.close()
    RunFolder(tmp_path / "run").close()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[]", "it holds no table"),
        (f'{{"format": {FORMAT}, "settings": "/etc"}}', "it holds no table of settings"),
        (f'{{"format": {FORMAT}, "settings": {{}}}}', "'algorithm' is missing"),
    ],
)
def test_damaged_settings_are_named_without_the_words_of_python(
    tmp_path: Path, content: str, why: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError) as raised:
        load_config(tmp_path, None)
    assert str(raised.value) == f"{tmp_path / 'config.json'} is corrupt: {why}."


def test_settings_written_before_the_start_are_left_by_a_kill_alone(tmp_path: Path) -> None:
    config = resolve("ppo", {"env": "CartPole-v1"})
    with closing(RunFolder(tmp_path / "failed")) as folder:
        folder.prepare(config, None, None)
        assert load_config(tmp_path / "failed") == config
    assert not (tmp_path / "failed").exists()
    with closing(RunFolder(tmp_path / "begun")) as folder:
        folder.prepare(config, None, None)
        folder.write_config(config, "cpu")
    assert load_config(tmp_path / "begun") == config
    with closing(RunFolder(tmp_path / "begun", resume=True)) as folder:
        folder.prepare(config, "other", None)
    assert folder.parent is None, "those of a resumed run stay"


def test_settings_that_could_not_be_read_again_are_refused(tmp_path: Path) -> None:
    config = resolve("ppo", {"env": "CartPole-v1", "env_kwargs": {"text": "x" * (1 << 20)}})
    with (
        closing(RunFolder(tmp_path / "run")) as folder,
        pytest.raises(UsageError, match="at most 1,048,576 are read"),
    ):
        folder.prepare(config, None, None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more", [0, 1])
def test_settings_of_the_largest_size_are_read_again(more: int, tmp_path: Path) -> None:
    text, file = "x", tmp_path / "run" / "config.json"

    def write() -> None:
        config = resolve("ppo", {"env": "CartPole-v1", "env_kwargs": {"text": text}})
        with closing(RunFolder(tmp_path / "run")) as folder:
            folder.write_config(config, "cpu")
        assert load_config(tmp_path / "run") == config

    write()
    text += "x" * ((1 << 20) + more - file.stat().st_size)
    file.unlink()
    if more:
        with pytest.raises(UsageError, match="would have 1,048,577 bytes"):
            write()
    else:
        write()
        assert file.stat().st_size == 1 << 20


def test_a_program_is_told_what_to_write_in_python(tmp_path: Path) -> None:
    run, file, strange = tmp_path / "run", tmp_path / "file", tmp_path / "strange"
    for path in (run, strange):
        path.mkdir()
    (run / "config.json").write_text('{"format": 1, "algorithm": "ppo"}')
    file.write_text("x")
    (strange / "metrics.jsonl").write_text("x")
    for path, words in (
        (run, rf"continue it with PPO\.load\('{run}'\)\.learn\(\.\.\., run_dir='{run}'\), or"),
        (tmp_path, f"such as run_dir='{tmp_path / 'NAME'}'"),
        (file, "choose another run_dir"),
        (strange, "choose another run_dir"),
    ):
        with pytest.raises(UsageError, match=words) as refused:
            RunFolder(path, python="PPO")
        assert "--" not in str(refused.value)
        with pytest.raises(UsageError, match="--run-dir"):
            RunFolder(path)


def test_a_folder_without_settings_says_whether_flatout_made_it(tmp_path: Path) -> None:
    mark_own(tmp_path, 0)
    for path, words in ((tmp_path, "--run-dir"), (tmp_path.parent, "is not a run folder")):
        for use in (load_config, lambda path: RunFolder(path, resume=True)):
            with pytest.raises(UsageError, match=words):
                use(path)
    (tmp_path / "population.json").write_text("{}")
    with pytest.raises(UsageError, match="holds a population: name the folder of one of its"):
        load_config(tmp_path)
