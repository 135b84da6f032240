"""Videos of episodes: one or a grid, animated GIF or mp4."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flatout import PPO, UsageError
from flatout.config.schema import EnvConfig
from flatout.envs.task import open_task
from flatout.run import video
from flatout.run.evaluate import greedy_episode, record
from flatout.run.video import WIDE, grid, writer
from tests import tiny
from tests.bad_envs import Good
from tests.conftest import TINY, Result

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of Snake; not to be changed."""
    from flatout.__main__ import main

    path = tmp_path_factory.mktemp("video") / "run"
    flags = ["--env", "flatout/Snake-v0", "--env-kwargs", "size=5", "--env-kwargs", "patience=20"]
    flags += ["--network", "mlp"]
    assert main(["train", "ppo", *tiny.latest((*TINY, *flags)), "--run-dir", str(path)]) == 0
    return path


def test_a_video_is_an_animated_gif(
    flatout: Callable[..., Result], run: Path, tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image")
    sizes: list[tuple[int, int]] = []
    for count in (1, 3):
        video = tmp_path / f"{count}.gif"
        words = ("--episodes", 2, "--out", video, "--video-episodes", count, "--json")
        result = flatout("eval", run, *words)
        assert result.code == 0, result.err
        assert json.loads(result.out)["video"] == str(video)
        with image.open(video) as picture:
            assert picture.format == "GIF"
            assert picture.n_frames >= 1
            sizes.append(picture.size)
    (wide, high), several = sizes
    assert several == (2 * wide, 2 * high), "three episodes in a grid of two by two"


def test_a_video_is_an_mp4(flatout: Callable[..., Result], run: Path, tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    video = tmp_path / "out.mp4"
    words = ("--episodes", 1, "--out", video, "--video-episodes", 2)
    assert flatout("eval", run, *words).code == 0
    words = [ffmpeg.get_ffmpeg_exe(), "-i", video, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(words, capture_output=True, check=True)
    found = re.search(r"Video: h264.* (\d+)x(\d+)", done.stderr.decode())
    assert found is not None
    wide, high = int(found[1]), int(found[2])
    shown = np.frombuffer(done.stdout, np.uint8).reshape(-1, high, wide, 3)
    assert len(shown) > 1
    assert np.ptp(shown[0]) > 100, "there is something to see"
    assert wide == 2 * high


def test_a_video_without_its_package(
    flatout: Callable[..., Result], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    result = flatout("eval", run, "--out", tmp_path / "out.mp4")
    assert result.code == 2
    assert "videos need packages: " in result.message
    assert "[video]'." in result.message
    assert not (tmp_path / "out.mp4").exists()
    with pytest.raises(UsageError, match=r"out.avi: videos are .gif or .mp4"):
        writer(tmp_path / "out.avi")
    assert "--video-episodes = 0" in flatout("eval", run, "--video-episodes", 0).message


class Remembering:
    """A recurrent policy whose carry is the number of steps since an episode began."""

    recurrent = True
    layout = SimpleNamespace(action=lambda row: row)

    def __init__(self) -> None:
        self.held, self.seen = 0, list[int]()

    def greedy(self, obs: Any, begun: np.ndarray) -> np.ndarray:
        steps = 0 if begun[0] else self.held
        self.seen.append(steps)
        self.held = steps + 1
        return np.zeros(1, np.int32)

    def carry(self, first: int, begun: np.ndarray) -> int:
        return self.held

    def set_carry(self, carry: int) -> None:
        self.held = carry


def test_episodes_side_by_side_have_memories_of_their_own() -> None:
    task, policy = PPO("CartPole-v1", placement="cpu").task, Remembering()
    episodes = [
        greedy_episode(task, policy, 0, ("rgb_array",), number)  # type: ignore[arg-type]
        for number in range(2)
    ]
    for _ in range(4):
        for episode in episodes:
            next(episode)
    assert policy.seen == [0, 0, 1, 1, 2, 2]
    for episode in episodes:
        episode.close()


@pytest.mark.parametrize(("name", "package"), [("a.gif", "PIL.Image"), ("a.mp4", "imageio_ffmpeg")])
def test_an_earlier_video_is_left_until_the_next_is_written(
    tmp_path: Path, name: str, package: str
) -> None:
    pytest.importorskip(package)
    path = tmp_path / name
    path.write_bytes(b"the earlier one")

    def frames(fails: bool) -> Iterator[np.ndarray]:
        for shade in (0, 100, 200):
            yield np.full((16, 16, 3), shade, np.uint8)
        if fails:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        writer(path)(path, frames(True), 30.0)
    assert path.read_bytes() == b"the earlier one"
    writer(path)(path, frames(False), 30.0)
    assert len(path.read_bytes()) > 30
    assert [one.name for one in tmp_path.iterdir()] == [name]


class Counter(Good):
    """An environment that draws the number of its step."""

    def render(self) -> Any:
        return np.full((4, 4, 3), self.t, np.uint8)


def idle() -> Any:
    """A policy that never acts."""
    layout = SimpleNamespace(action=lambda row: row)
    return SimpleNamespace(
        recurrent=False, greedy=lambda obs, begun: np.zeros(1, np.int32), layout=layout
    )


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_the_last_picture_is_of_the_state_in_which_the_episode_ended(ends: str) -> None:
    """A crash, or the goal, is often seen in it alone."""
    task = open_task(EnvConfig(env="counter"), lambda **mode: Counter(3, ends, **mode))
    found = list(greedy_episode(task, idle(), 0, ("rgb_array",)))
    assert [int(frame[0, 0, 0]) for frame, *_ in found] == [0, 1, 2, 3]
    assert [steps for *_, steps in found] == [0, 1, 2, 3]


def test_a_video_that_ends_before_its_episode_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = open_task(EnvConfig(env="counter"), lambda **mode: Counter(5, **mode))
    for most, words in ((6, ""), (5, "1 episode(s) had not ended after 5 frames")):
        record(idle(), task, 0, tmp_path / "a.gif", max_frames=most)
        assert words in (said := capsys.readouterr().err)
        assert bool(words) == bool(said)


def test_several_episodes_of_one_environment_object(tmp_path: Path) -> None:
    import gymnasium as gym

    env = gym.make("CartPole-v1", render_mode="rgb_array")
    agent = PPO(env, **tiny.python("ppo", **tiny.ONE)).learn(64)
    with pytest.raises(UsageError, match="one episode at a time"):
        agent.record(tmp_path / "out.gif", episodes=2)


def test_how_far_a_video_is_stands_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(video, "SHOWN_S", 0.0)
    with video.progress() as show:
        show("video: frame 3 of at most 9")
    monkeypatch.setattr(video, "SHOWN_S", 60.0)  # a short video says nothing
    with video.progress() as show:
        show("video: frame 4 of at most 9")
    assert tuple(capsys.readouterr()) == ("", "flatout: video: frame 3 of at most 9\n")


def test_a_grid_is_not_too_wide() -> None:
    frame = np.full((300, 500, 3), 9, np.uint8)
    assert grid([frame]).shape == frame.shape
    assert grid([frame] * 2).shape == (300, 1000, 3)
    nine = grid([frame] * 9)
    assert nine.shape[1] <= WIDE
    assert nine.min() == 9
    assert (grid([frame] * 3)[300:, 500:] == 0).all()
