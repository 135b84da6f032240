"""Diagnoses of running processes that py-spy reads (`--pid`), as far as its stacks go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout_explain.diagnosis import Diagnosis
from flatout_explain.program.diagnose import diagnose
from flatout_explain.program.evidence import build, process
from flatout_explain.program.spy import notes_of_profiles, rows_of_profiles
from tests.explain.test_program_rules import meta

PROGRAM = """\
import gymnasium as gym
class Hill(gym.Env[int, int]):
    def reset(self):
        return 0

class Steep(Hill):
    def step(self, action):
        return 0, 0.0, False, {}

def main(env, network, optimizer):
    while True:
        for _ in range(100):
            env.step(network(0))
        loss = network(1)
        loss.backward()

main(1, 2, 3)
"""
PACKAGES = "/venv/lib/python3.11/site-packages"
MAIN = [("<module>", "train.py", 17), ("main", "train.py", 15)]
BACKWARD = [*MAIN, ("Tensor.backward", f"{PACKAGES}/torch/_tensor.py", 623)]
CONNECTION = "/usr/lib/python3.11/multiprocessing/connection.py"
STEPS = [("<module>", "train.py", 17), ("main", "train.py", 13), ("Steep.step", "train.py", 8)]
RECEIVES = [("<module>", "train.py", 17), ("main", "train.py", 13),
            ("Connection._recv", CONNECTION, 395)]  # fmt: skip


def profiles(
    folder: Path, **threads: Sequence[tuple[list[tuple[str, str, int]], int]]
) -> list[list[dict[str, Any]]]:
    """The rows of threads `process_thread`, each with its stacks and how often each was seen."""
    (folder / "train.py").write_text(PROGRAM)
    frames: list[dict[str, Any]] = []
    found = []
    for name, stacks in threads.items():
        pid, thread = name.removeprefix("p").split("_")
        samples = []
        for stack, times in stacks:
            first = len(frames)
            head = {"name": f'process {pid}:"python train.py"', "file": "", "line": 0}
            shown = [{"name": name, "file": file.replace("train.py", str(folder / "train.py")),
                      "line": line} for name, file, line in stack]  # fmt: skip
            frames += [head, *shown]
            samples += [list(range(first, len(frames)))] * times
        found.append({"name": f'Process {pid} Thread 7 "{thread}"', "samples": samples,
                      "weights": [0.02] * len(samples)})  # fmt: skip
    read = {"profiles": found, "shared": {"frames": frames}}
    return rows_of_profiles(read, 1, 100.0, ["python", "train.py"])


def told(rows: list[list[dict[str, Any]]]) -> Diagnosis:
    return diagnose(build(meta(4.0), rows))


def test_threads_of_all_processes_are_read_with_their_source(tmp_path: Path) -> None:
    rows = profiles(
        tmp_path, p1_MainThread=[(BACKWARD, 3), (RECEIVES, 2)], p1_Thread=[(RECEIVES, 5)],
        p2_MainThread=[(RECEIVES, 5)],
    )  # fmt: skip
    first, second = map(process, rows)
    assert (first.pid, second.pid, len(first.samples), len(second.samples)) == (1, 2, 10, 5)
    assert [lane["main"] for lane in first.lanes.values()] == [True, False]
    assert first.stdlib == "/usr/lib/python3.11"
    (main,) = (code for code in first.codes if code.plain == "main")
    assert main.loops
    assert main.learns
    assert "loss.backward()" in first.lines.values()


def test_an_environment_is_known_by_its_class(tmp_path: Path) -> None:
    both = [(STEPS, 6), (BACKWARD, 4)] * 20
    found = told(profiles(tmp_path, p1_MainThread=both))
    assert found.phases["env"] > 0.5


def test_the_batch_of_a_network_that_acts_is_unknown(tmp_path: Path) -> None:
    module = f"{PACKAGES}/torch/nn/modules/module.py"
    acts = [*STEPS[:2], ("Module._wrapped_call_impl", module, 9), ("Module._call_impl", module, 5)]
    found = told(profiles(tmp_path, p1_MainThread=[(STEPS, 2), (acts, 7), (BACKWARD, 1)] * 20))
    (finding,) = (one for one in found.findings if one.id == "acting-bound")
    assert finding.remedy.startswith("Choose actions for several environments")
    assert any("calls were not counted" in evidence for evidence in finding.evidence)


def test_a_stack_of_two_moments_tells_nothing(tmp_path: Path) -> None:
    """py-spy reads a running process, and may find an environment's step under `backward`."""
    torn = [*BACKWARD, ("Steep.step", "train.py", 8)]
    found = told(profiles(tmp_path, p1_MainThread=[(BACKWARD, 200), (torn, 1), (BACKWARD, 200)]))
    assert found.phases == {"learn": 1.0}


def test_where_calls_are_not_counted_the_mechanism_of_learning_is_unknown(tmp_path: Path) -> None:
    found = told(profiles(tmp_path, p1_MainThread=[(BACKWARD, 190), (RECEIVES, 10)]))
    assert found.phases["learn"] > 0.9
    assert found.verdict == "unknown"
    assert "calls were not counted" in found.headline
    assert not {"launch-bound", "compute-bound"} & {finding.id for finding in found.findings}


def test_threads_that_were_not_there_all_the_time_are_named() -> None:
    """py-spy writes no times: a worker that began after 30 s would be shown at the beginning."""

    def read(**seconds: float) -> list[str]:
        threads = [{"name": name, "weights": [0.02] * round(of / 0.02)}
                   for name, of in seconds.items()]  # fmt: skip
        return notes_of_profiles({"profiles": threads})

    assert read(main=10.0, worker=9.8) == read() == []
    (note,) = read(main=40.0, worker=10.0, other=3.0)
    assert note.startswith("worker and 1 more began later or ended earlier than the longest thread")
    assert "(10.0 of 40.0 s) is shown at the beginning" in note
