"""Kinds of programs that rules once took for something else, as they were recorded.

Where shares stand, a program's own timers gave them. `tools/record_evidence.py FILE.json` puts a
recording here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.explain.test_ordinary import diagnosed

RECORDED = Path(__file__).parent / "evidence" / "kinds"
NEAR = 0.1  # a share is right within so much of the program's own timers

KINDS = {
    # episodes between epochs of cloning demonstrations, which were made before: no loop collects
    "bc_clone": ("eval-bound", {"eval": 0.79, "learn": 0.20}),
    # Stable-Baselines3's evaluation asks for its network's parameters, which is no update
    "sb3_dqn_eval": ("eval-bound", {"eval": 0.56}),
    # rows that are drawn at random are unpickled on their way to the network
    "sqlite_replay": ("replay-bound", {"replay": 0.61, "learn": 0.33, "act": 0.03}),
    # greedy episodes of a table of values, which no gradients change
    "q_table": ("eval-bound", {"eval": 0.50}),
    # generators read, tokenize and batch what the network gets
    "gen_pipeline": ("input-bound", {"input": 0.81, "learn": 0.18}),
    # Flax's compiled functions are called like its networks, and learn
    "flax_moons": ("host-bound", {"learn": 0.57}),
    # Adam by hand, operation by operation, between a compiled call for gradients and the next one
    "own_adam_jax": ("launch-bound", {}),
    # environments that step in a comprehension, which has no statements of its own
    "recurrent_jax": ("acting-bound", {}),
    # tree search: a network judges the board on which the search plays its moves
    "mcts_selfplay": ("launch-bound", {"learn": 0.63, "act": 0.25, "other": 0.12}),
    # three of four workers nearly always wait at a barrier for the slowest
    "slowest_of_four": ("waiting", {}),
}  # fmt: skip
"""By program the first finding, and shares of the time by the program's own timers."""


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_program_has_the_finding_and_the_shares_of_its_own_timers(name: str) -> None:
    found = diagnosed(RECORDED / f"{name}.json.gz")
    cause, shares = KINDS[name]
    assert next(one.id for one in found.findings if one.id != "contended") == cause, found.phases
    for phase, share in shares.items():
        assert found.phases.get(phase, 0.0) == pytest.approx(share, abs=NEAR), found.phases
