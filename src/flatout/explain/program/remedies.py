"""Each cause's evidence, remedy and gain, for users' programs.

Every gain is ``1 / (1 - s * (1 - r))``: the cause takes the share s of the time, of which r remains
after the remedy. Each rule describes its r.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from flatout.explain.diagnosis import Finding
from flatout.explain.program import tags
from flatout.explain.program.calls import mostly_with_gradients
from flatout.explain.program.facts import Facts
from flatout.explain.report import percent
from flatout.planning.gains import ASSUMED, MODELLED

SPREAD = 0.3  # half of a prediction's interval, relative to the saved and to the remaining time
PROCESS_COST = 0.10  # relative cost of running in a separate process
ENVIRONMENTS = 8  # environments per batched call that are proposed for a program with one
SHORT_AVERAGE_S = 0.002  # averages shorter than this are dominated by latency

COLLECTIVE = re.compile(r"all_?reduce|all_?gather|broadcast|reduce_scatter", re.IGNORECASE)

RARER = 10  # factor by which to write more rarely
PERMUTED = 0.3  # share of a phase from which on permuting all rows is its problem


@dataclass(frozen=True)
class Remedy:
    """A rule's proposal."""

    words: str  # what to change
    remains: float  # remaining part of the cause's share
    kind: str = ASSUMED  # of the gain, `MODELLED` or `ASSUMED`
    evidence: list[str] | None = None  # by default the heaviest places


def gain_of(share: float, remains: float) -> tuple[float, float, float]:
    """(gain, low, high) if the part `remains` of `share` is left."""
    saved = min(max(share * (1 - remains), 0.0), 0.99)
    after = 1 - saved
    return 1 / after, 1 / (after + SPREAD * saved), 1 / (after - SPREAD * min(saved, after))


def finding(cause: str, facts: Facts, share: float) -> Finding:
    """The finding of a cause that takes a share of the time."""
    phase, rule = REMEDIES[cause]
    remedy = rule(facts, share)
    evidence = facts.heaviest(phase, share) if remedy.evidence is None else remedy.evidence
    gains = gain_of(share, remedy.remains)
    return Finding(cause, share, tuple(evidence), remedy.words, *gains, kind=remedy.kind)


# --- Phases -----------------------------------------------------------------------------------


def env(facts: Facts, share: float) -> Remedy:
    """Environments. Remains: one part in W processes, limited by the cores' combined speed, plus
    the cost of a process."""
    evidence = facts.heaviest("env", share)
    steps = facts.counted.rate(sum(call.kind == "env" for call in facts.counted.calls))
    if steps:
        evidence.append(f"about {steps:,.0f} environment steps per second")
    spare, cores = facts.spare, facts.cores
    now = max(1.0, min(facts.blame.workers, facts.capacity))
    remains = (1 + PROCESS_COST) * now / facts.capacity
    if spare >= 0.25 and remains <= 0.95:
        return Remedy(
            f"Step environments in {max(2, cores)} processes at once ({spare:.1f} of {cores} cores "
            "are idle), for example gymnasium.vector.AsyncVectorEnv.",
            remains, MODELLED, evidence,
        )  # fmt: skip
    why = "All cores are busy already"
    if spare >= 0.25:
        together = f"together the {cores} cores do {facts.capacity:.1f} times what one does"
        why = f"Processes would gain little: {together}"
    words = f"{why}: make the step itself cheaper, beginning with the line above."
    return Remedy(words, 0.8, ASSUMED, evidence)


def acting(facts: Facts, share: float) -> Remedy:
    """Actions. Remains: one call instead of n, plus 1 % for each of the n. n is the number of calls
    between two steps now, or `ENVIRONMENTS`."""
    evidence = facts.heaviest("act", share)
    acts = [call for call in facts.counted.calls if facts.acts(call)]
    grads = mostly_with_gradients(acts)
    if acts:
        name, batch = Counter((call.owner, call.batch) for call in acts).most_common(1)[0][0]
        evidence.insert(
            0,
            f"{name} is called about {facts.counted.rate(len(acts)):,.0f} times/s with batch "
            f"{batch}, {'gradients on' if grads else 'no gradients'}: {percent(share)} of the time"
            f"{facts.at('act')}",
        )
    now = facts.acts_in_a_row
    together = max(ENVIRONMENTS, now)
    return Remedy(
        f"Choose actions for {together} environments in one call (stack their observations) "
        f"{'under torch.no_grad(), ' if grads else ''}and keep a small network on the CPU.",
        (1 + 0.01 * (together - 1)) / together,
        MODELLED if now >= ENVIRONMENTS else ASSUMED,
        evidence,
    )


def replay(facts: Facts, share: float) -> Remedy:
    """Replay. Remains: the gather without drawing a permutation; with arrays instead of objects
    a twelfth."""
    drawn, where = _drawn(facts, "replay"), facts.at("replay")
    if drawn > PERMUTED:
        return Remedy(
            f"Draw only the indices that a batch needs{where}: np.random.randint(len(buffer), "
            "size=batch) instead of a permutation of all stored steps; keep steps in arrays.",
            1 - drawn, MODELLED,
        )  # fmt: skip
    return Remedy(
        f"Store steps in preallocated arrays, and gather a batch with one fancy index{where}: "
        "obs[indices] instead of a list of tuples (for priorities a sum tree).",
        0.08,
    )


def inputs(facts: Facts, share: float) -> Remedy:
    """A data set. Remains: the gather without drawing a permutation; else what W workers on the
    idle cores cannot hide behind learning, limited by the cores' combined speed."""
    drawn = _drawn(facts, "input")
    if drawn > PERMUTED:
        return Remedy(
            f"Draw only the indices that a batch needs{facts.at('input')}: "
            "rng.integers(len(data), size=batch) instead of a permutation of all examples; or one "
            "permutation for a whole epoch.",
            1 - drawn, MODELLED,
        )  # fmt: skip
    workers = max(1, round(facts.spare) + (0 if facts.blame.workers else 1))
    rest = 1 - share
    after = max(rest, share / workers, 1 / facts.capacity) * 1.05
    return Remedy(
        f"Load and augment in {max(workers, 2)} background processes "
        "(DataLoader(num_workers=..., persistent_workers=True), tf.data .map(...).prefetch), and "
        "do what is the same each time only once.",
        min(1.0, max(0.0, (after - rest) / share)), MODELLED,
    )  # fmt: skip


def ipc(facts: Facts, share: float) -> Remedy:
    """Pipes. Remains: a fifth, the cost of shared memory."""
    return Remedy(
        "Move arrays through multiprocessing.shared_memory (write in place, send only an index), "
        "and several steps at once.",
        0.2,
    )


def io(facts: Facts, share: float) -> Remedy:
    """Files. Remains: a tenth."""
    words = f"Write {RARER} times less often{facts.at('io')}, without a flush each time."
    return Remedy(words, 1 / RARER, MODELLED)


def compiling(facts: Facts, share: float) -> Remedy:
    """Repeated compilation. Remains: almost nothing."""
    return Remedy(
        f"Compile once{facts.at('compile')}: create jitted functions outside of the loop, pad "
        "arguments to a few fixed shapes, and pass changing numbers as arrays, not as static "
        "arguments.",
        0.03, MODELLED,
    )  # fmt: skip


def waiting(facts: Facts, share: float) -> Remedy:
    """A lockstep. Remains: the work, spread evenly over all workers."""
    words = facts.by_call("wait")
    asleep = words["sleep"] / (sum(words.values()) or 1.0)
    evidence = facts.heaviest("wait", share)
    evidence.append(f"{facts.spare:.1f} of {facts.cores} cores are idle meanwhile")
    if asleep > 0.5 and facts.blame.balance > 0.99:
        return Remedy(
            f"Do not sleep in the loop{facts.at('wait')}: block on the queue or pipe until "
            "there is work.",
            0.03, MODELLED, evidence,
        )  # fmt: skip
    return Remedy(
        "Do not wait for the slowest each time: take results as they come (gather whichever "
        "workers are ready), or give the slow one less to do.",
        min(0.9, facts.blame.balance), MODELLED, evidence,
    )  # fmt: skip


# --- Mechanisms of learning -------------------------------------------------------------------

COARSER = {
    "jax": "jax.jit around the whole update (several updates in one lax.scan)",
    "tensorflow": "tf.function around the whole update",
    "torch": "torch.compile, fused or foreach optimisers, larger batches",
}
"""How to make operations coarser, by library."""


def launch(facts: Facts, share: float) -> Remedy:
    """Tiny operations. Remains: 15 %, in one compiled program."""
    evidence = facts.heaviest("learn", facts.share("learn"))
    if facts.learning.exact:
        evidence.insert(
            0,
            f"learning makes about {facts.learning.operations:,.0f} operations per second; those "
            f"under 0.06 ms take {percent(facts.learning.launch or 0)} of its time",
        )
    libraries = facts.evidence.processes[facts.line.driver.process].libraries  # type: ignore[union-attr]
    hows = (COARSER[name] for name in COARSER if name in libraries)
    how = next(hows, "whole arrays instead of loops over elements")
    words = f"Do more in each operation{facts.at('learn')}: {how}."
    return Remedy(words, 0.15, ASSUMED, evidence)


def transfer(facts: Facts, share: float) -> Remedy:
    """Copies and syncs. Remains: a twentieth."""
    counts = Counter[str]()
    for (_, name), count in facts.counted.names.items():  # by call site
        if name in tags.TRANSFERS:
            counts[name] += count
    rates = [
        f"`{name}` about {facts.counted.rate(number):,.0f} times per second"
        for name, number in counts.most_common(2)
    ]
    return Remedy(
        f"Move data once, not piece by piece{facts.at('transfer')}: keep losses and parameters "
        "on the device, and fetch one array every so many updates.",
        0.05, ASSUMED, [*facts.heaviest("transfer", share), *rates],
    )  # fmt: skip


def communication(facts: Facts, share: float) -> Remedy:
    """Averaging. Remains: half (the bytes) with all gradients in one piece; a sixteenth if the
    averages are dominated by latency."""
    calls = sum(c for (_, n), c in facts.counted.names.items() if COLLECTIVE.search(n))
    evidence, remains = facts.heaviest("communicate", share), 0.5
    if calls:
        each = share * facts.counted.seconds / calls
        evidence.append(
            f"about {facts.counted.rate(calls):,.0f} averages per second, {each * 1e3:.2g} ms each"
        )
        remains = 1 / 16 if each < SHORT_AVERAGE_S else remains
    return Remedy(
        f"Average all gradients in one flat piece{facts.at('communicate')} (or "
        "DistributedDataParallel's buckets), less often, or with a larger batch per process.",
        remains, ASSUMED, evidence,
    )  # fmt: skip


def compute(facts: Facts, share: float) -> Remedy:
    """Arithmetic: healthy. No gain is predicted on this hardware."""
    evidence = facts.heaviest("learn", share)
    busy = facts.blame.busy_cores
    if busy is not None:
        evidence.append(f"{busy:.1f} of {facts.cores} cores are busy on average")
    return Remedy(
        "The time goes to the arithmetic itself: a faster device, a smaller network or fewer "
        "updates per step would be next.",
        1.0, MODELLED, evidence,
    )  # fmt: skip


def _drawn(facts: Facts, phase: str) -> float:
    """The share of a phase that permutes all rows."""
    words = facts.by_call(phase)
    return (words["permutation"] + words["shuffle"]) / (sum(words.values()) or 1.0)


REMEDIES: dict[str, tuple[str, Callable[[Facts, float], Remedy]]] = {
    "env-bound": ("env", env), "acting-bound": ("act", acting), "replay-bound": ("replay", replay),
    "input-bound": ("input", inputs), "ipc-bound": ("ipc", ipc), "io-bound": ("io", io),
    "compile-bound": ("compile", compiling), "waiting": ("wait", waiting),
    "launch-bound": ("learn", launch), "transfer-bound": ("transfer", transfer),
    "communication-bound": ("communicate", communication), "compute-bound": ("learn", compute),
}  # fmt: skip
"""Each cause's phase and rule."""


def oversubscribed(facts: Facts) -> Finding | None:
    """More threads than cores. Remains: the work with one thread per core, without switching,
    spinning and stragglers."""
    begin, end = facts.line.begin, facts.line.end
    samples = [s for s in facts.evidence.monitor if begin <= s.t <= end + 1]
    counts = [sample.runnable for sample in samples if sample.runnable is not None]
    if not counts:
        return None
    runnable = sum(counts) / len(counts)
    python = sum(
        track.seconds(("learn", "act", "env", "replay", "input", "other"), begin, end)
        for track in facts.line.tracks
    ) / max(end - begin, 1e-9)
    native = runnable - max(python, 1.0)
    pools = [p.torch_threads or 0 for p in facts.evidence.processes]
    threads = max(pools, default=0)
    crowded = threads > 1 and sum(count > 1 for count in pools) > 1 and sum(pools) > 2 * facts.cores
    if runnable < 1.6 * facts.cores or (native < 0.4 * runnable and not crowded):
        return None
    evidence = [f"{runnable:.1f} threads want to run at once on {facts.cores} cores"]
    if threads:
        evidence.append(f"torch uses {threads} threads in each process")
    each = max(1, facts.cores // max(1, facts.blame.workers + 1))
    share = min(0.9, 1 - facts.cores / runnable)
    words = (
        f"Give each process its part of the cores: torch.set_num_threads({each}) (or "
        f"OMP_NUM_THREADS={each})."
    )
    gains = gain_of(share, 0.4)
    return Finding("oversubscribed", share, tuple(evidence), words, *gains, kind=ASSUMED)
