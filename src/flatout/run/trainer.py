"""The run: logging, checkpoints, evaluation, callbacks, signals, failure.

Glossary. *step*: one environment step, summed over environments. *update*: one gradient step.
*iteration*: one collected trajectory and the updates that it pays for. *version*: iterations
learned from. The trainer knows nothing of how data flows: it advances a schedule and keeps the
books.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config.schema import TrainConfig
from flatout.errors import CheckpointError, EnvironmentFailure, FlatoutError, Interrupt
from flatout.explain.own.recording import RunRecording
from flatout.explain.own.rules import bottleneck
from flatout.explain.own.runs import Evidence, closing, diagnose_evidence, recent_phases
from flatout.networks.torsos import Network
from flatout.planning.facts import shows_images
from flatout.run.build import assemble
from flatout.run.components import Components
from flatout.run.evaluate import Evaluation
from flatout.run.interrupts import Interrupts
from flatout.run.loggers import EpisodeLog, JsonLines, Logger, TensorBoard, Wandb
from flatout.run.progress import Display, Load, Progress, Silent
from flatout.run.summary import Facts, summarise
from flatout.spans import RunClock, Spans
from flatout.storage import checkpoint
from flatout.storage.agent_file import save_parameters
from flatout.storage.durable import replace as replace_file
from flatout.storage.run_folder import RunFolder
from flatout.storage.segments import SegmentStore
from flatout.storage.span_records import Begin
from flatout.types import Metrics, Snapshot

Callback = Callable[[Progress, dict[str, float]], Any]
"""Called after every iteration with the books and the iteration's metrics; False stops the run."""


class Trainer:
    """One run from its settings to its summary.

    Args:
        config: the settings.
        source: an environment object or factory instead of the configured id.
        network: a custom torso.
        folder: where the run is kept; None keeps nothing.
        resume: go on from the folder's last checkpoint.
        initial: learning state to start from, as named arrays.
        callback: see `Callback`.
        display: shows the run.
        started: `time.perf_counter_ns` at which the run's clock started (the process's start).
        interrupts: handles signals already; by default handlers of its own are installed.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        source: Any = None,
        network: Network | None = None,
        folder: RunFolder | None = None,
        resume: bool = False,
        initial: dict[str, np.ndarray] | None = None,
        callback: Callback | None = None,
        display: Display | None = None,
        started: int | None = None,
        interrupts: Interrupts | None = None,
    ) -> None:
        self.config = config
        self._source = source
        self._network = network
        self._folder = folder
        self._store = None if folder is None else SegmentStore(folder.path / checkpoint.REPLAY)
        self._episodes: EpisodeLog | None = None
        self._replays = False
        self._resume = resume
        self._initial = initial
        self._callback = callback
        self._display = display or Silent()
        self._spans = Spans(trace=config.run.trace)
        self._clock = RunClock(self._spans, started)
        self._interrupts = Interrupts() if interrupts is None else interrupts
        self.progress = Progress()
        self.interrupted: int | None = None
        self._stopped = False
        self._saved = -1  # the iteration that the newest checkpoint of this process holds
        self._last_values: dict[str, float] = {}
        self._evaluated: float | None = None
        self.final: Snapshot | None = None

    def run(self) -> dict[str, Any]:
        """Train until the steps are done, a return is reached, or a signal comes.

        Returns:
            The summary, as ``summary.json`` holds it. After a signal `interrupted` is its number.

        Raises:
            FlatoutError: the run failed; what was saved before is intact.
        """
        with ExitStack() as stack:
            if not self._interrupts.installed:
                stack.enter_context(self._interrupts)
            stack.callback(self._display.close)
            try:
                with self._interrupts.discardable():
                    components = self._open(stack)
            except Interrupt as stop:
                self.interrupted = stop.signum
                return {}
            loggers = self._loggers(stack)
            recording = self._record(components, stack)
            try:
                self._loop(components, loggers, recording)
            except Interrupt as stop:
                self.interrupted = stop.signum
                self._display.note("stopping: saving the last iteration's boundary")
            except EnvironmentFailure:  # while collecting: what was learned before is whole
                with suppress(FlatoutError):
                    self._save(components)
                raise
            recording.end(self._counts())
            return self._finish(components, loggers, recording)

    @property
    def signalled(self) -> int | None:
        """The signal that came, also one that found the run just finished."""
        return self._interrupts.signum

    def _open(self, stack: ExitStack) -> Components:
        """Everything before the first step."""
        saved, path = None, Path()
        if self._resume:
            assert self._folder is not None
            if not self._folder.has_saved:
                self._resume = False
                self._display.note("nothing was saved yet: the run begins again from its start")
        if self._resume:
            assert self._folder is not None
            path = checkpoint.latest(self._folder.path)
            step, saved = checkpoint.load(path)
            with checkpoint.reading(path):
                self.progress = Progress.from_json(saved.data["progress"])
                if self.progress.steps != step:
                    raise CheckpointError(f"its books are of step {self.progress.steps:,}.")
            if self._folder.ended and self.progress.steps >= self.config.run.steps:
                self._display.note(
                    f"the run has made all of its {self.progress.steps:,} steps; to go on, name a "
                    f"larger total: --steps {2 * self.config.run.steps}"
                )
        components = assemble(
            self.config, self._spans, source=self._source, network=self._network,
            discardable=self._interrupts.discardable, announce=self._display.note,
        )  # fmt: skip
        stack.callback(components.close)
        self._replays = components.algorithm.replay is not None
        if saved is None:
            components.schedule.start()
            if self._initial is not None:
                components.schedule.adopt(self._initial)
        else:
            with checkpoint.reading(path):
                notes = components.schedule.restore(saved)
                if self._store is not None:
                    self._store.resume(checkpoint.references(path))
                    checkpoint.remove_unused(path.parent, self._store)
            for note in notes:
                components.notes.append(note)
                self._display.note(note)
        if self._folder is not None:
            if self._folder.died_of:
                components.notes.append(self._folder.died_of)
                self._display.note(self._folder.died_of)
            self._folder.write_config(self.config, str(components.placement))
        self._clock.ready()
        self._steps_before = self.progress.steps
        return components

    def _loggers(self, stack: ExitStack) -> list[Logger]:
        run, loggers = self.config.run, list[Logger]()
        if self._folder is not None:
            self._rows = JsonLines(self._folder.path / "metrics.jsonl", self.progress.metrics_bytes)
            stack.callback(self._rows.close)
            loggers.append(self._rows)
            board = None
            if run.tensorboard:
                purge = self.progress.steps + 1 if self._resume else None
                board = TensorBoard(self._folder.path, purge)
                loggers.append(board)
                stack.callback(board.close)
            if self._replays:
                self._episodes = EpisodeLog(self._folder.path, self.progress, board)
                stack.callback(self._episodes.close)
        if run.wandb:
            name = self._folder.path.name if self._folder else self.config.env.env
            loggers.append(Wandb(run.wandb, name, self.config.flat()))
            stack.callback(loggers[-1].close)
        return loggers

    def _record(self, components: Components, stack: ExitStack) -> RunRecording:
        """Keep where the time goes from now on."""
        folder, schedule, hardware = self._folder, components.schedule, components.hardware
        waits = "sampler_wait_s" in schedule.stats()
        recording = RunRecording(
            self._spans,
            lanes=schedule.work,
            waited=lambda: schedule.stats()["sampler_wait_s"] if waits else 0.0,
            wall=self._wall,
            folder=None if folder is None else folder.path,
            kept_s=self.progress.wall_s,
            cores=hardware.cores,
            devices=folder is not None or not isinstance(self._display, Silent),
        )
        stack.callback(recording.close)
        cards = ", ".join(gpu.name for gpu in hardware.gpus) or "no GPU"
        times = self._clock.times()
        begin = Begin(
            t=round(self._wall(), 3),
            startup_s=round(times.startup_s, 3),
            compile_s=round(times.compile_s, 3),
            cores=hardware.cores,
            envs=self.config.env.envs,
            placement=str(components.placement),
            machine=f"{hardware.cpu_name}, {hardware.cores} cores, {cards}",
            gpus=tuple(gpu.name for gpu in hardware.usable_gpus),
            images=shows_images(self.config.flat()),
        )
        recording.begin(begin, self._counts())
        return recording

    def _counts(self) -> tuple[int, int, int]:
        progress = self.progress
        return progress.steps, progress.updates, progress.iterations

    def _loop(self, components: Components, loggers: list[Logger], recording: RunRecording) -> None:
        progress, run = self.progress, self.config.run
        every = run.checkpoint_every
        every = max(run.steps // 10, 1) if every is None else every
        if not self._resume:
            progress.next_checkpoint, progress.next_eval = every, run.eval_every
        while True:
            # First what the last boundary owes: a run stopped while it evaluated resumes here.
            if components.evaluator is not None and progress.steps and (
                (run.eval_every and progress.steps >= progress.next_eval)
                or self._done() == "steps"
            ):  # fmt: skip
                self._evaluate(components)
                progress.next_eval = _next(progress.steps, run.eval_every or run.steps)
            if progress.pending_count and (progress.steps >= progress.next_log or self._done()):
                self._log(components, loggers)
                progress.next_log = _next(progress.steps, run.log_every)
            if every and progress.steps >= progress.next_checkpoint and progress.steps:
                progress.next_checkpoint = _next(progress.steps, every)
                self._save(components)
            if self._done():
                return
            for metrics in components.schedule.advance(1):
                if self._account(metrics) is False:
                    self._stopped = True
                if recording.tick(self._counts()):
                    self._display.load(_load(recording, components))

    def _done(self) -> str:
        """Why the run has ended, or an empty string."""
        goal = self.config.run.stop_at_return
        if self.progress.steps >= self.config.run.steps:
            return "steps"
        if goal is not None:
            mean = self.progress.return_mean_100
            if mean is not None and mean >= goal:
                return "return"
        return "callback" if self._stopped else ""

    def _account(self, metrics: Metrics) -> Any:
        """Book one iteration."""
        progress = self.progress
        progress.steps += metrics.steps
        progress.updates += metrics.updates
        progress.iterations += 1
        for episode in metrics.episodes:
            progress.episodes += 1
            progress.returns.append(episode.episode_return)
            progress.lengths.append(episode.length)
        progress.add(metrics.values, self._episodes is not None)
        if metrics.episodes and self._episodes is not None:
            with self._spans.span("log"):
                self._episodes.log(metrics.episodes, progress)
        wall = self._wall()
        goals = {*self.config.run.threshold, self.config.run.stop_at_return} - {None}
        mean = progress.return_mean_100 if goals else None
        for goal in goals:
            key = str(float(goal))  # type: ignore[arg-type]
            if mean is not None and mean >= goal and key not in progress.reached:  # type: ignore[operator]
                progress.reached[key] = [progress.steps, wall]
        self._display.update(progress, metrics.values, wall)
        if self._callback is None:
            return None
        return self._callback(
            progress, {metric(name): value for name, value in metrics.values.items()}
        )

    def _evaluate(self, components: Components) -> None:
        assert components.evaluator is not None
        progress = self.progress
        with self._interrupts.discardable(), self._spans.span("eval"):
            result: Evaluation = components.evaluator.run(
                components.schedule.params, progress.iterations
            )
        progress.last_eval = result.row()
        self._evaluated = result.return_mean
        if progress.best_return is None or result.return_mean > progress.best_return:
            progress.best_return = result.return_mean
            if self._folder is not None:
                self._folder.check()
                with self._spans.span("checkpoint"):
                    save_parameters(
                        self._folder.best,
                        self.config,
                        components.schedule.snapshot().arrays,
                        result.return_mean,
                    )
        self._display.note(f"evaluation at step {progress.steps:,}: {result.words()}")

    def _log(self, components: Components, loggers: list[Logger]) -> None:
        with self._spans.span("log"):
            row = self._row()
            for logger in loggers:
                logger.log(row, self.progress.steps)
        self._last_values = {n: total / c for n, (total, c) in self.progress.pending.items()}
        self.progress.pending.clear()
        self.progress.pending_count = 0

    def _row(self) -> dict[str, float]:
        """The metrics since the last row; docs/metrics.md describes every key."""
        progress = self.progress
        wall = self._wall()
        row: dict[str, float] = {
            "time/wall_s": wall,
            "time/steps_per_s": self._rate(),
            "time/iterations": progress.iterations,
            "rollout/episodes": progress.episodes,
            "train/updates": progress.updates,
        }
        if self.config.algorithm == "classify":
            row["time/examples_per_s"] = self._rate() * self.config.hyper.batch_size
        if progress.returns:
            row["rollout/return_mean_100"] = float(np.mean(progress.returns))
            row["rollout/return_min_100"] = float(np.min(progress.returns))
            row["rollout/return_max_100"] = float(np.max(progress.returns))
            row["rollout/length_mean_100"] = float(np.mean(progress.lengths))
        for name, (total, count) in progress.pending.items():
            row[metric(name)] = total / count
        if progress.last_eval is not None:
            row |= progress.last_eval
            progress.last_eval = None
        phases = self._clock.times().phases
        return row | {f"phase/{name}": share for name, share in phases.items()}

    def _save(self, components: Components) -> None:
        """Write a checkpoint, everything logged before it being on disk first."""
        if self._folder is None or self._saved == self.progress.iterations:
            return
        self._folder.check()
        with self._spans.span("checkpoint"):
            self.progress.metrics_bytes = self._rows.sync()
            if self._episodes is not None:
                self.progress.episodes_bytes = self._episodes.sync()
            snapshot = components.schedule.snapshot()
            snapshot.data["progress"] = self.progress.to_json() | {"wall_s": self._wall()}
            checkpoint.save(
                self._folder.checkpoints, self.progress.steps, snapshot,
                self.config.run.keep_checkpoints, self._store,
            )  # fmt: skip
        self._saved = self.progress.iterations

    def _verdict(self, components: Components, recording: RunRecording) -> dict[str, Any]:
        """What the run waited for, as the summary says it."""
        path = None if self._folder is None else self._folder.path
        evidence = Evidence(
            "this run" if path is None else str(path), self.config, str(components.placement),
            recording.lines(), recording.samples(), {},
        )  # fmt: skip
        try:
            return closing(diagnose_evidence(evidence))
        except FlatoutError:  # no iteration was made
            return closing(None)

    def _finish(
        self, components: Components, loggers: list[Logger], recording: RunRecording
    ) -> dict[str, Any]:
        """Save what there is, and say what was achieved."""
        if self.progress.pending_count and self.interrupted is None:
            self._log(components, loggers)
        self._save(components)
        self.final = components.schedule.snapshot()
        if self._folder is not None:
            self._folder.check()
        if self._folder is not None and self.interrupted is None:
            with self._spans.span("checkpoint"):
                save_parameters(
                    self._folder.final,
                    self.config,
                    self.final.arrays,
                    self.progress.return_mean_100,
                )
        recording.close()
        if self._display.lost:
            components.notes.append(f"{self._display.lost}: the run went on without its display")
        summary = summarise(
            self.config,
            self.progress,
            components,
            self._clock.times(),
            Facts(
                steps_per_s=self._rate(),
                last=self._last_values,
                run_dir=None if self._folder is None else str(self._folder.path),
                ended=self._ended(),
                evaluated=self._evaluated,
                verdict=self._verdict(components, recording),
            ),
        )
        if self._folder is not None:
            self._folder.write_json("summary.json", summary)
            if self._spans.trace:
                trace = json.dumps(self._spans.chrome_trace())
                replace_file(self._folder.path / "trace.json", trace.encode())
        return summary

    def _ended(self) -> str:
        return "signal" if self.interrupted is not None else self._done()

    def _wall(self) -> float:
        """Seconds of the whole run, earlier parts of a resumed one counted."""
        return self.progress.wall_s + self._clock.elapsed_s()

    def _rate(self) -> float:
        """Environment steps per second of this process, after its start-up."""
        times = self._clock.times()
        trained_s = times.wall_s - times.startup_s
        return (self.progress.steps - self._steps_before) / max(trained_s, 1e-9)


def _load(recording: RunRecording, components: Components) -> Load:
    """What the run did with the machine in the last seconds."""
    recent, sample = recording.recent, recording.sample
    mains = [one for one in recent if one.lane == "main"]
    seconds = sum(one.d for one in mains)
    cause, share = bottleneck(recent_phases(recent, components.placement))
    return Load(
        sum(one.steps for one in mains) / max(seconds, 1e-9),
        components.hardware.cores,
        None if sample is None else sample.cpu,
        () if sample is None else tuple((gpu.busy, gpu.full) for gpu in sample.gpus),
        cause,
        share,
    )


def metric(name: str) -> str:
    """What a learner's or a schedule's value is called in a row of metrics."""
    return name if "/" in name else f"train/{name}"


def _next(steps: int, every: int) -> int:
    """The first multiple of `every` after `steps`."""
    return (steps // every + 1) * every
