"""Rules for writing, evaluating, compiling and devices. Pure."""

from __future__ import annotations

from flatout.config.schema import rows_every
from flatout.explain.facts import RunFacts
from flatout.explain.learning import update_s
from flatout.explain.proposals import Advice, Proposal, takes
from flatout.explain.settings import placed, worker_count
from flatout_explain import cards, cores
from flatout_explain.ranking import LEAST_SHARE
from flatout_explain.report import duration, percent

RARER = (10, 100)  # the smallest and the largest proposed factor by which something becomes rarer


def _rarer(share: float, every: int) -> int:
    """Return a longer interval, at which about a hundredth of the time remains."""
    times, most = RARER
    while times < most and share / times > 0.02:
        times *= 10
    return every * times


def writing(facts: RunFacts, share: float) -> Advice:
    """Return the finding about writing checkpoints and metrics."""
    settings = facts.settings
    first = (
        f"{takes(facts, 'io', share)}: checkpoints {percent(facts.checkpoints)}, metrics "
        f"{percent(facts.logs)}"
    )
    otherwise = "Keep the run folder on a faster disk."
    if facts.checkpoints >= facts.logs and settings.get("checkpoint_every") == 0:
        evals = int(settings.get("eval_every") or 0)
        if not evals:
            return Advice([first], otherwise)
        changes = {"eval_every": _rarer(facts.checkpoints, evals)}
        often = f"better parameters are saved after an evaluation, every {evals:,} steps"
        words = "Evaluate less often; what is learned stays the same."
    elif facts.checkpoints >= facts.logs:
        every = settings.get("checkpoint_every")
        every = max(int(settings.get("steps", 0)) // 10, 1) if every is None else int(every)
        changes = {"checkpoint_every": _rarer(facts.checkpoints, every)}
        often = f"a checkpoint every {every:,} steps (--checkpoint-every)"
        words = "Write checkpoints less often; a run that is killed then loses more."
    else:
        each = facts.steps / max(facts.iterations, 1)
        every = max(rows_every(settings.get("log_every"), facts.steps), int(each), 1)
        changes = {"log_every": _rarer(facts.logs, every)}
        often = f"a row of metrics every {every:,} steps (--log-every)"
        words = "Write metrics less often; each row then covers more iterations."
    return Advice([first, often], otherwise, [Proposal(words, changes)])


def evaluation(facts: RunFacts, share: float) -> Advice | None:
    """Return the finding about evaluation episodes."""
    every = int(facts.settings.get("eval_every") or 0)
    if not every:
        return None
    what, fewer = "the test set", ""
    if facts.config.hyper.acts:
        what, fewer = (
            f"{facts.settings['eval_episodes']} episodes",
            ", or with fewer --eval-episodes",
        )
    evidence = (
        f"{takes(facts, 'eval', share)}: {what} every {every:,} steps (--eval-every), during which "
        "nothing is learned"
    )
    words = f"Evaluate less often{fewer}; what is learned stays the same."
    return Advice([evidence], words, [Proposal(words, {"eval_every": _rarer(share, every)})])


def compiling(facts: RunFacts, share: float) -> Advice:
    """Return the finding about compiling after the start."""
    words = (
        "Shapes changed during training, because more episodes were truncated than the trajectory "
        "had room for. This settles by itself; compiled programs are cached for the next run. An "
        "environment that declares its time limit (gymnasium.wrappers.TimeLimit) has the room from "
        "the start."
    )
    return Advice([takes(facts, "compile", share)], words)


def oversubscribed(facts: RunFacts, share: float) -> Advice | None:
    """Return the finding about more threads than cores."""
    found = cores.oversubscribed(facts.use.cores)
    if found is None:
        return None
    share, sentence = found
    proposals = list[Proposal]()
    fewer, workers = worker_count(facts.envs, facts.cores), facts.placement.workers
    if workers is not None and workers[0] > facts.cores and fewer > 1:
        words = f"Use {fewer} processes, no more than there are cores, so that none waits for one."
        changes = placed(facts.placement, workers=(fewer, facts.envs // fewer))
        proposals = [Proposal(words, changes)]
    otherwise = "Let this run use fewer threads (OMP_NUM_THREADS=1)."
    return Advice([sentence], otherwise, proposals, share)


def throttled(facts: RunFacts, share: float) -> Advice | None:
    """Judge a CPU quota that stops the run."""
    found = cores.throttled(facts.use.cores)
    return None if found is None else Advice(found.evidence, found.remedy, share=found.share)


def gpu_unused(facts: RunFacts, share: float) -> Advice | None:
    """Return the finding about an unused GPU."""
    if not facts.gpus or facts.placement.gpus or not facts.updates:
        return None
    update = update_s(facts, share)
    evidence = [
        f"{facts.gpus[0]} is available but not used; learning on the CPU takes {percent(share)} of "
        f"the time, {duration(update)} for each update"
    ]
    if share < LEAST_SHARE or not (facts.images or cards.worthwhile(update)):
        return Advice(evidence, "Change nothing: updates this small are faster on the CPU.")
    words = "Learn on the GPU; collecting takes as long as before."
    changes = {"placement": "gpu" if facts.images else "cpu+gpu"}
    return Advice(evidence, words, [Proposal(words, changes)])
