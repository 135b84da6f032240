"""Evaluation: greedy episodes with seeds of their own, and pictures of them."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from flatout import tree
from flatout.algorithms.base import Algorithm
from flatout.engine.act import Policy
from flatout.envs.base import EVALUATION
from flatout.envs.rendering import cannot_render, has_display
from flatout.envs.task import Task
from flatout.errors import (
    EnvironmentFailure,
    NotInstalledError,
    UsageError,
    one_line,
    raised_at,
    writing,
)
from flatout.evaluation import Evaluation
from flatout.output import say
from flatout.randomness import ACT, raw_key
from flatout.run.video import grid, progress, writer
from flatout.spans import Spans
from flatout.types import Device, Episode, Obs

MAX_EPISODE_STEPS = 108_000
"""An episode of an evaluation, of `flatout eval --show` or of a video that has not ended by then is
truncated (half an hour of Atari)."""


class Evaluator:
    """Plays the same numbered episodes, so that evaluations can be compared.

    Args:
        seed: the run's seed; evaluation draws its own stream of episode seeds from it.
        max_envs: the most environments to play in together.
        deterministic: act greedily, instead of drawing actions.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        episodes: int,
        seed: int,
        device: Device,
        max_envs: int = 16,
        precision: str = "highest",
        deterministic: bool = True,
    ) -> None:
        self._episodes, self._greedy = episodes, deterministic
        self._obs_spec = task.obs_spec
        count = task.fixed_size or min(episodes, max_envs)
        key = None if deterministic else raw_key(seed, ACT)
        self.policy = Policy(algorithm, task.obs_spec, count, device, key, precision)
        self._envs = task.open(count, seed, EVALUATION)

    def run(self, params: Any, version: int) -> Evaluation:
        """Play all episodes with packed parameters ``[P]``.

        Environment e plays episodes numbered by its own seeds; its share is fixed, so that the
        result is a function of the parameters alone.
        """
        self.policy.publish(params, version, Spans())
        envs, count = self._envs, self._envs.num_envs
        shares = [len(range(env, self._episodes, count)) for env in range(count)]
        obs = tree.zeros(self._obs_spec, count)
        rewards = np.zeros((count,), np.float32)
        done: list[list[Episode]] = [[] for _ in range(count)]
        envs.reset_all(obs, episode=0)

        begun = np.ones(count, np.bool_)

        def ended(env: int, terminated: bool, truncated: bool, final: Obs) -> None:
            done[env].append(envs.finished(env))
            begun[env] = True

        active, cut = [env for env in range(count) if shares[env]], 0
        for step in itertools.count():
            if not active:
                break
            if self._greedy:
                row = self.policy.greedy(obs, begun.copy())
            else:
                row = self.policy.act(obs, step, 0, begun.copy())
            actions = self.policy.layout.action(row)
            begun[:] = False
            envs.step(actions, obs, rewards, ended, active)
            for env in active:
                if envs.lengths[env] >= MAX_EPISODE_STEPS:
                    cut += 1
                    ended(env, False, True, tree.take(obs, env))
                    if len(done[env]) < shares[env]:
                        envs.reset(env, obs)
            active = [env for env in active if len(done[env]) < shares[env]]
        if cut:
            say(
                f"{cut} evaluation episode(s) did not end and were cut after "
                f"{MAX_EPISODE_STEPS:,} steps."
            )
        episodes = [done[k % count][k // count] for k in range(self._episodes)]
        returns = tuple(episode.episode_return for episode in episodes)
        if not np.isfinite(returns).all():
            raise EnvironmentFailure("an evaluation episode's return is NaN or infinite.")
        infos = [episode.info or {} for episode in episodes]
        successes = [info["is_success"] for info in infos if "is_success" in info]
        success_rate = float(np.mean(successes)) if successes else None
        return Evaluation(returns, tuple(episode.length for episode in episodes), success_rate)

    def close(self) -> None:
        self._envs.close()


def record(
    policy: Policy, task: Task, seed: int, path: Path, episodes: int = 1, max_frames: int = 2000
) -> float:
    """Play greedy episodes side by side and write them as a video; return their mean return, or
    what they had reached after `max_frames`.

    Raises:
        UsageError: the environment renders no pictures, or a package for it is missing.
    """
    save, most = writer(path), min(max_frames, (task.limit or max_frames) + 1)
    if task.single and episodes > 1:
        raise UsageError(
            "an environment object plays one episode at a time: pass a function that makes "
            "environments, or episodes = 1."
        )
    with ExitStack() as stack:
        show = stack.enter_context(progress())
        running = [
            stack.enter_context(closing(greedy_episode(task, policy, seed, ("rgb_array",), number)))
            for number in range(episodes)
        ]
        seen = [next(episode) for episode in running]
        rate = seen[0][1] or 30.0

        def frames() -> Iterator[np.ndarray]:
            yield grid([frame for frame, *_ in seen])
            for made in range(1, max_frames):
                show(f"video: frame {made:,} of at most {most:,}")
                moved = False
                for number, episode in enumerate(running):
                    if (step := next(episode, None)) is not None:
                        seen[number], moved = step, True
                if not moved:
                    return
                yield grid([frame for frame, *_ in seen])

        with writing(path):
            save(path, frames(), rate)
        if cut := sum(next(episode, None) is not None for episode in running):
            say(
                f"{path}: {cut} episode(s) had not ended after {max_frames:,} frames; the video "
                "ends there, and the return is that until then."
            )
    return float(np.mean([total for _, _, total, _ in seen]))


def greedy_episode(
    task: Task, policy: Policy, seed: int, modes: Sequence[str], episode: int = 0
) -> Generator[tuple[Any, float, float, int], None, None]:
    """Yield an episode's frame, frames per second (or 0), return and steps, first and at each step.
    The last frame shows the state in which the episode ended, after `MAX_EPISODE_STEPS` at the
    latest.

    Args:
        policy: greedy, for one environment, with its parameters.
        modes: of rendering; the first one that there is.

    Raises:
        UsageError: there is nothing to see, or a package for it is missing.
    """
    env = _rendering(task, modes)
    envs = task.host([env], seed, EVALUATION)
    obs = tree.zeros(task.obs_spec, 1)
    over: list[tuple[Any, float, float, int]] = []
    begun = np.ones(1, np.bool_)  # the first step begins an episode
    carry: Any = None  # this episode's; the policy may play others in between

    def now() -> tuple[Any, float, float, int]:
        shown = _frame(env, task.name, modes)
        return shown, rate, float(envs.returns[0]), envs.lengths[0]

    def ended(*end: Any) -> None:
        over.append(now())  # before the next episode begins

    try:
        rate = _rate(env)
        envs.reset(0, obs, episode)
        yield now()
        while not over:
            if envs.lengths[0] >= MAX_EPISODE_STEPS:
                say(f"the episode did not end and was cut after {MAX_EPISODE_STEPS:,} steps.")
                return
            if carry is not None:
                policy.set_carry(carry)
            actions = policy.layout.action(policy.greedy(obs, begun.copy()))
            begun[:] = False
            if policy.recurrent:
                carry = policy.carry(0, begun)
            envs.step(actions, obs, np.zeros(1), ended)
            yield over[0] if over else now()
    finally:
        envs.close()


def _rendering(task: Task, modes: Sequence[str]) -> gym.Env[Any, Any]:
    if task.vector is not None:
        raise UsageError(
            f"{task.name} is a vector environment, of which no pictures are made: evaluate without "
            "--show and --out, or in a single environment (load the agent with env=)."
        )
    if task.single and task.first is not None:  # a user's object, which renders as it was made to
        env, task.first = task.first, None
        if env.render_mode in modes:
            return env
        raise UsageError(
            f"the environment object {task.name} was made without render_mode={modes[0]!r}: make "
            "it with that, or pass its id or a function."
        )
    # One sentence says what of this matters.
    warnings.filterwarnings("ignore", ".*render_mode.* not in the possible render_modes")
    if not has_display():
        warnings.filterwarnings("ignore", ".*(GLFW|X11|DISPLAY)")
    for mode in modes:
        try:
            env = task.make(render_mode=mode)
        except Exception as error:  # what an environment says to a mode that it has not, varies
            if (refused := cannot_render(task.name, error)) is not None:
                raise refused from error
            continue
        known = env.metadata.get("render_modes")
        if known is None or mode in known:
            return env
        env.close()
    raise UsageError(f"{task.name} renders {_sights(modes)}.")


def _sights(modes: Sequence[str]) -> str:
    text = "neither text (ansi) nor " if "ansi" in modes else "no "
    return f"{text}pictures (rgb_array)"


def _rate(env: gym.Env[Any, Any]) -> float:
    """Return the frames per second that an environment asks for; 0 if that is no positive
    number."""
    try:
        rate = float(env.metadata.get("render_fps") or 0.0)
    except (TypeError, ValueError):
        return 0.0
    return rate if 0.0 < rate < 1e4 else 0.0


def _frame(env: gym.Env[Any, Any], name: str, modes: Sequence[str]) -> Any:
    try:
        frame = env.render()
    except gym.error.DependencyNotInstalled as error:
        raise NotInstalledError(f"rendering {name} needs a package: {one_line(error)}") from error
    except (Exception, SystemExit) as error:  # a user's environment may raise anything
        if (refused := cannot_render(name, error)) is not None:
            raise refused from error
        raise EnvironmentFailure(
            f"{name} raised {type(error).__name__} in render: {one_line(error)} "
            f"({raised_at(error)})."
        ) from error
    if isinstance(frame, str) and "ansi" in modes:
        return frame
    if isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.size:
        if frame.dtype.kind == "f" and frame.min() >= 0.0 and frame.max() <= 1.0:
            return 255.0 * frame
        return frame.copy()  # it may be drawn into again
    if isinstance(frame, np.ndarray):
        raise UsageError(f"{name} renders arrays of shape {frame.shape}, not pictures [H, W, 3].")
    raise UsageError(f"{name} renders {type(frame).__name__}, {_sights(modes)}.")
