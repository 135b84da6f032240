"""Step 6 of the data flow, inline: a trajectory is written step by step into arrays that are
allocated once. The sampler fills them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flatout import tree
from flatout.algorithms.base import RolloutSpec
from flatout.buffers.finals import pack_finals
from flatout.envs.base import invalid_return
from flatout.packing import OutputLayout
from flatout.types import Obs, ObsSpec, Trajectory


class RolloutBuffer:
    """Arrays for T steps of N environments, reused by every trajectory.

    `obs` is a tree of ``[T + 1, N, ...]``: row ``t + 1`` is the observations after step ``t``, and
    the last row is the first of the next trajectory. `outputs` is a list with one array
    ``[T, words]`` uint32 per acting group: the packed rows that `act` returned, one per step.

    Args:
        rollout: T, and which optional arrays to keep.
        num_envs: N.
        spec: one observation.
        layouts: the layout of each acting group's packed rows, in the environments' order.
        sign: return only the signs of rewards.
        shared: zeroed arrays by attribute name (`tree.named` for observations), to use instead of
            new ones. They may be in shared memory, for other processes to write to; `outputs` is
            ``[groups, T, words]``.
    """

    def __init__(
        self,
        rollout: RolloutSpec,
        num_envs: int,
        spec: ObsSpec,
        layouts: Sequence[OutputLayout],
        sign: bool = False,
        shared: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._num_envs = num_envs
        horizon, given = rollout.horizon, shared or {}
        flags = ((horizon, num_envs), "bool")

        def array(name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
            return given[name] if name in given else np.zeros(shape, dtype)

        obs = {
            name: array(name, (horizon + 1, num_envs, *leaf.shape), leaf.dtype)
            for name, leaf in tree.named("obs", spec).items()
        }
        self.obs: Obs = tree.unnamed("obs", spec, obs)
        self.rewards = array("rewards", (horizon, num_envs), "float32")
        self.terminated = array("terminated", *flags)
        self.truncated = array("truncated", *flags)
        self.valid = array("valid", *flags) if rollout.episodes is not None else None
        self.ended = array("ended", *flags) if rollout.replayed else None
        if "outputs" in given:
            self.outputs = list(given["outputs"])
        else:
            self.outputs = [np.zeros((horizon, layout.words), np.uint32) for layout in layouts]
        self._sign = sign
        self._least_finals = rollout.truncations * num_envs
        self._no_finals = pack_finals(
            np.zeros(0, np.int32), tree.take(self.obs, (0, slice(0))), self.rewards.size,
            self._least_finals,
        )  # fmt: skip
        for unused in (self._no_finals.index, *tree.leaves(self._no_finals.obs)):
            unused.flags.writeable = False  # trajectories share them
        # Views of `outputs`, made once: making them takes as long as a short step.
        self._views = [
            layout.read(rows) for layout, rows in zip(layouts, self.outputs, strict=True)
        ]
        self._final_obs: list[Obs] = []
        self._final_index: list[int] = []

    def first_obs(self, env: int) -> Obs:
        """Return a copy of the first observation of an environment."""
        return tree.map(lambda leaf: leaf[0, env].copy(), self.obs)

    def start(self) -> None:
        """Begin a trajectory. `obs[0]` must hold its first observations."""
        self.terminated.fill(False)
        self.truncated.fill(False)
        if self.valid is not None:
            self.valid.fill(False)
        if self.ended is not None:
            self.ended.fill(False)
        self.forget()

    def forget(self) -> None:
        """Drop final observations. If workers write the other arrays, call this, not `start`."""
        self._final_obs.clear()
        self._final_index.clear()

    def keep_final(self, step: int, env: int, obs: Obs) -> None:
        """Store the final observation of an episode that `step` truncated in environment `env`."""
        self._final_obs.append(tree.map(np.array, obs))  # copies: environments may reuse arrays
        self._final_index.append(step * self._num_envs + env)

    def trajectory(self) -> Trajectory:
        """Return the trajectory. Its arrays are views, valid until the next `start`."""
        finals = self._no_finals
        if self._final_index:
            index = np.array(self._final_index, np.int32)
            obs = tree.map(
                lambda rows, *finals: np.stack(finals).astype(rows.dtype, copy=False),
                self.obs, *self._final_obs,
            )  # fmt: skip
            finals = pack_finals(index, obs, self.rewards.size, self._least_finals)
        outputs = self.read()
        actions = outputs.pop("action")
        return Trajectory(
            obs=tree.take(self.obs, slice(None, -1)),
            actions=actions,
            rewards=np.sign(self.rewards) if self._sign else self.rewards,
            terminated=self.terminated,
            truncated=self.truncated,
            last_obs=tree.take(self.obs, -1),
            finals=finals,
            extras=outputs,
            valid=self.valid,
            ended=self.ended,
        )

    def read(self) -> dict[str, np.ndarray]:
        """Return the outputs of `act` by name, each ``[T, N, ...]``."""
        first, *more = self._views
        if not more:
            return dict(first)
        return {name: np.concatenate([part[name] for part in self._views], 1) for name in first}

    def check(self, name: str, first: int = 0) -> None:
        """Check that all observations and rewards are finite.

        Args:
            name: the environment's name, for the message.
            first: the number of the first environment in the run.

        Raises:
            EnvironmentFailure: one is NaN or infinite; the message names its step and environment.
        """
        bad_obs = "an observation with NaN or infinity"

        def at(path: str) -> str:
            return f" in {path!r}" if path else ""

        if not np.isfinite(self.rewards).all():
            rows = self.rewards if self.valid is None else np.where(self.valid, self.rewards, 0)
            bad = np.argwhere(~np.isfinite(rows))
            if len(bad):
                step, env = bad[0]
                raise invalid_return(name, step, first + env, f"reward {self.rewards[step, env]}")
        for path, array in tree.items(self.obs):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                flat = np.isfinite(array).reshape(*array.shape[:2], -1).all(-1)
                step, env = np.argwhere(~flat)[0]
                raise invalid_return(name, step - 1, first + env, bad_obs + at(path))
        for index, obs in zip(self._final_index, self._final_obs, strict=True):
            for path, array in tree.items(obs):
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    step, env = divmod(index, self._num_envs)
                    raise invalid_return(name, step, first + env, bad_obs + at(path))
