"""`flatout eval --show`: agents at play, in text, in pictures, and of runs that go on."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from flatout import DQN
from flatout.cli.watch import picture, play, watch
from flatout.run.resume import begun_from
from flatout.storage import checkpoint
from flatout.storage.run_folder import load_config
from tests.conftest import Result

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched") / "run"
    agent = DQN(
        "flatout/Snake-v0", envs=2, network="onehot", hidden=[8], buffer_size=200, batch_size=8,
        run_dir=str(folder),
    )  # fmt: skip
    agent.learn(400)
    return folder


def test_snake_is_seen_in_the_terminal(flatout: Cli, run: Path) -> None:
    result = flatout("eval", run, "--episodes", 2, "--fps", 1000, "--show")
    assert result.code == 0, result.err
    for words in ("┌─", "@", "episode 2 of 2", "mean return of 2 episodes"):
        assert words in result.out


def test_a_checkpoint_that_a_live_run_removes_gives_way_to_the_next(
    flatout: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --keep-checkpoints 1 each new checkpoint removes the one that is being read."""
    live, load = tmp_path / "live", checkpoint.load
    shutil.copytree(run, live)
    for name in ("params.safetensors", "summary.json"):
        (live / name).unlink()
    old, new = checkpoint.checkpoints(live / "checkpoints")[-2:]
    for other in checkpoint.checkpoints(live / "checkpoints")[:-2]:
        shutil.rmtree(other)
    before = load_config(live)
    read: dict[str, Callable[[], Any]] = {
        "show": lambda: flatout("eval", live, "--episodes", 1, "--fps", 1000, "--show").code,
        "from": lambda: 0 if begun_from(live, before, before, ()) else 1,
    }
    asked: list[Path] = []

    def loaded(path: Path) -> Any:
        asked.append(path)
        if len(asked) == 1:  # the run saves the next one
            (tmp_path / "new").rename(new)
            shutil.rmtree(old)
        return load(path)

    monkeypatch.setattr(checkpoint, "load", loaded)
    for name, reader in read.items():
        old.rename(tmp_path / "old")
        new.rename(tmp_path / "new")
        shutil.copytree(tmp_path / "old", old)
        asked.clear()
        assert reader() == 0, name
        assert asked == [old, new]
        (tmp_path / "old").rename(old)


@pytest.mark.parametrize("height", [1, 4, 5, 40])
def test_pictures_fit_any_terminal(height: int) -> None:
    frame = np.zeros((40, 1000, 3), np.uint8)
    console = Console(width=40, height=height, record=True)
    console.print(picture(frame, console))
    assert "▀" in console.export_text()


def test_frames_follow_the_game(run: Path) -> None:
    agent = DQN.load(run)
    frames = list(play(agent, 0, None))
    assert frames[0][2:] == (0.0, 0)
    assert [steps for *_, steps in frames[1:]] == list(range(1, len(frames)))
    same = [frame for frame, *_ in play(agent, 0, None)]
    assert same == [frame for frame, *_ in frames]
    assert [frame for frame, *_ in play(agent, 1, None)] != same


def test_an_episode_that_does_not_end_is_cut(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = DQN.load(run)
    frames = list(play(agent, 0, None))
    monkeypatch.setattr("flatout.run.evaluate.MAX_EPISODE_STEPS", len(frames) - 2)
    assert [steps for *_, steps in play(agent, 0, None)] == list(range(len(frames) - 1))
    assert "was cut after" in capsys.readouterr().err


def test_a_terminal_shows_every_frame(run: Path) -> None:
    agent = DQN.load(run)
    console = Console(force_terminal=True, width=60, height=30, record=True)
    with console.capture() as said:
        returns = watch(lambda: (agent, run), 1, 1000.0, None, console)
    assert len(returns) == 1
    assert said.get().count("step ") >= len(list(play(agent, 0, None))) - 1


def test_without_a_terminal_only_the_last_frame_becomes_a_picture(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, seen = DQN.load(run), list[Any]()
    monkeypatch.setattr(
        "flatout.cli.watch.picture",
        lambda frame, console: seen.append(frame) or picture(frame, console),
    )
    console = Console(width=60, height=30, record=True, file=io.StringIO())
    (total,) = watch(lambda: (agent, run), 1, None, None, console)
    *_, (frame, _, last, steps) = play(agent, 0, None)
    assert (seen, total) == ([frame], last)
    assert f"step {steps}   return {last:g}" in console.export_text()


def test_pictures_become_half_blocks_that_fit() -> None:
    console = Console(width=40, height=24)
    frame = np.zeros((210, 160, 3), np.uint8)
    frame[:, 80:] = (255, 0, 0)
    text: Any = picture(frame, console)
    lines = text.plain.rstrip("\n").split("\n")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 40
    assert len(lines) * 2 / len(lines[0]) == pytest.approx(210 / 160, rel=0.1)
    styles = {str(span.style) for span in text.spans}
    assert styles == {"rgb(0,0,0) on rgb(0,0,0)", "rgb(255,0,0) on rgb(255,0,0)"}


def test_a_gif_is_written(flatout: Cli, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "snake.gif"
    result = flatout("eval", run, "--episodes", 1, "--checkpoint", "newest", "--out", path)
    assert result.code == 0, result.err
    with Image.open(path) as image:
        assert image.format == "GIF"
        assert image.size == (352, 352)


def test_a_run_that_goes_on_shows_its_newest_checkpoint(flatout: Cli, run: Path) -> None:
    (run / "params.safetensors").rename(run / "away")
    try:
        result = flatout("eval", run, "--episodes", 1, "--fps", 1000, "--show")
    finally:
        (run / "away").rename(run / "params.safetensors")
    assert result.code == 0, result.err
    assert "step_" in result.out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--show",), "RUN_DIR"),
        (("RUN", "--show", "--out", "a.mp4"), "--show and --out a.mp4"),
        (("RUN", "--show", "--episodes", "0"), "episodes = 0"),
        (("RUN", "--show", "--fps", "-1"), "fps = -1.0"),
        (("RUN", "--show", "--checkpoint", "newst"), "newest"),
        (("nowhere", "--show"), "nowhere does not exist"),
    ],
)
def test_what_is_wrong_is_said(flatout: Cli, run: Path, flags: tuple[str, ...], words: str) -> None:
    result = flatout("eval", *(str(run) if flag == "RUN" else flag for flag in flags))
    assert result.code == 2
    assert words in result.message
