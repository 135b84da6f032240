"""Ranks of a distributed program: who waits for whom, in each form of the report."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flatout_explain import html
from flatout_explain.diagnosis import Finding, Rank
from flatout_explain.program import tags
from flatout_explain.program.attach import INJECT
from flatout_explain.program.codes import Leaf
from flatout_explain.program.evidence import Evidence, process
from flatout_explain.program.places import Mark
from flatout_explain.program.ranks import notes, ranks, remedied, slowest
from flatout_explain.program.timeline import Timeline
from flatout_explain.program.tracks import Moment, Track
from flatout_explain.trace.diagnose import diagnose
from flatout_explain.trace.load import load
from tests.explain.recorded import diagnosed
from tests.explain.recorded_traces import MS, Kineto
from tests.explain.test_report import empty, piped


def programs(*shares: dict[str, float], numbers: tuple[int | None, ...]) -> tuple[Any, Any]:
    """Evidence of processes with these shares of their time, 10 s each, and its timeline."""
    processes, tracks = [], []
    for at, (spent, number) in enumerate(zip(shares, numbers, strict=True)):
        first = {"k": "process", "pid": 100 + at, "t": 0.0, "argv": ["train.py"],
                 "python": [3, 12, 0], "stdlib": "/usr/lib/python3.12"}  # fmt: skip
        rows = [first] + [{"k": "rank", "rank": number}] * (number is not None)
        processes.append(process(rows))
        moments, t = [], 0.0
        for phase, share in spent.items():
            t += 10 * share
            moments.append(Moment(t, 10 * share, Mark(phase, phase == "wait", None, ""), 0))
        tracks.append(Track(at, f"main {100 + at}", True, moments))
    evidence = Evidence(["train.py"], {"cores": 4, "cpu": "", "gpus": []}, 0.0, 10.0, processes,
                        [], [])  # fmt: skip
    return evidence, Timeline(tracks, [], tracks[0], 0.0, 10.0, [])


FAST = {"learn": 0.41, "communicate": 0.59}
SLOW = {"learn": 0.61, "wait": 0.10, "communicate": 0.29}  # which sleeps while the other waits


def test_the_rank_that_spends_least_in_exchanges_is_the_slowest() -> None:
    found = ranks(*programs(FAST, SLOW, FAST, numbers=(2, 1, 0)))
    assert [(one.name, one.pid) for one in found] == [
        ("rank 0", 102), ("rank 1", 101), ("rank 2", 100),
    ]  # fmt: skip
    assert [one.own for one in found] == pytest.approx([0.41, 0.71, 0.41])
    assert [one.late for one in found] == pytest.approx([0.30, 0.0, 0.30])
    assert slowest(found) == "rank 1"
    assert [one.exchanges for one in found] == pytest.approx([0.59, 0.29, 0.59])
    text = piped(replace(empty(), ranks=found, slowest="rank 1"), width=200)
    assert (
        "RANKS    rank 1 is the slowest: its own work takes 71 % of its time, and the others wait "
        "for it 30 % of their time\n"
    ) in text
    assert "rank 1  own work  71 %  exchanging  29 %  (learn 61 %, wait 10 %)\n" in text
    page = html.page(replace(empty(), ranks=found, slowest="rank 1"))
    assert "rank 1 is the slowest" in page
    assert "<title>learn 61&nbsp;%</title>" in page


def test_averaging_less_often_is_no_remedy_for_a_slow_rank() -> None:
    found = ranks(*programs(FAST, SLOW, numbers=(0, 1)))
    finding = Finding("communication-bound", 0.59, (), "Average less often.", ("train.py", 3))
    advised = remedied(finding, found)
    assert advised.remedy.startswith(
        "Make rank 1 as fast as the other ranks (most of its time: learn, 61 %), or give it less"
    )
    assert remedied(replace(finding, share=0.7), found).remedy == "Average less often."
    assert remedied(replace(finding, id="env-bound"), found).remedy == "Average less often."
    assert remedied(finding, ranks(*programs(FAST, FAST, numbers=(0, 1)))) == finding


def test_equal_ranks_wait_for_nobody() -> None:
    found = ranks(*programs(FAST, FAST, numbers=(0, 1)))
    assert slowest(found) == ""
    text = piped(replace(empty(), ranks=found), width=200)
    assert "RANKS    no rank holds the others up: their waits differ by at most 0 % of the" in text


def test_workers_that_inherit_a_number_are_no_ranks() -> None:
    loads = {"input": 1.0}
    assert len(ranks(*programs(FAST, SLOW, loads, numbers=(0, 1, 1)))) == 2
    assert ranks(*programs(FAST, loads, loads, numbers=(0, 0, 0))) == ()


@pytest.mark.parametrize(
    "shares", [({"learn": 1.0}, {"env": 1.0}), (FAST, {"env": 0.8, "wait": 0.2}), (FAST,)]
)
def test_a_program_without_collective_operations_has_no_ranks(
    shares: tuple[dict[str, float], ...],
) -> None:
    assert ranks(*programs(*shares, numbers=(None,) * len(shares))) == ()
    assert ranks(*programs({"learn": 1.0}, {"learn": 1.0}, numbers=(0, 1))) == ()


def test_on_gpus_the_waiting_is_not_seen() -> None:
    every = (Rank("rank 0", 1, 1.0, 0.0, 0.0, {}), Rank("rank 1", 2, 1.0, 0.0, 0.0, {}))
    assert len([*notes(every, on_gpu=True)]) == 1
    assert [*notes(every, on_gpu=False), *notes((), on_gpu=True)] == []


def test_traces_of_several_processes_show_for_which_rank_the_others_wait(tmp_path: Path) -> None:
    for number, work in enumerate((4, 8)):
        trace = Kineto()
        trace.properties["distributedInfo"] = {"rank": number, "world_size": 2}
        for each in range(4):
            begin = trace.t
            trace.launch(work * MS)
            trace.launch((10 - work) * MS, "ncclDevKernel_AllReduce_Sum_f32")
            trace.wait()
            trace.step(each, begin)
        trace.write(tmp_path / f"rank{number}.pt.trace.json.gz")
    found = diagnose(load(tmp_path), "traces")
    found.check()
    assert [one.name for one in found.ranks] == ["rank 0 gpu:0", "rank 1 gpu:0"]
    assert found.slowest == "rank 1 gpu:0"
    assert found.ranks[0].late == pytest.approx(0.4, abs=0.03)
    averaging = next(one for one in found.findings if one.id == "communication-bound")
    assert averaging.remedy.startswith("Make rank 1 gpu:0 as fast as the other ranks")


def test_recorded_ranks_without_numbers_are_named_by_their_processes() -> None:
    found = diagnosed("two_ranks_torch")
    assert [one.name for one in found.ranks] == ["process 8692", "process 8695"]
    assert all(one.phases["communicate"] > 0.5 for one in found.ranks)
    assert diagnosed("es_pool").ranks == ()


def test_mpis_functions_are_collective_operations_though_they_are_no_python() -> None:
    def leaf(call: str, module: str) -> Leaf:
        return Leaf(f"{call}(x)", call, {"type": "_cython.cython_function_or_method", "of": module})

    assert tags.is_collective(leaf("comm.Allreduce", "mpi4py.MPI"))
    assert tags.is_collective(leaf("MPI.COMM_WORLD.bcast", "mpi4py.MPI"))
    assert not tags.is_collective(leaf("comm.Get_rank", "mpi4py.MPI"))
    assert not tags.is_collective(leaf("heap.reduce", "mine.fast"))


# --- Its number -------------------------------------------------------------------------------

NUMBERED = """
import sys, types
sys.path.insert(0, {inject!r})
import _flatout_sample as sample

given = sample.rank_of_process()
Group = type("Group", (type("pybind11_object", (), {{}}),), {{"rank": lambda self: 5}})
module = types.ModuleType("torch.distributed.distributed_c10d")
module._world = types.SimpleNamespace(_default_pg=Group())
sys.modules["torch.distributed.distributed_c10d"] = module
first = sample.rank_of_process()
module._world = types.SimpleNamespace(_default_pg=None)
print(given, first, sample.rank_of_process())
"""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, "None 5 None"), ({"RANK": "3"}, "3 5 3"), ({"OMPI_COMM_WORLD_RANK": "2"}, "2 5 2"),
     ({"RANK": "first"}, "None 5 None")],
)  # fmt: skip
def test_the_number_is_the_librarys_or_else_the_launchers(
    variables: dict[str, str], expected: str
) -> None:
    code = NUMBERED.format(inject=str(INJECT))
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == expected
