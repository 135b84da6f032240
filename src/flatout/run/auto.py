"""``--placement auto``: the rule, the cache of earlier measurements, and measuring while a run
begins."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatout.config.placement import CPU, DeviceName, Placement
from flatout.config.placement_checks import refuse_shards, refuse_unavailable
from flatout.config.schema import LENGTH, REPORT, SPEED, TrainConfig, affecting
from flatout.config.workers import with_workers
from flatout.errors import FlatoutError, UsageError
from flatout.hardware.inventory import Hardware, resolve_placement
from flatout.planning.answer import Answer, Question
from flatout.planning.kept import keep_machine, plans
from flatout.planning.predict import Prediction
from flatout.spans import Spans
from flatout.storage import nofollow
from flatout.types import NAMED, UserCode

SHORT_S = 60.0
"""Runs that are expected to take less follow the rule or the cache."""

SHARE = 0.05
"""Most of the expected time that is spent on planning."""

LOOK_S = 2.0
"""Training time after which a run's length is estimated."""

MOST_S = 30.0
"""Most seconds that planning is given, however long the run."""

MOVABLE = ("env", "act", "replay")
"""Spans of what another placement can do elsewhere; with a GPU learning, too."""

COMPILING_S = 10.0
"""Of a run in one program, measuring takes so long at least: it compiles several."""

WORTH = 2.0
"""Planning is worth its time if another placement could save so many times that at most."""

STARTING_S = 3.0
"""What a child process takes to import and to begin: not given to probes."""

PACKAGES = ("flatout", "jax", "jaxlib", "numpy", "gymnasium", "ale_py")

UNIMPORTANT = affecting(SPEED, LENGTH, REPORT) | {"reduce", "seed"}
"""Settings that do not change what anything costs."""

MOST_BYTES = 1 << 20


def question(config: TrainConfig, base: Placement, hardware: Hardware, budget_s: float) -> Question:
    """What to ask for a run on this machine's devices.

    Args:
        base: the rule's placement.
    """
    base = with_workers(base, config.env.envs, hardware.cores)
    gpus = base.gpus or [DeviceName("gpu", gpu.index) for gpu in hardware.freest()]
    return Question(config, base, budget_s, config.run.allow_lag, devices=(CPU, *gpus[:1]))


def plannable(config: TrainConfig) -> bool:
    """Whether a run's placement is to be chosen by measuring."""
    run = config.run
    return run.chosen_here and run.virtual_devices is None and config.hyper.acts


def key(config: TrainConfig, hardware: Hardware, without: Iterable[str] = ()) -> str:
    """What a plan is kept under: machine, versions, settings (but those `without`), and the
    environment's own code."""
    left_out = {*UNIMPORTANT, *without}
    settings = {name: v for name, v in config.flat().items() if name not in left_out}
    versions: dict[str, str] = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    gpus = [[gpu.name, gpu.memory_total_mb] for gpu in hardware.usable_gpus]
    machine = [hardware.cpu_name, hardware.cores, hardware.memory_total_mb, gpus]
    sources = [_source(name) for name in (config.env.env, config.algorithm)]
    text = json.dumps([machine, versions, settings, sources], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def plan_file(config: TrainConfig, hardware: Hardware) -> Path:
    """Where the plan of a run is kept: by `key`, and by the devices that the settings name."""
    run, name = config.run, key(config, hardware)
    if not run.chosen_here or run.virtual_devices is not None:
        named = [run.placement.strip(), run.devices, run.virtual_devices]
        name = hashlib.sha256(json.dumps([name, named]).encode()).hexdigest()[:32]
    return plans() / f"{name}.json"


def _source(name: str) -> Any:
    """Where the code behind ``module:factory`` lies, and when it was changed."""
    module, separator, _ = name.partition(":")
    if not separator:
        return None
    with suppress(ImportError, ValueError, AttributeError, OSError):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            stat = Path(spec.origin).stat()
            return [spec.origin, stat.st_mtime_ns, stat.st_size]
    return [name, time.time_ns()]  # never found again


def recall(config: TrainConfig, hardware: Hardware, code: UserCode) -> tuple[Answer | None, str]:
    """The plan that was made here for this run before, and a line about it."""
    if code != NAMED or config.run.remeasure:  # an object has no name to find it again by
        return None, ""
    path = plan_file(config, hardware)
    try:
        found = Answer.from_json(nofollow.read_json(path, 1, MOST_BYTES))
        placement = found.chosen.placement
        refuse_unavailable(placement)
        if with_workers(placement, config.env.envs, hardware.cores) != placement:
            raise UsageError("its placement does not fit this run")
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, FlatoutError) as error:
        return None, f"the plan in {path} cannot be used ({error}); the rule is followed"
    return found, f"placement auto, measured here before: {found.words()}"


def recalled(config: TrainConfig, hardware: Hardware) -> Answer | None:
    """What planning has measured here of a begun run, if anything."""
    found = (recall(asked, hardware, NAMED)[0] for asked in asked_about(config))
    return next(filter(None, found), None)


def remember(config: TrainConfig, hardware: Hardware, code: UserCode, answer: Answer) -> None:
    """Keep a plan for the same run; a folder that cannot be written is no reason to fail."""
    if code != NAMED or not answer.complete:
        return
    where = f"{hardware.cpu_name}, {hardware.cores} cores"
    with suppress(OSError):
        plans().mkdir(parents=True, exist_ok=True)
        path = plan_file(config, hardware)
        nofollow.replace(path, json.dumps(answer.as_json()).encode())
        keep_machine(answer.stages, where)


def measured(config: TrainConfig, text: str, hardware: Hardware, budget_s: float) -> Answer:
    """Measure, and keep the plan.

    Args:
        text: the placement that the search starts from.

    Raises:
        UsageError: the settings name devices that are not here, or cannot carry their shards.
        FlatoutError: it failed.
    """
    from flatout.run.probe_process import ask

    run = config.run
    base, _ = resolve_placement(text, hardware, soft=run.soft_placement, devices=run.devices)
    refuse_shards(base, run.shards)
    answer = ask(question(config, base, hardware, budget_s), NAMED, 2 * budget_s + 60.0)
    remember(config, hardware, NAMED, answer)
    return answer


def asked_about(config: TrainConfig) -> list[TrainConfig]:
    """A begun run's settings as planning is asked about them: where its environments step on a
    device, how else they can there; else where they could."""
    device = (config.run.placed or Placement()).steps_on_device
    return [
        replace(
            config, env=replace(config.env, env_backend=backend),
            run=replace(config.run, placement="auto", remeasure=False),
        )
        for backend in (("device", "auto", None) if device else ("auto",))
    ]  # fmt: skip


class Replanned(Exception):  # noqa: N818 - an event, not an error
    """The run goes on with another placement.

    Attributes:
        chosen: that one, and what is expected of it.
        same: its bits are the same, so that what was trained is kept.
    """

    def __init__(self, chosen: Prediction, same: bool) -> None:
        super().__init__(str(chosen.placement))
        self.chosen, self.same = chosen, same


class Planner:
    """Plans once, when a run's length can be told, and holds the run against what was predicted.

    Args:
        config: the run's settings.
        placement: that it runs with.
        expected: the prediction by which `placement` was chosen; None if nothing was planned.
        announce: receives sentences for the user.
        spans: where the run's time goes.
        keeps: the run may not begin again: it was resumed, or somebody watches it.
    """

    def __init__(
        self, config: TrainConfig, placement: Placement, hardware: Hardware, code: UserCode,
        announce: Callable[[str], None], spans: Spans, expected: Prediction | None = None,
        keeps: bool = False,
    ) -> None:  # fmt: skip
        self._config, self._placement, self._hardware = config, placement, hardware
        self._code, self._announce = code, announce
        self._keeps, self._born, self._began = keeps, 0.0, 0.0
        self._spans, self._movable_s = spans, 0.0
        self._steps: int | None = None
        self._done, self.expected = expected is not None, expected
        self._checked: tuple[int, float] | None = None

    @property
    def settled(self) -> bool:
        """Whether the run will not begin again with another placement."""
        return self._done or self._keeps

    def look(self, steps: int) -> Replanned | None:
        """Plan, if it is time to and the run is long enough.

        Args:
            steps: made so far.

        Returns:
            Another placement, if that is faster.
        """
        now = time.perf_counter()
        self._born = self._born or now
        if self._steps is None:  # the first iteration is not steady
            self._steps, self._began, self._movable_s = steps, now, self._movable()
        spent = now - self._began
        if spent < LOOK_S or steps == self._steps or self._done:
            return None
        self._done = True
        total = self._config.run.steps
        left_s = (total - steps) * spent / (steps - self._steps)
        budget = min(SHARE * left_s, MOST_S) - STARTING_S
        least = COMPILING_S if self._placement.steps_on_device else 0.0
        if left_s < SHORT_S or budget <= least:
            return None
        most = (self._movable() - self._movable_s) / spent * left_s  # seconds that could be saved
        if most < WORTH * (budget + STARTING_S):
            return None
        # A run whose first iterations took long has more to lose than to gain by beginning again.
        self._keeps = self._keeps or now - self._born > SHARE * left_s
        return self._plan(budget)

    def _movable(self) -> float:
        """Seconds that went so far into what another placement can do elsewhere."""
        names = (*MOVABLE, "learn", "fused") if self._hardware.usable_gpus else MOVABLE
        if self._config.env.backend_open:  # the host may be faster
            names = {*names, "fused"}
        return sum(self._spans.seconds(name) for name in names)

    def check(self, steps: int) -> Replanned | None:
        """At a checkpoint: say once where the run is not as fast as predicted.

        Returns:
            With ``--replan`` another placement that is faster now and acts in the same groups.
        """
        now = time.perf_counter()
        self._keeps = True  # what is saved is never thrown away
        before, self._checked = self._checked, (steps, now)
        if self.expected is None or before is None or now - before[1] < LOOK_S:
            return None
        rate, expected = (steps - before[0]) / (now - before[1]), self.expected
        if rate >= expected.low:  # a faster run is no news
            return None
        self._checked, self.expected = None, None  # once
        again = self._config.run.replan
        self._announce(
            f"{rate:,.0f} steps/s, and {expected.low:,.0f} to {expected.high:,.0f} were predicted: "
            "something here is not as it was measured"
            + ("" if again else "; --replan measures again at a checkpoint")
        )
        left_s = (self._config.run.steps - steps) / max(rate, 1e-9)
        budget = min(SHARE * left_s, MOST_S) - STARTING_S
        if not again or budget <= 0.0:
            return None
        return self._plan(budget)

    def _plan(self, budget: float) -> Replanned | None:
        from flatout.run.probe_process import ask

        self._announce(f"measuring this machine for about {budget + STARTING_S:.0f} s")
        asked = question(self._config, self._placement, self._hardware, budget)
        try:
            answer = ask(asked, self._code, budget + 30.0, 2 * budget + 30.0, self._announce)
        except FlatoutError as error:
            self._announce(f"placement auto: measuring failed ({error}); the rule is followed")
            return None
        # A run that was planned before names what was chosen then.
        automatic = replace(self._config, run=replace(self._config.run, placement="auto"))
        remember(automatic, self._hardware, self._code, answer)
        for note in answer.notes:
            self._announce(note)
        self._announce(f"placement auto: {answer.words()}")
        chosen = answer.chosen.placement
        same = _bits(chosen) == _bits(asked.base)
        if chosen == asked.base:
            self.expected = answer.chosen
            return None
        if self._keeps and not same:
            why = "it acts in other groups"
            if chosen.steps_on_device or asked.base.steps_on_device:
                why = "its environments step in another program"
            self._announce(
                f"{why}, so that the run would have to begin again: it stays as "
                f"it is; --placement '{chosen}' takes it"
            )
            return None
        return Replanned(answer.chosen, same)


def _bits(placement: Placement) -> tuple[Any, ...]:
    """What a run's bits depend on: environments on a device draw other episodes than on the host,
    and one program rounds otherwise than two."""
    return placement.groups or 1, placement.steps_on_device, placement.fused


def with_placement(config: TrainConfig, placement: Placement) -> TrainConfig:
    """The settings with this placement; a run goes on where its environments began."""
    env = config.env
    if env.backend_open:
        env = replace(env, env_backend="device" if placement.steps_on_device else "host")
    run = replace(config.run, placement=str(placement), devices=None)  # which it names itself
    return replace(config, env=env, run=run)
