"""Atari games: the settings of ale-py's `AtariVectorEnv`, and one game that renders pictures.

`AtariEnvs` uses the settings; `envs.make` opens the single game for watching and videos. Games
whose frame skip is drawn at each step, for ids such as ``Breakout-v0``, have `AtariVectorEnv`'s
interface.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from flatout.config.schema import EnvConfig
from flatout.config.values import check
from flatout.envs.ale_ids import atari_id, frame_skip, load, sticky_actions
from flatout.errors import EnvironmentFailure, UsageError, nearest
from flatout.types import DiscreteSpec, ObservationSpec


class DrawnSkips:
    """N games, each of which repeats its action for a number of frames drawn at each step.

    ale-py's `AtariVectorEnv` has one frame skip for all its games. Here each game has its own
    vector environment, whose step is one frame; their threads run at the same time. A reset's seed
    also decides the skips; without a seed, the game's random numbers continue.

    With `maxpool` an observed frame is the maximum of the last two frames of a step. Both frames
    are scaled before the maximum is computed, whereas `AtariVectorEnv` scales the maximum.

    Args:
        num_envs: N.
        frameskip: ``(low, high)``; the frames per step are drawn from low to high - 1.
        num_threads: the number of games that run at the same time.
        stack_num, maxpool: as for `AtariVectorEnv`.
        settings: `AtariVectorEnv`'s other arguments.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self, *, num_envs: int, frameskip: tuple[int, int], num_threads: int, stack_num: int,
        maxpool: bool, **settings: Any,
    ) -> None:  # fmt: skip
        self.num_envs = num_envs
        vector = load().vector_env.AtariVectorEnv
        single = settings | {"num_threads": 1, "frameskip": 1, "stack_num": 2, "maxpool": False}
        self._games = [vector(num_envs=1, **single) for _ in range(num_envs)]
        self._frameskip, self._maxpool, self._at_once = frameskip, maxpool, max(num_threads, 1)
        self._random = [np.random.default_rng() for _ in range(num_envs)]
        frame = self._games[0].single_observation_space.shape[1:]
        self._stacks = np.zeros((num_envs, stack_num, *frame), np.uint8)
        self._lives = np.zeros(num_envs, np.int32)
        self._frames = np.zeros(num_envs, np.int32)

    def reset(
        self, *, seed: np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start all games, or those of ``options["reset_mask"]`` (bool ``[N]``).

        `seed` holds one seed for each game that starts; -1 lets its random numbers continue.
        """
        mask = np.ones(len(self._games), np.bool_) if options is None else options["reset_mask"]
        envs = mask.nonzero()[0].tolist()
        seeds = [-1] * len(envs) if seed is None else seed.tolist()
        for env, number in zip(envs, seeds, strict=True):
            if number >= 0:
                self._random[env] = np.random.default_rng(number)
            stack, info = self._games[env].reset(seed=np.array([number]))
            self._stacks[env, :-1] = 0
            self._stacks[env, -1] = stack[0, -1]
            self._note(env, info)
        return self._stacks.copy(), self._info()

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Step every game once; return what `AtariVectorEnv.step` returns."""
        count = len(self._games)
        rewards = np.zeros(count, np.float32)
        terminated, truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        self._stacks[:, :-1] = self._stacks[:, 1:]
        for first in range(0, count, self._at_once):
            left = {
                env: int(self._random[env].integers(*self._frameskip))
                for env in range(first, min(first + self._at_once, count))
            }
            while left:
                for env in left:
                    self._games[env].send(actions[env : env + 1])
                for env in list(left):
                    stack, reward, ended, cut, info = self._games[env].ale.recv()
                    rewards[env] += reward[0]
                    terminated[env], truncated[env] = ended[0], cut[0]
                    left[env] -= 1
                    if not left[env] or ended[0] or cut[0]:
                        del left[env]
                        self._stacks[env, -1] = stack[0].max(0) if self._maxpool else stack[0, -1]
                        self._note(env, info)
        return self._stacks.copy(), rewards, terminated, truncated, self._info()

    def _note(self, env: int, info: dict[str, np.ndarray]) -> None:
        self._lives[env], self._frames[env] = info["lives"][0], info["frame_number"][0]

    def _info(self) -> dict[str, np.ndarray]:
        return {"lives": self._lives.copy(), "frame_number": self._frames.copy()}


ENDLESS = 2**30
"""A frame limit that no episode reaches."""

DEFAULT_STACK = 4
FRAMES_PER_SECOND = 60

PASSED_ON: dict[str, Any] = {
    "full_action_space": False,
    "max_num_frames_per_episode": 108_000,
    "img_height": 84,
    "img_width": 84,
    "grayscale": True,
    "maxpool": True,
    "use_fire_reset": True,
    "num_threads": None,
}
"""The arguments that ``--env-kwargs`` may set, with `AtariVectorEnv`'s own defaults. None: Flatout
chooses the value."""

FLAGS = {
    "num_envs": "--envs",
    "frameskip": "--frame-skip",
    "frame_skip": "--frame-skip",
    "repeat_action_probability": "--sticky-actions",
    "noop_max": "--noop-max",
    "stack_num": "--frame-stack",
    "episodic_life": "--terminal-on-life-loss",
    "life_loss_info": "--terminal-on-life-loss",
    "reward_clipping": "--clip-reward",
}
"""`AtariVectorEnv`'s arguments that have flags of their own, and these flags."""


def vector_settings(config: EnvConfig) -> dict[str, Any]:
    """Return `AtariVectorEnv`'s arguments, except the number of environments.

    If the id draws its frame skip at each step, ``frameskip`` is a pair ``(low, high)``, and `high`
    itself is never drawn. `open_vector` accepts such a pair; `AtariVectorEnv` does not.

    Reward clipping and the end of an episode at a lost life are switched off: the learner applies
    both. Here they would hide the raw return.

    Raises:
        UsageError: the game is unknown, a value is impossible, or an argument has a flag of its
            own.
    """
    name, stack = config.env, config.frame_stack
    rom = atari_id(name).rom
    if config.grayscale or config.resize:
        raise UsageError(
            f"{name} is gray and 84 x 84 already: drop --grayscale and --resize (another size is "
            "--env-kwargs img_height=ROWS --env-kwargs img_width=COLUMNS)."
        )
    check(config)
    for key, value in config.env_kwargs.items():
        _check(name, key, value)
    return PASSED_ON | config.env_kwargs | {
        "game": rom,
        "frameskip": frame_skip(config),
        "repeat_action_probability": sticky_actions(config),
        "noop_max": config.noop_max,
        "stack_num": DEFAULT_STACK if stack is None else stack,
        "episodic_life": False,
        "reward_clipping": False,
    }  # fmt: skip


def open_vector(
    settings: Mapping[str, Any], num_envs: int, num_threads: int, resets: bool = False
) -> Any:
    """Open games that step together.

    If the frame skip is fixed, the caller truncates episodes (see `atari_specs`). ale-py would do
    it without observing the last frame.

    Args:
        settings: those of `vector_settings`.
        num_envs: the number of games.
        num_threads: threads in which they step.
        resets: whether these threads reset a game within the step in which it ends. The frame skip
            must be fixed.
    """
    chosen: dict[str, Any] = {**settings, "num_envs": num_envs, "num_threads": num_threads}
    if isinstance(settings["frameskip"], tuple):
        return DrawnSkips(**chosen)
    chosen["max_num_frames_per_episode"] = ENDLESS
    chosen["autoreset_mode"] = AutoresetMode.SAME_STEP if resets else AutoresetMode.NEXT_STEP
    return load().vector_env.AtariVectorEnv(**chosen)


def _check(name: str, key: str, value: Any) -> None:
    if key in FLAGS:
        raise UsageError(f"--env-kwargs {key}: for Atari ids, use {FLAGS[key]}.")
    if key not in PASSED_ON:
        raise UsageError(
            f"--env-kwargs {key}: {name} takes {', '.join(PASSED_ON)}.{nearest(key, PASSED_ON)}"
        )
    if isinstance(PASSED_ON[key], bool):
        if not isinstance(value, bool):
            raise UsageError(f"--env-kwargs {key} = {value!r} is impossible: pass true or false.")
    elif isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise UsageError(f"--env-kwargs {key} = {value!r} is impossible: pass at least 1.")


def atari_specs(config: EnvConfig) -> tuple[ObservationSpec, DiscreteSpec, int]:
    """Return the specs of an observation and of an action, and the time limit in steps.

    No environment is made. The limit is that of the frames, rounded up to whole steps. If the
    frame skip is drawn, it is the largest number of steps that an episode can have.

    Raises:
        UsageError: as `vector_settings`.
    """
    settings = vector_settings(config)
    stack = settings["stack_num"]
    channels = stack if settings["grayscale"] else 3 * stack
    shape = settings["img_height"], settings["img_width"], channels
    frames, skip = settings["max_num_frames_per_episode"], settings["frameskip"]
    least = skip[0] if isinstance(skip, tuple) else skip
    actions = _actions(settings["game"], settings["full_action_space"])
    return (
        ObservationSpec(shape, "uint8", 255, stack, "zeros"), DiscreteSpec(len(actions)),
        -(-frames // least),
    )  # fmt: skip


@functools.cache
def _actions(rom: str, full: bool) -> tuple[Any, ...]:
    """Return a game's actions. Only its ROM lists them, and loading it takes a tenth of a second,
    so the result is cached."""
    ale_py = load()
    ale = ale_py.ALEInterface()
    ale.loadROM(ale_py.roms.get_rom_path(rom))
    return tuple(ale.getLegalActionSet() if full else ale.getMinimalActionSet())


def check_choices(name: str, actions: np.ndarray, count: int) -> np.ndarray:
    """Return actions ``[N]`` as ale-py takes them. An invalid one would make its thread fail, and
    the step would never return.

    Raises:
        EnvironmentFailure: an action is not one of `count`.
    """
    choices = np.array(actions, np.int32)
    if choices.min() < 0 or choices.max() >= count:
        raise EnvironmentFailure(
            f"an action for {name} is not one of its {count}: {choices.tolist()}"
        )
    return choices


def write_frames(stacks: np.ndarray, out: np.ndarray, envs: list[int] | None = None) -> None:
    """Copy frame stacks to images whose channels are the frames, the newest frame last.

    One strided copy per frame takes a quarter of the time of one copy of the transposed array,
    because the inner loop of the latter would be as short as the stack.

    Args:
        stacks: ``[N, S, H, W]`` or ``[N, S, H, W, 3]`` as `AtariVectorEnv` returns them, the oldest
            frame first.
        out: ``[N, H, W, channels]``, uint8, contiguous in its last axis. If it has room for fewer
            frames, for one for example, it gets the newest ones.
        envs: copy only these environments; None copies all.
    """
    count, stack, rows, columns = stacks.shape[:4]
    frames = stacks.reshape(count, stack, rows, columns, -1)
    images = out.reshape(count, rows, columns, -1, frames.shape[-1])
    older = stack - images.shape[3]
    for k in range(images.shape[3]):
        if envs is None:
            images[:, :, :, k] = frames[:, older + k]
        else:
            for env in envs:
                images[env, :, :, k] = frames[env, older + k]


class OneAtari(gym.Env[np.ndarray, Any]):
    """One Atari game as a Gymnasium environment, for watching and for videos.

    From the same seed and actions its observations are exactly those of `AtariEnvs`: it plays in an
    `AtariVectorEnv` of one game. For pictures, a second emulator with the same seed follows the
    first frame by frame.

    Args:
        config: the id and its settings.
        render_mode: None or ``"rgb_array"``: pictures ``[210, 160, 3]`` of the last frame.

    Raises:
        UsageError: another `render_mode`, or as `vector_settings`.
    """

    def __init__(self, config: EnvConfig, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise UsageError(f"render_mode {render_mode!r}: {config.env} renders rgb_array.")
        self.render_mode = render_mode
        self.obs_spec, self.action_spec, self.max_steps = atari_specs(config)
        self.observation_space = gym.spaces.Box(0, 255, self.obs_spec.shape, np.uint8)
        self.action_space = gym.spaces.Discrete(self.action_spec.n)
        settings = vector_settings(config)
        skip = settings["frameskip"]
        self._length, self._truncates = 0, not isinstance(skip, tuple)
        frames = (skip[0] + skip[1] - 1) / 2 if isinstance(skip, tuple) else skip  # on average
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_SECOND / frames}
        self._ale_py = load()
        self._vector: Any = open_vector(settings, 1, 1)
        self._actions = _actions(settings["game"], settings["full_action_space"])
        self._fire = settings["use_fire_reset"] and self._ale_py.Action.FIRE in self._actions
        self._screen: Any = None
        if render_mode is not None:
            self._rom = self._ale_py.roms.get_rom_path(settings["game"])
            self._screen = self._ale_py.ALEInterface()
            self._screen.setFloat(
                "repeat_action_probability", settings["repeat_action_probability"]
            )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a game. Without `seed`, the game's seed is drawn from `np_random`."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        stacks, info = self._vector.reset(seed=np.array([seed]))
        self._length = 0
        if self._screen is not None:
            self._screen.setInt("random_seed", seed)
            self._screen.loadROM(self._rom)
            self._screen.reset_game()
            if self._fire:
                self._screen.act(self._ale_py.Action.FIRE)
            while self._screen.getFrameNumber() < info["frame_number"][0]:
                self._screen.act(self._ale_py.Action.NOOP)
                if self._screen.game_over():
                    self._screen.reset_game()
        return self._image(stacks), {"lives": int(info["lives"][0])}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat one action, an index into the game's actions, for one step's frames."""
        stacks, rewards, terminated, truncated, info = self._vector.step(
            np.array([action], np.int32)
        )
        self._length += 1
        truncated = bool(truncated[0])
        if self._truncates and not terminated[0]:
            truncated = self._length >= self.max_steps
        if self._screen is not None:
            for _ in range(info["frame_number"][0] - self._screen.getFrameNumber()):
                self._screen.act(self._actions[action])
        return (
            self._image(stacks), float(rewards[0]), bool(terminated[0]), truncated,
            {"lives": int(info["lives"][0])},
        )  # fmt: skip

    def render(self) -> Any:
        """Return the screen's last frame, uint8 ``[210, 160, 3]``; None without a render mode."""
        return None if self._screen is None else self._screen.getScreenRGB()

    def close(self) -> None:
        """Stop the emulator and its thread."""
        self._vector = None

    def _image(self, stacks: np.ndarray) -> np.ndarray:
        out = np.empty((1, *self.obs_spec.shape), np.uint8)
        write_frames(stacks, out)
        return out[0]
