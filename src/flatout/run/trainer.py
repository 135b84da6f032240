"""The run: logging, checkpoints, evaluation, callbacks, signals, failure.

Glossary. *step*: one environment step, summed over environments. *update*: one gradient step.
*iteration*: one collected trajectory and the updates that it pays for. *version*: iterations
learned from. The trainer knows nothing of how data flows: it advances a schedule, counts,
and keeps what is to be kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from flatout.config.schema import TrainConfig
from flatout.errors import CallbackFailure, EnvironmentFailure, FlatoutError, Interrupt
from flatout.explain.own.recording import RunRecording
from flatout.learner.programs import Programs
from flatout.planning.predict import Prediction
from flatout.run.acting import Acting
from flatout.run.auto import Replanned, with_placement
from flatout.run.build import assemble
from flatout.run.callbacks import SAVED, CallbackLike, Callbacks, Run
from flatout.run.card import leave
from flatout.run.components import Components
from flatout.run.curve import Points
from flatout.run.evaluate import Evaluation
from flatout.run.interrupts import Interrupts
from flatout.run.loggers import RunLogs
from flatout.run.observe import closing_verdict, current_load, start_recording
from flatout.run.progress import Display, Progress
from flatout.run.resume import Start, newest
from flatout.run.summary import summarise
from flatout.schedules.together import Together
from flatout.spans import RunClock, Spans
from flatout.storage import checkpoint, nofollow
from flatout.storage.agent_file import BEST, FINAL, save_parameters
from flatout.storage.run_folder import RunFolder
from flatout.storage.segments import SegmentStore
from flatout.types import NAMED, Metrics, Snapshot, UserCode


@dataclass(eq=False)
class Trainer:
    """One run from its settings to its summary.

    Args:
        code: see `assemble`.
        folder: where the run is kept; None keeps nothing.
        resume: go on from the folder's last checkpoint.
        start: what to start from; by default from nothing.
        callback: see `flatout.run.callbacks`.
        agent, acting: what callbacks see as `run.agent`, and what it acts with.
        started: `time.perf_counter_ns` at which the run's clock started (the process's start).
        programs: that other runs of this shape have compiled.
        interrupts: handles signals already; by default handlers of its own are installed. Its
            `signum` also tells of a signal that found the run just finished.
    """

    config: TrainConfig
    _: KW_ONLY
    code: UserCode = NAMED
    folder: RunFolder | None = None
    resume: bool = False
    start: Start | None = None
    callback: CallbackLike | Sequence[CallbackLike] | None = None
    agent: Any = None
    acting: Acting | None = None
    display: Display = field(default_factory=Display)
    started: int | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)
    programs: Programs | None = None

    def __post_init__(self) -> None:
        self._callbacks = None if self.callback is None else Callbacks(self.callback)
        self._parent = None if self.start is None else self.start.parent
        self._again = False  # begun again: what was written before does not count
        self._expected: Prediction | None = None  # by which the placement was chosen
        self._begin()

    @property
    def _together(self) -> Together | None:
        """Who saves this run's state with that of others."""
        together = None if self.programs is None else self.programs.together
        return None if together is None or together.group is None else together

    @property
    def _member(self) -> int:
        return 0 if self.programs is None else self.programs.member

    def _begin(self) -> None:
        """Counters and clocks of a run that has not begun."""
        self._path = folder = None if self.folder is None else self.folder.path
        self._store = None if folder is None else SegmentStore(folder / checkpoint.REPLAY)
        self._spans = Spans(trace=self.config.run.trace)
        self._clock = RunClock(self._spans, self.started)
        self.progress = Progress()
        self.interrupted: int | None = None
        self._per_iteration = 0  # steps
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
            if not self.interrupts.installed:
                stack.enter_context(self.interrupts)
            stack.callback(self.display.close)
            while True:
                try:
                    with ExitStack() as opened:
                        return self._run(opened)
                except Replanned as change:
                    self._take(change)

    def _run(self, stack: ExitStack) -> dict[str, Any]:
        """See `run`; with one placement."""
        try:
            with self.interrupts.discardable():
                components = self._assemble(stack)
        except Interrupt as stop:
            self.interrupted = stop.signum
            return {}
        self._logs = RunLogs(
            self.config, self._path, self.progress, self.resume or self._again,
            components.algorithm.replay is not None, stack,
        )  # fmt: skip
        recording = start_recording(
            self.config, components, self.progress, self._spans, self._clock, self._wall,
            self._path, self._path is not None or self.display.shows,
        )  # fmt: skip
        stack.callback(recording.close)
        try:
            try:
                self._loop(components, recording)
            except Interrupt as stop:
                self.interrupted = stop.signum
                self.display.note("stopping: saving the last iteration's boundary")
            if self._callbacks is not None:
                self._callbacks.tell("on_end")
            recording.end(self.progress.counts)
            return self._finish(components, recording)
        except (EnvironmentFailure, CallbackFailure):  # what was learned before is whole
            if self._callbacks is not None:
                self._callbacks.failed = True
            with suppress(FlatoutError):
                self._keep(components)
                self._save(components, apart=True)
            raise

    def _take(self, change: Replanned) -> None:
        """Go on with another placement as a resume would, or begin again where it acts in other
        groups, whose bits are not those of what was trained."""
        self.config = with_placement(self.config, change.chosen.placement)
        self.resume = change.same and self.folder is not None
        if self.resume:
            self.started = None  # the checkpoint holds the time until now
        elif self.folder is not None:
            self.folder.empty()
        self._again, self._expected = not self.resume, change.chosen
        self._begin()

    def _assemble(self, stack: ExitStack) -> Components:
        """Everything before the first step."""
        found, saved, path = None, None, Path()
        if self.resume and self.folder is not None:
            found = newest(
                self.folder, self.config.run.steps, self.display.note, self._together,
                self._member,
            )  # fmt: skip
            self.resume = found is not None
        if found is not None:
            path, saved, self.progress = found
        components = assemble(
            self.config, self._spans, code=self.code, expected=self._expected,
            keeps=self.resume or self.callback is not None,
            discardable=self.interrupts.discardable, announce=self.display.note,
            programs=self.programs,
        )  # fmt: skip
        stack.callback(components.close)
        notes: list[str] = []
        states: Any = None
        start = self.start
        if saved is None:
            path = Path(self._parent or "of this agent")
            if start is None or not start.continues:
                components.schedule.start()
            with checkpoint.reading(path):
                if start is not None and start.continues:
                    notes = components.schedule.restore(start.state)
                    self.progress = Progress.from_json(start.state.data["progress"])
                elif start is not None:
                    components.schedule.adopt(start.state)
                    notes = list(start.notes)
        else:
            with checkpoint.reading(path):
                notes = components.schedule.restore(saved)
                states = saved.data.get(SAVED)
                if self._store is not None and path.parent.parent == self._path:
                    self._store.resume(checkpoint.references(path))
                    checkpoint.remove_unused(path.parent, self._store)
        # A resumed run takes what was chosen, whatever would be chosen then.
        self.resolved = resolved = with_placement(self.config, components.placement)
        if self.folder is not None:
            notes = [*notes, *filter(None, [self.folder.died_of])]
            self._parent = self._parent or self.folder.parent
            self.folder.write_config(resolved, str(components.placement), self._parent)
        if self._callbacks is not None:
            if self.acting is not None:
                self.acting.follow(components.schedule, lambda: self.progress.iterations)
                stack.callback(self.acting.follow)
            run = Run(self.agent, self.config, self._path, self.progress, self._wall)
            notes = [*notes, *self._callbacks.start(run, states)]
        for note in notes:
            components.notes.append(note)
            self.display.note(note)
        self._clock.ready()
        self._steps_before = self.progress.steps
        return components

    def _loop(self, components: Components, recording: RunRecording) -> None:
        progress, run = self.progress, self.config.run
        every = max(run.steps // 10, 1) if run.checkpoint_every is None else run.checkpoint_every
        if not self.resume:
            progress.next_checkpoint = _next(progress.steps, every) if every else 0
            progress.next_eval = _next(progress.steps, run.eval_every) if run.eval_every else 0
            if self.start is not None:  # from here on the folder needs no other
                self._save(components)
        while True:
            # First what the last boundary owes: a run stopped while it evaluated resumes here.
            if components.evaluator is not None and progress.steps and (
                (run.eval_every and progress.steps >= progress.next_eval)
                or self._done() == "steps"
            ):  # fmt: skip
                self._evaluate(components)
                progress.next_eval = _next(progress.steps, run.eval_every or run.steps)
                if self._callbacks is not None:
                    self._callbacks.evaluation(progress.last_eval or {})
            row_due = progress.steps >= progress.next_log or progress.last_eval is not None
            if progress.pending_count and (row_due or self._done()):
                self._log()
                progress.next_log = _next(progress.steps, run.log_every)
            elif self._done():  # killed after its last row, a run evaluates again, for its summary
                progress.last_eval = None
            if every and progress.steps >= progress.next_checkpoint and progress.steps:
                progress.next_checkpoint = _next(progress.steps, every)
                if self._callbacks is not None and self.folder is not None:
                    self._callbacks.tell("on_checkpoint")
                self._save(components)
                if components.planner is not None:
                    self._go_on(components.planner.check(progress.steps), components)
            if self._done():
                return
            due = progress.due(run.steps, run.eval_every > 0)
            for metrics in components.schedule.advance(self._iterations(due)):
                self._per_iteration = metrics.steps
                self._account(metrics)
                if components.planner is not None:
                    with self.interrupts.discardable():
                        change = components.planner.look(progress.steps)
                    self._go_on(change, components)
                if recording.tick(self.progress.counts):
                    self.display.load(*current_load(recording, components))
                if progress.steps >= due or self._done():
                    break

    def _go_on(self, change: Replanned | None, components: Components) -> None:
        """Go on with another placement, if there is one: raises it."""
        if change is None:
            return
        if change.same:
            self._save(components)
        raise change

    def _iterations(self, due: int) -> int:
        """Iterations that lie before a step, if they go on as the last one."""
        if not self._per_iteration:
            return 1
        return max(-(-(due - self.progress.steps) // max(self._per_iteration, 1)), 1)

    def _done(self) -> str:
        """Why the run has ended, or an empty string."""
        goal = self.config.run.stop_at_return
        if self.progress.steps >= self.config.run.steps:
            return "steps"
        mean = None if goal is None else self.progress.return_mean_100
        if goal is not None and mean is not None and mean >= goal:
            return "return"
        run = None if self._callbacks is None else self._callbacks.run
        return "callback" if run is not None and run.stopped else ""

    def _account(self, metrics: Metrics) -> None:
        """Count one iteration."""
        progress = self.progress
        progress.add(metrics, self._logs.by_episode)
        if len(metrics.episodes.env) and self._logs.by_episode:
            with self._spans.span("log"):
                self._logs.log_episodes(metrics.episodes, progress)
        wall = self._wall()
        progress.note_reached(self.config.run.goals, wall)
        self.display.update(progress, metrics.values, wall)
        if self._callbacks is not None:
            self._callbacks.iteration(metrics)

    def _evaluate(self, components: Components) -> None:
        assert components.evaluator is not None
        progress = self.progress
        with self.interrupts.discardable(), self._spans.span("eval"):
            params = components.schedule.params
            result: Evaluation = components.evaluator.run(params, progress.iterations)
        progress.last_eval = result.row()
        self._evaluated = result.return_mean
        if progress.best_return is None or result.return_mean > progress.best_return:
            progress.best_return = result.return_mean
            if self.folder is not None:
                self.folder.check()
                with self._spans.span("checkpoint"):
                    arrays = components.schedule.snapshot().arrays
                    save_parameters(
                        self.folder.path / BEST, self.config, arrays, progress.best_return
                    )
        self.display.note(f"evaluation at step {progress.steps:,}: {result.words()}")

    def _log(self) -> None:
        """Log a row of the metrics since the last one; docs/metrics.md describes every key."""
        with self._spans.span("log"):
            row: dict[str, float] = {"time/wall_s": self._wall(), "time/steps_per_s": self._rate()}
            if not self.config.hyper.acts:
                row["time/examples_per_s"] = self._rate() * self.config.hyper.batch_size
            self._last_values = self.progress.means()
            phases = {f"phase/{name}": share for name, share in self._clock.times().phases.items()}
            row |= self.progress.drain({"step", *row, *phases}) | phases
            self._logs.log(row, self.progress.steps)

    def _save(self, components: Components, apart: bool = False) -> None:
        """Write a checkpoint, everything logged before it being on disk first; one of several
        members adds to that of all, or writes its own where it ends `apart`."""
        together = None if apart else self._together
        if self.folder is None or (self._saved == self.progress.iterations and not apart):
            return
        self.folder.check()
        with self._spans.span("checkpoint"):
            self._logs.sync(self.progress)
            snapshot = components.schedule.snapshot()
            self._describe(snapshot)
            if together is not None:
                together.save(self._member, self.progress.steps, snapshot)
                self._save_final(snapshot)
            else:
                checkpoint.save(
                    self.folder.checkpoints, self.progress.steps, snapshot,
                    self.config.run.keep_checkpoints, self._store,
                )  # fmt: skip
        self._saved = self.progress.iterations

    def _save_final(self, snapshot: Snapshot) -> None:
        """Write what acting needs."""
        assert self.folder is not None
        mean = self.progress.return_mean_100
        save_parameters(self.folder.path / FINAL, self.config, snapshot.arrays, mean)

    def _describe(self, snapshot: Snapshot) -> None:
        """Add what the run itself knows to a schedule's state."""
        snapshot.data["progress"] = self.progress.to_json() | {"wall_s": self._wall()}
        if self._callbacks is not None:
            snapshot.data[SAVED] = self._callbacks.state()

    def _keep(self, components: Components) -> None:
        """Keep in memory what an agent goes on from."""
        final = components.schedule.snapshot()
        final.data["progress"] = self.progress.to_json() | {"wall_s": self._wall()}
        self.final = final

    def _finish(self, components: Components, recording: RunRecording) -> dict[str, Any]:
        """Save what there is, and say what was achieved."""
        if (self.progress.pending_count or self.progress.logged) and self.interrupted is None:
            self._log()
        together, ended = self._together, self._done()
        early = self.interrupted is None and ended != "steps"
        if together is None or not early:
            self._save(components)
        if together is not None and self.interrupted is None:
            assert together.group is not None
            if early or together.group.each:
                self._save(components, apart=True)
        self._keep(components)
        assert self.final is not None
        if self.folder is not None:
            self.folder.check()
            if self.interrupted is None:
                with self._spans.span("checkpoint"):
                    self._save_final(self.final)
        recording.close()
        if self.display.lost:
            components.notes.append(f"{self.display.lost}: the run went on without its display")
        times = self._clock.times()
        summary = summarise(
            self.config, self.progress, components, times,
            steps_per_s=self._rate(),
            last=self._last_values,
            run_dir=None if self._path is None else str(self._path),
            ended="signal" if self.interrupted is not None else self._done(),
            evaluated=self._evaluated,
            verdict=closing_verdict(
                recording, self.resolved, self._path, components.hardware, self.code
            ),
            parent=self._parent,
        )  # fmt: skip
        if self.folder is not None:
            self.folder.write_json("summary.json", summary)
            leave(self.folder.path, self.config, summary, self.code)
            if self._spans.trace:
                trace = json.dumps(self._spans.chrome_trace())
                nofollow.replace(self.folder.path / "trace.json", trace.encode())
        return summary

    @property
    def points(self) -> Points:
        """This process's learning curve."""
        return self._logs.track.points

    def _wall(self) -> float:
        """Seconds of the whole run, earlier parts of a resumed one counted."""
        return self.progress.wall_s + self._clock.elapsed_s()

    def _rate(self) -> float:
        """Environment steps per second of this process, after its start-up."""
        times = self._clock.times()
        trained_s = times.wall_s - times.startup_s
        return (self.progress.steps - self._steps_before) / max(trained_s, 1e-9)


def _next(steps: int, every: int) -> int:
    """The first multiple of `every` after `steps`."""
    return (steps // every + 1) * every
