"""Shared by all tests: eight virtual CPU devices, and the command line as a function."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

# Eight devices; and one compiler a program: 32 cost more than they save where all cores are busy.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_cpu_parallel_codegen_split_count=1",
)
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".cache" / "xla")
)
# Also of programs that take less than a second to compile, as the command does: a test that uses
# JAX before Flatout does would compile them again and again.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# The key that signs runs is the tests' own.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent.parent / ".cache" / "config")
# So is what is remembered of this machine's speed.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parent.parent / ".cache" / "machine")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
# What tests start must hear Ctrl-C also where these tests run behind `nohup` or `&`.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@dataclass
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The one sentence on stderr, after checking that it is one and no traceback."""
        assert "Traceback" not in self.err
        lines = [line for line in self.err.strip().splitlines() if line.startswith("flatout: ")]
        assert len(lines) == 1, self.err
        return lines[0].removeprefix("flatout: ")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run where `-m` chooses them, or an id names them."""
    if config.option.markexpr or any("::" in name for name in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


def pytest_collection_finish() -> None:
    """What is imported by now stays: garbage collections need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def flatout(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run the command line in this process: ``flatout("train", "ppo", ...) -> Result``."""
    from flatout.__main__ import main

    def run(*argv: object) -> Result:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in argv])
        except SystemExit as stop:  # the argument parser's own refusals and --help
            code = stop.code if isinstance(stop.code, int) else 1
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


TINY = ("--env", "CartPole-v1", "--envs", "2", "--n-steps", "32", "--steps", "256", "--quiet")
"""The smallest useful run's flags."""


def replay_run(path: Path, *flags: str) -> Path:
    """The smallest useful run with replay, finished, in that folder."""
    from flatout.__main__ import main

    tiny = [flag for flag in TINY if flag not in ("--n-steps", "32")]
    dqn = ("--learning-starts", "32", "--batch-size", "8", "--buffer-size", "512",
           "--train-freq", "64")  # fmt: skip
    assert main(["train", "dqn", *tiny, *dqn, *flags, "--run-dir", str(path)]) == 0
    return path


def last_saved(run: Path) -> dict[str, np.ndarray]:
    """The arrays of a run's newest checkpoint."""
    from flatout.storage import checkpoint

    return checkpoint.load(checkpoint.latest(run))[1].arrays


def furthest(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The largest difference between arrays of the same names; of numbers above 1 relatively."""
    assert one.keys() == other.keys()

    def apart(a: np.ndarray, b: np.ndarray) -> float:
        a, b = a.astype(np.float64), b.astype(np.float64)
        return float((np.abs(a - b) / np.maximum(1.0, np.abs(a))).max())

    return max(apart(one[name], other[name]) for name in one if one[name].size)
