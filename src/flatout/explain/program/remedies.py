"""Each cause's evidence and remedy, for users' programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flatout.explain import cores
from flatout.explain.cards import WAITS_FOR
from flatout.explain.diagnosis import Finding
from flatout.explain.program import tags
from flatout.explain.program.calls import mostly_with_gradients
from flatout.explain.program.facts import Facts
from flatout.explain.ranking import interval
from flatout.explain.report import percent
from flatout.hardware.core_use import core_use

FASTER = 1.15  # how much faster than now all cores together must be for processes to be proposed
CHEAP_S = 150e-6  # a message to another process and its answer take about as long
ENVIRONMENTS = 8  # environments per batched call that are proposed for a program with one

COLLECTIVE = re.compile(r"all_?reduce|all_?gather|broadcast|reduce_scatter", re.IGNORECASE)

RARER = 10  # factor by which to write more rarely
PERMUTED = 0.3  # share of a phase from which on permuting all rows is its problem


@dataclass(frozen=True)
class Remedy:
    """A rule's proposal."""

    words: str  # what to change, at the phase's heaviest line
    before: Sequence[str] = ()  # evidence before the heaviest places
    after: Sequence[str] = ()  # and after them


def finding(cause: str, facts: Facts, share: float) -> Finding:
    """The finding of a cause that takes a share of the time, of a working GPU if there is one."""
    phase, rule = REMEDIES[cause]
    spent = share if facts.gpu is None else facts.share(phase)  # by the host
    remedy = rule if isinstance(rule, Remedy) else rule(facts, spent)
    line = facts.heaviest_line(phase)
    if (found := facts.call_remedy(phase)) is not None:
        words, line = found
        remedy = replace(remedy, words=words)
    places = facts.heaviest(phase, facts.share(phase) if cause == "launch-bound" else spent)
    evidence = (*remedy.before, *places, *facts.marked_words(phase), *remedy.after)
    if facts.gpu is not None:
        does = "computes" if cause == "compute-bound" else "waits"
        why = "" if does == "computes" else f" {WAITS_FOR[phase]}"
        evidence = (f"the GPU {does} {percent(share)} of the time{why}", *evidence)
    sure = facts.interval(cause, phase, share)
    if cause == "compute-bound" and facts.gpu is not None:
        sure = None  # how long a GPU computes does not decide where that stands
    return Finding(cause, share, evidence, remedy.words, line, interval=sure)


# --- Phases -----------------------------------------------------------------------------------


def env(facts: Facts, share: float) -> Remedy:
    """Environments: processes, if cores are idle, faster together than the workers now, and a step
    takes longer than a message."""
    steps = facts.counted.rate(sum(call.kind == "env" for call in facts.counted.calls))
    rate = [f"about {steps:,.0f} environment steps per second"] if steps else []
    spare, count = facts.spare, facts.cores
    now = max(1.0, min(facts.blame.workers, facts.capacity))
    if spare < 0.25:
        why = "All cores are busy already"
    elif facts.capacity < FASTER * now:
        why = (
            f"Processes would gain little (together the {count} cores do {facts.capacity:.1f} "
            "times what one does)"
        )
    elif steps and share / steps < CHEAP_S:
        each = f"{1e6 * share / steps:,.0f} us"
        return Remedy(
            f"Step many environments in one call: a step takes {each}, less than a message to "
            "another process. A vectorised environment (gymnasium.make_vec(id, num_envs=64), "
            "EnvPool, or one in JAX) steps them as arrays.",
            after=rate,
        )
    else:
        return Remedy(
            f"Step environments in {max(2, count)} processes at once ({spare:.1f} of {count} "
            "cores are idle), for example gymnasium.vector.AsyncVectorEnv.",
            after=rate,
        )
    return Remedy(f"{why}: make the step itself cheaper, beginning with this line.", after=rate)


def acting(facts: Facts, share: float) -> Remedy:
    """Actions: one call for the environments that now have a call each, or for `ENVIRONMENTS`."""
    seen = []
    acts = [call for call in facts.counted.calls if facts.acts(call)]
    grads = mostly_with_gradients(acts)
    if acts:
        name, batch = Counter((call.owner, call.batch) for call in acts).most_common(1)[0][0]
        seen.append(
            f"{name} is called about {facts.counted.rate(len(acts)):,.0f} times/s with batch "
            f"{batch}, {'gradients on' if grads else 'no gradients'}: {percent(share)} of the time"
        )
    if any(process.outside for process in facts.evidence.processes):
        unknown = "for how many environments one call chooses is unknown: no calls are counted"
        return Remedy(
            "If each call of the network chooses for one environment, let it choose for several "
            "(stack their observations), without gradients.",
            [unknown],
        )
    together = max(ENVIRONMENTS, facts.acts_in_a_row)
    return Remedy(
        f"Choose actions for {together} environments in one call (stack their observations) "
        f"{'under torch.no_grad(), ' if grads else ''}and keep a small network on the CPU.",
        seen,
    )


def replay(facts: Facts, share: float) -> Remedy:
    """Replay: no permutation, or arrays instead of objects."""
    return _permuting(
        facts, "replay", "np.random.randint(len(buffer), size=batch) instead of a permutation of "
        "all stored steps; keep steps in arrays.",
    ) or Remedy(
        "Store steps in preallocated arrays, and gather a batch with one fancy index: "
        "obs[indices] instead of a list of tuples (for priorities a sum tree).",
    )  # fmt: skip


def inputs(facts: Facts, share: float) -> Remedy:
    """A data set: the same loaders for all epochs, no permutation, or loaders on the idle cores."""
    if facts.restarts:
        return Remedy(
            "Keep the worker processes: DataLoader(..., persistent_workers=True), and one loader "
            "for all epochs.",
            before=[restarted(facts)],
        )
    workers = max(2, round(facts.spare) + (0 if facts.blame.workers else 1))
    return _permuting(
        facts, "input", "rng.integers(len(data), size=batch) instead of a permutation of all "
        "examples; or one permutation for a whole epoch.",
    ) or Remedy(
        f"Load and augment in {workers} background processes "
        "(DataLoader(num_workers=..., persistent_workers=True), tf.data .map(...).prefetch), and "
        "do what is the same each time only once.",
    )  # fmt: skip


def restarted(facts: Facts) -> str:
    """A sentence about processes that are started again and again."""
    return f"{facts.restarts} worker processes were started in {facts.blame.seconds:.0f} s"


def _permuting(facts: Facts, phase: str, instead: str) -> Remedy | None:
    """The remedy where a phase permutes all rows to draw a few."""
    if facts.share_of_calls(phase, "permutation", "shuffle") <= PERMUTED:
        return None
    return Remedy(f"Draw only the indices that a batch needs: {instead}")


IO = Remedy(f"Write {RARER} times less often, without a flush each time.")
COMPILING = Remedy(
    "Compile once: create jitted functions outside of the loop, pad arguments to a few fixed "
    "shapes, and pass changing numbers as arrays, not as static arguments."
)


def messages(facts: Facts, share: float) -> Remedy:
    """Messages between processes: the same processes for all of them, or none at all, if the work
    inside of them takes less time."""
    if facts.restarts:
        return Remedy(
            "Start the worker processes once, before the loop, and keep them (one pool for all "
            "iterations).",
            before=[restarted(facts)],
        )
    if facts.blame.trivial:
        where = facts.blame.where
        lines = " ".join(map(facts.text, (*where.get("ipc", ()), *where.get("wait", ()))))
        how = "Step these environments in this process (SyncVectorEnv, DummyVecEnv)"
        if re.search("pool|submit|executor", lines):
            how = "Do this work in one process, or give each task more of it (chunksize=)"
        return Remedy(
            f"{how}: the work itself takes less time than handing it out.",
            before=[
                f"{percent(share)} of the time is spent waiting for other processes; "
                f"their own work takes {percent(facts.blame.worker_seconds / facts.blame.seconds)}"
            ],
        )
    return Remedy(
        "Move arrays through multiprocessing.shared_memory (write in place, send only an index), "
        "and several steps at once."
    )


EVALUATION = Remedy(
    f"Evaluate {RARER} times less often, or fewer episodes at once: nothing is learned meanwhile."
)


def waiting(facts: Facts, share: float) -> Remedy:
    """A lockstep, or a loop that sleeps."""
    idle = [f"{facts.spare:.1f} of {facts.cores} cores are idle meanwhile"]
    if facts.share_of_calls("wait", "sleep") > 0.5 and facts.blame.balance > 0.99:
        what = "Do not sleep in the loop: block on the queue or pipe until there is work."
        return Remedy(what, after=idle)
    return Remedy(
        "Do not wait for the slowest each time: take results as they come (gather whichever "
        "workers are ready), or give the slow one less to do.",
        after=idle,
    )


# --- Mechanisms of learning -------------------------------------------------------------------

COARSER = {
    "jax": "jax.jit around the whole update (several updates in one lax.scan)",
    "tensorflow": "tf.function around the whole update",
    "torch": "torch.compile, fused or foreach optimisers, larger batches",
}
"""How to make operations coarser, by library."""

MOVE_ONCE = (
    "Move data once, not piece by piece: keep losses and parameters on the device, and fetch one "
    "array every so many updates."
)
AVERAGE_ONCE = (
    "Average all gradients in one flat piece (or DistributedDataParallel's buckets), less often, "
    "or with a larger batch per process."
)


def launch(facts: Facts, share: float) -> Remedy:
    """Tiny operations."""
    counted = [
        f"learning makes about {facts.learning.operations:,.0f} operations per second; those "
        f"under 0.06 ms take {percent(facts.learning.launch or 0)} of its time"
    ]
    libraries = facts.evidence.processes[facts.line.driver.process].libraries  # type: ignore[union-attr]
    hows = (COARSER[name] for name in COARSER if name in libraries)
    how = next(hows, "whole arrays instead of loops over elements")
    words = f"Do more in each operation: {how}."
    return Remedy(words, before=counted if facts.learning.exact else ())


def transfer(facts: Facts, share: float) -> Remedy:
    """Copies and syncs."""
    counts = [count for count in facts.counted.names.most_common() if count[0] in tags.TRANSFERS]
    rates = [
        f"`{name}` about {facts.counted.rate(number):,.0f} times per second"
        for name, number in counts[:2]
    ]
    return Remedy(MOVE_ONCE, after=rates)


def communication(facts: Facts, share: float) -> Remedy:
    """Averaging across devices."""
    calls = sum(count for name, count in facts.counted.names.items() if COLLECTIVE.search(name))
    seen = []
    if calls:
        each = share * facts.counted.seconds / calls
        rate = facts.counted.rate(calls)
        seen = [f"about {rate:,.0f} averages per second, {each * 1e3:.2g} ms each"]
    return Remedy(AVERAGE_ONCE, after=seen)


def compute(facts: Facts, share: float) -> Remedy:
    """Arithmetic: healthy."""
    busy = facts.blame.busy_cores
    seen = [] if busy is None else [f"{busy:.1f} of {facts.cores} cores are busy on average"]
    return Remedy(
        "The time goes to the arithmetic itself: a faster device, a smaller network or fewer "
        "updates per step would be next.",
        after=seen,
    )


WHILE_BUSY = "Make {} cheaper, move it to another process, or do it while the device works."


def own_code(facts: Facts, share: float) -> Remedy:
    """The program's own code, by the function that takes most of it."""
    name, part = facts.heaviest_function("other")
    what = f"`{name}`" if name else "this code"
    if facts.gpu is not None:
        words = WHILE_BUSY
    else:
        words = (
            "Make {} cheaper: whole arrays in place of single elements, compiled code (Numba, "
            "jax.jit), less often, or another process."
        )
    seen = [f"{percent(part * share)} of the time is in `{name}`"] if name else []
    return Remedy(words.format(what), before=seen)


REMEDIES: dict[str, tuple[str, Remedy | Callable[[Facts, float], Remedy]]] = {
    "env-bound": ("env", env), "acting-bound": ("act", acting), "replay-bound": ("replay", replay),
    "input-bound": ("input", inputs), "ipc-bound": ("ipc", messages),
    "eval-bound": ("eval", EVALUATION), "io-bound": ("io", IO),
    "compile-bound": ("compile", COMPILING), "waiting": ("wait", waiting),
    "launch-bound": ("learn", launch), "transfer-bound": ("transfer", transfer),
    "communication-bound": ("communicate", communication), "compute-bound": ("learn", compute),
    "host-bound": ("other", own_code),
}  # fmt: skip
"""Each cause's phase and rule, or its remedy where that is always the same."""


def oversubscribed(facts: Facts) -> Finding | None:
    """More threads that compute than cores: time goes to switching, spinning and stragglers."""
    found = cores.oversubscribed(facts.blame.core_use)
    if found is None:
        return None
    share, sentence = found
    begin, end = facts.line.begin, facts.line.end
    python = sum(
        track.seconds(("learn", "act", "env", "replay", "input", "other"), begin, end)
        for track in facts.line.tracks
    ) / max(end - begin, 1e-9)
    runnable = facts.cores / (1 - share)
    native = runnable - max(python, 1.0)
    pools = [p.torch_threads or 0 for p in facts.evidence.processes]
    threads = max(pools, default=0)
    crowded = threads > 1 and sum(count > 1 for count in pools) > 1 and sum(pools) > 2 * facts.cores
    if native < 0.4 * runnable and not crowded:
        return None
    evidence = [sentence]
    if threads:
        evidence.append(f"torch uses {threads} threads in each process")
    each = max(1, facts.cores // max(1, facts.blame.workers + 1))
    each = min(each, threads) if threads else each
    words = (
        f"Give each process its part of the cores: torch.set_num_threads({each}) (or "
        f"OMP_NUM_THREADS={each})."
    )
    uses = [(core_use(samples, facts.cores), samples) for samples in facts.samples]
    shares = [
        (cores.waiting(use) * seconds, seconds)
        for use, samples in uses
        if use is not None and (seconds := sum(sample.seconds for sample in samples))
    ]
    sure = interval(share, shares)
    return Finding("oversubscribed", share, tuple(evidence), words, interval=sure)
