"""Published rows: one JSON file each, and whether it still describes the present source.

A row is *old* where a file that it measures, or its settings, differ from those of a measured
pair, *mixed* where its pairs were measured on two classes of machine or from two sources, and
*incomplete* where a side has fewer runs than the row asks for.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import BenchmarkError

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
RESULTS = HERE / "results"
SOURCE = REPO / "src" / "flatout"
SUFFIXES = (".py", ".toml")

OURS, PAIRS = "flatout", 3
ENVIRONMENTS = {
    "run_sb3.py": "sb3", "small_network.py": "sb3", "run_rejax.py": "rejax",
    "run_rltools.py": "rltools", "run_sample_factory.py": "sample-factory",
    "run_rllib.py": "rllib",
}  # fmt: skip
"""The environment of each peer's program: ``peers/requirements-NAME.txt``, ``.venv-NAME``."""
CORES = tuple(
    f"explain/src/flatout_explain/hardware/{name}.py" for name in ("control_groups", "cores")
)
"""The files that count the cores of a run."""

Json = dict[str, Any]


def rows_of(kind: str) -> dict[str, Json]:
    """The rows that ``speed.toml`` or ``learning.toml`` describes, by name, with their `paths`: the
    files that they measure. A row of learning also has `peer_paths`: the files that each peer's
    runs depend on. A part of ``paths.toml`` or a file that does not exist is a `BenchmarkError`.
    """
    rows = tomllib.loads((HERE / f"{kind}.toml").read_text())
    parts = parts_of_source()
    counted = files_of([""]).union(CORES, ["benchmarks/window.py"] * (kind == "speed"))
    for name, row in rows.items():
        named = {kind, *row.pop("parts")}
        if unknown := named - parts.keys():
            raise BenchmarkError(f"{name}: paths.toml has no part {', '.join(sorted(unknown))}.")
        unnamed = set[str]().union(*(parts[part] for part in parts.keys() - named))
        reached = set[str]().union(*(parts[part] for part in named))
        ours = counted - unnamed | reached
        sides = {side: files_of_sides({side: command}) for side, command in row["sides"].items()}
        if kind == "learning":
            row["peer_paths"] = {side: sorted(sides.pop(side)) for side in {*sides} - {OURS}}
        row["paths"] = sorted(ours.union(*sides.values()))
        row.setdefault("pairs", PAIRS)
    return rows


def parts_of_source() -> dict[str, set[str]]:
    """The parts of Flatout's source that not every row measures, from ``paths.toml``."""
    return {
        name: files_of(patterns)
        for name, patterns in tomllib.loads((HERE / "paths.toml").read_text()).items()
    }


def files_of(patterns: Iterable[str]) -> set[str]:
    """The source files that match, or that are in a folder that matches; patterns and files are
    relative to the source and to the repository."""
    found = set[str]()
    for pattern in patterns:
        places = [SOURCE] if not pattern else SOURCE.glob(pattern)
        files = [file for place in places for file in (place, *place.rglob("*"))]
        made = {file.relative_to(REPO).as_posix() for file in files if file.suffix in SUFFIXES}
        if not made:
            raise BenchmarkError(f"paths.toml: src/flatout has no {pattern}.")
        found |= made
    return found


def files_of_sides(sides: Mapping[str, str]) -> set[str]:
    """The other files that the sides run: presets, environments of this folder, and peers' programs
    with what their environments install."""
    found = set[str]()
    for side, command in sides.items():
        modules = re.findall(r"--env (\w+):", command)
        found |= {f"benchmarks/{name}.py" for name in modules if (HERE / f"{name}.py").exists()}
        presets = re.findall(r"--preset (\S+)", command)
        found |= {f"src/flatout/config/presets/{name}.toml" for name in presets}
        found |= {"benchmarks/images.py"} if "{images}" in command else set()
        if side != OURS:
            program = command.split()[0]
            text = (HERE / "peers" / program).read_text()
            imported = re.findall(r"^from (\w+) import", text, flags=re.M)
            shared = {f"{name}.py" for name in imported if (HERE / "peers" / f"{name}.py").exists()}
            found |= {f"benchmarks/peers/{file}" for file in (program, *shared)}
            found.add(f"benchmarks/peers/requirements-{ENVIRONMENTS[program]}.txt")
    return found


def settings_of(row: Json) -> Json:
    """The settings on which a measured pair depends: all of a row but its texts and counts."""
    words = ("title", "zh", "readme", "work", "paths", "peer_paths", "pairs", "seeds", "published",
             "dry")  # fmt: skip
    return {name: value for name, value in row.items() if name not in words}


def source_of(paths: Iterable[str]) -> str:
    """Twelve hex digits over the files that a row measures."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.encode() + (REPO / path).read_bytes())
    return digest.hexdigest()[:12]


def sources_of(row: Json) -> dict[str, str]:
    """The digest of the files on which each side's runs depend."""
    whole, peers = source_of(row["paths"]), row.get("peer_paths", {})
    return {side: source_of(peers[side]) if side in peers else whole for side in row["sides"]}


def marks(found: Json, row: Json) -> list[str]:
    """``old``, ``mixed`` and ``incomplete``, where they hold."""
    measured = found["runs"]
    present = sources_of(row)
    sources = {(run["side"], run["source"]) for run in measured}
    classes = {(run["machine"], run["isa"]) for run in measured}
    old = not sources <= present.items() or found["settings"] != settings_of(row)
    mixed = len(sources) > len(dict(sources)) or len(classes) > 1
    counts = Counter(run["side"] for run in measured)
    wanted = row["pairs" if "pair" in measured[0] else "seeds"]
    fewer = any(counts[side] < wanted for side in row["sides"])
    kinds = (("old", old), ("mixed", mixed), ("incomplete", fewer))
    return [word for word, holds in kinds if holds]


def ratios(found: Json) -> Json:
    """Flatout's speed as multiples of each peer's, pair by pair: while learning, and of the whole
    process, per step made."""
    figures = dict[str, dict[int, Json]]()
    for run in found["runs"]:
        figures.setdefault(run["side"], {})[run["pair"]] = run
    ours, made = figures.pop(OURS), Json()
    for side, theirs in figures.items():
        both = [(ours[pair], theirs[pair]) for pair in sorted(ours.keys() & theirs.keys())]
        made[side] = {
            "steady": [one["steps_per_s"] / other["steps_per_s"] for one, other in both],
            "whole": [
                other["process_s"] / other["steps"] / (one["process_s"] / one["steps"])
                for one, other in both
            ],
        }
    return made


def work_done(found: Json) -> dict[str, str]:
    """The steps and updates of each side of a row of speed; a single entry, "every side", if they
    are equal."""

    def text(numbers: set[int]) -> str:
        low, high = min(numbers), max(numbers)
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"

    sides = dict[str, str]()
    for side in dict.fromkeys(run["side"] for run in found["runs"]):
        runs = [run for run in found["runs"] if run["side"] == side]
        steps, updates = (text({run[key] for run in runs}) for key in ("steps", "updates"))
        sides[side] = f"{steps} steps and {updates} updates"
    return sides if len({*sides.values()}) > 1 else {"every side": sides[OURS]}


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median of pairs, and the ends of its interval.

    The ends are order statistics: the narrowest that hold the median of many pairs in 95 % of
    cases, whatever their distribution. Fewer than six pairs have none; theirs are the lowest and
    the highest, which hold it in 75 % (three pairs) to 94 % (five).
    """
    ranked, count = sorted(values), len(values)
    cut = 0
    while 2 * sum(math.comb(count, k) for k in range(cut + 2)) / 2**count <= 0.05:
        cut += 1
    return statistics.median(ranked), ranked[cut], ranked[count - 1 - cut]


def load(folder: Path, name: str) -> Json | None:
    """Return a row's results, or None if it was never measured; a broken file is a
    `BenchmarkError`."""
    path = folder / f"{name}.json"
    try:
        return json.loads(path.read_text()) if path.exists() else None
    except json.JSONDecodeError as error:
        raise BenchmarkError(f"{path} is no JSON ({error}): restore it with git.") from None


def save(folder: Path, name: str, found: Mapping[str, Any]) -> None:
    """Write a row's results, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{name}.tmp"
    fresh.write_text(json.dumps(found, indent=1) + "\n")
    fresh.replace(folder / f"{name}.json")
