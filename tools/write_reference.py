"""Writes docs/reference/ from the code: commands, settings, presets, causes, Python and examples.
Run it after one of them has changed: python tools/write_reference.py"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import flatout
from flatout.__main__ import main
from flatout.cli.arguments import SettingsArguments
from flatout.cli.commands import COMMANDS, arguments_of
from flatout.cli.flags import flags_of
from flatout.config.hyper import HYPER, OwnConfig, check_schedule, entropy_coefficient
from flatout.config.schema import RESUMABLE, EnvConfig, NetworkConfig, RunConfig
from flatout.config.settings import presets
from flatout.config.texts import sentences
from flatout.config.values import Range, hints
from flatout_explain import document
from flatout_explain.causes import CAUSES
from flatout_explain.cli.arguments import ExplainArguments
from flatout_explain.cli.parsing import own_flags
from flatout_explain.program.remedies import REMEDIES

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference"
PRESETS = ROOT / "src" / "flatout" / "config" / "presets"
NOTE = "<!-- tools/write_reference.py writes this page; change the code instead. -->\n"

WORDS: dict[Any, str] = {
    bool: "switch", int: "whole number", float: "number", tuple[int, ...]: "whole numbers",
    tuple[float, ...]: "numbers", dict[str, Any]: "pairs",
    check_schedule: "`lin_START_END`", entropy_coefficient: "`auto`, `auto_START`",
}  # fmt: skip
"""What a type or a rule allows."""
POWERS = {2**power - 1: f"2^{power} - 1" for power in (31, 32, 63)}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; a bar inside a cell would end it."""
    head = list(head)
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in (head, *rows)]
    lines.insert(1, " | ".join("---" for _ in head))
    return "\n".join(f"| {line} |" for line in lines)


def first(text: str | None) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join((text or "").strip().partition("\n\n")[0].split()).replace("``", "`")
    return paragraph.partition(". ")[0].rstrip(".") + "."


def flag(name: str) -> str:
    """A setting as it is typed."""
    return f"`--{name.strip('_').replace('_', '-')}`"


def between(limits: Range) -> str:
    """What a range allows: ` 1 to 100`, ` above 0`."""
    low, high = (POWERS.get(int(n), f"{n:,}") for n in (limits.low, min(limits.high, 1e99)))
    if limits.high == math.inf:
        return f" {'above' if limits.above else 'from'} {low}"
    return f" {'above ' * limits.above}{low} to {'below ' * limits.below}{high}"


def possible(kinds: tuple[Any, ...], rules: tuple[Any, ...]) -> str:
    """Which values a setting may have, in words."""
    limits = "".join(between(rule) for rule in rules if isinstance(rule, Range))
    words = [f"`{it}`" for kind in kinds if get_origin(kind) is Literal for it in get_args(kind)]
    words += [WORDS[kind] + limits for kind in kinds if kind in WORDS]
    inner = [rule.func if isinstance(rule, partial) else rule for rule in rules]
    words += [WORDS[rule] for rule in inner if rule in (check_schedule, entropy_coefficient)]
    return ", ".join((words or ["text"]) + ["`None`"] * (type(None) in kinds))


def shown(value: Any) -> str:
    """A default as it would be typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    text = " ".join(map(str, value)) if isinstance(value, tuple | dict) else str(value)
    return text and f"`{text}`"


def settings(part: type) -> str:
    """The table of a settings class."""
    texts, rows = sentences(part), []
    own = own_flags(part) if issubclass(part, ExplainArguments) else flags_of(part)
    words = {one.name for one in own if one.word}
    for spec in fields(part):
        default = spec.default if spec.default_factory is MISSING else spec.default_factory()
        if spec.name not in words:
            values = possible(*hints(part)[spec.name])
            text = texts[spec.name] or spec.metadata["flag"]["help"]
            rows.append((flag(spec.name), shown(default), values, text))
    return table(("flag", "default", "values", "meaning"), rows)


def helped(*argv: str) -> str:
    """What the command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main([*argv])
    return out.getvalue().rstrip()


def commands() -> Iterator[str]:
    """Every command: its help as it is printed, or its flags as a table."""
    yield "# Commands\n\nEvery command, with the flags that it has beyond the settings."
    yield f"```text\n{helped('--help')}\n```"
    for name in COMMANDS:
        kind = arguments_of(name)
        usage = "\n".join(f"flatout {name} {words}".rstrip() for words in kind.usage)
        text = inspect.cleandoc(kind.__doc__)
        first_line, _, rest = text.partition("\n\n")
        yield f"## {name}\n\n{first_line}\n\n```text\n{usage}\n```"
        yield f"```text\n{rest}\n```" if rest else ""
        yield settings(kind)
        if issubclass(kind, SettingsArguments):
            yield "Its other flags are [settings](settings.md)."


def every_setting() -> Iterator[str]:
    """Every setting of `train`, by its class."""
    yield (
        "# Settings\n\nFlags of `flatout train`; in Python the same words with underscores "
        "(`learning_rate=1e-3`), and in a `--config` file too. `--no-NAME` turns a switch off. "
        '`None` leaves out what may be left out (in a file `"none"`). '
        "A [preset](presets.md) sets many at once.\n\n## Algorithms"
    )
    for name, hyper in HYPER.items():
        yield f"### {name}\n\n{hyper.__doc__}"
        others = [f"{flag(key)} {shown(value)}" for key, value in hyper.defaults.items()]
        yield others and f"Other defaults of settings below: {', '.join(others)}."
        yield settings(hyper)
    yield f"### module:function\n\n{OwnConfig.__doc__}\n\n{settings(OwnConfig)}"
    for title, part in (("Environment", EnvConfig), ("Network", NetworkConfig), ("Run", RunConfig)):
        yield f"## {title}\n\n{part.__doc__}\n\n{settings(part)}"
    changed = [flag(spec.name) for spec in fields(RunConfig) if spec.name in RESUMABLE]
    changed.remove("`--run-dir`")
    yield f"A run that is resumed (`--resume`) may change these alone: {', '.join(changed)}."


def every_preset() -> Iterator[str]:
    """Every preset's file."""
    yield "# Presets\n\n`--preset NAME` (in Python `preset=`) sets all of these; flags change them."
    for name in presets():
        lines = (PRESETS / f"{name}.toml").read_text().splitlines()
        comment = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
        body = "\n".join(line for line in lines if line and not line.startswith("#"))
        yield f"## {name}\n\n{comment}\n\n```toml\n{body}\n```"


def causes() -> Iterator[str]:
    """Every verdict of explain."""
    yield (
        "# Causes\n\nThe causes of lost time in the reports of `flatout explain`, each with its "
        "words in the verdict and the phase whose time it is. The verdict is `healthy` if "
        "`compute-bound` comes first, and `unknown` if too little was seen. The "
        "[rule, evidence and remedy](../explain-reference.md#causes) of each are in the reference."
    )
    phase = {cause: f"`{name}`" for cause, (name, _) in REMEDIES.items()}
    rows = [(f"`{cause}`", text, phase.get(cause, "")) for cause, text in CAUSES.items()]
    yield table(("cause", "meaning", "phase"), rows)


def python() -> Iterator[str]:
    """Every public name, and an agent's methods."""
    yield "# Python\n\n`help(flatout.PPO)` says more; agents take all [settings](settings.md)."
    names = [(f"`{name}`", first(getattr(flatout, name).__doc__)) for name in flatout.__all__]
    names.append(("`engine.make`", first(flatout.engine.make.__doc__)))
    yield table(("name", "what it is"), names)
    yield "## An agent\n\nAll agents (`PPO`, `DQN`, ...) have the same methods."
    rows = list[tuple[str, str]]()
    for name, method in inspect.getmembers(flatout.Agent, callable):
        if not name.startswith("_"):
            signature = inspect.signature(method)
            bare = [it.replace(annotation=it.empty) for it in signature.parameters.values()]
            taken = inspect.Signature([it for it in bare if it.name != "self"])
            rows.append((f"`{name}{taken}`", first(method.__doc__)))
    yield table(("method", "what it does"), rows)


def examples() -> Iterator[str]:
    """Every example, with its first sentence."""
    yield (
        "# Examples\n\nComplete programs, each with what it prints; the tests run each of them. "
        "They are in the order in which most people need them: a first run (1), an environment of "
        "your own (2), why it is slow (3), many seeds (4), on a GPU (5), a network, an algorithm "
        "and a loop of your own (6 to 8), and special cases. [Fifteen tasks](../quick-start.md) "
        "are shorter ones."
    )
    rows = list[tuple[str, str]]()
    numbered = (ROOT / "examples").glob("*.*")
    for path in sorted(numbered, key=lambda path: int(path.name.partition("_")[0])):
        text, words = path.read_text(), "A notebook."
        if path.suffix == ".py":
            words = first(ast.get_docstring(ast.parse(text)))
        elif path.suffix == ".toml":
            words = first(text.partition("\n")[0].lstrip("# "))
        rows.append((f"[{path.name}](../../examples/{path.name})", words))
    yield table(("file", "what it shows"), rows)


def pages() -> dict[str, str]:
    """Each page's text by its file's name."""
    made = {
        "commands": commands, "settings": every_setting, "presets": every_preset, "causes": causes,
        "python": python, "examples": examples,
    }  # fmt: skip
    texts = {
        f"{name}.md": "\n\n".join([NOTE.strip(), *filter(None, write())]) + "\n"
        for name, write in made.items()
    }
    return texts | {"explain-report.schema.json": json.dumps(document.schema(), indent=1) + "\n"}


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
