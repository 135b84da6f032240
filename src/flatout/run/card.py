"""A run's files for readers: its curve as a picture, and README.md, its model card."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.config.schema import REPORT, SPEED, TrainConfig, affecting
from flatout.explain.settings import flags
from flatout.output import printable
from flatout.run.curve import VALUES, drawing, points
from flatout.run.metric_rows import sampled
from flatout.types import NAMED, UserCode
from flatout_explain.files import nofollow
from flatout_explain.report import TIE

CURVE, CARD = "curve.svg", "README.md"

OURS = "<!-- Written by Flatout at the end of the run; without this line it is left as it is. -->"
"""The first line of a card. A file without it is the user's."""

SILENT = affecting(SPEED, REPORT) | {"algorithm", "env"}
"""Settings that a command need not repeat, or names apart."""


def leave(
    folder: Path, config: TrainConfig, summary: dict[str, Any], code: UserCode = NAMED
) -> None:
    """Write both files into a run's folder. A failure to do so does not end the run."""
    with suppress(Exception):
        found, label = points(sampled(folder / "metrics.jsonl", VALUES))
        if len(found[0]):
            title = f"{config.algorithm} on {summary['env']}, seed {config.run.seed}"
            picture = drawing(title, found, label)
            nofollow.replace(folder / CURVE, picture.encode(errors="replace"))
        text = card(config, summary, len(found[0]) > 0, code)
        try:
            written = nofollow.read(folder / CARD, 1, 1 << 20).startswith(OURS.encode())
        except FileNotFoundError:
            written = True
        if written:
            nofollow.replace(folder / CARD, text.encode(errors="replace"))


def card(config: TrainConfig, summary: dict[str, Any], drawn: bool, code: UserCode) -> str:
    """Return the text of the model card."""
    best = summary["best_eval_return"]
    if config.hyper.acts:
        facts = {"environment": f"{summary['env']}, {config.env.envs} at once"}
        facts["return"] = reached(summary)
        count = config.run.eval_episodes
        words = "" if best is None else f"{best:,.1f}, mean over {count} greedy episodes"
    else:
        facts = {"data": summary["env"], "result": reached(summary)}
        words = "" if best is None else accuracy_words(best)
    facts |= {
        "best evaluation": words,
        "trained": f"{summary['steps']:,} steps, {summary['updates']:,} updates, ended by "
        f"{summary['ended']}",
        "speed": f"{summary['steps_per_s']:,.0f} steps/s, {summary['wall_s']:,.1f} s in all, on "
        f"{summary['placement']}",
        "verdict": verdict(summary),
        "versions": ", ".join(f"{name} {number}" for name, number in summary["versions"].items()),
    }  # fmt: skip
    lines = [OURS, f"# {_plain(config.algorithm)} on {_plain(summary['env'])}", ""]
    lines += [f"![learning curve]({CURVE})", ""] if drawn else []
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {_plain(words)} |" for name, words in facts.items() if words]
    lines += ["", "## Settings that differ from the defaults", ""]
    settings = changed(config)
    lines += ["| setting | value |", "|---|---|"] if settings else ["None."]
    lines += [f"| {name} | {_plain(str(value))} |" for name, value in settings.items()]
    lines += ["", "## The same again", ""]
    how = ""
    if not code.env is code.network is code.algorithm is None:
        how = "The environment, network or algorithm was given in Python, with these settings:"
    elif any(_has_null(v) for v in settings.values() if isinstance(v, dict)):  # no flag says it
        how = "In Python, with these settings:"
    if how:
        lines += [how, "", f"    {printable(json.dumps(settings, default=str))}"]
    else:
        lines += [f"    {command(config, summary['placement'])}"]
    lines += ["", "The agent: `flatout eval .`, or `Agent.load` in Python."] * config.hyper.acts
    return "\n".join([*lines, ""])


def reached(summary: dict[str, Any]) -> str:
    """Return the result in words. It has no interval, because the episodes of one run depend on
    each other and say nothing about other seeds."""
    if "test_accuracy" in summary:
        return accuracy_words(summary["test_accuracy"])
    mean = summary["return_mean_last"]
    if mean is None:
        return "no episode has ended"
    count = min(summary["episodes"], 100)
    return f"{mean:,.1f} (the mean of the last {count} training episodes)"


def accuracy_words(accuracy: float | None) -> str:
    """Return a classifier's accuracy in words; it is None before the first test."""
    return "not tested yet" if accuracy is None else f"test accuracy {accuracy:.2%}"


def verdict(summary: dict[str, Any]) -> str:
    """Return the verdict in words, or an empty string. The sentence of a tie names both causes."""
    if not (cause := summary["verdict"]):
        return ""
    sentence = summary["headline"]
    return sentence if sentence.startswith(f"{TIE}: ") else f"{cause}: {sentence}"


def changed(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that differ from the algorithm's defaults."""
    return {name: value for name, value in config.changed().items() if name not in SILENT}


def command(config: TrainConfig, placement: str) -> str:
    """Return the command that trains with the same settings and this placement again."""
    words = ["flatout", "train", config.algorithm]
    words += ["--env", config.env.env] if config.hyper.acts else []
    return shlex.join([*words, *flags(changed(config)), "--placement", placement])


def _has_null(value: Any) -> bool:
    """Return whether None is anywhere in a JSON value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return any(map(_has_null, value)) if isinstance(value, list | tuple) else value is None


def _plain(text: str) -> str:
    """Return text for a cell or a heading of Markdown, with all markup escaped."""
    text = " ".join(printable(text).split()).replace("\\", "\\\\")
    for mark in "|`*_<>[]#&":
        text = text.replace(mark, f"\\{mark}")
    return text
