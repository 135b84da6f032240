"""Step 6 of the data flow, inline: the arrays that the sampler writes step by step.

`RolloutBuffer` allocates them once; each trajectory is a view of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flatout import tree
from flatout.algorithms.base import TRAJECTORY_FIELDS, RolloutSpec, WrittenBy
from flatout.engine.finals import pack_finals
from flatout.engine.trajectory import field_of
from flatout.envs.base import invalid_return
from flatout.frames import MAX_AGE, NEXT_AGE, newest, stack_rows
from flatout.packing import OutputLayout
from flatout.types import Obs, ObservationSpec, ObsSpec, Trajectory


def step_arrays(
    rollout: RolloutSpec,
    num_envs: int,
    spec: ObsSpec,
    writers: Sequence[WrittenBy] = ("envs", "sampler"),
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of the arrays that samplers on the host write step by step, by name.

    Observations have the rows of `Trajectory.obs` and then that of `Trajectory.last_obs`.

    Args:
        spec: one observation.
        writers: the writers of these arrays; outputs of `act` are packed (`RolloutBuffer`).
    """
    steps = {"TN": rollout.horizon, "RN": rollout.horizon + 1}
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, field in TRAJECTORY_FIELDS.items():
        if field.axes not in steps or field.writer not in writers or not rollout.holds(name):
            continue
        if field.entry != "obs":
            found[name] = ((steps[field.axes], num_envs), field.entry)
            continue
        rows, stored = rollout.obs_rows(spec), rollout.stored(spec)
        for leaf_name, leaf in tree.named(name, stored).items():
            count = tree.named(name, rows)[leaf_name] + 1
            found[leaf_name] = ((count, num_envs, *leaf.shape), leaf.dtype)
    return found


class RolloutBuffer:
    """Arrays for T steps of N environments, reused by every trajectory.

    `obs` is a tree of ``[T + 1, N, ...]``: row ``t + 1`` is the observations after step ``t``, and
    the last row is the first of the next trajectory. `outputs` is a list with one array
    ``[T, words]`` uint32 per acting group: the packed rows that `act` returned, one per step. If
    each frame of a stack is stored once, `obs` has single frames and `age` their ages (see
    `Trajectory`), else `age` is None. `terminal` is that of the `RolloutSpec`.

    Args:
        rollout: T, and which optional arrays to keep.
        num_envs: N.
        spec: one observation.
        layouts: the layout of each acting group's packed rows, in the environments' order.
        sign: return only the signs of rewards.
        shared: zeroed arrays by their names in `step_arrays`, to use instead of new ones. They may
            be in shared memory, for other processes to write to; `outputs` is ``[groups, T,
            words]``.
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
        self._num_envs, self.spec = num_envs, spec
        given = shared or {}
        arrays = {
            name: given[name] if name in given else np.zeros(shape, dtype)
            for name, (shape, dtype) in step_arrays(rollout, num_envs, spec).items()
        }
        self._rows: Obs = tree.unnamed("obs", spec, arrays)  # with the first row's older frames
        rows = rollout.horizon + 1
        self.obs: Obs = tree.map(lambda leaf: leaf[len(leaf) - rows :], self._rows)
        self.age = arrays.pop("age", None)
        self.rewards = arrays["rewards"]
        self.terminated, self.truncated = arrays["terminated"], arrays["truncated"]
        self.valid, self.ended = arrays.get("valid"), arrays.get("ended")
        self._flags = {n: array for n, array in arrays.items() if field_of(n).writer == "sampler"}
        if "outputs" in given:
            self.outputs = list(given["outputs"])
        else:
            rows = rollout.horizon
            self.outputs = [np.zeros((rows, layout.words), np.uint32) for layout in layouts]
        self._sign, self.terminal = sign, rollout.terminal
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

    # --- Observations, whose older frames and ages follow from each other -----------------------

    def begin_from(self, before: RolloutBuffer, row: int) -> None:
        """Copy the observations of a row of `before`, which may be this buffer, to row 0."""

        def copy(mine: np.ndarray, other: np.ndarray) -> None:
            older = len(mine) - len(self.rewards)
            mine[:older] = other[row : row + older]

        tree.map(copy, self._rows, before._rows)
        if self.age is not None:
            assert before.age is not None
            self.age[0] = before.age[row]

    def begin_episode(self, row: int, envs: Any = slice(None)) -> None:
        """Let the observations of environments in a row begin their episodes."""
        if self.age is not None:
            self.age[row, envs] = 0

    def advance(self, row: int, envs: Any) -> None:
        """Let the next row's observations of environments follow on those of `row`."""
        if self.age is not None:
            self.age[row + 1, envs] = NEXT_AGE[self.age[row, envs]]

    def hold(self, row: int, later: int, envs: Any) -> None:
        """Copy the observations of environments between episodes to a later row."""
        tree.put(self.obs, (later, envs), tree.take(self.obs, (row, envs)))
        if self.age is not None:
            self.age[later, envs] = self.age[row, envs]

    def frames(self, row: int, envs: slice) -> Obs:
        """Return views of the observations of a row as a policy takes them: of a stack its S frames
        ``[S, n, H, W, C]``, the newest last."""
        if self.age is None:
            return tree.take(self.obs, (row, envs))

        def of(spec: ObservationSpec, leaf: np.ndarray) -> np.ndarray:
            return leaf[row : row + spec.stack, envs] if spec.stack > 1 else leaf[row, envs]

        return tree.map(of, self.spec, self._rows)

    def stored(self, obs: Obs) -> Obs:
        """Return whole observations as the arrays hold them: of a stack the newest frame."""
        return obs if self.age is None else newest(self.spec, obs)

    def saved_obs(self, row: int) -> tuple[Obs, np.ndarray | None]:
        """Return copies of the frames and ages of a row, from which `whole_obs` makes its
        observations."""
        rows = tree.map(
            lambda leaf: leaf[row : row + len(leaf) - len(self.rewards)].copy(), self._rows
        )
        return rows, None if self.age is None else self.age[row : row + 1].copy()

    def whole_obs(self, rows: Obs, age: np.ndarray | None) -> Obs:
        """Return the whole observations ``[N, ...]`` of a result of `saved_obs`."""
        whole = rows if age is None else stack_rows(np, self.spec, rows, age)
        return tree.take(whole, 0)

    def restore_obs(self, obs: Obs) -> None:
        """Set the older frames of row 0 to those of whole observations ``[N, ...]``."""
        if self.age is None:
            return
        self.age[0] = MAX_AGE  # the stacks hold their padding

        def restore(spec: ObservationSpec, rows: np.ndarray, saved: np.ndarray) -> None:
            channels = spec.frame.shape[-1]
            for at in range(spec.stack - 1):
                rows[at] = saved[..., at * channels : (at + 1) * channels]

        tree.map(
            lambda spec, *arrays: restore(spec, *arrays) if spec.stack > 1 else None,
            self.spec, self._rows, obs,
        )  # fmt: skip

    # --- A trajectory -------------------------------------------------------------------------

    def first_obs(self, env: int) -> Obs:
        """Return a copy of the first observation of an environment; of a stack the newest frame."""
        return tree.map(lambda leaf: leaf[0, env].copy(), self.obs)

    def start(self) -> None:
        """Begin a trajectory. `obs[0]` must hold its first observations."""
        for flags in self._flags.values():
            flags.fill(False)
        self.forget()

    def forget(self) -> None:
        """Drop final observations. If workers write the other arrays, call this, not `start`."""
        self._final_obs.clear()
        self._final_index.clear()

    def keep_final(self, step: int, env: int, obs: Obs) -> None:
        """Store the final observation of an episode that `step` truncated in environment `env`."""
        copies = tree.map(np.array, self.stored(obs))  # environments may reuse arrays
        self._final_obs.append(copies)
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
            obs=tree.take(self._rows, slice(None, -1)),
            actions=actions,
            rewards=np.sign(self.rewards) if self._sign else self.rewards,
            last_obs=tree.take(self.obs, -1),
            finals=finals,
            extras=outputs,
            age=self.age,
            **self._flags,
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
