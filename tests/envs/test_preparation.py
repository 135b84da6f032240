"""Preparation of observations: grey images, other sizes, stacks of frames."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from flatout.config.schema import EnvConfig
from flatout.envs.make import factory, specs
from flatout.errors import UsageError
from flatout.types import ObservationSpec
from tests import bad_envs


def made(name: str, **config: Any) -> gym.Env[Any, Any]:
    """Make one prepared environment."""
    return factory(EnvConfig(env=name, **config))()


def test_grayscale() -> None:
    colour, gray = made("tests.bad_envs:Images"), made("tests.bad_envs:Images", grayscale=True)
    rgb, one = colour.reset(seed=0)[0], gray.reset(seed=0)[0]
    assert (one.shape, one.dtype) == ((48, 48, 1), np.uint8)
    luminance = rgb @ np.array([0.2125, 0.7154, 0.0721])
    assert np.abs(one[..., 0] - luminance).max() <= 1


@pytest.mark.parametrize(("gray", "channels"), [(False, 3), (True, 1)])
def test_resize(gray: bool, channels: int) -> None:
    pytest.importorskip("cv2", reason="--resize needs OpenCV")
    env = made("tests.bad_envs:Images", resize=24, grayscale=gray)
    obs = env.reset(seed=0)[0]
    assert (obs.shape, obs.dtype) == ((24, 24, channels), np.uint8)
    assert specs(env, "")[0] == ObservationSpec((24, 24, channels), "uint8", 255)
    bright = 200 if not gray else round(200 * 0.0721)
    assert np.abs(obs[:11, :, -1].astype(int) - bright).max() <= 1
    assert not obs[13:].any()


@pytest.mark.parametrize("setting", [{"grayscale": True}, {"resize": 24}])
@pytest.mark.parametrize(("high", "dtype"), [(1, "float32"), (255, "float32"), (200, "uint8")])
def test_images_that_are_no_bytes_are_refused(setting: Any, high: int, dtype: Any) -> None:
    class Other(bad_envs.Images):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Box(0, high, (48, 48, 3), np.dtype(dtype).type)

    words = rf"--resize need images of type uint8 from 0 to 255, .* {dtype} from 0 to {high}: "
    with pytest.raises(UsageError, match=words):
        factory(EnvConfig(env="other", **setting), Other)()


def test_frame_stack_of_images() -> None:
    env = made("tests.bad_envs:Images", frame_stack=3)
    obs = env.reset(seed=0)[0]
    assert (obs.shape, obs.dtype) == ((48, 48, 9), np.uint8)
    frames = [obs[..., :3]] * 3
    assert np.array_equal(obs, np.concatenate(frames, -1)), "the first frame, three times"
    for action in (1, 0, 1, 1):
        obs = env.step(action)[0]
        frames = [*frames[1:], obs[..., -3:]]
        assert np.array_equal(obs, np.concatenate(frames, -1)), "oldest first"
    assert obs[0, 0].tolist() == [2, 0, 200, 3, 100, 200, 4, 100, 200]


def test_frame_stack_of_vectors() -> None:
    env, plain = made("tests.bad_envs:Good", frame_stack=2), made("tests.bad_envs:Good")
    last, obs = plain.reset(seed=3)[0], env.reset(seed=3)[0]
    assert np.array_equal(obs, np.tile(last, 2))
    for action in (1, 0, 1):
        now = plain.step(action)[0]
        assert np.array_equal(env.step(action)[0], np.concatenate([last, now]))
        last = now
