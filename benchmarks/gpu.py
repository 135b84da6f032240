"""Everything that this project asks of a GPU, in one command that needs no installation.

Each row (``gpu_rows/``) runs in its own process with a time limit, the most valuable rows first. A
row that fails, hangs or runs out of memory harms no other. The same command continues after the
last finished row. ``--dry`` runs every row on the CPU with the smallest sizes, two at a time: what
fails there would fail on a GPU too.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import runpy
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "src", HERE.parent / "explain" / "src"
for _folder in (*SOURCES, HERE):  # from a source tree, installed or not
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

import gpu_rows  # noqa: E402
from flatout_explain.hardware.cores import usable_cores  # noqa: E402
from gpu_rows.base import CORE, Bench, Row  # noqa: E402
from harness import NO_CACHE, Lines, base_parser, source_id  # noqa: E402
from processes import run_child  # noqa: E402
from report import measured_here, table, write_section  # noqa: E402

TAIL = 20
"""Lines of a failed row's output that are kept."""

LEAST_S = 15.0
"""No row begins with less time left."""

OK, FAILED, SKIPPED = "ok", "failed", "skipped"


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = base_parser(__doc__)
    add = parser.add_argument
    add("--only", nargs="+", default=[], metavar="NAME", help="groups (w2) or rows (w2/ppo-64)")
    add("--minutes", type=float, default=1e6, help="stop in time: the running row begins again")
    add("--dry", action="store_true", help="on the CPU with tiny sizes: does every row run?")
    add("--list", action="store_true", help="print the rows and end")
    add("--rows", default=None, metavar="FILE", help="more rows: a Python file with ROWS")
    add("--no-write", action="store_true", help="print the section only")
    add("--ask", default=None, help=argparse.SUPPRESS)  # this process is one row's
    add("--into", default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> list[Row]:
    """Return the rows that are asked for; end the program for a name that no row has."""
    rows = gpu_rows.rows()
    if args.rows:
        rows += runpy.run_path(args.rows)["ROWS"]
    for name in args.only:
        if not any(name in (row.name, row.group) for row in rows):
            groups = ", ".join(dict.fromkeys(row.group for row in rows))
            sys.exit(f"gpu.py: no row or group is called {name!r}; groups: {groups}")
    wanted = set(args.only)
    return [row for row in rows if not wanted or wanted & {row.name, row.group}]


# --- One row, in its own process --------------------------------------------------------------


def ask(args: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Run one row in this process and write its result."""
    row = next(row for row in rows if row.name == args.ask)
    with contextlib.suppress(OSError):  # if memory runs out, this process is the one to go
        Path("/proc/self/oom_score_adj").write_text("1000")
    with tempfile.TemporaryDirectory(prefix="flatout-gpu-") as folder:
        bench = Bench(args.dry, Path(folder), Path(args.results).resolve() / "gpu_kept")
        try:
            lines = row.ask(bench)
        except Exception as error:
            traceback.print_exc()
            sys.exit(f"{type(error).__name__}: {error}")
    Path(args.into).write_text(json.dumps({"lines": lines, "notes": bench.notes}))


# --- The machine ------------------------------------------------------------------------------


def missing_packages(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the absent packages, with the groups that need each."""
    absent: dict[str, list[str]] = {}
    for row in rows:
        for name in (*CORE, *row.needs):
            if importlib.util.find_spec(name) is None:
                groups = absent.setdefault(name, [])
                groups += [] if row.group in groups else [row.group]
    return absent


def no_gpu() -> str:
    """Return why nothing can run on a GPU here, or an empty string."""
    try:
        import pynvml

        from flatout.hardware.inventory import inventory

        machine = inventory()
        pynvml.nvmlInit()
    except Exception as error:  # a package, the library or the driver
        return f"no NVIDIA driver answers ({error})"
    if not machine.usable_gpus:
        return machine.unused_gpu_warning or machine.gpu_note or "no GPU is visible"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    with contextlib.suppress(pynvml.NVMLError):
        mode = pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0))[0]
        if mode and not visible.startswith("MIG-"):
            return (
                "the card is divided (MIG): set CUDA_VISIBLE_DEVICES to one instance's MIG-... id"
            )
    return ""


def card_label(dry: bool) -> str:
    """Return the card's name; results of other cards are not shown with it."""
    if dry or no_gpu():
        return "dry run"
    from flatout.hardware.inventory import inventory

    gpus = inventory().gpus
    return gpus[0].name + (f" x {len(gpus)}" if len(gpus) > 1 else "")


def measured_cores(dry: bool) -> str:
    """Say how many of the cores really run at once: with fewer, every row is slower."""
    from flatout_explain.hardware.running_cores import SECONDS, running_cores

    return running_cores(seconds=0.1 if dry else SECONDS).sentence()


def described(cores: str) -> str:
    """Return the section's lines about driver, running cores and versions."""
    found = {"python": platform.python_version()}
    for name in ("jax", "jaxlib", "equinox", "optax", "gymnasium", "numpy", "ale-py", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    driver = "none"
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
    versions = ", ".join(f"{name} {version}" for name, version in found.items())
    return f"- Driver: {driver}. {cores}\n- Versions: {versions}."


def refusal(row: Row, args: argparse.Namespace, absent: dict[str, list[str]], why: str) -> str:
    """Return why a row cannot run here and now, or an empty string."""
    lacking = [name for name in (*CORE, *row.needs) if name in absent]
    if lacking:
        return f"needs {', '.join(lacking)}, which is not installed"
    if args.dry:
        return ""
    if why:
        return why
    from flatout.hardware.inventory import inventory

    gpus = inventory().gpus
    if len(gpus) < row.cards:
        return f"needs {row.cards} cards; {len(gpus)} are visible"
    free = min(gpu.memory_free_mb for gpu in gpus[: row.cards])
    if free < row.free_mb:
        users = ", ".join(f"{p.name} ({p.pid})" for p in gpus[0].processes) or "unknown programs"
        return f"needs {row.free_mb:,} MiB; {free:,} are free beside {users}"
    return ""


# --- All rows ---------------------------------------------------------------------------------


class Results:
    """The rows that were measured on this card from this source."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.label = card_label(args.dry)
        self._lines = Lines("gpu-dry" if args.dry else "gpu", args, source())
        self.rows = {row["row"]: row for row in self._lines.rows if row["label"] == self.label}

    def done(self, row: Row) -> bool:
        """Return whether a row need not be asked again."""
        return self.rows.get(row.name, {}).get("status") == OK

    def add(self, row: Row, **said: Any) -> None:
        """Store a row's outcome and print it."""
        found = {"row": row.name, "label": self.label, **said}
        self.rows[row.name] = found
        self._lines.add(found)
        print(f"{row.name}: {said['status']} {said.get('why', '')}", flush=True)
        for line in said.get("tail", []):
            print(f"    {line}", flush=True)


def source() -> str:
    """Return a digest of Flatout's source and of the rows'."""
    digest = hashlib.sha256(source_id().encode())
    planted = HERE / "explain" / "planted_gpu.py"
    for path in (Path(__file__), planted, *sorted((HERE / "gpu_rows").rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def answer(row: Row, args: argparse.Namespace, results: Results, deadline: float) -> None:
    """Run one row in a child process, and store its outcome."""
    left = deadline - time.monotonic()
    limit = min(row.limit_s, left)
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "found.json"
        argv = [sys.executable, str(Path(__file__)), "--ask", row.name, "--into", str(into)]
        argv += ["--results", args.results]
        argv += ["--dry"] if args.dry else []
        argv += ["--rows", args.rows] if args.rows else []
        child = run_child(argv, environment(args), limit)
        if child.timed_out and limit < row.limit_s:
            print(f"{row.name}: not finished when the time was over", flush=True)
            return
        said: dict[str, Any] = {"seconds": round(child.wall_s, 1), "status": FAILED}
        if child.code == 0 and into.exists():
            said |= {"status": OK, **json.loads(into.read_text())}
        else:
            text = (child.stdout + "\n" + child.stderr).strip().splitlines()
            why = f"killed after {limit:.0f} s" if child.timed_out else f"exit code {child.code}"
            if child.code == -9 and not child.timed_out:
                why = "killed by the system (out of memory?)"
            said |= {"why": why, "tail": text[-TAIL:]}
    results.add(row, **said)


def environment(args: argparse.Namespace) -> dict[str, str | None]:
    """Return the rows' environment: the source tree first, and a cache of compiled programs."""
    paths = [*map(str, SOURCES), str(HERE), os.environ.get("PYTHONPATH", "")]
    cache = Path(args.results).resolve() / "xla"
    hidden = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""} if args.dry else {}
    return {
        **dict.fromkeys(NO_CACHE), **hidden, "JAX_COMPILATION_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


def section(args: argparse.Namespace, rows: Sequence[Row], results: Results, cores: str) -> str:
    """Return the tables of all groups, and what is missing."""
    parts = [f"## On a GPU: {results.label}\n", measured_here(args), described(cores)]
    for group in dict.fromkeys(row.group for row in rows):
        found = [results.rows.get(row.name, {}) for row in rows if row.group == group]
        lines = [line for one in found for line in one.get("lines", [])]
        heads = list(dict.fromkeys(key for line in lines for key in line))
        doc = sys.modules.get(f"gpu_rows.{group}")
        parts.append(f"\n### {group}\n\n{((doc and doc.__doc__) or '').strip()}\n")
        if lines:
            parts.append(
                table(heads, [[shown(line.get(key, "-")) for key in heads] for line in lines])
            )
        notes = [note for one in found for note in one.get("notes", [])]
        parts += [f"\n{note}" for note in dict.fromkeys(notes)]
        for one in found:
            if one.get("status") in (FAILED, SKIPPED):
                last = (one.get("tail") or [""])[-1]
                why = ": ".join(filter(None, (one.get("why", ""), last)))
                parts.append(f"\n- `{one['row']}`: {one['status']}, {why}")
        missing = [row.name for row in rows if row.group == group and row.name not in results.rows]
        if missing:
            parts.append(f"\nNot asked yet: {', '.join(missing)}.")
    return "\n".join(parts)


def shown(value: Any) -> str:
    """Return a cell of a table."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def main() -> int:
    """Run all rows; return 1 if one failed."""
    args = arguments()
    rows = chosen(args)
    if args.ask:
        ask(args, rows)
        return 0
    if args.list:
        print("\n".join(f"{row.name:28} at most {row.limit_s:.0f} s" for row in rows))
        return 0
    absent = missing_packages(rows)
    for name, groups in absent.items():
        print(f"absent: {name}; rows that need it are skipped: {', '.join(groups)}", flush=True)
    if any(name in CORE for name in absent):
        sys.exit("gpu.py: nothing runs without these; see Dependencies in pyproject.toml")
    why = "" if args.dry else no_gpu()
    if why:
        print(f"gpu.py: {why}; --dry tries every row on the CPU", flush=True)
    cores = "" if why else measured_cores(args.dry)
    if cores:
        print(cores, flush=True)
    results = Results(args)
    deadline = time.monotonic() + 60 * args.minutes
    lanes = min(2, usable_cores()) if args.dry else 1

    def one(row: Row) -> None:
        if results.done(row) or deadline - time.monotonic() < LEAST_S:
            return
        if refused := refusal(row, args, absent, why):
            results.add(row, status=SKIPPED, why=refused)
        else:
            answer(row, args, results, deadline)

    try:
        with ThreadPoolExecutor(lanes) as pool:
            list(pool.map(one, rows))
    finally:
        args.no_write = args.no_write or args.dry or bool(why)
        text = section(args, rows if args.no_write else gpu_rows.rows(), results, cores)
        write_section(args, f"gpu {results.label}", text)
    failed = [row.name for row in rows if results.rows.get(row.name, {}).get("status") == FAILED]
    if failed:
        print(f"gpu.py: {len(failed)} rows failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
