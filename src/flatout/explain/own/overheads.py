"""Rules for writing, evaluating, compiling and devices. Pure."""

from __future__ import annotations

from flatout.config.schema import rows_every
from flatout.explain import cards, cores
from flatout.explain.diagnosis import Finding
from flatout.explain.own.costs import Costs
from flatout.explain.own.proposals import WORTH_SAYING, Proposal, propose, time_words
from flatout.explain.own.settings import placed, worker_count
from flatout.explain.report import percent
from flatout.planning.facts import RunFacts

RARER = (10, 100)  # the smallest and the largest proposed factor by which something becomes rarer


def _rarer(share: float, every: int) -> int:
    """Return a longer interval, at which about a hundredth of the time remains."""
    times, most = RARER
    while times < most and share / times > 0.02:
        times *= 10
    return every * times


def writing(facts: RunFacts, cost: Costs, share: float) -> Finding:
    """Checkpoints and metrics."""
    settings = facts.settings
    evidence = [
        f"writing takes {percent(share)} of the time: checkpoints "
        f"{percent(facts.checkpoints)}, metrics {percent(facts.logs)}"
    ]
    if facts.checkpoints >= facts.logs:
        every = settings.get("checkpoint_every")
        every = max(int(settings.get("steps", 0)) // 10, 1) if every is None else int(every)
        changes = {"checkpoint_every": _rarer(facts.checkpoints, every)}
        evidence.append(f"a checkpoint every {every:,} steps (--checkpoint-every)")
        words = "Write checkpoints less often; a run that is killed then loses more."
    else:
        each = facts.steps / max(facts.iterations, 1)
        every = max(rows_every(settings.get("log_every"), facts.steps), int(each), 1)
        changes = {"log_every": _rarer(facts.logs, every)}
        evidence.append(f"a row of metrics every {every:,} steps (--log-every)")
        words = "Write metrics less often; each row then covers more iterations."
    otherwise = "Keep the run folder on a faster disk."
    return propose("io-bound", share, evidence, otherwise, facts, [Proposal(words, changes)])


def evaluation(facts: RunFacts, cost: Costs, share: float) -> Finding | None:
    """Evaluation episodes."""
    every = int(facts.settings.get("eval_every") or 0)
    if not every:
        return None
    episodes = facts.settings.get("eval_episodes", 0)
    evidence = [
        f"evaluation takes {percent(share)} of the time: {episodes} episodes every {every:,} "
        "steps (--eval-every), during which nothing is learned"
    ]
    words = "Evaluate less often, or with fewer --eval-episodes; what is learned stays the same."
    proposals = [Proposal(words, {"eval_every": _rarer(share, every)})]
    return propose("eval-bound", share, evidence, words, facts, proposals)


def compiling(facts: RunFacts, cost: Costs, share: float) -> Finding:
    """Compiling after the start."""
    evidence = [f"compiling programs again takes {percent(share)} of the time"]
    words = (
        "Shapes changed during training, because more episodes ended than the trajectory had room "
        "for. This settles by itself; compiled programs are cached for the next run."
    )
    return propose("compile-bound", share, evidence, words, facts)


def oversubscribed(facts: RunFacts, cost: Costs, share: float) -> Finding | None:
    """More threads than cores."""
    found = cores.oversubscribed(facts.use.cores)
    if found is None:
        return None
    share, sentence = found
    proposals: list[Proposal] = []
    fewer = worker_count(facts.envs, facts.cores)
    workers = facts.placement.workers
    if workers is not None and workers[0] > facts.cores and fewer > 1:
        words = f"Use {fewer} processes, no more than there are cores, so that none waits for one."
        changes = placed(facts.placement, workers=(fewer, facts.envs // fewer))
        proposals.append(Proposal(words, changes))
    otherwise = "Let this run use fewer threads (OMP_NUM_THREADS=1)."
    return propose("oversubscribed", share, [sentence], otherwise, facts, proposals)


def throttled(facts: RunFacts, cost: Costs, share: float) -> Finding | None:
    """Judge a CPU quota that stops the run."""
    found = cores.throttled(facts.use.cores)
    if found is None:
        return None
    return propose("throttled", found.share, list(found.evidence), found.remedy, facts)


def gpu_unused(facts: RunFacts, cost: Costs, share: float) -> Finding | None:
    """An unused GPU."""
    if not facts.gpus or any(device.kind == "gpu" for device in facts.placement.devices):
        return None
    if not facts.updates:
        return None
    share = facts.phases["learn"]
    update = share * facts.seconds / max(facts.updates, 1)
    evidence = [
        f"{facts.gpus[0]} is available but not used; learning on the CPU takes {percent(share)} of "
        f"the time, {time_words(update)} for each update"
    ]
    if share < WORTH_SAYING or not (facts.images or cards.worthwhile(update)):
        words = "Change nothing: updates this small are faster on the CPU."
        return propose("gpu-unused", share, evidence, words, facts)
    words = "Learn on the GPU; collecting takes as long as before."
    changes = {"placement": "gpu" if facts.images else "cpu+gpu"}
    proposals = [Proposal(words, changes)]
    return propose("gpu-unused", share, evidence, words, facts, proposals)


def memory(facts: RunFacts, cost: Costs, share: float) -> Finding | None:
    """A full GPU memory that other programs use, too."""
    use = facts.use
    if use.gpu_memory is None or not cards.full(use.gpu_memory, use.gpu_others):
        return None
    evidence = [
        f"{percent(use.gpu_memory)} of the GPU's memory is in use, partly by other programs"
    ]
    words = "Limit this run's share with memory= in --placement, or move a program to another GPU."
    return propose("memory-contended", 0.0, evidence, words, facts)
