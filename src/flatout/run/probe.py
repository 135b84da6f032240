"""Times a run's parts, made one after another, then whole placements in turns.

The measured stages predict every placement (`flatout.planning.predict`); the best few are then
run for a short time.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import jax
import numpy as np

from flatout.config.placement import Placement, on_device, parse
from flatout.config.workers import with_workers
from flatout.engine.fused import FusedSchedule
from flatout.engine.schedule import Schedule
from flatout.errors import FlatoutError, one_line
from flatout.planning import measure
from flatout.planning.answer import LEFT_OUT, Question
from flatout.planning.machine import with_running_cores
from flatout.planning.measure import Rate
from flatout.planning.plan import candidates, worker_counts
from flatout.planning.predict import Prediction, fitted, loaded
from flatout.planning.resets import Resets
from flatout.planning.stages import Stages, learning_of
from flatout.run.cluster_probe import cluster_hosts
from flatout.run.probe_parts import ProbeParts
from flatout.spans import ResetTimes, Work
from flatout.types import UserCode
from flatout_explain.hardware.running_cores import SECONDS, running_cores

ROUNDS = 4
"""Number of rounds in which the finalists run in turn."""

TIMED = 0.4
"""Minimum share of the time in which finalists run, however long they take to start."""

LEAST_BUSY_S = 0.2
"""Minimum seconds for which busy processes count the cores: two periods of a CPU quota."""

WHOLE = 0.25
"""Maximum share of one measurement's time for an iteration; a longer one is not run whole."""

NOT_MEASURED = "could not be measured"
NEEDED = f"failed, and placements that need it {LEFT_OUT}"


class Probe:
    """Makes a run's parts and times them.

    Args:
        question: what is to be planned.
        code: the user's objects and functions.
        stack: closes what is opened.
        begins: called with the name of each stage before the stage begins.

    Attributes:
        stages: as far as they were measured; None until placements can be predicted from them.
        known: ways to collect that were themselves run.
        rates: of placements that `verify` has run.
        notes: sentences about what could not be measured.
    """

    def __init__(
        self, question: Question, code: UserCode, stack: ExitStack, begins: Callable[[str], None]
    ) -> None:
        self.stages: Stages | None = None
        self.known, self.rates, self.notes = set[str](), dict[str, Rate](), list[str]()
        self.parts = ProbeParts(question, code, stack, begins, self.notes.append)
        self._begins, self._base = begins, self.parts.base
        self._failed = set[str]()

    @property
    def _measured(self) -> Stages:
        assert self.stages is not None
        return self.stages

    def memory(self) -> dict[str, dict[str, float]]:
        """Return every placement that can be chosen, as text, with its expected MiB by device. A
        placement can be chosen if its way to collect was run, if it is the rule's own, or if its
        workers are on a cluster, to which the network was measured.
        Placements that act with older parameters are included."""
        if self.stages is None:
            return {}
        allowed = replace(self.parts.allowed(True), fits=lambda placement: True)
        found = candidates(self.stages, self._base, allowed)
        here = [
            p for p in found if p.collects in self.known or p.on_cluster or p == self._base
        ]  # fmt: skip
        sizes = {str(p): self.parts.memory(p) for p in here if str(p) not in self._failed}
        return {text: each for text, each in sizes.items() if each}

    def measure(self, budget_s: float) -> None:
        """Time every part. A part that fails is noted and left out.

        Raises:
            FlatoutError: nothing can be predicted from the rest.
        """
        parts, question = self.parts, self.parts.question
        envs, horizon, cores = parts.envs, parts.horizon, parts.hardware.cores
        each = budget_s / (8 if parts.env is None or not parts.on_host else 12)
        if not parts.on_host:
            learn = self._learn(each)
            self.stages = Stages(envs, horizon, cores, env=(0.0,), act={}, learn=learn)
            self._on_device(each)
            return
        self._begins("stepping the environments")
        cost = measure.env_cost(parts.task, envs, question.config.run.seed, each, question.length)
        spares = question.config.env.spares and not parts.task.source.atari
        stages = Stages(
            envs=envs, horizon=horizon, cores=cores, env=cost.env, computing=cost.computing,
            lanes=cost.lanes, call=cost.call, act={}, learn=self._learn(each),
            resets=replace(cost.resets, spares=spares),
        )  # fmt: skip
        counts = worker_counts(stages) if parts.allowed(False).processes else []
        if counts and cores > 1:
            with self._stage("counting the cores that run at once", NOT_MEASURED):
                seconds = min(max(each / 4, LEAST_BUSY_S), SECONDS)
                found = running_cores(cores, (1, min(counts[-1], cores)), seconds)
                stages, note = with_running_cores(stages, found)
                self.notes += [note] if note else []
        sizes = sorted({envs, *(envs // parts.groups(n) for n in counts[-2:])})
        act: dict[str, tuple[tuple[int, float], ...]] = {}
        for device in question.devices:
            with self._stage(f"choosing actions on {device}", NEEDED):
                seconds = (parts.learners.act_s(device, batch, each / 4) for batch in sizes)
                act[str(device)] = tuple(zip(sizes, seconds, strict=True))
        self._refuse_nothing(act)
        self.stages = self._with_hosts(replace(stages, act=act))
        inline = parts.inline()
        with self._stage("collecting in this process", NOT_MEASURED):
            step_s = self._calibrate(inline, each)
            self.known.add("inline")
            with self._stage("collecting and learning in this process", NOT_MEASURED):
                self._time_iteration(inline, step_s, each)
        for inference in ("local", "central") if counts else ():
            placement = with_workers(
                replace(inline, sampler="processes", workers=(counts[-1], envs // counts[-1]),
                        inference=inference),
                envs, cores,
            )  # fmt: skip
            with self._stage(f"sampler=processes inference={inference}", NOT_MEASURED):
                self._calibrate_processes(placement, each)
                self.known.add(inference)
        if parts.env is not None:
            self._on_device(each)

    def _with_hosts(self, stages: Stages) -> Stages:
        """Return the stages with what would travel to other machines, and with the machines of the
        cluster that the run names, if it names one.

        Raises:
            FlatoutError: no Ray answers there.
        """
        if not self.parts.allowed(False).processes:
            return stages
        step_bytes, params_bytes = self.parts.traffic()
        stages = replace(stages, step_bytes=step_bytes, params_bytes=params_bytes)
        address = self.parts.question.config.run.ray_address
        if address is None:
            return stages
        self._begins("the network to the Ray cluster")
        hosts, notes = cluster_hosts(address, stages)
        self.notes += notes
        return replace(stages, hosts=hosts)

    @contextmanager
    def _stage(self, name: str, failed: str) -> Iterator[None]:
        """Report a stage that begins, and add a note if it fails.

        Args:
            failed: what is said then of what it measures.
        """
        self._begins(name)
        try:
            yield
        except (FlatoutError, jax.errors.JaxRuntimeError) as error:
            self.notes.append(f"{name} {failed}: {one_line(error)}")

    def _refuse_nothing(self, measured: object) -> None:
        if not measured:
            raise FlatoutError("; ".join(self.notes))

    def _learn(self, limit_s: float) -> dict[str, float]:
        """Return the seconds of learning on each device."""
        found: dict[str, float] = {}
        for key in self.parts.learning_keys():
            device, replay = key.split(" ")
            with self._stage(f"learning on {device} with replay on {replay}", NEEDED):
                found[key] = self.parts.learners.learn_s(key, not self.parts.on_host, limit_s)
        self._refuse_nothing(found)
        return found

    def _on_device(self, each: float) -> None:
        """Time environments on each device.

        Raises:
            FlatoutError: all of it failed, and nothing steps on the host.
        """
        places = (key.split(" ")[0] for key in self.parts.learning_keys())
        for place in dict.fromkeys(places):
            with self._stage(f"environments on {place}", LEFT_OUT):
                fused = on_device(replace(self.parts.base, learn=parse(f"act={place}").learn))
                self.stages = self.parts.device.measured(self._measured, fused, each)
                self.known.add("device")
        if not self.parts.on_host:
            self._refuse_nothing(self._measured.rollout)

    def _calibrate(self, placement: Placement, limit_s: float) -> float:
        """Fit the stages so that their sum equals the time of collecting inline; return the seconds
        of a collected step."""
        done, stages = list[dict[str, Work]](), self._measured
        with ExitStack() as stack:
            sampler, horizon = self.parts.sampler(placement, stages, limit_s, stack)
            step_s, steps = measure.collect_s(sampler, limit_s, lambda: done.append(sampler.work()))
            done.append(sampler.work())
        seen = _resets_seen(stages.resets, done, steps)
        self.stages = fitted(stages, placement, step_s, horizon, seen)
        return step_s

    def _time_iteration(self, placement: Placement, step_s: float, limit_s: float) -> None:
        """Time the overhead of an iteration besides collecting and learning."""
        stages = self._measured
        expected = step_s * stages.steps + stages.learn.get(learning_of(placement), math.inf)
        if expected > limit_s * WHOLE:
            return
        rate = Rate()
        with ExitStack() as stack:
            rate.time(self.parts.started(placement, stack)[1], limit_s)
        whole = float(np.median(rate.seconds)) - expected
        self.stages = replace(stages, iteration=max(whole, 0.0))

    def _calibrate_processes(self, placement: Placement, limit_s: float) -> None:
        """Fit the stages so that their sum equals the time of collecting in processes."""
        done, stages = list[dict[str, Work]](), self._measured
        with ExitStack() as stack:
            sampler, horizon = self.parts.sampler(placement, stages, limit_s, stack)
            step_s, steps = measure.collect_s(sampler, limit_s, lambda: done.append(sampler.work()))
            done.append(sampler.work())
        seen = _resets_seen(stages.resets, done, steps)
        if placement.acts_in_workers:
            count, each = placement.workers or (1, 1)
            batch = stages.envs // (placement.groups or count)
            before, after = map(_told, done)
            env, act, turns = (b - a for a, b in zip(before, after, strict=True))
            rows = max(turns * horizon, 1.0)
            stages = loaded(stages, count, env / (rows * each), act * batch / (rows * each), batch)
        self.stages = fitted(stages, placement, step_s, horizon, seen)

    def verify(self, finalists: Sequence[Prediction], budget_s: float) -> None:
        """Run the finalists in turns and fill `rates`. Finalists whose iterations are too long are
        left out.

        The best come first, and no more are begun than there is time for.
        """
        if not finalists or budget_s <= 0.0:
            return
        began, stages = time.perf_counter(), self._measured
        with ExitStack() as stack:
            running: dict[str, tuple[Schedule, Iterator[int], Rate]] = {}
            for prediction in finalists:
                left = budget_s - (time.perf_counter() - began)
                too_long = stages.steps / prediction.rate > left * WHOLE
                if too_long or (running and left < 0.4 * budget_s):
                    continue
                text = str(prediction.placement)
                with self._finalist(text):
                    running[text] = *self.parts.started(prediction.placement, stack), Rate()
            if not running or self.parts.device.late:  # what compiles meanwhile would be measured
                return
            turns, now = len(running) * ROUNDS, time.perf_counter()
            until = max(began + budget_s, now + TIMED * budget_s)
            each = max(until - time.perf_counter(), 0.0) / turns
            for turn, text in enumerate([*running] * ROUNDS):
                late = turn >= len(running) and time.perf_counter() >= until
                if late or text in self._failed:
                    continue
                schedule, iterations, rate = running[text]
                with self._finalist(text):
                    rate.time(iterations, each)
                    if isinstance(schedule, FusedSchedule):
                        schedule.idle()
                    self.rates[text] = rate

    @contextmanager
    def _finalist(self, text: str) -> Iterator[None]:
        """Run a placement as one stage. A placement that fails is not chosen."""
        ended = False
        with self._stage(f"running {text}", "failed"):
            yield
            ended = True
        if not ended:
            self._failed.add(text)


def _told(done: dict[str, Work]) -> tuple[float, float, float]:
    """Return the seconds of stepping without resets, the seconds of acting, and the number of
    trajectories, summed over all processes."""
    works = done.values()
    env = sum(work.seconds["env"] - work.resets.waited for work in works)
    act = sum(work.seconds["act"] for work in works)
    return env, act, float(sum(work.turns for work in works))


def _resets_seen(resets: Resets, done: Sequence[dict[str, Work]], steps: int) -> Resets:
    """Return the resets of environments that made `steps` steps between two readings."""
    before, after = (
        functools.reduce(ResetTimes.plus, (w.resets for w in works.values()), ResetTimes())
        for works in done
    )
    made = after.minus(before)
    if not made.number:
        return replace(resets, ends=0.0)
    ends = min(made.number / max(steps, 1), 1.0)
    return replace(resets, seconds=(made.seconds / made.number,), ends=ends)
