"""Small traces in the formats of profilers, of a device whose work is known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

US = 1.0
MS = 1000.0
"""Times are in microseconds."""


class Kineto:
    """A trace of PyTorch's profiler.

    Args:
        old: with the categories of 2021.
        driver: prefix of the driver's calls: ``cuda`` or ``hip``.
        device: the device's number.
    """

    def __init__(self, old: bool = False, driver: str = "cuda", device: int = 0) -> None:
        self.old, self.driver, self.device = old, driver, device
        self.events: list[dict[str, Any]] = []
        self.t = 5e9  # of the host
        self.free = 5e9  # when the device has done all that it was given
        self.correlation = 0
        self.properties: dict[str, Any] = {
            "deviceProperties": [{"id": device, "name": "Card 9000"}], "schemaVersion": 1,
        }  # fmt: skip

    def event(self, category: str, name: str, begin: float, lasts: float, **more: Any) -> None:
        old = {"cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime",
               "kernel": "Kernel", "gpu_memcpy": "Memcpy"}  # fmt: skip
        category = old[category] if self.old else category
        tid: Any = "4711" if self.old else 4711
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 4711, "tid": tid, "ts": begin,
             "dur": lasts} | more
        )  # fmt: skip

    def host(self, lasts: float, name: str, category: str = "cpu_op") -> None:
        """The host works without launching anything."""
        self.event(category, name, self.t, lasts)
        self.t += lasts

    def python(self, lasts: float, file: str, line: int, name: str) -> None:
        """The host runs a Python function."""
        self.host(lasts, f"{file}({line}): {name}", "python_function")

    def launch(
        self, lasts: float, name: str = "gemm", category: str = "kernel",
        call: str = "LaunchKernel", takes: float = 5.0, stream: int = 7,
    ) -> None:  # fmt: skip
        """The host gives the device work, which begins once it is free."""
        self.correlation += 1
        args = {"correlation": self.correlation}
        self.event("cuda_runtime", f"{self.driver}{call}", self.t, takes, args=args)
        begin = max(self.free, self.t + takes)
        self.event(
            category, name, begin, lasts, pid=self.device,
            tid=f"stream {stream}" if self.old else stream,
            args=args | {"device": self.device, "stream": stream},
        )  # fmt: skip
        self.free = begin + lasts
        self.t += takes

    def wait(self, call: str = "StreamSynchronize") -> None:
        """The host waits for the device."""
        end = max(self.free, self.t) + 2.0
        self.event("cuda_runtime", f"{self.driver}{call}", self.t, end - self.t)
        self.t = end

    def step(self, number: int, begin: float) -> None:
        """A step from `begin` until now."""
        self.event("user_annotation", f"ProfilerStep#{number}", begin, self.t - begin)

    def text(self) -> str:
        return json.dumps(self.properties | {"traceEvents": self.events})

    def write(self, path: Path) -> Path:
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


class Framework:
    """A trace of JAX or TensorFlow in Chrome's format."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.named: dict[tuple[int, int], str] = {}
        self.rows: dict[str, int] = {}  # their thread ids
        self.process(701, "/host:CPU")

    def process(self, pid: int, name: str) -> None:
        self.events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})

    def event(
        self, pid: int, row: str, name: str, begin: float, lasts: float, correlation: int = 0
    ) -> None:
        tid = self.rows.setdefault(row, len(self.rows) + 1)
        if (pid, tid) not in self.named:
            self.named[pid, tid] = row
            args = {"name": row}
            self.events.append(
                {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args}
            )
        args = {"correlation_id": str(correlation)} if correlation else {}
        self.events.append(
            {"ph": "X", "pid": pid, "tid": tid, "ts": begin, "dur": lasts, "name": name,
             "args": args}
        )  # fmt: skip

    def write(self, folder: Path, host: str = "hostA") -> Path:
        run = folder / "plugins" / "profile" / "2026_01_01_00_00_00"
        run.mkdir(parents=True, exist_ok=True)
        data = json.dumps({"displayTimeUnit": "ns", "traceEvents": self.events}).encode()
        (run / f"{host}.trace.json.gz").write_bytes(gzip.compress(data))
        return folder
