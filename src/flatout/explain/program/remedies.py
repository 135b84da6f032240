"""Each cause's evidence, remedy and gain, for users' programs.

Every gain is ``1 / (1 - s * (1 - r))``: the cause takes the share s of the time, of which r remains
after the remedy. Each rule describes its r.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
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

    words: str  # what to change; `{at}` stands for the phase's heaviest line
    remains: float  # remaining part of the cause's share
    kind: str = ASSUMED  # of the gain, `MODELLED` or `ASSUMED`
    before: Sequence[str] = ()  # evidence before the heaviest places
    after: Sequence[str] = ()  # and after them


def gain_of(share: float, remains: float) -> tuple[float, float, float]:
    """(gain, low, high) if the part `remains` of `share` is left."""
    saved = min(max(share * (1 - remains), 0.0), 0.99)
    after = 1 - saved
    return 1 / after, 1 / (after + SPREAD * saved), 1 / (after - SPREAD * min(saved, after))


def finding(cause: str, facts: Facts, share: float) -> Finding:
    """The finding of a cause that takes a share of the time."""
    phase, rule = REMEDIES[cause]
    remedy = rule if isinstance(rule, Remedy) else rule(facts, share)
    places = facts.heaviest(phase, facts.share(phase) if cause == "launch-bound" else share)
    words = remedy.words.replace("{at}", facts.at(phase))
    evidence = (*remedy.before, *places, *remedy.after)
    return Finding(cause, share, evidence, words, *gain_of(share, remedy.remains), kind=remedy.kind)


# --- Phases -----------------------------------------------------------------------------------


def env(facts: Facts, share: float) -> Remedy:
    """Environments. Remains: one part in W processes, limited by the cores' combined speed, plus
    the cost of a process."""
    steps = facts.counted.rate(sum(call.kind == "env" for call in facts.counted.calls))
    rate = [f"about {steps:,.0f} environment steps per second"] if steps else []
    spare, cores = facts.spare, facts.cores
    now = max(1.0, min(facts.blame.workers, facts.capacity))
    remains = (1 + PROCESS_COST) * now / facts.capacity
    if spare >= 0.25 and remains <= 0.95:
        return Remedy(
            f"Step environments in {max(2, cores)} processes at once ({spare:.1f} of {cores} cores "
            "are idle), for example gymnasium.vector.AsyncVectorEnv.",
            remains, MODELLED, after=rate,
        )  # fmt: skip
    why = "All cores are busy already"
    if spare >= 0.25:
        together = f"together the {cores} cores do {facts.capacity:.1f} times what one does"
        why = f"Processes would gain little: {together}"
    words = f"{why}: make the step itself cheaper, beginning with the line above."
    return Remedy(words, 0.8, after=rate)


def acting(facts: Facts, share: float) -> Remedy:
    """Actions. Remains: one call instead of n, plus 1 % for each of the n. n is the number of calls
    between two steps now, or `ENVIRONMENTS`."""
    seen = []
    acts = [call for call in facts.counted.calls if facts.acts(call)]
    grads = mostly_with_gradients(acts)
    if acts:
        name, batch = Counter((call.owner, call.batch) for call in acts).most_common(1)[0][0]
        seen.append(
            f"{name} is called about {facts.counted.rate(len(acts)):,.0f} times/s with batch "
            f"{batch}, {'gradients on' if grads else 'no gradients'}: {percent(share)} of the time"
            f"{facts.at('act')}"
        )
    now = facts.acts_in_a_row
    together = max(ENVIRONMENTS, now)
    return Remedy(
        f"Choose actions for {together} environments in one call (stack their observations) "
        f"{'under torch.no_grad(), ' if grads else ''}and keep a small network on the CPU.",
        (1 + 0.01 * (together - 1)) / together,
        MODELLED if now >= ENVIRONMENTS else ASSUMED,
        seen,
    )


def replay(facts: Facts, share: float) -> Remedy:
    """Replay. Remains: the gather without drawing a permutation; with arrays instead of objects
    a twelfth."""
    return _permuting(
        facts, "replay", "np.random.randint(len(buffer), size=batch) instead of a permutation of "
        "all stored steps; keep steps in arrays.",
    ) or Remedy(
        "Store steps in preallocated arrays, and gather a batch with one fancy index{at}: "
        "obs[indices] instead of a list of tuples (for priorities a sum tree).",
        0.08,
    )  # fmt: skip


def inputs(facts: Facts, share: float) -> Remedy:
    """A data set. Remains: the gather without drawing a permutation; else what W workers on the
    idle cores cannot hide behind learning, limited by the cores' combined speed."""
    workers = max(1, round(facts.spare) + (0 if facts.blame.workers else 1))
    rest = 1 - share
    after = max(rest, share / workers, 1 / facts.capacity) * 1.05
    return _permuting(
        facts, "input", "rng.integers(len(data), size=batch) instead of a permutation of all "
        "examples; or one permutation for a whole epoch.",
    ) or Remedy(
        f"Load and augment in {max(workers, 2)} background processes "
        "(DataLoader(num_workers=..., persistent_workers=True), tf.data .map(...).prefetch), and "
        "do what is the same each time only once.",
        min(1.0, max(0.0, (after - rest) / share)), MODELLED,
    )  # fmt: skip


def _permuting(facts: Facts, phase: str, instead: str) -> Remedy | None:
    """The remedy where a phase permutes all rows to draw a few."""
    words = facts.by_call(phase)
    drawn = (words["permutation"] + words["shuffle"]) / (sum(words.values()) or 1.0)
    what = f"Draw only the indices that a batch needs{{at}}: {instead}"
    return Remedy(what, 1 - drawn, MODELLED) if drawn > PERMUTED else None


IPC = Remedy(
    "Move arrays through multiprocessing.shared_memory (write in place, send only an index), "
    "and several steps at once.",
    0.2,  # the cost of shared memory
)
IO = Remedy(
    f"Write {RARER} times less often{{at}}, without a flush each time.", 1 / RARER, MODELLED
)
COMPILING = Remedy(
    "Compile once{at}: create jitted functions outside of the loop, pad arguments to a few fixed "
    "shapes, and pass changing numbers as arrays, not as static arguments.",
    0.03, MODELLED,
)  # fmt: skip


def waiting(facts: Facts, share: float) -> Remedy:
    """A lockstep. Remains: the work, spread evenly over all workers."""
    words = facts.by_call("wait")
    asleep = words["sleep"] / (sum(words.values()) or 1.0)
    idle = [f"{facts.spare:.1f} of {facts.cores} cores are idle meanwhile"]
    if asleep > 0.5 and facts.blame.balance > 0.99:
        what = "Do not sleep in the loop{at}: block on the queue or pipe until there is work."
        return Remedy(what, 0.03, MODELLED, after=idle)
    return Remedy(
        "Do not wait for the slowest each time: take results as they come (gather whichever "
        "workers are ready), or give the slow one less to do.",
        min(0.9, facts.blame.balance), MODELLED, after=idle,
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
    counted = [
        f"learning makes about {facts.learning.operations:,.0f} operations per second; those "
        f"under 0.06 ms take {percent(facts.learning.launch or 0)} of its time"
    ]
    libraries = facts.evidence.processes[facts.line.driver.process].libraries  # type: ignore[union-attr]
    hows = (COARSER[name] for name in COARSER if name in libraries)
    how = next(hows, "whole arrays instead of loops over elements")
    words = f"Do more in each operation{{at}}: {how}."
    return Remedy(words, 0.15, before=counted if facts.learning.exact else ())


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
        "Move data once, not piece by piece{at}: keep losses and parameters on the device, and "
        "fetch one array every so many updates.",
        0.05, after=rates,
    )  # fmt: skip


def communication(facts: Facts, share: float) -> Remedy:
    """Averaging. Remains: half (the bytes) with all gradients in one piece; a sixteenth if the
    averages are dominated by latency."""
    calls = sum(c for (_, n), c in facts.counted.names.items() if COLLECTIVE.search(n))
    seen, remains = [], 0.5
    if calls:
        each = share * facts.counted.seconds / calls
        rate = facts.counted.rate(calls)
        seen = [f"about {rate:,.0f} averages per second, {each * 1e3:.2g} ms each"]
        remains = 1 / 16 if each < SHORT_AVERAGE_S else remains
    return Remedy(
        "Average all gradients in one flat piece{at} (or DistributedDataParallel's buckets), less "
        "often, or with a larger batch per process.",
        remains, after=seen,
    )  # fmt: skip


def compute(facts: Facts, share: float) -> Remedy:
    """Arithmetic: healthy. No gain is predicted on this hardware."""
    busy = facts.blame.busy_cores
    seen = [] if busy is None else [f"{busy:.1f} of {facts.cores} cores are busy on average"]
    return Remedy(
        "The time goes to the arithmetic itself: a faster device, a smaller network or fewer "
        "updates per step would be next.",
        1.0, MODELLED, after=seen,
    )  # fmt: skip


REMEDIES: dict[str, tuple[str, Remedy | Callable[[Facts, float], Remedy]]] = {
    "env-bound": ("env", env), "acting-bound": ("act", acting), "replay-bound": ("replay", replay),
    "input-bound": ("input", inputs), "ipc-bound": ("ipc", IPC), "io-bound": ("io", IO),
    "compile-bound": ("compile", COMPILING), "waiting": ("wait", waiting),
    "launch-bound": ("learn", launch), "transfer-bound": ("transfer", transfer),
    "communication-bound": ("communicate", communication), "compute-bound": ("learn", compute),
}  # fmt: skip
"""Each cause's phase and rule, or its remedy where that is always the same."""


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
