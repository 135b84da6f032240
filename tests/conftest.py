"""Shared by all tests: eight virtual CPU devices, and the command line as a function."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Factorisations that draw small networks take a hundred times longer where OpenBLAS's threads wait
# for cores that other tests have.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests import tiny

# Eight devices; and one compiler a program: 32 cost more than they save where all cores are busy.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_cpu_parallel_codegen_split_count=1",
)
CHEAP_COMPILATION = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
]
"""Flags with which XLA compiles in a fifth of the time and optimises little."""
ALONE = find_spec("flatout") is None
"""Whether these are the tests of flatout-explain in an environment without Flatout."""
if not ALONE and tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
    # Later versions do not have this flag, and XLA ends a process that passes an unknown one.
    CHEAP_COMPILATION.append("--xla_cpu_use_fusion_emitters=false")
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
# Examples may take long, because they wait for cores that other tests have.
settings.register_profile(
    "patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")
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


def quick_tier(config: pytest.Config) -> bool:
    """Whether only the quick tests run: `-m` chooses nothing, and no id names a test."""
    return not config.option.markexpr and not any("::" in name for name in config.args)


def pytest_configure(config: pytest.Config) -> None:
    """Compile cheaply where no test of equal bits is chosen but those of the quick tier; with
    `-m bits`, and for tests that an id names, compile as users do."""
    gc.disable()  # until the tests are collected: nothing of what is imported is garbage
    if quick_tier(config) or "not bits" in config.option.markexpr:
        given = os.environ["XLA_FLAGS"].split()
        more = [flag for flag in CHEAP_COMPILATION if flag not in given]
        os.environ["XLA_FLAGS"] = " ".join([*given, *more])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m bits`, import only files with such tests: importing all of them takes seconds."""
    if not config.option.markexpr.startswith("bits") or not collection_path.name.startswith(
        "test_"
    ):
        return None
    text = collection_path.read_text()
    return None if "mark.bits" in text or "of_all_cpus" in text else True


def mark_further(items: list[pytest.Item]) -> None:
    """Mark the slow cells of a test that has other cells, which run in the quick tier, `further`:
    they add a seed or a case to a property that is tested without them."""
    quick = {item.nodeid.partition("[")[0] for item in items if not item.get_closest_marker("slow")}
    for item in items:
        if item.get_closest_marker("slow") and item.nodeid.partition("[")[0] in quick:
            item.add_marker(pytest.mark.further)


@pytest.hookimpl(tryfirst=True)  # before pytest itself chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run where `-m` chooses them, or an id names them."""
    mark_further(items)
    if not quick_tier(config):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


def pytest_collection_finish() -> None:
    """Exempt all imported modules from garbage collection, and set up the cache of programs.

    Without `set_up`, JAX writes programs in place, and another process that reads a half-written
    one warns.
    """
    if not ALONE and "jax" in sys.modules:
        from flatout.hardware.compile_cache import set_up

        set_up()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # tracing and compiling make much that lasts
    gc.enable()


@pytest.fixture(scope="module")
def small_heap() -> None:
    """Collections of garbage need not look at what the tests of other files have left.

    For files whose tests, or the code that they call, collect all garbage.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def flatout(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run the command line in this process: ``flatout("train", "ppo", ...) -> Result``; see
    `tiny.latest` for flags that are given twice, except with ``exact=True``. Without Flatout it is
    the tool's command, whose messages have another name for it."""
    if ALONE:
        from flatout_explain.__main__ import main as tool

        def main(argv: list[str]) -> int:
            assert argv[0] == "explain"
            return tool(argv[1:])
    else:
        from flatout.__main__ import main

    def run(*argv: object, exact: bool = False) -> Result:
        words = [str(argument) for argument in argv]
        capsys.readouterr()
        try:
            code = main(words if exact else tiny.latest(words))
        except SystemExit as stop:  # the argument parser's own refusals and --help
            code = stop.code if isinstance(stop.code, int) else 1
        captured = capsys.readouterr()
        said = captured.err
        if ALONE:
            said = said.replace("flatout-explain: ", "flatout: ")
            said = said.replace("flatout-explain", "flatout explain")
        return Result(code, captured.out, said)

    return run


TINY = (*tiny.flags("ppo"), "--steps", "256", "--quiet")
"""The smallest useful run's flags, behind ``train ppo``; `tiny.latest` takes others after them."""


def replay_run(path: Path, *flags: str) -> Path:
    """The smallest useful run with replay, finished, in that folder."""
    from flatout.__main__ import main

    words = (*tiny.flags("dqn"), "--steps", "256", "--quiet", *flags)
    assert main(["train", "dqn", *words, "--run-dir", str(path)]) == 0
    return path


def share_programs(monkeypatch: pytest.MonkeyPatch, programs_of: Callable[[Any, Any], Any]) -> None:
    """Give runs that bring no programs those of `programs_of(config, code)`."""
    from flatout.run import trainer

    assemble = trainer.assemble

    def sharing(run: Any, spans: Any, *, programs: Any = None, **more: Any) -> Any:
        programs = programs or programs_of(run.config, run.code)
        return assemble(run, spans, programs=programs, **more)

    monkeypatch.setattr(trainer, "assemble", sharing)


@pytest.fixture
def shared_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one shape share their programs over all tests, as members of a population do.

    For tests whose subject is what a run does, not how its programs are made.
    """
    share_programs(monkeypatch, lambda config, code: tiny.programs(tiny.shape(config), code))


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
