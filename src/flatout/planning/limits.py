"""The limits of a run on a cluster, and iterations that are too short for one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.config.placement import Placement
from flatout.planning.predict import ACT, ENV, LEARN, RESETS, Prediction, resets_in
from flatout.planning.stages import Stages, learning_of
from flatout.planning.workers import acting_s, answer_bytes, collecting_s

NETWORK, WAY, REQUESTS = (
    "the network", "the round trip to other machines", "requests to the workers"
)  # fmt: skip
"""Parts of an iteration on a cluster in words, in addition to those of `predict`."""

LIMITS = {
    NETWORK: "the network is full", LEARN: "the learner is the limit",
    WAY: "the round trip to other machines is the limit",
    REQUESTS: "the time for requests to all workers is the limit",
    ENV: "stepping the environments is the limit",
}  # fmt: skip
"""Sentences about what limits a run on several machines."""


def host_counts(stages: Stages) -> list[int]:
    """Return numbers of equal workers for which a cluster has room: the largest two."""
    if stages.hosts is None:
        return []
    most = min(stages.hosts.cores, stages.envs)
    return [n for n in range(1, most + 1) if stages.envs % n == 0][-2:]


def shorter_than_way(stages: Stages, placement: Placement) -> bool:
    """Return whether workers of a cluster would wait longer for the network than they step: every
    worker would be idle for most of the time. With an overlapped schedule learning hides that."""
    hosts = stages.hosts
    if hosts is None or not placement.on_cluster or placement.overlapped:
        return False
    workers = placement.workers or (1, stages.envs)
    elsewhere = any(at >= 0 and not hosts.machines[at].here for at in hosts.assigned(workers[0]))
    return elsewhere and collecting_s(stages, placement) < hosts.network.way_s


def refusal(stages: Stages, predictions: Sequence[Prediction]) -> str:
    """Return why placements on a cluster are no candidates, and what would help; empty if they are.

    Args:
        predictions: of all placements, with those that act with older parameters.
    """
    counts = host_counts(stages)
    if stages.hosts is None or not counts or any(
        p.placement.on_cluster and not p.placement.overlapped for p in predictions
    ):  # fmt: skip
        return ""
    placement = Placement(
        sampler="cluster", inference="local", workers=(counts[-1], stages.envs // counts[-1])
    )
    if not shorter_than_way(stages, placement):
        return ""
    steps_ms, way_ms = 1e3 * collecting_s(stages, placement), 1e3 * stages.hosts.network.way_s
    words = (
        f"sampler=cluster is refused: a worker steps for {steps_ms:.1f} ms in an iteration, which "
        f"is shorter than the {way_ms:.1f} ms of a request to another machine and its answer"
    )
    here = max((p.rate for p in predictions if not p.placement.on_cluster), default=0.0)
    there = [p for p in predictions if p.placement.on_cluster and p.rate > here]
    if there:
        best = max(there, key=lambda p: p.rate)
        return (
            f"{words}; {best.placement}, which hides that behind learning, would make "
            f"{best.rate:,.0f} steps/s (lag 1: --allow-lag)"
        )
    return f"{words}; longer trajectories (--n-steps) would need fewer requests"


def cluster_parts(stages: Stages, placement: Placement) -> dict[str, float]:
    """Return the seconds of the parts of an iteration on a cluster, each alone."""
    hosts = stages.hosts
    assert hosts is not None
    count, each = placement.workers or (1, stages.envs)
    places = [at for at in hosts.assigned(count) if at >= 0 and not hosts.machines[at].here]
    network = hosts.network
    received = len(places) * answer_bytes(stages, placement)
    sent = len({*places}) * stages.params_bytes
    return {
        ENV: stages.env_s * each / min(stages.lanes, each) * stages.horizon,
        RESETS: resets_in(stages, placement).seconds * stages.horizon,
        LEARN: stages.learn[learning_of(placement)],
        ACT: acting_s(stages, placement),
        NETWORK: max(received, sent) / network.bytes_per_s,
        WAY: network.way_s if places else 0.0,
        REQUESTS: len(places) * hosts.request_s,
    }
