"""Engines, which run a sweep's jobs: their interface, and the one that uses local processes."""

from __future__ import annotations

import itertools
import os
import selectors
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from flatout import child
from flatout.sweeps.plan import Job

LOST = "lost"
"""The kind of a failure that the trial did not cause: its worker or machine was lost."""

SHARE = 0.9
"""The share of a GPU's free memory that trials may take."""


class Engine(Protocol):
    """An engine: starts jobs and reports their events.

    Events are mappings. They have ``trial``, a name, together with ``steps``, ``updates``,
    ``mean``, ``busy`` and ``peak_mb`` (progress), with ``ended``, or with ``error`` and ``kind``.
    The last event of a job has ``done``, the job's name.
    """

    def start(self, job: Job) -> None: ...

    def poll(self, timeout_s: float) -> list[Mapping[str, Any]]:
        """Return the events since the last call; wait up to `timeout_s` seconds for the first."""
        ...

    def stop(self, job: str) -> None:
        """Make a job save its state and end."""
        ...

    def close(self) -> None:
        """End everything at once."""
        ...


class Worker(child.Child):
    """A child process (`flatout.sweeps.worker`) and its job."""

    def __init__(self, variables: Mapping[str, str], keeps: int) -> None:
        given = dict(os.environ)
        if "XLA_CLIENT_MEM_FRACTION" in variables:  # JAX refuses both names together
            given.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)
        super().__init__(
            "flatout.sweeps.worker:main", str(keeps), variables=given | dict(variables),
            keeps=[keeps],
        )  # fmt: skip
        self.job: Job | None = None
        self.left = set[str]()
        self.devices: tuple[Any, ...] | None = None
        self.failed = self.stopping = False

    def give(self, job: Job) -> None:
        self.job, self.devices = job, job.devices
        self.left = {trial.name for trial in job.trials}
        self.send(job.as_json())


class Local:
    """This machine's processes, each of which trains one job after another.

    Args:
        keeps: the descriptor of the sweep's lock, which all processes hold open.
        cards: for each process in turn, the environment variables that assign its GPU.
        whole: the same for a process that shares its GPU with no other.
    """

    def __init__(
        self, keeps: int, cards: list[dict[str, str]], whole: list[dict[str, str]] | None = None
    ) -> None:
        self._keeps, self._cards, self._whole = keeps, cards or [{}], whole or cards or [{}]
        self._workers = dict[int, Worker]()
        self._selector = selectors.DefaultSelector()

    def warm(self, count: int) -> None:
        """Start `count` processes, which import libraries before their first job."""
        for place in range(count):
            self._open(place)

    def _open(self, place: int, alone: bool = False) -> Worker:
        if place not in self._workers:
            cards = self._whole if alone else self._cards
            made = Worker(cards[place % len(cards)], self._keeps)
            self._selector.register(made.end, selectors.EVENT_READ, place)
            self._workers[place] = made
        return self._workers[place]

    def start(self, job: Job) -> None:
        idle = [place for place, worker in self._workers.items() if worker.job is None]
        if job.alone:  # what idle processes hold of a card's memory and the host's is needed
            for place in idle:
                self._remove(place)
            idle.clear()
        fit = [p for p in idle if self._workers[p].devices in (None, job.devices)]
        if idle and not fit:
            self._remove(idle[0])
        place = fit[0] if fit else next(n for n in itertools.count() if n not in self._workers)
        self._open(place, job.alone).give(job)

    def poll(self, timeout_s: float) -> list[Mapping[str, Any]]:
        events = list[Mapping[str, Any]]()
        for key, _ in self._selector.select(timeout_s):
            worker, ended = self._workers[key.data], False
            try:
                for event in worker.receive(0.0):
                    self._heard(worker, event, events)
            except EOFError:
                ended = True
            over = ended or worker.failed or worker.stopping
            if over and worker.job is None:  # it ends, or something failed in it
                self._remove(key.data)
            elif ended:
                events += self._died(key.data)
        return events

    def _heard(
        self, worker: Worker, event: dict[str, Any], events: list[Mapping[str, Any]]
    ) -> None:
        if "ended" in event or "error" in event:
            worker.left.discard(event["trial"])
            worker.failed = worker.failed or "error" in event
        if "done" in event:
            worker.job = None
        if "ready" not in event:
            events.append(event)

    def _died(self, place: int) -> list[Mapping[str, Any]]:
        worker = self._workers[place]
        assert worker.job is not None
        name, left = worker.job.name, worker.left
        code = self._remove(place, 5.0)
        lost: list[Mapping[str, Any]] = [
            {"trial": one, "ended": "signal", "steps": 0} if code == 0 else
            {"trial": one, "error": f"its process {worker.how_it_ended(code)}.",
             "kind": "room" if worker.out_of_memory(code) else "died"} for one in sorted(left)
        ]  # fmt: skip
        return [*lost, {"done": name}]

    def _remove(self, place: int, patience_s: float = 0.0) -> int:
        worker = self._workers.pop(place)
        self._selector.unregister(worker.end)
        return worker.close(patience_s)

    def stop(self, job: str) -> None:
        for worker in self._workers.values():
            if worker.job is not None and worker.job.name == job:
                worker.stopping = True
                worker.process.terminate()

    def close(self) -> None:
        for place in list(self._workers):
            self._remove(place)
        self._selector.close()


def cards(hardware: Any, per: int) -> list[dict[str, str]]:
    """Return for each GPU the environment variables that give a process this GPU and a share of its
    memory.

    Args:
        hardware: `flatout.hardware.inventory.Hardware`.
        per: the number of processes that share a GPU.
    """
    made = list[dict[str, str]]()
    own = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    for gpu in hardware.usable_gpus:
        part = SHARE * gpu.memory_free_mb / gpu.memory_total_mb / per
        made.append({"CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                     # Of a divided card, this process's instance: others are not its to take.
                     "CUDA_VISIBLE_DEVICES": own if own.startswith("MIG-")
                     else str(gpu.physical_index),
                     "XLA_CLIENT_MEM_FRACTION": f"{part:.3f}"})  # fmt: skip
    return made


def mps_words() -> str:
    """Return a sentence on how trials share a GPU, with advice if MPS does not run."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    if (Path(folder) / "control").exists():
        return "NVIDIA MPS runs: trials that share a GPU compute at the same time"
    return (
        "trials that share a GPU take turns; NVIDIA MPS would let small ones compute at the same "
        "time (nvidia-cuda-mps-control -d)"
    )
