"""The samples of a program as a file of https://www.speedscope.app.

Each thread is a profile. The outermost frame of a stack is its phase, so that speedscope's time
order shows the phases over time, and its left heavy order their shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flatout_explain import output_file
from flatout_explain.output import command_name, json_text
from flatout_explain.program.codes import Code
from flatout_explain.program.evidence import Evidence, Process
from flatout_explain.program.timeline import timeline
from flatout_explain.program.tracks import Track

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(path: Path, evidence: Evidence) -> None:
    """Write the profile.

    Raises:
        FlatoutError: the file cannot be written.
    """
    output_file.write(path, json_text(profile(evidence)))


def profile(evidence: Evidence) -> dict[str, Any]:
    """Return the content of the file."""
    frames = Frames()
    line = timeline(evidence)
    tracks = sorted(line.tracks, key=lambda track: (track.process, not track.main))
    profiles = [
        _thread(evidence, evidence.processes[track.process], track, frames) for track in tracks
    ]
    first = 0 if line.driver is None else tracks.index(line.driver)
    return {
        "$schema": SCHEMA, "exporter": command_name(), "name": " ".join(evidence.command),
        "activeProfileIndex": first, "shared": {"frames": frames.rows}, "profiles": profiles,
    }  # fmt: skip


class Frames:
    """The frames of all profiles, by number."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._numbers: dict[tuple[str, str, int], int] = {}

    def number(self, name: str, file: str = "", line: int = 0) -> int:
        """Return a frame's number."""
        key = name, file, line
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append({"name": name} | ({"file": file, "line": line} if file else {}))
        return self._numbers[key]


def _thread(evidence: Evidence, process: Process, track: Track, frames: Frames) -> dict[str, Any]:
    """Return a thread's profile; times are seconds since the beginning of the observation."""
    samples, weights = list[list[int]](), list[float]()
    for stack, seconds in _stacks(process, track, frames):
        if samples and samples[-1] == stack:
            weights[-1] += seconds
        else:
            samples.append(stack)
            weights.append(seconds)
    first = track.moments[0].t - track.moments[0].dt - evidence.began
    return {
        "type": "sampled", "name": track.name, "unit": "seconds", "startValue": round(first, 6),
        "endValue": round(first + sum(weights), 6), "samples": samples,
        "weights": [round(weight, 6) for weight in weights],
    }  # fmt: skip


def _stacks(process: Process, track: Track, frames: Frames) -> Iterator[tuple[list[int], float]]:
    """Yield stacks, the outermost frame first, with their seconds; an empty one where the thread
    was not seen."""
    end = track.moments[0].t - track.moments[0].dt
    for moment in track.moments:
        begin = max(moment.t - moment.dt, end)
        if begin > end:
            yield [], begin - end
        if moment.t > begin:
            phase = "wait" if moment.mark.waits else moment.mark.phase
            stack = [frames.number(f"[{phase}]")]
            for code, line in reversed(process.stacks[moment.stack].frames):
                known = process.codes[code]
                stack.append(frames.number(_name(known), known.file, line))
            yield stack, moment.t - begin
        end = max(end, moment.t)


def _name(code: Code) -> str:
    """Return the name of a function, with its class's."""
    if code.qualname or code.owner is None:
        return code.qualname or code.plain
    return f"{code.owner['name']}.{code.plain}"
