"""Tests of Flatout on Windows and macOS, simulated on Linux.

Modules and functions that these systems lack are removed before Flatout is imported. Other packages
are imported before that, so that they still find them: the tests are of Flatout alone.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.engine.workers.shared_memory import SharedArrays
from flatout_explain.files import nofollow
from tests import tiny

PACKAGES = (
    "asyncio, cloudpickle, equinox, gymnasium.vector, importlib.metadata, jax, jax.numpy, "
    "multiprocessing, numpy, optax, psutil, pty, rich.live, safetensors.numpy, shutil, socket, "
    "subprocess, tempfile, tensorboardX"
)
POSIX = {
    "os": "memfd_create MFD_CLOEXEC posix_fallocate sched_getaffinity sched_setaffinity O_NOFOLLOW "
    "O_DIRECTORY O_NONBLOCK O_CLOEXEC O_ACCMODE geteuid getuid getpgrp tcgetpgrp pidfd_open fork "
    "getloadavg killpg setsid mkfifo statvfs fchmod register_at_fork",
    "signal": "SIGHUP SIGUSR1 SIGUSR2 SIGQUIT SIGCONT SIGWINCH SIGURG SIGALRM SIGKILL SIGCHLD "
    "setitimer getitimer ITIMER_REAL pthread_sigmask sigwait pthread_kill siginterrupt",
}
LINUX = {
    "os": "memfd_create MFD_CLOEXEC posix_fallocate sched_getaffinity sched_setaffinity pidfd_open",
    "signal": "sigtimedwait SIGSTKFLT SIGPWR",
}
WITHOUT = f"""
import builtins, errno, importlib, os, pkgutil, signal, sys, time
import {PACKAGES}
real_flock = __import__("fcntl").flock
real_open = builtins.open

def without(modules, names):
    for module in modules:
        sys.modules[module] = None
    for module, text in names.items():
        for name in text.split():
            if hasattr(sys.modules[module], name):
                delattr(sys.modules[module], name)

def no_proc(path, *given, **named):
    caller = sys._getframe(1).f_globals.get("__name__", "")
    if str(path).startswith(("/proc", "/sys")) and caller.startswith("flatout"):
        raise FileNotFoundError(errno.ENOENT, "not here", str(path))
    return real_open(path, *given, **named)

builtins.open = no_proc

def all_modules(platform):
    import flatout, flatout_explain
    real, sys.platform = sys.platform, platform
    names = [
        m.name for package in (flatout, flatout_explain)
        for m in pkgutil.walk_packages(package.__path__, f"{{package.__name__}}.")
    ]
    assert len(names) > 200
    for name in names:
        if ".inject." not in name and not name.endswith("__main__"):
            importlib.import_module(name)
    import flatout.__main__
    sys.platform = real  # other packages must again see Linux
    from flatout_explain.hardware import processes
    processes.open_tree.__defaults__ = (processes.Path("/nowhere"),)
"""
WINDOWS = f"""
without(["fcntl", "resource", "termios", "tty", "pty", "grp", "pwd"], {POSIX})
os.supports_dir_fd.clear()
shutil._use_fd_functions = False

class msvcrt:
    LK_NBLCK = 2
    locking = staticmethod(lambda file, how, size: real_flock(file, 2 | 4))  # exclusive, no waiting

sys.modules["msvcrt"] = msvcrt
from flatout_explain.files import kernel
kernel.PASSES_DESCRIPTORS = False
"""
MACOS = f"""
without([], {LINUX})
"""
TRAIN = f"""
TINY = {tiny.flags("ppo")}
from pathlib import Path
from flatout.__main__ import main

def train(folder, *flags, steps="128"):
    tiny = TINY[:2] + TINY[4:] if "--envs" in flags else TINY  # not twice
    return main(["train", "ppo", *tiny, "--steps", steps, "--quiet", "--run-dir", folder, *flags])
"""


def run(tmp_path: Path, *texts: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "\n".join((WITHOUT, *texts))],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.slow
def test_windows_trains_in_one_process(tmp_path: Path) -> None:
    """All modules import; a run is saved, resumed, and locked while it is open."""
    done = run(
        tmp_path, WINDOWS, "all_modules('win32')", TRAIN,
        'assert train("run") == 0',
        'assert main(["train", "--resume", "run", "--steps", "192", "--quiet"]) == 0',
        "from flatout.storage.run_folder import RunFolder",
        'held = RunFolder(Path("run"), resume=True)',
        'assert main(["train", "--resume", "run", "--steps", "256", "--quiet"]) == 1',
        "held.close()",
        'Path("other").mkdir(); Path("other/config.json").symlink_to(Path("run/config.json"))',
        'assert main(["train", "--resume", "other", "--quiet"]) == 1',
        'assert train("pool", "--placement", "sampler=processes workers=2x1") == 2',
        'assert "step_000000000192" in os.listdir("run/checkpoints")',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    in_use, link, pool = (line for line in done.stderr.splitlines() if "flatout: " in line)
    assert in_use == "flatout: the run folder run is in use by another process."
    assert "is a symbolic link" in link
    assert "on Windows use sampler=inline, or WSL 2." in pool


@pytest.mark.slow
def test_macos_trains_with_actor_processes(tmp_path: Path) -> None:
    """Memory is shared through an unlinked file, and nothing is read from /proc."""
    prelude = f"{WITHOUT}{MACOS}"
    done = run(
        tmp_path, MACOS, "all_modules('darwin')", TRAIN,
        "from flatout import child",
        f"child._START = {prelude!r} + child._START",
        'assert train("run", "--envs", "4", "--placement", "sampler=processes workers=2x2") == 0',
        'assert train("one", "--envs", "4", "--placement", "sampler=inline") == 0',
        "from safetensors.numpy import load_file",
        'one, two = (load_file(f"{run}/params.safetensors") for run in ("one", "run"))',
        "assert all((one[name] == two[name]).all() for name in one)",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("refused", [False, True])
def test_shared_memory_without_memfd(
    refused: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def memfd_create(name: str, flags: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if refused:
        monkeypatch.setattr(os, "memfd_create", memfd_create)
    else:
        monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    arena = SharedArrays({"obs": ((3, 2), "f4")})
    other = SharedArrays({"obs": ((3, 2), "f4")}, os.dup(arena.descriptor))
    arena["obs"][1] = 7.0
    assert other["obs"].tolist() == [[0, 0], [7, 7], [0, 0]]
    arena.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_links_are_not_followed_without_folder_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nofollow, "HELD", False)
    run, precious = tmp_path / "run", tmp_path / "precious"
    (precious / "below").mkdir(parents=True)
    run.mkdir()
    (precious / "file").write_text("mine")
    (run / "below").symlink_to(precious / "below")
    (run / "file").symlink_to(precious / "file")
    os.mkfifo(run / "pipe")
    for path, depth in ((run / "file", 1), (run / "pipe", 1), (run / "below" / "x", 2)):
        for how in (nofollow.READ, nofollow.CHANGE, nofollow.APPEND):
            with pytest.raises(nofollow.NotOrdinaryError):
                nofollow.open_file(path, how, depth)
    with pytest.raises(nofollow.NotOrdinaryError, match="symbolic link"):
        nofollow.replace(run / "below" / "new", b"", 2)
    nofollow.replace(run / "file", b"new")  # replaces the link, not its target
    assert (run / "file").read_bytes() == b"new"
    assert (precious / "file").read_text() == "mine"
    assert list((precious / "below").iterdir()) == []
    with pytest.raises(FileNotFoundError):
        nofollow.read(run / "nowhere" / "file", 2)
