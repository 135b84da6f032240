"""Step 1 of the data flow: the run asks a schedule for iterations, logs, saves and evaluates.

Glossary. *step*: one environment step, summed over environments. *update*: one gradient step.
*iteration*: one collected trajectory and the updates that it pays for. *version*: iterations
learned from. The trainer knows nothing of how data flows: it advances a schedule, counts and saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

import jax

from flatout.algorithms.common.diagnostics import input_notes
from flatout.config.schema import TrainConfig, rows_every
from flatout.engine.programs import Programs
from flatout.errors import (
    CallbackFailure,
    CheckpointError,
    EnvironmentFailure,
    FlatoutError,
    Interrupt,
    one_line,
)
from flatout.evaluation import Evaluation
from flatout.planning.machine import keep_network
from flatout.planning.predict import Prediction
from flatout.run.acting import Acting
from flatout.run.auto import with_placement
from flatout.run.build import Components, assemble
from flatout.run.callbacks import SAVED, CallbackLike, Callbacks, Run
from flatout.run.curve import Points
from flatout.run.interrupts import Interrupts
from flatout.run.loggers import WANDB, RunLogs
from flatout.run.planner import Replanned
from flatout.run.progress import Display, Progress
from flatout.run.recording import RunRecording, closing_verdict, current_load, start_recording
from flatout.run.resolve import resolve_run
from flatout.run.resume import Found, Start, begin
from flatout.run.saving import Saver
from flatout.run.summary import summarise
from flatout.spans import RunClock, Spans
from flatout.storage.run_folder import RunFolder
from flatout.storage.span_records import PLAN
from flatout.types import NAMED, Metrics, Snapshot, UserCode
from flatout_explain.hardware.monitor import Sampler


@dataclass(eq=False)
class Trainer:
    """One run from its settings to its summary.

    Args:
        code: see `assemble`.
        folder: the run's folder; None saves nothing.
        resume: whether to resume from the folder's newest checkpoint.
        start: the state to start from; by default a new one.
        callback: see `flatout.run.callbacks`.
        agent, acting: what callbacks see as `run.agent`, and what it acts with.
        started: `time.perf_counter_ns` at which the run's clock started (the process's start).
        programs: that other runs of this shape have compiled.
        interrupts: handles signals already; by default handlers of its own are installed. Its
            `signum` also tells of a signal that found the run just finished.
        sampler: samples the devices for several runs in this process.
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
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        self._callbacks = None if self.callback is None else Callbacks(self.callback)
        self._parent = None if self.start is None else self.start.parent
        self._path = None if self.folder is None else self.folder.path
        self._expected: Prediction | None = None  # by which the placement was chosen
        self._moved = False  # the run has begun, with another placement
        self._left: TrainConfig | None = None  # with that placement, until the next one works
        known = [] if self.folder is None else [self.folder.wandb]
        if self.start is not None and self.start.continues:
            known.append(self.start.state.data.get(WANDB))
        self._logs = RunLogs(self.config, self._path, known)
        self.progress = Progress()
        self.interrupted: int | None = None
        self._last_values: dict[str, float] = {}
        self._unused_states: Any = None  # of callbacks that an earlier part of the run had
        self.final: Snapshot | None = None
        self._spans = Spans()
        self._measure(self.started)

    def _measure(self, started: int | None = None) -> None:
        """Start the clocks of a placement, now or at `started`."""
        if self._moved:
            self._spans = self._spans.next()
        else:  # a run that begins again keeps its clock, and the time in which it was planned
            measured = self._spans.totals.get(PLAN, 0)
            self._spans = Spans(trace=self.config.run.trace)
            if measured:
                self._spans.add(PLAN, measured)
        self._saver = Saver(self.config, self.folder, self._spans, self.programs)
        self._clock = RunClock(self._spans, started)
        self._per_iteration = 0  # steps

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
            if self.folder is not None and not self.resume:
                self.folder.prepare(self.config, self._parent, self._logs.wandb)
            while True:
                try:
                    with ExitStack() as opened:
                        return self._run(opened, stack)
                except Replanned as change:
                    self._take(change)
                except (FlatoutError, jax.errors.JaxRuntimeError) as error:  # no memory, say
                    if self._left is None:
                        raise
                    self._go_back(self._left, error)

    def _run(self, stack: ExitStack, whole: ExitStack) -> dict[str, Any]:
        """Train with one placement; see `run`. `stack` closes at the placement's end, `whole` at
        the run's."""
        resumes = self.resume
        try:
            # While a run moves, a signal waits for its next trajectory, so that nothing is lost.
            with nullcontext() if self._moved else self.interrupts.discardable():
                found = self._saver.newest(self.display.note) if self.resume else None
                self._refuse_lost_start(found)
                if found and (before := self._saver.nothing_left(found[2], self.display.note)):
                    return before
                components = self._assemble(stack, found)
        except Interrupt as stop:
            self.interrupted = stop.signum
            return {}
        self._logs.open(self.progress, resumes, components.algorithm.replay is not None, whole)
        recording = start_recording(
            self.config, components, self.progress, self._spans, self._clock, self._wall,
            self._path, self._path is not None or self.display.shows, self.sampler,
        )  # fmt: skip
        stack.callback(recording.close)
        try:
            try:
                self._loop(components, recording)
            except Interrupt as stop:
                self.interrupted = stop.signum
                self.display.note("stopping: the run is saved after its last whole iteration")
            self._announce_checkpoint()  # the last one, which follows
            if self._callbacks is not None:
                self._callbacks.tell("on_end")
            recording.end(self.progress.counts)
            return self._finish(components, recording)
        except (EnvironmentFailure, CallbackFailure):  # what was learned before is whole
            if self._callbacks is not None:
                self._callbacks.failed = True
            with suppress(FlatoutError):
                self.final = self._state(components)
                self._save(components, apart=True)
            raise

    def _refuse_lost_start(self, found: Found | None) -> None:
        """Refuse to resume a run that was to start from another one, and that was killed before it
        had saved anything, unless what it starts from is given again.

        Raises:
            CheckpointError: the run would begin from nothing.
        """
        if self.folder is None or not self.resume or found is not None or self.start is not None:
            return
        if (parent := self.folder.parent) is not None:
            path = self.folder.named
            raise CheckpointError(
                f"{path} holds a run that was to start from {parent} and was killed before it had "
                f"saved anything; remove {path} and start the run from {parent} again."
            )

    def _take(self, change: Replanned) -> None:
        """Change to another placement and resume from the folder's newest checkpoint, or from
        memory without a folder. If the placement acts in other groups, whose bits differ, begin
        again."""
        self.config = with_placement(self.config, change.chosen.placement)
        self._expected, self._moved, self._left = change.chosen, change.same, self.resolved
        if change.same:
            self.resume = self.folder is not None
            self.progress.wall_s = self._wall()
            self._measure()
            return
        if self.folder is not None:
            self.folder.empty()
        self._logs.begin_again()
        self.resume, self.progress, self._last_values = False, Progress(), {}
        self._measure(self.started)

    def _go_back(self, left: TrainConfig, error: Exception) -> None:
        """Return to the placement that the run has left, because the next one failed."""
        self.display.note(
            f"the placement '{self.config.run.placement}' cannot be used ({one_line(error)}): the "
            f"run continues with '{left.run.placement}'"
        )
        self.config, self._left, self._expected = left, None, None
        self.resume = self._moved and self.folder is not None
        self.progress.wall_s = self._wall() if self._moved else 0.0
        self._measure(None if self._moved else self.started)

    def _assemble(self, stack: ExitStack, found: Found | None) -> Components:
        """Make everything that is needed before the first step; `found` is the checkpoint to resume
        from."""
        self.resume = found is not None
        if found is not None and not self._moved:
            self.progress = found[2]
        made = self.progress.steps
        if found is None and self.start is not None:
            made = self.start.made
        checked = self.acting is not None and self.acting.checked
        resolved = resolve_run(
            self.config, self.code, self.display.note, programs=self.programs, checks=not checked
        )
        components = assemble(
            resolved, self._spans, expected=self._expected,
            keeps=self.resume or self._moved or self.callback is not None,
            discardable=self.interrupts.discardable, announce=self.display.note,
            programs=self.programs, made=made,
        )  # fmt: skip
        stack.callback(components.close)
        if found is None:
            notes, progress = begin(components.schedule, self.start, self._parent)
            self.progress = self.progress if self._moved else progress
        else:
            notes = self._saver.restore(components.schedule, *found[:2])
        # A resumed run takes what was chosen, whatever would be chosen then.
        self.resolved = resolved = with_placement(self.config, components.placement)
        if self.folder is not None:
            if not self._moved:
                notes = [*notes, *filter(None, [self.folder.died_of])]
            self._parent = self._parent or self.folder.parent
            self.folder.write_config(
                resolved, str(components.placement), self._parent, self._logs.wandb
            )
        before = None if found is None else found[1]
        if before is None and self.start is not None and self.start.continues:
            before = self.start.state  # has states only if it was read from a folder
        states = None if before is None else before.data.get(SAVED)
        if self._callbacks is not None:
            if self.acting is not None:
                self.acting.follow(components.schedule, lambda: self.progress.iterations)
                stack.callback(self.acting.follow)
            run = Run(self.agent, self.config, self._path, self.progress, self._wall)
            notes = [*notes, *self._callbacks.start(run, states)]
        elif states and not self._unused_states:
            self._unused_states = states
            note = "this run had callbacks, and continues without them"
            if self.folder is not None:
                note += "; their states are kept for learn(callback=...) in Python"
            notes = [*notes, f"{note}."]
        for note in notes:
            components.notes.append(note)
            self.display.note(note)
        self._left = None
        if self._moved:  # what it came from is no longer needed
            self.start = self.final = None
        self._clock.ready()
        self._steps_before = self.progress.steps
        return components

    def _loop(self, components: Components, recording: RunRecording) -> None:
        progress, run = self.progress, self.config.run
        every = max(run.steps // 10, 1) if run.checkpoint_every is None else run.checkpoint_every
        resumes = self.resume or self._moved
        if not resumes:
            progress.next_eval = progress.after(run.eval_every) if run.eval_every else 0
        # A resumed run may have other intervals than before; what was due already stays due.
        planned = progress.next_checkpoint if resumes else 0
        next_one = progress.after(every) if every else 0
        progress.next_checkpoint = min(planned or next_one, next_one)
        next_row = progress.after(rows_every(run.log_every, progress.steps))
        progress.next_log = min(progress.next_log, next_row)
        if self.start is not None and not resumes:  # from here on the folder needs no other
            self._save(components)
        while True:
            # First what the last boundary owes: a run stopped while it evaluated resumes here.
            if components.evaluator is not None and progress.steps and (
                (run.eval_every and progress.steps >= progress.next_eval)
                or self._done() == "steps"
                or (self._done() == "return" and progress.pending_count)  # reached here
            ):  # fmt: skip
                self._evaluate(components)
                progress.next_eval = progress.after(run.eval_every or run.steps)
                if self._callbacks is not None:
                    self._callbacks.evaluation(progress.last_eval or {})
            row_due = progress.steps >= progress.next_log or progress.last_eval is not None
            if progress.pending_count and (row_due or self._done()):
                self._log()
                progress.next_log = progress.after(rows_every(run.log_every, progress.steps))
            elif self._done():  # killed after its last row, a run evaluates again, for its summary
                progress.last_eval = None
            if every and progress.steps >= progress.next_checkpoint and progress.steps:
                progress.next_checkpoint = progress.after(every)
                if self._done():  # a resumed run keeps the records that end before its checkpoint
                    recording.end(progress.counts)
                self._save(components)
                if components.planner is not None and not self._done():
                    self._go_on(
                        components.planner.check(progress.steps, progress.lengths), components
                    )
            if self._done():
                return
            due, later = progress.due(run.steps, run.eval_every > 0)
            for metrics in components.schedule.advance(*map(self._iterations, (due, later))):
                self._per_iteration = metrics.steps
                self._account(metrics, components)
                if components.planner is not None and not self._done():
                    with self.interrupts.discardable():
                        change = components.planner.look(progress.steps, progress.lengths)
                    self._go_on(change, components)
                if components.planner is None or components.planner.settled:
                    self._logs.release()
                if recording.tick(self.progress.counts):
                    self.display.load(*current_load(recording, components))
                if progress.steps >= due or self._done():
                    break

    def _go_on(self, change: Replanned | None, components: Components) -> None:
        """Raise a change to another placement, if there is one, after saving the state."""
        if change is None:
            return
        if change.same and self.folder is not None:
            self._save(components)
        elif change.same:
            self.final = self._state(components)
            self.start = Start(self.final, continues=True, parent=self._parent)
        raise change

    def _iterations(self, due: int) -> int:
        """Return the number of iterations before a step, if they are as long as the last one."""
        if not self._per_iteration:
            return 1
        return max(-(-(due - self.progress.steps) // max(self._per_iteration, 1)), 1)

    def _done(self) -> str:
        """Return why the run has ended, or an empty string."""
        run = self.config.run
        if why := self.progress.ended(run.steps, run.stop_at_return):
            return why
        return "callback" if self._callbacks is not None and self._callbacks.stopped else ""

    def _account(self, metrics: Metrics, components: Components) -> None:
        """Count one iteration."""
        progress = self.progress
        for note in input_notes(metrics, progress.steps, progress.lasting, progress.noted):
            components.notes.append(note)
            self.display.note(note)
        progress.add(metrics, self._logs.by_episode)
        if self._logs.by_episode and len(metrics.episodes.env):
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
        progress.evaluated = result.return_mean
        if progress.best_return is None or result.return_mean > progress.best_return:
            progress.best_return = result.return_mean
            self._saver.save_best(progress, components.schedule)
        self.display.note(f"evaluation at step {progress.steps:,}: {result.words()}")

    def _log(self) -> None:
        """Log a row of the metrics since the last one."""
        self._last_values = self.progress.means() or self._last_values
        phases = self._clock.times().phases
        with self._spans.span("log"):
            self._logs.log_row(self.progress, self._wall(), self._rate(), phases)

    def _save(self, components: Components, apart: bool = False) -> None:
        """Write a checkpoint; see `Saver.save`."""
        if not apart:
            self._announce_checkpoint()
        self._saver.save(self.progress, partial(self._whole, components), apart)

    def _announce_checkpoint(self) -> None:
        """Call `on_checkpoint` if a checkpoint of this iteration is still to be written."""
        if self._callbacks is not None and self._saver.is_due(self.progress):
            self._callbacks.tell("on_checkpoint")

    def _whole(self, components: Components) -> Snapshot:
        """Return the state for a checkpoint, after everything that was logged is on disk."""
        self._logs.sync(self.progress)
        snapshot = self._state(components)
        if self._callbacks is not None:
            snapshot.data[SAVED] = self._callbacks.state()
        elif self._unused_states:
            snapshot.data[SAVED] = self._unused_states
        return snapshot

    def _state(self, components: Components) -> Snapshot:
        """Return the schedule's state and the counters, from which an agent can continue in
        memory."""
        snapshot = components.schedule.snapshot()
        snapshot.data["progress"] = self.progress.to_json() | {"wall_s": self._wall()}
        snapshot.data[WANDB] = self._logs.wandb
        return snapshot

    def _finish(self, components: Components, recording: RunRecording) -> dict[str, Any]:
        """Save the final state, and return the summary."""
        if (self.progress.pending_count or self.progress.logged) and self.interrupted is None:
            self._log()
        ended = "signal" if self.interrupted is not None else self._done()
        self._saver.save_last(self.progress, partial(self._whole, components), ended)
        self.final = self._state(components)
        self._saver.save_final(self.progress, self.final, ended)
        recording.close()
        if self.display.lost:
            components.notes.append(f"{self.display.lost}: the run continued without its display")
        times = self._clock.times()
        summary = summarise(
            self.config, self.progress, components, times,
            steps_per_s=self._rate(),
            last=self._last_values,
            run_dir=None if self.folder is None else str(self.folder.named),
            ended=ended,
            verdict=closing_verdict(
                recording, self.resolved, self._path, components.hardware, self.code
            ),
            parent=self._parent,
        )  # fmt: skip
        self._saver.leave(summary, self.code)
        keep_network(summary["flow"])
        return summary

    @property
    def points(self) -> Points:
        """This process's learning curve."""
        return self._logs.track.points

    def _wall(self) -> float:
        """Return the seconds of the whole run, including earlier parts of a resumed run."""
        return self.progress.wall_s + self._clock.elapsed_s()

    def _rate(self) -> float:
        """Return this process's environment steps per second after its start-up."""
        times = self._clock.times()
        trained_s = times.wall_s - times.startup_s
        return (self.progress.steps - self._steps_before) / max(trained_s, 1e-9)
