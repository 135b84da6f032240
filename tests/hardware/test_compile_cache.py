"""The cache of compiled programs: damaged entries are replaced, and reported once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.hardware.compile_cache import set_up
from tests.file_faults import largest_file

PROGRAM = """\

import jax, numpy as np
from flatout.config.placement import parse
from flatout.hardware.backend import start
start(parse('act=cpu learn=cpu'))
print(jax.jit(lambda x: x * 3 + 1)(np.arange(2.0, dtype=np.float32)).tolist())
"""


def run(cache: Path) -> subprocess.CompletedProcess[str]:
    """A program of one compilation in a process of its own."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", PROGRAM], env=environment, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == "[1.0, 4.0]\n", done.stderr
    return done


def damage(path: Path, how: str) -> None:
    """Cut, empty or overwrite an entry."""
    content = path.read_bytes()
    half = len(content) // 2
    noise = content[:half] + bytes(len(content) - half)
    path.write_bytes({"cut": content[:half], "empty": b"", "noise": noise}[how])


def relative_jax(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Start JAX as Flatout does, in a working folder, with these variables."""
    code = PROGRAM.partition("print(")[0] + "print(jax.config.jax_compilation_cache_dir)"
    environment = {**os.environ, "HOME": str(tmp_path / "home")} | variables
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, text=True, capture_output=True, timeout=120,
        check=True, cwd=tmp_path,
    )  # fmt: skip


def test_no_relative_path_leads_to_compiled_programs(tmp_path: Path) -> None:
    """They run as they are, and the working folder may be somebody else's."""
    own = str(tmp_path / "home" / ".cache" / "flatout" / "xla")
    done = relative_jax(tmp_path, XDG_CACHE_HOME="cache", JAX_COMPILATION_CACHE_DIR="")
    assert (done.stdout.strip(), done.stderr) == (own, "")
    done = relative_jax(tmp_path, XDG_CACHE_HOME="", JAX_COMPILATION_CACHE_DIR="programs")
    assert done.stdout.strip() == own
    assert "'programs', is a relative path" in done.stderr
    assert f"{own} is used instead" in done.stderr


@pytest.fixture
def jax_cache(tmp_path: Path) -> Any:
    """JAX's class of a cache in a folder, as Flatout sets it up."""
    from jax._src import compilation_cache

    set_up()
    module: Any = compilation_cache
    return module.LRUCache(str(tmp_path), max_size=-1)


def test_an_entry_that_jax_could_not_use_is_replaced(
    jax_cache: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jax_cache.get("jit_f-1") is None
    jax_cache.put("jit_f-1", b"whole")
    jax_cache.put("jit_f-1", b"of another process")
    assert capsys.readouterr().err == ""
    assert jax_cache.get("jit_f-1") == b"whole", "the first that was written stays"
    jax_cache.put("jit_f-1", b"compiled again")  # JAX does so only where `get`'s value is useless
    assert jax_cache.get("jit_f-1") == b"compiled again"
    assert capsys.readouterr().err.count("was damaged") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["jit_f-1-cache"]


def test_an_entry_is_whole_or_absent(
    jax_cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*names: Any, **folders: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        jax_cache.put("jit_f-1", b"whole")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "jit_g-1-cache").mkdir()  # what cannot be read is no entry
    assert jax_cache.get("jit_g-1") is None


def test_a_folder_in_an_entrys_place_is_replaced(
    jax_cache: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jit_f-1-cache" / "inner").mkdir(parents=True)
    assert jax_cache.get("jit_f-1") is None
    jax_cache.put("jit_f-1", b"compiled again")
    assert jax_cache.get("jit_f-1") == b"compiled again"
    assert capsys.readouterr().err.count("was damaged") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["jit_f-1-cache"]


def test_entries_that_cannot_be_removed_are_reported_once(
    jax_cache: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.rmtree", refuse)
    for key in ("jit_f-1", "jit_g-1"):
        (tmp_path / f"{key}-cache").mkdir()
        assert jax_cache.get(key) is None
        jax_cache.put(key, b"compiled again")  # JAX would warn of an exception
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "jit_f-1-cache" in said
    assert "cannot be removed (Permission denied)" in said
    assert "JAX_COMPILATION_CACHE_DIR" in said


def test_entries_that_cannot_be_written_are_reported_once(
    jax_cache: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with largest_file(0):
        for key in ("jit_f-1", "jit_g-1"):
            jax_cache.put(key, b"compiled")  # JAX would warn of an exception
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"cannot be kept in {tmp_path} (File too large)" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_damaged_entries_are_compiled_again_once(tmp_path: Path) -> None:
    assert run(tmp_path).stderr == ""
    entries = sorted(tmp_path.glob("*-cache"))
    assert entries
    for how in ("cut", "empty", "noise"):
        for path in entries:
            damage(path, how)
        first = run(tmp_path).stderr
        assert first.count("was damaged") == len(entries), how
        assert "Warning" not in first
        assert run(tmp_path).stderr == "", f"{how}: the entries are whole again"
    assert sorted(tmp_path.iterdir()) == entries
