"""A row, and the bench on which it runs: the same row on a GPU, or dry on virtual CPU devices."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import BenchmarkError, Command
from harness import Row as Figures
from window import windowed

CORE = (
    "jax", "equinox", "optax", "gymnasium", "rich", "safetensors", "psutil", "pynvml",
)  # fmt: skip
"""Packages that every row imports."""

HOLDER = Path(__file__).parent / "holder.py"

DRY = {"gpu": "cpu:1", "gpu:0": "cpu:1", "gpu:1": "cpu:2"}
"""Virtual CPU devices that stand for GPUs in a dry run."""


@dataclass(frozen=True)
class Row:
    """One question to a GPU, asked in a process of its own, which is killed after `limit_s`.

    Attributes:
        name: ``group/variation``.
        ask: gives the lines of the group's table, each a flat object, and may add notes.
        needs: packages beyond `CORE`.
        cards, free_mb: how many GPUs it needs, and MiB that must be free on each.
    """

    name: str
    ask: Callable[[Bench], list[Figures]]
    needs: tuple[str, ...] = ()
    limit_s: float = 90.0
    cards: int = 1
    free_mb: int = 2_000

    @property
    def group(self) -> str:
        """The table that it belongs to."""
        return self.name.partition("/")[0]


@dataclass
class Bench:
    """Where a row runs.

    Attributes:
        dry: on virtual CPU devices, with the smallest sizes that mean anything.
        folder: the row's own, empty at its start.
        kept_in: the folder of files that are kept with the results.
        notes: sentences that are printed below the group's table.
    """

    dry: bool
    folder: Path
    kept_in: Path
    notes: list[str] = field(default_factory=list)

    def kept(self, name: str) -> Path:
        """The path for a file that is kept with the results, such as evidence or a trace."""
        self.kept_in.mkdir(parents=True, exist_ok=True)
        return self.kept_in / name

    def size(self, real: int, dry: int) -> int:
        """A number of steps, environments, ...: the real one, or the one of a dry run."""
        return dry if self.dry else real

    def place(self, text: str) -> str:
        """A placement's text, GPUs replaced by virtual CPU devices in a dry run."""
        text = {"gpu": "act=gpu", "cpu+gpu": "act=cpu learn=gpu"}.get(text, text)
        if not self.dry:
            return text
        words = []
        for word in text.split():
            key, _, value = word.partition("=")
            if key in ("act", "learn"):
                value = ",".join(DRY.get(name, name) for name in value.split(","))
            elif key == "replay":
                value = value.replace("gpu", "device")
            words.append(f"{key}={value}" if value else key)
        return " ".join(words)

    def device(self) -> Any:
        """JAX's device that stands for the first GPU, JAX started as Flatout does."""
        from flatout.config.placement import parse
        from flatout.hardware import backend

        if self.dry:
            backend.show_virtual_devices(3)
        placement = parse(self.place("cpu+gpu"))
        backend.start(placement)
        return backend.device(placement.learn[0])

    def flatout(
        self, *words: object, timeout: float = 80.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line from the source tree, as `run` does."""
        argv = [sys.executable, "-m", "flatout", *map(str, words)]
        return self.run(argv, timeout, check)

    def run(
        self, argv: Sequence[str], timeout: float = 80.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end.

        Raises:
            BenchmarkError: it failed or outlasted its time, unless `check` is off.
        """
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                timeout=timeout, cwd=self.folder,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            text = late.stderr or b""
            said = text.decode(errors="replace") if isinstance(text, bytes) else text
            raise BenchmarkError(
                f"{' '.join(argv[1:6])} outlasted {timeout:.0f} s:\n{said}"
            ) from None
        if check and done.returncode:
            raise BenchmarkError(
                f"{' '.join(argv[1:6])} ended with {done.returncode}:\n{done.stderr}{done.stdout}"
            )
        return done

    def train_words(self, algorithm: str, *flags: object, placement: str, name: str) -> list[str]:
        """The words of a `flatout train` whose run folder is `name` in the row's folder."""
        words = ["train", algorithm, *map(str, flags), "--placement", self.place(placement)]
        words += ["--virtual-devices", "3"] if self.dry else []
        return [*words, "--run-dir", str(self.folder / name), "--json", "--no-tensorboard"]

    def train(
        self, algorithm: str, *flags: object, placement: str, name: str = "run",
        window_from: int | None = None, timeout: float = 80.0,
    ) -> Figures:  # fmt: skip
        """Train, and return the run's summary. With a step `window_from` from which rates count it
        also has `window` (see ``window.py``), and `busy`, what the hardware did within it."""
        words = self.train_words(algorithm, *flags, placement=placement, name=name)
        result = json.loads(self.flatout(*words, timeout=timeout).stdout)
        if window_from is not None:
            command = Command(words, run_dir=self.folder / name)
            result = windowed(window_from)(command, result)
            result["busy"] = usage(self.folder / name, result["wall_s"] - result["window"]["s"])
        return result


def usage(run_dir: Path, since_s: float = 0.0) -> Figures:
    """Means over a run's samples of the hardware from that second on; None where nothing tells.

    Returns:
        `cpu`, share of the cores that the run used; `gpu`, share of time in which some kernel ran;
        `full`, how full the multiprocessors were; `gpu_mb`, the most memory that the run held.
    """
    path = run_dir / "devices.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    samples = [sample for sample in map(json.loads, lines) if sample["t"] > since_s]
    return usage_of(samples)


def usage_of(samples: Sequence[Figures]) -> Figures:
    """The same of a monitor's samples."""
    cards = [sample["gpus"][0] for sample in samples if sample.get("gpus")]

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    held = [card["ours_mb"] for card in cards if card.get("ours_mb") is not None]
    return {
        "cpu": mean([sample.get("cpu") for sample in samples]),
        "gpu": mean([card.get("busy") for card in cards]),
        "full": mean([card.get("full") for card in cards]),
        "gpu_mb": max(held, default=None),
    }


def speed(result: Figures) -> Figures:
    """The columns that tables of runs share: rates of the window, and who was busy in it."""
    window, busy = result["window"], result["busy"]
    phases = window["phases"]
    waits = max(
        ("env", "act", "transfer", "replay", "learn", "publish", "wait", "fused"),
        key=lambda name: phases.get(name, 0.0),
    )
    return {
        "steps/s": window["steps"] / window["s"],
        "updates/s": window["updates"] / window["s"],
        "longest span": f"{waits} {phases[waits]:.0%}",
        "CPU busy": share(busy["cpu"]),
        "GPU busy": share(busy["gpu"]),
        "GPU full": share(busy["full"]),
    }


def share(value: float | None) -> str:
    """As a table shows it."""
    return "-" if value is None else f"{value:.0%}"


@contextlib.contextmanager
def holder(bench: Bench, left_mb: int) -> Iterator[None]:
    """Within it another process holds the card's memory but for so many MiB."""
    ready = bench.folder / f"ready-{left_mb}"
    words = [sys.executable, str(HOLDER), str(left_mb), str(ready)]
    process = subprocess.Popen([*words, *(["--dry"] if bench.dry else [])])
    try:
        until(lambda: ready.exists() or process.poll() is not None, 60, "the holder")
        yield
    finally:
        process.kill()
        process.wait()


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for something; raise `BenchmarkError` if it does not come in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{what} did not come within {seconds:.0f} s")
        time.sleep(0.05)
