"""Rules about GPUs, for other programs, for Flatout's own runs and for traces. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flatout_explain.diagnosis import Finding
from flatout_explain.hardware.gpus import GpuSample
from flatout_explain.hardware.monitor import MonitorSample
from flatout_explain.report import percent, shortened
from flatout_explain.timespans import weighted_mean

WORKS = 0.02  # a card that is busy for a larger share of the time works
WORKS_ALONE = 1e-6  # the same for a card that no other program uses; an idle one is busy for 0.0
LEAST = 0.02  # minimum share of a wait that the headline names
NAMED = 3  # maximum number of waits there
LARGE_UPDATE_S = 3e-3  # seconds of an update on a CPU from which a GPU is likely to be faster
RESERVED_MB = 200  # minimum memory with which a program counts as holding a card
FULL = 0.92  # share of a card's memory in use from which on it is almost full
SHOWN = 160  # characters of an error

NO_MEMORY = re.compile(
    r"out of memory|RESOURCE_EXHAUSTED|OutOfMemory|ResourceExhausted|STATUS_ALLOC_FAILED", re.I
)
"""Errors of a program whose GPU has no memory left, by their types and texts."""

WAITS_FOR = {
    "learn": "for the host to launch work", "launch": "for the host to launch work",
    "env": "for environments", "act": "for choosing actions", "replay": "for batches",
    "input": "for batches", "ipc": "for messages between processes", "eval": "for evaluation",
    "io": "for files", "compile": "for compiling", "wait": "for other processes",
    "transfer": "for copies and syncs", "copy": "for copies", "communicate": "for other devices",
    "other": "for the host's own code",
    "unknown": "for something that is not recorded", "queued": "with work in the queue",
}  # fmt: skip
"""Causes of a GPU's waiting, in words: by the host's phase, or the part of a trace's idle time."""


@dataclass(frozen=True)
class CardUse:
    """A program's use of one visible GPU."""

    index: int
    name: str
    busy: float | None  # share of the steady time with some kernel running; None if unknown
    ours: bool  # whether the program uses it
    held_mb: int  # the most memory that the program held
    grown: bool  # whether the driver hides that: then the growth of the memory in use
    used_mb: int  # the most memory in use
    total_mb: int
    others: int  # other processes that held memory then
    owners: tuple[str, ...]  # their programs' names, as far as they are known

    @property
    def works(self) -> bool:
        """Whether it computes for this program."""
        return self.ours and (self.busy or 0.0) > (WORKS if self.others else WORKS_ALONE)

    @property
    def full(self) -> bool:
        """Whether other programs hold memory, and it is almost full."""
        return full(self.used_mb / self.total_mb if self.total_mb else 0.0, bool(self.others))

    @property
    def other_words(self) -> str:
        """The other processes: ``2 other processes hold memory (python, blender)``."""
        names = f" ({', '.join(self.owners)})" if self.owners else ""
        hold = "other process holds" if self.others == 1 else "other processes hold"
        return f"{self.others} {hold} memory{names}"


def full(share: float, others: bool) -> bool:
    """Return whether a card's memory is almost full, and other programs hold some of it."""
    return share > FULL and others


def used_cards(samples: Sequence[MonitorSample]) -> set[int]:
    """Return the cards that a program uses: those on which the driver lists its processes.

    Where the driver lists none of them, as in a container, cards count whose memory has grown
    since the first sample, unless the names of other programs are known that hold some.
    """
    rows = _rows(samples)
    listed = {card for card, row in enumerate(rows) if any(gpu.ours for gpu in row)}
    if listed:
        return listed
    return {
        card
        for card, row in enumerate(rows)
        if _growth(row) >= RESERVED_MB and not any(gpu.owners for gpu in row)
    }


def card_uses(
    samples: Sequence[MonitorSample], steady: Sequence[MonitorSample] = ()
) -> tuple[CardUse, ...]:
    """Return the use of each card, from all samples and those of the steady state."""
    rows, ours = _rows(samples), used_cards(samples)
    weighed = steady if _rows(steady) else samples
    seconds = [sample.seconds for sample in weighed if sample.gpus]
    return tuple(
        _card_use(row, [*zip(_rows(weighed)[card], seconds, strict=False)], card in ours)
        for card, row in enumerate(rows)
    )


def _card_use(
    row: Sequence[GpuSample], steady: Sequence[tuple[GpuSample, float]], ours: bool
) -> CardUse:
    """Return the use of a card, from all of its samples, and those of the steady state with the
    seconds of each."""
    fullest = max(reversed(row), key=lambda gpu: gpu.used_mb)
    listed = [gpu for gpu in row if gpu.ours]
    grown = ours and (not listed or any(gpu.ours_mb is None for gpu in listed))
    held = _growth(row) if grown else max((gpu.ours_mb or 0 for gpu in listed), default=0)
    others = fullest.others
    if ours and not listed:  # the program's own process is among those of unknown names
        others = max(others - 1, 0)
    busy = weighted_mean((gpu.busy, seconds) for gpu, seconds in steady)
    filled = weighted_mean((gpu.full, seconds) for gpu, seconds in steady)
    if busy is not None and filled is not None:  # NVML rounds a few short kernels down to 0 %
        busy = max(busy, filled)
    return CardUse(
        fullest.index, fullest.name, busy, ours, held, grown,
        fullest.used_mb, fullest.total_mb, others, fullest.owners,
    )  # fmt: skip


def shared(cards: Sequence[CardUse]) -> str:
    """Return a note if other programs hold memory on the cards that work; else an empty text."""
    found = [card for card in cards if card.works and card.others]
    if not found:
        return ""
    words = "; ".join(f"on gpu:{card.index}, {card.other_words}" for card in found)
    return f"The shares in which GPUs are busy include other programs: {words}."


def _rows(samples: Sequence[MonitorSample]) -> list[tuple[GpuSample, ...]]:
    """Return the samples of each card."""
    return list(zip(*(sample.gpus for sample in samples if sample.gpus), strict=False))


def _growth(row: Sequence[GpuSample]) -> int:
    """Return the MiB by which the memory in use has grown since the first sample."""
    return max(gpu.used_mb for gpu in row) - row[0].used_mb


# --- Time -------------------------------------------------------------------------------------


def computing(cards: Sequence[CardUse]) -> float | None:
    """Return the mean share of the time in which working cards compute; None without any."""
    busy = weighted_mean((card.busy, 1.0) for card in cards if card.works)
    return None if busy is None else min(busy, 1.0)


def waits(host: Mapping[str, float], busy: float) -> dict[str, float]:
    """Return shares of the time in which a card waits, by the host's phase.

    Args:
        host: the shares of the time that the host spends, without waiting for the card.
        busy: the share of the time in which the card computes.

    Returns:
        The rest of the time, divided in the same proportions.
    """
    total = sum(host.values())
    idle = max(1.0 - busy, 0.0)
    return {phase: idle * (share / total) for phase, share in host.items() if share > 0.0}


def headline(
    count: int, busy: float, waited: Mapping[str, float], place: Callable[[str], str],
    of: str = "of the time",
) -> str:  # fmt: skip
    """Return a sentence about how long cards compute, and what they wait for.

    Args:
        count: the number of cards.
        busy: the mean share of the time in which they compute.
        waited: shares of the time by what they wait for, as in `WAITS_FOR`.
        place: gives the place of such a wait, ready to be appended; may be empty.
        of: the time that was observed, in words.
    """
    largest = sorted(waited.items(), key=lambda wait: -wait[1])[:NAMED]
    parts = [
        f"{percent(share)}{'' if number else ' of the time'} {WAITS_FOR[name]}{place(name)}"
        for number, (name, share) in enumerate(largest)
        if share >= LEAST
    ]
    computes, they = ("The GPU computes", "It waits")
    if count != 1:
        computes, they = f"On average, {count} GPUs compute", "They wait"
    words = f"{computes} {percent(busy)} {of}"
    return words + (f". {they} {', '.join(parts)}" if parts else "")


# --- Devices ----------------------------------------------------------------------------------


def worthwhile(update_s: float | None) -> bool:
    """Return whether an update that takes `update_s` on a CPU is likely to be faster on a GPU."""
    return update_s is not None and update_s >= LARGE_UPDATE_S


def unused(cards: Sequence[CardUse], learn: float, update_s: float | None) -> Finding | None:
    """Return the finding about cards that do not compute although an update is large."""
    known = all(card.busy is not None for card in cards)
    if not cards or not known or any(card.works for card in cards):
        return None
    if update_s is None or not worthwhile(update_s):
        return None
    visible = "1 GPU" if len(cards) == 1 else f"{len(cards)} GPUs"
    seen = (
        f"this program can use {visible} ({cards[0].name or 'unknown'}) but did not compute there; "
        f"an update takes {1e3 * update_s:.3g} ms on the CPU"
    )
    words = "Move learning to the GPU (PyTorch: `.to('cuda')`; JAX: install its CUDA build)."
    return Finding("gpu-unused", learn, (seen,), words)


def reserved(cards: Sequence[CardUse], setting: str = "") -> tuple[Finding | None, bool]:
    """Return the finding about memory held on cards that do not compute while another does, and
    whether that is more than half of the program's memory.

    Args:
        cards: the visible cards.
        setting: the ``CUDA_VISIBLE_DEVICES`` that shows them; empty if it is not set.
    """
    working = [card for card in cards if card.works]
    idle = [card for card in cards if card.held_mb >= RESERVED_MB and not card.works]
    if not idle or not working:
        return None, False
    held = sum(card.held_mb for card in cards)
    wasted = sum(card.held_mb for card in idle)
    names = ", ".join(f"gpu:{card.index}" for card in working)
    sizes = ", ".join(f"gpu:{card.index} ({card.held_mb:,} MiB)" for card in idle)
    evidence = [
        f"only {names} {'computes' if len(working) == 1 else 'compute'}, but this program also "
        f"holds memory on {sizes}",
        f"{wasted:,} of its {held:,} MiB are on GPUs that do not compute",
    ]
    if any(card.grown for card in idle):
        evidence.append(
            "the driver does not report memory by program: these figures are the growth of the "
            "memory in use since the observation began"
        )
    evidence += [f"on gpu:{card.index}, {card.other_words}" for card in idle if card.others]
    # The cards' numbers count visible ones; the setting's entries name them for a new start.
    entries = [entry.strip() for entry in setting.split(",")] if setting else []
    visible = ",".join(
        entries[card.index] if card.index < len(entries) else str(card.index) for card in working
    )
    words = (
        f"Make only {'this GPU' if len(working) == 1 else 'these GPUs'} visible to the program "
        f"(CUDA_VISIBLE_DEVICES={visible}), or let it allocate memory as needed (JAX: "
        "XLA_PYTHON_CLIENT_PREALLOCATE=false; TensorFlow: set_memory_growth)."
    )
    return Finding("devices-reserved", 0.0, tuple(evidence), words), 2 * wasted > held


def memory(cards: Sequence[CardUse]) -> Finding | None:
    """Return the finding about almost full memory of a card that other programs use, too."""
    found = [card for card in cards if card.works and card.full]
    if not found:
        return None
    evidence = [sentence for card in found for sentence in _memory_words(card)]
    words = (
        "Limit the memory of each program (JAX: XLA_PYTHON_CLIENT_MEM_FRACTION; PyTorch: "
        "torch.cuda.set_per_process_memory_fraction)."
    )
    return Finding("memory-contended", 0.0, tuple(evidence), words)


def memory_error(cards: Sequence[CardUse], kind: str, text: str) -> Finding | None:
    """Return the finding about the error that ended a program, if that is a GPU's full memory."""
    if not cards or not NO_MEMORY.search(f"{kind} {text}"):
        return None
    mine = [card for card in cards if card.ours]
    if not mine and "cuda" not in text.lower():
        return None
    card = max(mine or cards, key=lambda one: one.used_mb / max(one.total_mb, 1))
    ended = f"the program ended with {kind}: {shortened(text, SHOWN)}"
    words = "Use smaller batches, or keep less on the GPU (replay, histories of losses)"
    if card.others:
        words += "; or stop the other programs on this GPU, or use another GPU"
    return Finding("memory-contended", 0.0, (ended, *_memory_words(card)), f"{words}.")


def _memory_words(card: CardUse) -> list[str]:
    left = f"gpu:{card.index} has {card.total_mb - card.used_mb:,} of {card.total_mb:,} MiB free"
    words = [f"{left}; {card.other_words}" if card.others else left]
    if card.grown:
        words.append(
            f"its memory in use has grown by {card.held_mb:,} MiB since the observation began"
        )
    elif card.held_mb:
        words.append(f"this program holds {card.held_mb:,} MiB there")
    return words
