"""A program's samples as a profile for speedscope.

speedscope.schema.json is speedscope's own (MIT licence, version 1.25).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from flatout_explain.program.speedscope import profile
from flatout_explain.program.timeline import timeline
from tests.conftest import Result
from tests.explain.recorded import recorded, unpacked

SCHEMA = json.loads((Path(__file__).parent / "speedscope.schema.json").read_text())


@pytest.mark.parametrize(
    "name", ["two_ranks_torch", pytest.param("es_pool", marks=pytest.mark.slow), "dqn_jax"]
)
def test_each_thread_is_a_profile_that_speedscope_reads(name: str) -> None:
    evidence = recorded(name)
    found = json.loads(json.dumps(profile(evidence)))
    jsonschema.validate(found, SCHEMA)
    line = timeline(evidence)
    assert len(found["profiles"]) == len(line.tracks)
    frames = [frame["name"] for frame in found["shared"]["frames"]]
    for thread in found["profiles"]:
        track = next(one for one in line.tracks if one.name == thread["name"])
        spent = defaultdict[str, float](float)
        for stack, weight in zip(thread["samples"], thread["weights"], strict=True):
            assert weight >= 0
            assert all(at < len(frames) for at in stack)
            if stack:
                spent[frames[stack[0]]] += weight
        lasted = track.moments[-1].t - track.moments[0].t + track.moments[0].dt
        assert sum(thread["weights"]) == pytest.approx(lasted, abs=0.02)
        assert thread["endValue"] - thread["startValue"] == pytest.approx(lasted, abs=0.02)
        phases = {"wait" if m.mark.waits else m.mark.phase for m in track.moments}
        assert set(spent) <= {f"[{phase}]" for phase in phases}


def test_the_thread_that_learns_is_shown_first_and_its_lines_have_files() -> None:
    found = profile(recorded("dqn_jax"))
    frames = found["shared"]["frames"]
    stacks = found["profiles"][found["activeProfileIndex"]]["samples"]
    learning = [stack for stack in stacks if stack and frames[stack[0]]["name"] == "[learn]"]
    assert any(frames[at].get("file", "").endswith("dqn_jax.py") for at in learning[0])


def test_saved_evidence_becomes_a_profile(flatout: Callable[..., Result], tmp_path: Path) -> None:
    file, target = unpacked("two_ranks_torch", tmp_path), tmp_path / "two.speedscope.json"
    assert flatout("explain", file, "--save", target).code == 0
    jsonschema.validate(json.loads(target.read_text()), SCHEMA)


def test_what_has_no_samples_gives_no_profile(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    result = flatout("explain", tmp_path / "run", "--save", tmp_path / "x.speedscope.json")
    assert result.code == 2
    assert "a speedscope profile is made of samples of a program" in result.message


@pytest.mark.parametrize("flag", ["--save", "--json", "--html"])
def test_a_file_that_cannot_be_written_is_refused_before_the_program_starts(
    flag: str, flatout: Callable[..., Result], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"open({str(tmp_path / 'started')!r}, 'w')")
    result = flatout("explain", flag, "/proc/x.speedscope.json", "--", "python", program)
    assert result.code == 1
    assert "cannot write /proc/x.speedscope.json" in result.message
    long = "x" * 300
    result = flatout("explain", flag, tmp_path / long, "--", "python", program)
    assert result.code == 1
    assert result.message.endswith(f"{long}: File name too long.")
    assert not (tmp_path / "started").exists()
    kept = tmp_path / "kept.json"
    kept.write_text("before")
    (tmp_path / "none").mkdir()
    flatout("explain", tmp_path / "none", flag, kept)
    assert kept.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.json", "none", "program.py"]
