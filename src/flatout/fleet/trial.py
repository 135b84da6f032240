"""`flatout explain RUN_DIR --try`: the first remedy that is a setting, applied and measured.

Both versions of the run are made again briefly, in turns, each in a process of its own and in a
temporary folder. Predicted and measured gain are reported side by side, and what the setting did
to what is learned.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.config.placement import Placement, parse, shares, with_workers
from flatout.errors import FlatoutError
from flatout.explain.diagnosis import Diagnosis, Finding
from flatout.explain.own.settings import named
from flatout.explain.report import gain_words, setting_words
from flatout.storage.run_folder import load_config
from flatout.storage.span_records import SPANS, json_lines, read_lines, steady
from flatout.storage.trust import NO_CONSENT, Consent, add_here, child_variables

if TYPE_CHECKING:
    from rich.console import Console

PAIRS = 2
SECONDS = 5.0
"""How long each run of a pair lasts after its start-up, as the explained run was fast."""

PATIENCE_S = 120.0
"""Allowed for starting up, beside twenty times the time that a run should take."""

COMPARED = 4
"""Iterations of the two runs whose learning is compared."""

CLOSE = 1e-5

WITHOUT_EFFECT = {"checkpoint_every", "log_every", "eval_every", "eval_episodes", "tensorboard"}
"""Settings on which nothing that is learned depends."""


@dataclass(frozen=True)
class Outcome:
    """What the trial found.

    Attributes:
        finding: whose setting was tried; None where no remedy is a setting.
        was, now: steps per second of each pair's two runs, as it was and with the setting.
        learning: a sentence about what was learned.
    """

    finding: Finding | None
    was: tuple[float, ...] = ()
    now: tuple[float, ...] = ()
    learning: str = ""

    @property
    def gains(self) -> tuple[float, ...]:
        """The measured gain of each pair."""
        return tuple(now / was for was, now in zip(self.was, self.now, strict=True))

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` adds as ``trial``."""
        gains = self.gains
        return {
            "finding": None if self.finding is None else asdict(self.finding),
            "steps_per_s": list(self.was),
            "steps_per_s_with": list(self.now),
            "gain": statistics.median(gains) if gains else None,
            "low": min(gains, default=None),
            "high": max(gains, default=None),
            "learning": self.learning,
        }


def try_first(
    path: Path,
    diagnosis: Diagnosis,
    console: Console,
    *,
    pairs: int = PAIRS,
    seconds: float = SECONDS,
    said: Consent = NO_CONSENT,
) -> Outcome:
    """Try the first finding's setting that there is.

    Args:
        path: the run's folder.
        diagnosis: of it.
        console: told what is being done.
        pairs: how often the two are run in turn.
        seconds: how long each lasts after starting up.
        said: what the user said about what the folder names.

    Raises:
        FlatoutError: the run cannot be made again, or one of the two fails.
    """
    finding = next((one for one in diagnosis.findings if one.setting), None)
    if finding is None:
        return Outcome(None, learning="None of the remedies is a setting: there is nothing to try.")
    config = load_config(path, said)  # its environment will be called
    _, records = read_lines(json_lines(path / SPANS))
    totals, _ = steady(records)
    if totals is None or not totals.steps:
        raise FlatoutError(
            f"{path} has no {SPANS} of its steady state, so that there is no measure for a trial; "
            "run it once more with this version."
        )
    add_here(path)  # the trial's runs import what this process would
    settings = config.flat()
    size = max(round(totals.steps / max(totals.iterations, 1)), 1)
    rate = totals.steps / totals.seconds
    # The first iteration is not counted, so that there are always some more.
    steps = max(round(rate * seconds), 6 * size)
    base = _base(settings, steps, size)
    was, now = list[float](), list[float]()
    with tempfile.TemporaryDirectory(prefix="flatout-trial-") as folder:
        place = Path(folder)
        (place / "base.toml").write_text(as_toml(base))
        limit = PATIENCE_S + 20 * max(seconds, steps / rate)
        for pair in range(pairs):
            # Each goes first as often as the other: a machine that warms up favours neither.
            for changed in (False, True) if pair % 2 == 0 else (True, False):
                words = setting_words(finding.setting) if changed else "as it was"
                console.print(f"trial {pair + 1} of {pairs}: {words}", style="dim", markup=False)
                run = place / f"{pair}-{changed}"
                _train(place, run, finding.setting if changed else (), limit)
                (now if changed else was).append(_rate(run))
        learning = _compare(place, settings, finding.setting, size, limit)
    return Outcome(finding, tuple(was), tuple(now), learning)


def show(outcome: Outcome, console: Console) -> None:
    """Print what the trial found."""

    def say(label: str, text: str) -> None:
        console.print(f"{label:<9}{text}", markup=False, highlight=False, soft_wrap=True)

    if outcome.finding is None:
        say("TRIED", outcome.learning)
        return
    gains, finding = outcome.gains, outcome.finding
    measured = (
        f"measured {statistics.median(gains):.2f}x ({min(gains):.2f}-{max(gains):.2f}), "
        f"{len(gains)} pairs in turn"
    )
    say("TRIED", f"{setting_words(finding.setting)}   {gain_words(finding)}, {measured}")
    say(
        "", f"{statistics.median(outcome.was):,.0f} steps/s as it was, "
        f"{statistics.median(outcome.now):,.0f} with it",
    )  # fmt: skip
    say("LEARNING", outcome.learning)


def as_toml(values: Mapping[str, Any]) -> str:
    """Flat settings as a ``--config`` file; tables come last."""
    lines, tables = list[str](), list[str]()
    for name, value in values.items():
        if isinstance(value, dict):
            tables.append(f"[{name}]")
            tables += [f"{_value(str(key))} = {_value(one)}" for key, one in value.items()]
        else:
            lines.append(f"{name} = {_value(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def effect(settings: Mapping[str, Any], setting: Sequence[str], cores: int) -> tuple[bool, str]:
    """What a setting may change of what is learned. Pure.

    Args:
        settings: the run's.
        setting: the flags.
        cores: that the run may use.

    Returns:
        Whether the same must be learned (to the last bit or, in other acting groups, closely in
        the first iteration), and a sentence that says why or what changes.
    """
    names = named(tuple(setting))
    if names <= WITHOUT_EFFECT:
        return True, "Nothing that is learned depends on it."
    if names != {"placement"}:
        changed = ", ".join(sorted(f"--{name.replace('_', '-')}" for name in names))
        return False, f"{changed} changes what is learned: compare returns before you keep it."
    words = list(setting)
    before = _placement(str(settings["placement"]), settings, cores)
    after = _placement(words[words.index("--placement") + 1], settings, cores)
    if before.lag != after.lag:
        return True, (
            f"Acting is with parameters {after.lag} versions old instead of {before.lag}: the "
            "first update is the same, later ones learn from what older parameters did."
        )
    envs = int(settings["envs"])
    if _groups(before, envs) != _groups(after, envs):
        return True, (
            "Actions are chosen in other groups, whose arithmetic may differ in the last bit, and "
            "in time an action with it; the mathematics is the same."
        )
    return True, "Placement never changes what is learned."


# --- Inside -------------------------------------------------------------------------------------


def _base(settings: Mapping[str, Any], steps: int, size: int) -> dict[str, Any]:
    """The run's settings for so many steps, without what ends or reports it."""
    base = dict(settings)
    if base.get("checkpoint_every") is None:  # a tenth of the run's own steps, not of the trial's
        base["checkpoint_every"] = max(int(base["steps"]) // 10, 1)
    ahead = 0
    if "learning_starts" in base:  # explained is the time in which it learns
        ahead = min(int(base["learning_starts"]), max(int(base["batch_size"]), 4 * size))
        base["learning_starts"] = ahead
    base |= {"steps": steps + ahead, "stop_at_return": None, "threshold": [], "wandb": None}
    base |= {"trace": False, "quiet": True, "json": False, "run_dir": None}
    return base


def _train(place: Path, run: Path, flags: Sequence[str], limit_s: float) -> None:
    """Make one run.

    Raises:
        FlatoutError: it failed, or took far longer than it should.
    """
    algorithm = _algorithm(place)
    command = [
        sys.executable, "-P", "-m", "flatout", "train", algorithm, "--trust",
        "--config", str(place / "base.toml"), *flags, "--run-dir", str(run),
    ]  # fmt: skip
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=nowhere, stdout=nowhere, stderr=subprocess.PIPE, env=child_variables()
    ) as process:
        try:
            _, said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise FlatoutError(
                f"a run of the trial did not end within {limit_s:.0f} s: "
                f"{setting_words(flags) or 'as it was'}."
            ) from None
        finally:
            if process.poll() is None:  # also where the trial itself was interrupted
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
    if process.returncode:
        lines = said.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        raise FlatoutError(
            f"a run of the trial failed ({setting_words(flags) or 'as it was'}): {lines[-1]}"
        )


def _algorithm(place: Path) -> str:
    import tomllib

    return str(tomllib.loads((place / "base.toml").read_text())["algorithm"])


def _rate(run: Path) -> float:
    """Steps per second of a run's steady state.

    Raises:
        FlatoutError: it made none.
    """
    _, records = read_lines(json_lines(run / SPANS))
    totals, _ = steady(records)
    if totals is None or totals.seconds <= 0.0 or not totals.steps:
        raise FlatoutError("a run of the trial was too short to be measured.")
    return totals.steps / totals.seconds


def _compare(
    place: Path, settings: Mapping[str, Any], setting: Sequence[str], size: int, limit_s: float
) -> str:
    """What the setting does to what is learned, in a few iterations of both."""
    from flatout.hardware.inventory import inventory

    comparable, why = effect(settings, setting, inventory().cores)
    if not comparable:
        return why
    base = _base(settings, COMPARED * size, size)
    # Whatever is tried about these, both runs must say what they learned after each iteration.
    rare = {"log_every": 1, "eval_every": 0, "checkpoint_every": 0, "tensorboard": False}
    (place / "base.toml").write_text(as_toml(base | rare))
    kept = list(setting) if named(tuple(setting)) == {"placement"} else []
    one, other = place / "learned-was", place / "learned-now"
    _train(place, one, (), limit_s)
    _train(place, other, kept, limit_s)
    if _parameters(one) == _parameters(other):
        return f"{why} Checked: the same parameters to the last bit after {COMPARED} iterations."
    away = difference(json_lines(one / "metrics.jsonl"), json_lines(other / "metrics.jsonl"))
    if away is None:
        return f"{why} No update was made in {COMPARED} iterations: this was not checked."
    if away <= CLOSE:
        said = f"agree to {away:.0e}" if away else "are equal"
        return f"{why} Checked: the first update's metrics {said}."
    return (
        f"{why} The first update's metrics differ by {away:.1e}, more than the last bits explain "
        "by themselves: an action differed, so compare returns."
    )


def difference(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> float | None:
    """The largest difference of the first update's metrics, relative where they are above 1.

    Returns:
        None where either made no update.
    """
    rows: list[dict[str, Any]] = []
    for table in (one, other):
        first = next((row for row in table if row.get("train/updates")), None)
        if first is None:
            return None
        rows.append(first)
    names = [name for name in rows[0] if name.startswith("train/") and name in rows[1]]
    away = 0.0
    for name in names:
        values = [row[name] for row in rows]
        if any(not isinstance(value, int | float) for value in values):
            continue
        gap = abs(values[0] - values[1]) / max(1.0, abs(values[0]))
        away = max(away, gap if math.isfinite(gap) else math.inf)
    return away


def _parameters(run: Path) -> dict[str, bytes]:
    """The bytes of each learned array."""
    from flatout.storage.checkpoint import load_agent

    arrays, _ = load_agent(run / "params.safetensors")
    return {name: array.tobytes() for name, array in arrays.items()}


def _placement(text: str, settings: Mapping[str, Any], cores: int) -> Placement:
    """A placement with its workers; ``auto`` acts in one group, wherever that is."""
    if text.strip() == "auto":
        return Placement()
    return with_workers(parse(text), int(settings["envs"]), cores)


def _groups(placement: Placement, envs: int) -> list[int]:
    """How many environments each group that acts together has."""
    return [share.count for groups in shares(placement, envs) for share in groups]


def _value(value: Any) -> str:
    """One value in TOML; there is no null, which the settings read as none."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(one) for one in value)}]"
    # As in JSON, but TOML writes every letter itself and takes no raw delete.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
