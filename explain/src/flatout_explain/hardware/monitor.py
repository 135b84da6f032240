"""A program's use of CPU, memory and GPUs over time."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flatout_explain.documents import Number, WholeNumber
from flatout_explain.files import nofollow
from flatout_explain.files.kernel import kernel_text
from flatout_explain.hardware.cores import share_of_all, threads_cpus, usable_cores, usable_cpus
from flatout_explain.hardware.counters import Counters
from flatout_explain.hardware.gpus import Gpus, GpuSample
from flatout_explain.hardware.others import Others
from flatout_explain.hardware.processes import (
    Faults,
    LinuxTree,
    PortableTree,
    Reading,
    brief_cores,
    fault_rates,
    open_tree,
)
from flatout_explain.output import json_text
from flatout_explain.timespans import weighted_mean

GROWTH_S = 300.0
"""A recorded line covers 1/300 of the recording so far, or one sample if that is longer."""

BUSY, STOLEN = (1, 2, 3, 6, 7), (8,)
"""Fields of a CPU's line in /proc/stat that count as busy (not idle, waiting or stolen), and as
taken by the host."""

CROWDED = 0.1
"""Share of the cores that other programs use from which on they are named."""

WORKING = 0.05
"""Share of the busiest thread's CPU time from which on a thread is one that works, not one of a
launcher that waits for the program."""


@dataclass(frozen=True)
class MonitorSample:
    """The use of the hardware by a program and its descendants since the last sample."""

    t: Number  # seconds at its end, by the monitor's clock
    seconds: Number  # its duration
    cores: WholeNumber  # cores that the program may use
    cpu: Number  # share of these that it used, 0 to 1
    cpu_all: Number | None = None  # the same of all programs on this machine; None if unknown
    rss_mb: Number | None = None  # resident memory in MiB; None after the program's end
    processes: dict[int, Number] = field(default_factory=dict)  # cores that each used, by pid
    threads: WholeNumber = 0  # number of threads of all processes
    runnable: Number | None = None  # running or runnable threads; None if not measured in this one
    delayed: Number | None = None  # threads that were ready to run and had no core, on average
    stolen: Number | None = None  # cores that the host took from this machine; None if unknown
    others: dict[str, Number] = field(
        default_factory=dict
    )  # cores that other programs used, by name
    mhz: Number | None = None  # mean frequency of the cores; None if unknown
    busiest: Number | None = None  # cores that the busiest thread used (at most 1), or None
    voluntary: Number | None = None  # context switches per second, or None
    involuntary: Number | None = None
    # page faults per second, and cores that the kernel used, of processes with many of them
    faults: dict[int, Faults] = field(default_factory=dict)
    brief: Number | None = None  # cores that processes used which began and ended in between
    throttled: Number | None = None  # threads that a CPU quota stopped, on average
    stalled: Number | None = None  # share of the time in which a thread waited for memory
    swapped: Number | None = None  # pages per second that the machine wrote out and read back
    huge: Number | None = None  # faults of the machine per second that fetched a huge page
    gpus: tuple[GpuSample, ...] = ()  # each visible GPU
    notes: tuple[str, ...] = ()  # what cannot be read; in the first sample only

    def as_json(self) -> dict[str, Any]:
        """As JSON-compatible values, without unknown and empty ones."""
        values = asdict(self) | {"gpus": [_drop_empty(asdict(gpu)) for gpu in self.gpus]}
        values["processes"] = {str(pid): round(n, 4) for pid, n in self.processes.items()}
        values["faults"] = {str(pid): list(row) for pid, row in self.faults.items()} or None
        return _drop_empty(values)


class Monitor:
    """Samples a process and its descendants.

    Args:
        interval_s: seconds between two samples of a `Sampler`.
        cores: cores that the program may use; by default those on which its threads may run, as
            they are found again and again.
        clock: gives each sample's time, in seconds.
    """

    def __init__(
        self,
        root_pid: int,
        interval_s: float = 1.0,
        *,
        cores: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        tree: LinuxTree | PortableTree | None = None,
        gpus: Gpus | None = None,
    ) -> None:
        self.interval_s = interval_s
        self._clock = clock
        self._fixed = cores is not None
        self._cpus, self._group = usable_cpus(root_pid), _group(root_pid)
        self.cores = cores or usable_cores(root_pid)
        self._tree = tree or open_tree(root_pid)
        self._gpus = gpus or Gpus()
        self.notes = self._gpus.notes  # what cannot be read, one sentence each
        self._told = 0
        self._at = time.perf_counter()
        self._last = self._tree.read()
        self._detailed, self._detailed_at = self._last, self._at  # the last reading of threads
        self._busy_s = cpu_seconds(self._cpus, BUSY)
        self._stolen_s = cpu_seconds(self._cpus, STOLEN)
        self._counters = Counters(root_pid)
        self._counted = self._counters.read()
        self._others = Others(root_pid)
        self._gpus.read(())  # fullness is measured between two readings
        self._paused = 0.0, 0.0, 0.0
        self._counted_then = self._counted

    def pause(self) -> None:
        """The program is stopped: nothing counts until `resume`."""
        self._paused = self._now()
        self._counted_then = self._counters.read()

    def resume(self) -> None:
        """The program goes on."""
        elapsed, busy_s, stolen_s = (
            now - then for now, then in zip(self._now(), self._paused, strict=True)
        )
        for name, count in self._counters.read().items():
            if name in self._counted:
                self._counted[name] += count - self._counted_then.get(name, count)
        self._at += elapsed
        self._detailed_at += elapsed
        if self._busy_s is not None:
            self._busy_s += busy_s
        if self._stolen_s is not None:
            self._stolen_s += stolen_s

    def _now(self) -> tuple[float, float, float]:
        """The time, and seconds for which the processors were busy, and stolen, until now."""
        busy_s, stolen_s = (cpu_seconds(self._cpus, fields) for fields in (BUSY, STOLEN))
        return time.perf_counter(), busy_s or 0.0, stolen_s or 0.0

    def sample(self) -> MonitorSample:
        """Return the use of the hardware since the last sample."""
        now, reading = time.perf_counter(), self._tree.read()
        seconds = max(now - self._at, 1e-6)
        self._read_limits(reading)
        last = self._last
        gone = not reading.processes
        spent = 0.0 if gone else max(reading.total_s - last.total_s, 0.0)
        processes = {
            pid: round(max(total - last.processes.get((pid, start), 0.0), 0.0) / seconds, 4)
            for (pid, start), total in reading.processes.items()
        }
        busy_s, share, stolen = cpu_seconds(self._cpus, BUSY), None, None
        stolen_s = cpu_seconds(self._cpus, STOLEN)
        if busy_s is not None and self._busy_s is not None:
            busy = (busy_s - self._busy_s) / seconds
            share = round(share_of_all(spent / seconds, busy, len(self._cpus), self.cores), 4)
        if stolen_s is not None and self._stolen_s is not None:
            stolen = round(max(stolen_s - self._stolen_s, 0.0) / seconds, 4)
        self._last, self._at, self._busy_s, self._stolen_s = reading, now, busy_s, stolen_s
        cpu = min(spent / seconds / self.cores, 1.0)
        crowded = share is not None and share - cpu > CROWDED
        notes, self._told = tuple(self.notes[self._told :]), len(self.notes)
        return MonitorSample(
            t=round(self._clock(), 3),
            seconds=round(seconds, 4),
            cores=self.cores,
            cpu=round(cpu, 4),
            cpu_all=share,
            stolen=stolen or None,
            others=self._others.read() if crowded else {},
            mhz=_frequency(self._cpus),
            rss_mb=None if gone or reading.rss_mb is None else round(reading.rss_mb, 1),
            processes=processes,
            faults=fault_rates(last, reading, seconds),
            brief=brief_cores(last, reading, seconds),
            threads=reading.threads,
            gpus=self._gpus.read({pid for pid, _ in reading.processes}),
            notes=notes,
            **self._rates(seconds),
            **self._threads(reading, now),
        )

    def _read_limits(self, reading: Reading) -> None:
        """Read again on which CPUs the program's threads may run, and their control group: commands
        such as taskset, numactl and systemd-run set them after its start."""
        if self._fixed or not reading.by_thread:
            return
        busiest, most = max(reading.by_thread.items(), key=lambda each: each[1])
        cpus = threads_cpus(t for t, s in reading.by_thread.items() if s >= WORKING * most)
        if not cpus:
            return
        group = _group(busiest)
        if cpus != self._cpus:
            self._busy_s = self._stolen_s = None  # they were counted on other CPUs
        if group and group != self._group:
            self._counters, self._counted = Counters(busiest), {}
        elif cpus == self._cpus:
            return
        self._cpus, self._group = cpus, group or self._group
        self.cores = usable_cores(busiest, cpus=cpus)

    def _rates(self, seconds: float) -> dict[str, float]:
        """Return the kernel's counters since they were last read, per second."""
        before, self._counted = self._counted, self._counters.read()
        return {
            name: round(max(count - before[name], 0.0) / seconds, 4)
            for name, count in self._counted.items()
            if name in before
        }

    def close(self) -> None:
        """Release the GPUs' driver."""
        self._gpus.close()

    def _threads(self, reading: Reading, now: float) -> dict[str, float]:
        """Return what the threads did since their last reading; empty if they were not read."""
        if reading.switches is None:
            return {}
        before, seconds = self._detailed, max(now - self._detailed_at, 1e-6)
        self._detailed, self._detailed_at = reading, now
        rates: dict[str, float] = {}
        if reading.runnable is not None:
            rates["runnable"] = float(reading.runnable)
        if common := reading.by_thread.keys() & before.by_thread.keys():
            used = max(reading.by_thread[thread] - before.by_thread[thread] for thread in common)
            rates["busiest"] = round(min(max(used / seconds, 0.0), 1.0), 3)
        if common := reading.delays.keys() & before.delays.keys():
            waited_s = sum(reading.delays[thread] - before.delays[thread] for thread in common)
            rates["delayed"] = round(max(waited_s, 0.0) / seconds, 3)
        for name, new, old in zip(
            ("voluntary", "involuntary"), reading.switches, before.switches or (), strict=False
        ):
            rates[name] = round(max(new - old, 0) / seconds, 1)
        return rates


class Recorder:
    """Keeps a run's samples, and appends them to a file as JSON lines; write errors are ignored.

    In a long recording each line merges several samples (`merged`), which limits the file's size.

    Args:
        path: of the file; None writes none.
        clock: gives each sample's time, in seconds; None keeps the monitor's.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] | None = None) -> None:
        self.latest: MonitorSample | None = None  # the newest sample
        self.samples: list[MonitorSample] = []  # written, or to be
        self._clock = clock
        self._open: list[MonitorSample] = []  # not yet merged
        self._began = time.monotonic()
        self._file: Any = None
        if path is not None:
            with suppress(OSError):
                self._file = nofollow.open_stream(path, nofollow.APPEND)

    def take(self, sample: MonitorSample) -> None:
        """Add a sample; write a line if enough samples are open."""
        if self._clock is not None:
            sample = replace(sample, t=round(self._clock(), 3))
        self.latest = sample
        self._open.append(sample)
        age = time.monotonic() - self._began
        if sum(sample.seconds for sample in self._open) >= age / GROWTH_S:
            self._write()

    def close(self) -> None:
        """Write what is open."""
        if self._open:
            self._write()
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def _write(self) -> None:
        line = merged(self._open)
        self._open = []
        self.samples.append(line)
        if self._file is not None:
            with suppress(OSError):  # a full disk must not end the run
                text = json_text(line.as_json(), separators=(",", ":"))
                self._file.write(text.encode() + b"\n")
                self._file.flush()


class Sampler(threading.Thread):
    """Samples in a background thread for the recorders of all runs in this process.

    All runs share one, because hundreds of threads that read a GPU's counters crash its driver.
    """

    def __init__(self, monitor: Monitor) -> None:
        super().__init__(name="monitor", daemon=True)
        self._monitor = monitor
        self._recorders: list[Recorder] = []
        self._lock = threading.Lock()  # of the monitor and the recorders
        self._last = threading.Event()

    def add(self, recorder: Recorder) -> None:
        """Pass all later samples to this recorder, too."""
        with self._lock:
            self._recorders.append(recorder)
            if not self.is_alive():
                self.start()

    def remove(self, recorder: Recorder) -> None:
        """Close a recorder. The last one, and one without a sample, gets a final sample first."""
        with self._lock:
            if recorder in self._recorders:
                if len(self._recorders) == 1 or recorder.latest is None:
                    self._sample()
                self._recorders.remove(recorder)
        recorder.close()

    def close(self) -> None:
        """Stop the thread and release the GPUs' driver."""
        self._last.set()
        if self.is_alive():
            self.join()
        self._monitor.close()

    def run(self) -> None:
        while not self._last.wait(self._monitor.interval_s):
            with self._lock:
                if self._recorders:
                    self._sample()

    def _sample(self) -> None:
        sample = self._monitor.sample()
        first = replace(sample, notes=tuple(self._monitor.notes))  # each file has all notes once
        for recorder in self._recorders:
            recorder.take(first if recorder.latest is None else sample)


def merged(samples: Sequence[MonitorSample]) -> MonitorSample:
    """Merge consecutive samples (at least one) into their means over time, and the most memory."""
    last = samples[-1]
    if len(samples) == 1:
        return last

    def mean(values: Sequence[float | None]) -> float | None:
        found = weighted_mean(zip(values, (s.seconds for s in samples), strict=True))
        return None if found is None else round(found, 4)

    def of_gpu(gpu: int, name: str) -> float | None:
        return mean([getattr(s.gpus[gpu], name) if gpu < len(s.gpus) else None for s in samples])

    def most(values: Iterable[float | None]) -> Any:
        return max((value for value in values if value is not None), default=None)

    def most_of_gpu(gpu: int, name: str) -> Any:
        return most(getattr(s.gpus[gpu], name) for s in samples if gpu < len(s.gpus))

    pids = sorted({pid for sample in samples for pid in sample.processes})
    names = dict.fromkeys(name for sample in samples for name in sample.others)
    return replace(
        last,
        seconds=round(sum(sample.seconds for sample in samples), 4),
        cpu=mean([sample.cpu for sample in samples]) or 0.0,
        processes={pid: mean([s.processes.get(pid, 0.0) for s in samples]) or 0.0 for pid in pids},
        others={name: mean([s.others.get(name, 0.0) for s in samples]) or 0.0 for name in names},
        faults={
            pid: Faults(
                *(
                    mean([s.faults[pid][at] if pid in s.faults else 0.0 for s in samples]) or 0.0
                    for at in range(len(Faults._fields))
                )
            )
            for pid in {pid for sample in samples for pid in sample.faults}
        },
        gpus=tuple(
            replace(
                gpu,
                busy=of_gpu(index, "busy"),
                full=of_gpu(index, "full"),
                used_mb=most_of_gpu(index, "used_mb"),
                ours_mb=most_of_gpu(index, "ours_mb"),
            )
            for index, gpu in enumerate(last.gpus)
        ),
        notes=tuple(note for sample in samples for note in sample.notes),
        rss_mb=most(sample.rss_mb for sample in samples),
        **{
            name: mean([getattr(sample, name) for sample in samples])
            for name in (
                "cpu_all",
                "runnable",
                "delayed",
                "stolen",
                "busiest",
                "voluntary",
                "involuntary",
                "mhz",
                "brief",
                "throttled",
                "stalled",
                "swapped",
                "huge",
            )
        },
    )


def _drop_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, [], ())}


def _group(process: int) -> str:
    """Return the control groups of a process or thread, as the kernel writes them; empty if it has
    ended."""
    return kernel_text(f"/proc/{process}/cgroup")


def cpu_seconds(cpus: frozenset[int], fields: Sequence[int]) -> float | None:
    """Return the CPU seconds that these fields of /proc/stat count on some CPUs since boot; None
    without such a file."""
    lines = [line.split() for line in re.findall(r"^cpu(\d.*)", kernel_text("/proc/stat"), re.M)]
    ours = [line for line in lines if int(line[0]) in cpus and len(line) > max(fields)]
    if not ours:
        return None
    return sum(int(line[at]) for line in ours for at in fields) / os.sysconf("SC_CLK_TCK")


def _frequency(cpus: frozenset[int]) -> float | None:
    """Mean frequency of some CPUs in MHz, where the kernel reports it."""
    path = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
    texts = [kernel_text(path.format(cpu)).strip() for cpu in cpus]
    values = [int(text) / 1000 for text in texts if text.isdigit()]
    return round(sum(values) / len(values), 1) if values else None
