"""`flatout check`: the faults of an environment, and how Flatout would train with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from rich.console import Console
from rich.text import Text

from flatout.cli.flags import Word, parse
from flatout.config.values import Range
from flatout.envs.checking.check_env import PATIENCE_S, STEPS, check_env
from flatout.errors import UsageError
from flatout.output import print_json, printable, reserve_stdout

STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


@dataclass(frozen=True)
class CheckArguments:
    """Check an environment with random steps."""

    usage: ClassVar[tuple[str, ...]] = ("ENV [--env-kwargs KEY=VALUE]",)

    env: Annotated[str | None, Word("ENV")] = None
    """The environment, as `flatout train --env` takes it: CartPole-v1, or module:factory."""
    env_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Passed to the environment; repeat it for each argument."""
    steps: Annotated[int, Range(1, 10_000_000)] = STEPS
    """The most random steps; a slow environment makes fewer within a few seconds."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Seed of episodes and actions."""
    patience: Annotated[float, Range(0, 1_000_000, above=True)] = PATIENCE_S
    """Seconds that all calls of the environment together may take."""
    json: bool = False
    """Print it as JSON, alone on stdout."""


def check(argv: list[str]) -> int:
    """Run the command; return the exit code, 1 if something is wrong."""
    asked = parse(CheckArguments, "flatout check", argv)
    env = asked.env
    if not env:
        raise UsageError("name an environment: flatout check CartPole-v1, or module:factory.")
    if asked.json:
        reserve_stdout()
    findings = check_env(
        env, steps=asked.steps, seed=asked.seed, env_kwargs=asked.env_kwargs,
        patience=asked.patience,
    )  # fmt: skip
    counts = {kind: sum(one.kind == kind for one in findings) for kind in STYLES}
    if asked.json:
        print_json({"env": env, **counts, "findings": [one._asdict() for one in findings]})
        return int(counts["error"] > 0)
    console = Console(soft_wrap=True)
    for finding in findings:
        line = Text(f"{finding.kind:8}", style=STYLES[finding.kind])
        console.print(line + Text(printable(finding.text), style="default"))
    wrong, odd = counts["error"], counts["warning"]
    console.print(
        f"{env}: {wrong} error{'s' * (wrong != 1)}, {odd} warning{'s' * (odd != 1)}"
        if wrong or odd else f"{env}: nothing is wrong",
        markup=False,
    )  # fmt: skip
    return int(wrong > 0)
