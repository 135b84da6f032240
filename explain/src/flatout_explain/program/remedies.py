"""Each cause's evidence and remedy, for users' programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from flatout_explain import cores
from flatout_explain.cards import WAITS_FOR
from flatout_explain.diagnosis import Finding, Trial
from flatout_explain.hardware.core_use import core_use
from flatout_explain.phases import PHASES
from flatout_explain.program import tags
from flatout_explain.program.blame import Where
from flatout_explain.program.calls import mostly_with_gradients
from flatout_explain.program.evidence import Process
from flatout_explain.program.facts import MAINLY, Facts
from flatout_explain.program.mechanism import on_whole_arrays
from flatout_explain.ranking import interval
from flatout_explain.report import duration, percent, reset_words

FASTER = 1.15  # how much faster than now all cores together must be for processes to be proposed
CHEAP_S = 150e-6  # a message to another process and its answer take about as long

CHEAPER = "make the step itself cheaper, and begin with this line."
RARER = 10  # factor by which to write more rarely

KEPT = (
    "Keep the worker processes: start them once, before the loop (one pool, or one DataLoader with "
    "persistent_workers=True, for all iterations)."
)

RUNNING = (
    "Do not start a program in each turn: keep one running and send it work through a pipe, or "
    "call a library."
)


@dataclass(frozen=True)
class Remedy:
    """A rule's proposal."""

    words: str  # what to change, at the phase's heaviest line
    before: Sequence[str] = ()  # evidence before the heaviest places
    after: Sequence[str] = ()  # and after them
    trial: Trial | None = None  # how the program is started with it, if that is all


def finding(cause: str, facts: Facts, share: float) -> Finding:
    """Return the finding of a cause that takes a share of the time, with a GPU of its time."""
    phase, rule = REMEDIES[cause]
    spent = share if facts.gpu is None else facts.share(phase)  # by the host
    remedy = rule if isinstance(rule, Remedy) else rule(facts, spent)
    if facts.restarts and phase in ("input", "ipc"):
        kind, words = ("worker processes", KEPT)
        if facts.commands == facts.restarts:
            kind, words = "programs", RUNNING
        started = f"{facts.restarts} {kind} were started in {facts.blame.seconds:.0f} s"
        remedy = Remedy(words, before=[started])
    words, line, trial = remedy.words, facts.heaviest_line(phase), remedy.trial
    if (call := _of_calls(facts, phase)) is not None:
        (words, line), trial = call, None
    places = facts.heaviest(phase, facts.share(phase) if cause == "launch-bound" else spent)
    evidence = (*remedy.before, *places, *facts.marked_words(phase), *remedy.after)
    if facts.gpu is not None:
        does = "computes" if cause == "compute-bound" else "waits"
        why = "" if does == "computes" else f" {WAITS_FOR[phase]}"
        evidence = (f"the GPU {does} {percent(share)} of the time{why}", *evidence)
    sure = facts.interval(cause, phase, share)
    if cause == "compute-bound" and facts.gpu is not None:
        sure = None  # how long a GPU computes does not decide where that stands
    return Finding(cause, share, evidence, words, line, interval=sure, trial=trial)


def _of_calls(facts: Facts, phase: str) -> tuple[str, tuple[str, int] | None] | None:
    """Return the remedy for the calls of one line that take much of a phase, and the line."""

    def known(where: Where) -> tuple[str, tuple[str, int] | None]:
        process = facts.evidence.processes[where.process]
        return call_remedy(process, phase, facts.text(where), where.call), facts.own_line(where)

    sums = facts.summed(phase, known)
    best = max(sums, key=lambda key: sums[key] if key[0] else 0.0, default=("", None))
    return best if best[0] and sums[best] >= MAINLY * sum(sums.values()) else None


def call_remedy(process: Process, phase: str, line: str, call: str) -> str:
    """Return the remedy for a line of a process in which `call` runs; empty if there is none."""
    for phases, library, text, name, words in CALLS:
        known = phase in phases and (not library or library in process.libraries)
        if known and re.search(text, line) and re.fullmatch(name, call):
            return words
    return ""


TENSORS = "tensor|as_tensor|Tensor|FloatTensor|LongTensor|BoolTensor"

CALLS = (
    (
        PHASES, "keras", r"\.predict(_on_batch)?\(", ".*",
        "Call the model itself, model(x, training=False), instead of model.predict(x), which "
        "builds a data pipeline and its callbacks for each call.",
    ),
    (
        PHASES, "torch", rf"torch\.({TENSORS})\((?!\s*(np|numpy)\.)", TENSORS,
        "Make one array of a list of arrays first, torch.as_tensor(np.array(...)): PyTorch copies "
        "a list element by element. Of an array, torch.as_tensor(array) makes no copy on the CPU.",
    ),
    (
        ("replay", "input"), "", "", "permutation|shuffle",
        "Draw only the indices that a batch needs: rng.integers(len(data), size=batch) instead of "
        "a permutation of all rows; or one permutation for a whole epoch.",
    ),
)  # fmt: skip
"""Calls with a remedy of their own, where a rule for the whole phase would propose a rewrite: in
which phases, the library that has them (empty for any), patterns for the source of the line and for
the name of the function that runs, and the remedy."""


# --- Phases -----------------------------------------------------------------------------------


LEAST_RESETS = 0.02
"""Share of the time from which on resets are mentioned."""

RESETS = (
    "Make reset() cheaper: load files and build worlds once, when the environment is made. Or keep "
    "a second copy of each environment, and reset it in the background while the first one plays."
)


def env(facts: Facts, share: float) -> Remedy:
    """Return the remedy for environments: processes, if cores are idle, if all cores together are
    faster than the workers now, and if a step takes longer than a message."""
    steps = facts.counted.rate(sum(call.kind == "env" for call in facts.counted.calls))
    rate = [f"about {steps:,.0f} environment steps per second"] if steps else []
    if facts.resets >= LEAST_RESETS:
        rate.append(reset_words(facts.resets, facts.share("env")))
    if facts.resets > facts.share("env") / 2:
        return Remedy(RESETS, after=rate)
    spare, count = facts.spare, facts.cores
    now = max(1.0, min(facts.blame.workers, facts.capacity))
    if spare < 0.25:
        words = f"All cores are busy already: {CHEAPER}"
    elif facts.capacity < FASTER * now:
        words = (
            f"More processes would gain little (all {count} cores together are "
            f"{facts.capacity:.1f} times as fast as one): {CHEAPER}"
        )
    elif steps and share / steps < CHEAP_S:
        words = (
            f"Step many environments in one call: a step takes {duration(share / steps)}, less "
            "than a message to another process. A vectorised environment "
            "(gymnasium.make_vec(id, num_envs=64), EnvPool, or one in JAX) steps them as arrays."
        )
    else:
        words = (
            f"Step environments in {max(2, count)} processes in parallel ({spare:.1f} of {count} "
            "cores are idle), for example with gymnasium.vector.AsyncVectorEnv."
        )
    return Remedy(words, after=rate)


FEWEST_CALLS = 10  # of a network, from which on it is said how often it is called


def acting(facts: Facts, share: float) -> Remedy:
    """Return the remedy for acting: one call for several environments, or for more than now."""
    seen, each = [], 1
    acts = [call for call in facts.counted.calls if facts.acts(call)]
    grads = mostly_with_gradients(acts)
    if acts:
        name = Counter(call.owner for call in acts).most_common(1)[0][0]
        calls = [call for call in acts if call.owner == name]
        sizes = [call.batch for call in calls if call.batch] or [0]
        least, each = min(sizes), max(sizes)
        size = f"batch size {each or 'unknown'}"
        size = size if least == each else f"batch sizes {least} to {each}"
        often = f" about {facts.counted.rate(len(calls)):,.0f} times per second"
        seen.append(
            f"{name} is called{often if len(calls) >= FEWEST_CALLS else ''} with {size}, "
            f"{'with' if grads else 'without'} gradients: {percent(share)} of the time"
        )
    elif any(process.outside for process in facts.evidence.processes):
        seen.append(
            "how many environments each call chooses for is unknown, because calls were not counted"
        )
    many = f"more than {each}" if each > 1 else "several"
    if facts.steps:
        words = f"Choose actions for {many} environments in one call (stack their observations)"
    else:
        words = (
            f"Give a network {many} inputs in one call (stack those that do not depend on each "
            "other, such as games, texts or requests)"
        )
    if grads:
        words += " under torch.no_grad()"
    if facts.evidence.machine["gpus"]:
        words += f"{',' if grads else ''} and keep a small network on the CPU"
    return Remedy(f"{words}.", seen)


REPLAY = Remedy(
    "Store steps in preallocated arrays instead of a list of tuples, and gather each batch with "
    "one index operation, obs[indices]; for priorities, use a sum tree."
)


def inputs(facts: Facts, share: float) -> Remedy:
    """Return a data set: loaders on the idle cores."""
    workers = max(2, round(facts.spare) + (0 if facts.blame.workers else 1))
    return Remedy(
        f"Load and augment in {workers} background processes (PyTorch: "
        f"DataLoader(num_workers={workers}, persistent_workers=True); tf.data: "
        ".map(...).prefetch(...)), and do once what is the same each time.",
        trial=Trial(processes=workers),
    )


IO = Remedy(f"Write {RARER} times less often, and do not flush after each write.")
COMPILING = Remedy(
    "Compile once: create jitted functions outside the loop, pad arguments to a few fixed "
    "shapes, and pass changing numbers as arrays, not as static arguments."
)


def messages(facts: Facts, share: float) -> Remedy:
    """Return the remedy for messages: none at all, if the work itself takes less time."""
    if facts.blame.trivial:
        return Remedy(
            "Do this work in one process (environments with SyncVectorEnv or DummyVecEnv), or hand "
            "out more of it at once (chunksize=): the work takes less time than handing it out.",
            before=[
                f"{percent(share)} of the time is spent waiting for other processes, whose own "
                f"work takes {percent(facts.blame.worker_seconds / facts.blame.seconds)}"
            ],
        )
    return Remedy(
        "Pass arrays through multiprocessing.shared_memory (write in place and send only an "
        "index), and several steps in each message."
    )


EVALUATION = Remedy(
    f"Evaluate {RARER} times less often, or with fewer episodes: nothing is learned meanwhile."
)


def waiting(facts: Facts, share: float) -> Remedy:
    """Return the remedy for waiting for the slowest worker, for a loop that sleeps, or for what is
    outside of the program."""
    words = (
        "Do not wait for the slowest worker each time: take results as they arrive, from whichever "
        "workers are ready, or give the slowest one less to do."
    )
    if not facts.blame.workers:
        words = (
            "Do other work meanwhile, or wait for less: no part of the program was seen to work "
            "while this line waits, so that it waits for a timer, or for another program."
        )
    driver = facts.line.driver
    # A slow worker may sleep, too.
    calls = facts.summed("wait", lambda where: (where.process, where.call))
    if driver and calls[driver.process, "sleep"] > 0.5 * sum(calls.values()):
        words = "Do not sleep in the loop: block on the queue or pipe until there is work."
    return Remedy(words, after=[f"{facts.spare:.1f} of {facts.cores} cores are idle meanwhile"])


# --- Mechanisms of learning -------------------------------------------------------------------

COARSER = {
    "jax": "jax.jit around the whole update (several updates in one lax.scan)",
    "tensorflow": "tf.function around the whole update",
    "torch": "torch.compile, fused or foreach optimisers, larger batches",
}
"""How to make operations coarser, by library."""

MOVE_ONCE = (
    "Move data together instead of piece by piece: keep losses and parameters on the device, and "
    "fetch them as one array after many updates."
)
AVERAGE_ONCE = (
    "Average all gradients as one flat array (or in DistributedDataParallel's buckets), average "
    "less often, or use a larger batch per process."
)


def launch(facts: Facts, share: float) -> Remedy:
    """Return the remedy for many small operations."""
    counted = [
        f"learning calls about {facts.learning.calls:,.0f} built-in functions per second (Python's "
        "and its libraries'); those shorter than 0.06 ms, with the code between them, take "
        f"{percent(facts.learning.launch or 0)} of learning's time"
    ]
    libraries = facts.evidence.processes[facts.line.driver.process].libraries  # type: ignore[union-attr]
    hows = (COARSER[name] for name in COARSER if name in libraries)
    how = next(hows, "whole arrays instead of loops over elements")
    words = f"Do more in each operation: {how}."
    return Remedy(words, before=counted if facts.learning.exact else ())


def transfer(facts: Facts, share: float) -> Remedy:
    """Return the remedy for copies, and for waits for single results."""
    return Remedy(MOVE_ONCE, after=_rates(facts, tags.TRANSFERS))


def communication(facts: Facts, share: float) -> Remedy:
    """Return the remedy for averaging across devices."""
    return Remedy(AVERAGE_ONCE, after=_rates(facts, tags.COLLECTIVES - {"wait"}))


def _rates(facts: Facts, names: Collection[str]) -> list[str]:
    """Return how often the two most frequent of some built-in functions are called."""
    counts = [count for count in facts.counted.names.most_common() if count[0] in names]
    return [
        f"`{name}` is called about {facts.counted.rate(number):,.0f} times per second"
        for name, number in counts[:2]
    ]


def compute(facts: Facts, share: float) -> Remedy:
    """Return advice for a program whose time is arithmetic."""
    busy = facts.blame.busy_cores
    seen = [] if busy is None else [f"{busy:.1f} of {facts.cores} cores are busy on average"]
    return Remedy(
        "The time goes into the arithmetic itself: only a faster device, a smaller network or "
        "fewer updates per step would shorten it.",
        after=seen,
    )


WHILE_BUSY = "Make {} cheaper, move it to another process, or run it while the device computes."


def own_code(facts: Facts, share: float) -> Remedy:
    """Return the remedy for the program's own code, by the function that takes most of it."""
    name, part = facts.heaviest_function("other")
    what = f"`{name}`" if name else "this code"
    if facts.gpu is not None:
        words = WHILE_BUSY
    elif _on_whole_arrays(facts):
        words = (
            "{} computes on whole arrays already. Use float32 instead of float64, larger arrays in "
            "each call, fewer temporary arrays (out=), a compiled version (jax.jit, Numba), or a "
            "GPU."
        )
    else:
        words = (
            "Make {} cheaper: work on whole arrays instead of single elements, compile it (Numba, "
            "jax.jit), run it less often, or move it to another process."
        )
    seen = [f"`{name}` takes {percent(part * share)} of the time"] if name else []
    return Remedy(words.format(what), before=seen)


def _on_whole_arrays(facts: Facts) -> bool:
    """Return whether the driver's process, if most of the own code is there, computes on large
    arrays."""
    driver, by_process = facts.line.driver, facts.summed("other", lambda where: where.process)
    if driver is None or max(by_process, key=lambda one: by_process[one]) != driver.process:
        return False
    process, places = facts.evidence.processes[driver.process], facts.line.places[driver.process]
    return on_whole_arrays(process, places, facts.line.windows)


REMEDIES: dict[str, tuple[str, Remedy | Callable[[Facts, float], Remedy]]] = {
    "env-bound": ("env", env), "acting-bound": ("act", acting), "replay-bound": ("replay", REPLAY),
    "input-bound": ("input", inputs), "ipc-bound": ("ipc", messages),
    "eval-bound": ("eval", EVALUATION), "io-bound": ("io", IO),
    "compile-bound": ("compile", COMPILING), "waiting": ("wait", waiting),
    "launch-bound": ("learn", launch), "transfer-bound": ("transfer", transfer),
    "communication-bound": ("communicate", communication), "compute-bound": ("learn", compute),
    "host-bound": ("other", own_code),
}  # fmt: skip
"""Each cause's phase and rule, or its remedy where that is always the same."""


def oversubscribed(facts: Facts) -> Finding | None:
    """Return the finding about more computing threads than cores, which switch and spin."""
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
        evidence.append(f"PyTorch uses up to {threads} threads in each process")
    each = max(1, facts.cores // max(1, facts.blame.workers + 1))
    each = min(each, threads) if threads else each
    trial = with_threads(facts, each)
    words = (
        f"Give each process its share of the cores: torch.set_num_threads({each}), or "
        f"{' '.join(trial.variables)}."
    )
    uses = [(core_use(samples, facts.cores), samples) for samples in facts.samples]
    shares = [
        (cores.waiting(use) * seconds, seconds)
        for use, samples in uses
        if use is not None and (seconds := sum(sample.seconds for sample in samples))
    ]
    sure = interval(share, shares)
    return Finding("oversubscribed", share, tuple(evidence), words, interval=sure, trial=trial)


def with_threads(facts: Facts, count: int) -> Trial:
    """Return how each process of the program is started with `count` computing threads."""
    variables = [f"OMP_NUM_THREADS={count}"]
    if any("jax" in process.libraries for process in facts.evidence.processes):
        variables.append(f"PJRT_NPROC={count}")  # XLA's threads on a CPU, which OpenMP's are not
    return Trial(tuple(variables))
