"""`flatout explain RUN_DIR --try`: the first remedy that is a setting, applied and measured.

Short runs with and without the setting alternate, each in a process of its own and in a temporary
folder. The report has the measured gain, the gain that planning found if there is one, and the
setting's effect on what is learned.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout import child
from flatout.config.placement import Placement, parse_or_auto
from flatout.config.schema import BEST, REPORT, affecting, rows_every
from flatout.config.workers import with_workers
from flatout.errors import FlatoutError
from flatout.explain.settings import named
from flatout.storage.run_folder import load_config
from flatout.storage.span_records import SPANS, Totals, json_lines, read_lines, steady
from flatout.storage.trust import NO_CONSENT, Consent, import_here, named_code
from flatout_explain import output_file
from flatout_explain.diagnosis import Diagnosis, Finding, MeasuredGain
from flatout_explain.report import gain_words, percent, setting_words

if TYPE_CHECKING:
    from rich.console import Console

BASE = "base.json"
"""The file with the settings of the trial's runs."""
PAIRS = 2
SECONDS = 5.0
"""Duration of each run of a pair after its start-up, at the speed of the explained run."""

PATIENCE_S = 120.0
"""Time limit for starting up, in addition to twenty times the expected duration of a run."""

COMPARED = 4
"""Iterations of the two runs whose learning is compared."""

CLOSE = 1e-5

SELDOM = {"eval_every": "eval", "checkpoint_every": "checkpoint", "log_every": "log"}
"""Intervals in steps, and the spans of what happens at them."""

OFTEN = 10
"""Minimum number of present intervals in a trial whose speed shows another interval."""

WITHOUT_EFFECT = affecting(BEST, REPORT) | {"spare_envs"}
"""Settings that do not affect what is learned."""


@dataclass(frozen=True)
class Outcome:
    """The trial's result.

    Attributes:
        finding: the finding whose setting was tried; None if no remedy is a setting.
        was, now: steps per second of each pair's two runs, without and with the setting.
        learning: a sentence about what was learned.
    """

    finding: Finding | None
    was: tuple[float, ...] = ()
    now: tuple[float, ...] = ()
    learning: str = ""

    @property
    def gain(self) -> MeasuredGain | None:
        """The measured gain: the median of the pairs, and their extremes."""
        gains = [now / was for was, now in zip(self.was, self.now, strict=True)]
        if not gains:
            return None
        how = f"{len(gains)} pairs of short runs in turns"
        return MeasuredGain(statistics.median(gains), min(gains), max(gains), how)

    def as_json(self) -> dict[str, Any]:
        """Return the values that ``--json`` adds as ``trial``."""
        gain = self.gain
        return {
            "finding": None if self.finding is None else self.finding.as_json(),
            "steps_per_s": list(self.was),
            "steps_per_s_with": list(self.now),
            "gain": None if gain is None else gain.gain,
            "low": None if gain is None else gain.low,
            "high": None if gain is None else gain.high,
            "learning": self.learning,
        }


def try_first(
    path: Path, diagnosis: Diagnosis, console: Console, consent: Consent = NO_CONSENT
) -> Outcome:
    """Try the setting of the first finding that has one.

    Args:
        path: the run's folder.
        consent: the consent to run code that the folder names.

    Raises:
        FlatoutError: the run cannot be repeated, or a run of the trial fails.
    """
    finding = next((each for each in diagnosis.findings if each.setting), None)
    if finding is None:
        return Outcome(None, learning="None of the remedies is a setting: there is nothing to try.")
    config = load_config(path, consent)  # its environment will be called
    totals = _totals(path)
    if totals is None or not totals.steps:
        raise FlatoutError(
            f"{path} has no {SPANS} of its steady state, so that there is no measure for a trial; "
            "run it once more with this version."
        )
    import_here(*(code for _, code in named_code(config)), folder=path)
    settings = config.flat()
    size = max(round(totals.steps / max(totals.iterations, 1)), 1)
    rate = totals.steps / totals.seconds
    # The first iteration is not counted, so that there are always some more.
    steps = max(round(rate * SECONDS), 6 * size)
    base = _base(settings, steps, size)
    if untried := _untried(finding.setting, base, totals, size, steps):
        return Outcome(finding, learning=untried)
    was, now = list[float](), list[float]()
    with output_file.temporary_folder("flatout-trial-") as place:
        output_file.write(place / BASE, json.dumps(base))
        limit = PATIENCE_S + 20 * max(SECONDS, steps / rate)
        for pair in range(PAIRS):
            # Each goes first as often as the other: a machine that warms up favours neither.
            for changed in (False, True) if pair % 2 == 0 else (True, False):
                run, setting = place / f"{pair}-{changed}", finding.setting if changed else ()
                words = f"trial {pair + 1} of {PAIRS}: {_words(setting)}"
                console.print(words, style="dim", markup=False)
                _train(place, run, setting, limit)
                (now if changed else was).append(_rate(run))
        learning = _compare(place, settings, finding.setting, size, limit)
    return Outcome(finding, tuple(was), tuple(now), learning)


def show(outcome: Outcome, console: Console) -> None:
    """Print the trial's result."""

    def say(label: str, text: str) -> None:
        console.print(f"{label:<9}{text}", markup=False, highlight=False, soft_wrap=True)

    finding, gain = outcome.finding, outcome.gain
    if finding is None or gain is None:
        say("TRIED", outcome.learning)
        return
    was, now = map(statistics.median, (outcome.was, outcome.now))
    measured = f"measured {gain.gain:.2f}x ({gain.low:.2f}-{gain.high:.2f}), {gain.how}"
    say("TRIED", f"{setting_words(finding.setting)}   {measured}")
    say("", f"{was:,.0f} steps/s as it was, {now:,.0f} with it")
    if finding.gain is not None:
        say("", f"before: {gain_words(finding.gain)}, {finding.gain.how}")
    say("LEARNING", outcome.learning)


def effect(settings: Mapping[str, Any], setting: Sequence[str], cores: int) -> tuple[bool, str]:
    """Return the effect that a setting may have on what is learned. Pure.

    Returns:
        Whether the same must be learned (to the last bit, or with other acting groups nearly so in
        the first iteration), and a sentence with the reason or the change.
    """
    names = named(tuple(setting))
    if names <= WITHOUT_EFFECT:
        return True, "Nothing that is learned depends on it."
    if names != {"placement"}:
        changed = ", ".join(sorted(f"--{name.replace('_', '-')}" for name in names))
        return False, f"{changed} changes what is learned: compare returns before you keep it."
    before = _placement(str(settings["placement"]), settings, cores)
    after = _placement(setting[setting.index("--placement") + 1], settings, cores)
    if before.lag != after.lag:
        return True, (
            f"Acting is with parameters {after.lag} versions old instead of {before.lag}: the "
            "first update is the same, later ones learn from what older parameters did."
        )
    if (before.groups or 1) != (after.groups or 1):
        return True, (
            "Actions are chosen for other numbers of environments at once, so that the last bit of "
            "the arithmetic may differ, and later an action; the mathematics is the same."
        )
    return True, "Placement never changes what is learned."


def _base(settings: Mapping[str, Any], steps: int, size: int) -> dict[str, Any]:
    """Return the run's settings for `steps` steps, without those that end or report it."""
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


def _untried(
    setting: Sequence[str], base: Mapping[str, Any], totals: Totals, size: int, steps: int
) -> str:
    """Return what a longer interval gains by the run's own times, and why it is not tried, if a
    trial has too few of the present intervals; empty if it has enough."""
    name = next(iter(named(tuple(setting))))
    if name not in SELDOM:
        return ""
    before = base[name] if name != "log_every" else rows_every(base[name], totals.steps)
    before, after = max(int(before), size), int(setting[1])
    if steps >= OFTEN * before:
        return ""
    spans = {SELDOM[name]}
    if name == "eval_every" and base["checkpoint_every"] == 0:  # all that is saved are the best
        spans.add("checkpoint")
    share = sum(totals.main.get(span, 0.0) for span in spans) / totals.seconds
    rest = share * before / after
    return (
        f"Nothing: a trial makes {steps:,} steps, and the run does this every {before:,}, which is "
        f"too seldom to measure. By the run's own times it takes {percent(share)} of the time, and "
        f"with {setting_words(setting)} {percent(rest)}: the run would be "
        f"{1.0 / (1.0 - share + rest):.2f}x as fast (computed, not measured)."
    )


def _words(setting: Sequence[str]) -> str:
    return setting_words(setting) or "as it was"


def _train(place: Path, run: Path, setting: Sequence[str], limit_s: float) -> None:
    child.run(
        f"a run of the trial ({_words(setting)})", "flatout.__main__:main", "train", "--trust",
        "--config", str(place / BASE), *setting, "--run-dir", str(run), limit_s=limit_s,
    )  # fmt: skip


def _totals(run: Path) -> Totals | None:
    """Return the sums over a run's steady state."""
    return steady(read_lines(json_lines(run / SPANS))[1])[0]


def _rate(run: Path) -> float:
    totals = _totals(run)
    if totals is None or totals.seconds <= 0.0 or not totals.steps:
        raise FlatoutError("a run of the trial was too short to be measured.")
    return totals.steps / totals.seconds


def _compare(
    place: Path, settings: Mapping[str, Any], setting: Sequence[str], size: int, limit_s: float
) -> str:
    """Compare what a few iterations learn with and without the setting."""
    from flatout.hardware.inventory import inventory

    comparable, why = effect(settings, setting, inventory().cores)
    if not comparable:
        return why
    base = _base(settings, COMPARED * size, size)
    # Both runs must say what they learned after each iteration, and nothing else.
    rare = {"log_every": 1, "eval_every": 0, "checkpoint_every": 0, "tensorboard": False}
    if named(tuple(setting)) <= rare.keys():  # the two would be the same run
        return why
    output_file.write(place / BASE, json.dumps(base | rare))
    was, now = place / "learned-was", place / "learned-now"
    _train(place, was, (), limit_s)
    _train(place, now, setting, limit_s)
    if _parameters(was) == _parameters(now):
        return f"{why} Checked: the same parameters to the last bit after {COMPARED} iterations."
    away = difference(json_lines(was / "metrics.jsonl"), json_lines(now / "metrics.jsonl"))
    if away is None:
        return f"{why} No update was made in {COMPARED} iterations: this was not checked."
    if away <= CLOSE:
        words = f"agree to {away:.0e}" if away else "are equal"
        return f"{why} Checked: the first update's metrics {words}."
    return (
        f"{why} The first update's metrics differ by {away:.1e}, more than the last bits explain "
        "by themselves: an action differed, so compare returns."
    )


def difference(was: list[dict[str, Any]], now: list[dict[str, Any]]) -> float | None:
    """Return the largest difference of the first update's metrics, relative for values above 1.

    Returns:
        None if one of the runs made no update.
    """
    rows = [next((row for row in table if row.get("train/updates")), {}) for table in (was, now)]
    if not all(rows):
        return None
    gaps = [
        abs(before - after) / max(1.0, abs(before))
        for name, before in rows[0].items()
        if name.startswith("train/")
        and isinstance(before, int | float)
        and isinstance(after := rows[1].get(name), int | float)
    ]
    return max((gap if math.isfinite(gap) else math.inf for gap in gaps), default=0.0)


def _parameters(run: Path) -> dict[str, bytes]:
    from flatout.storage.checkpoint import load_agent

    arrays = load_agent(run / "params.safetensors")[0]
    return {name: array.tobytes() for name, array in arrays.items()}


def _placement(text: str, settings: Mapping[str, Any], cores: int) -> Placement:
    """Return a placement with its workers; ``auto`` has one acting group."""
    return with_workers(parse_or_auto(text) or Placement(), int(settings["envs"]), cores)
