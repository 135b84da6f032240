"""One act and one update of each algorithm on the GPU, against the CPU, from the same numbers."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

from gpu_rows.base import Bench, Figures, Row
from harness import BenchmarkError

VECTOR = ("CartPole-v1", {"envs": 8, "hidden": [64, 64]})
CONTINUOUS = ("Pendulum-v1", {"envs": 4, "hidden": [256, 256]})
OFF_POLICY = {"buffer_size": 1024, "learning_starts": 1, "batch_size": 64, "train_freq": 64,
              "gradient_steps": 1}  # fmt: skip
SETTINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ppo": (*VECTOR, {"n_steps": 64, "batch_size": 512, "n_epochs": 1}),
    "a2c": (*VECTOR, {"n_steps": 32}),
    "dqn": (*VECTOR, OFF_POLICY),
    "ddpg": (*CONTINUOUS, OFF_POLICY),
    "td3": (*CONTINUOUS, OFF_POLICY),
    "sac": (*CONTINUOUS, OFF_POLICY),
    "genetic": (*VECTOR, {"n_steps": 32}),
    "nature": ("ALE/Breakout-v5", {"envs": 4, "network": "nature"}, OFF_POLICY),
}
"""Environment, its settings and the algorithm's, so that one trajectory pays for one update."""

MOST = 4
"""Maximum number of trajectories until the first update."""

PRECISIONS = ("highest", "default")


def compare(name: str, bench: Bench) -> list[Figures]:
    """Largest relative differences, array by array."""
    import numpy as np

    from flatout.envs.task import open_task
    from flatout.storage.checkpoint import named_leaves

    bench.device()  # JAX starts with both kinds of devices
    algorithm = "dqn" if name == "nature" else name
    cpu = _parts(algorithm, name, "cpu", "highest")
    sides = {p: _parts(algorithm, name, bench.place("act=gpu"), p) for p in PRECISIONS}
    task = open_task(_config(algorithm, name).env)
    task.close()
    spec = task.obs_spec
    cpu.schedule.start()
    sampler, learner = cpu.schedule._sampler, cpu.schedule.learner
    state, obs = cpu.schedule.state, sampler.state()["obs"]
    acted = _acted(cpu, spec, obs, "highest")
    before = named_leaves(learner.host_state(state.learned), "")
    trajectories, learned = [], before
    while not _changed(before, learned):  # the first ones may only fill a replay
        if len(trajectories) == MOST:
            raise BenchmarkError(f"{algorithm} made no update, so that nothing was compared")
        trajectories.append(copy.deepcopy(sampler.collect()[0]))
        state, _, _ = learner.learn(state, trajectories[-1])
        learned = named_leaves(learner.host_state(state.learned), "")
    lines = []
    for precision, parts in sides.items():
        other = parts.schedule.learner
        state = other.start()
        for array, mine in named_leaves(other.host_state(state.learned), "").items():
            assert np.array_equal(mine, before[array]), f"{array} starts otherwise"
        act = _furthest(acted, _acted(parts, spec, obs, precision))
        for trajectory in trajectories:
            state, _, _ = other.learn(state, trajectory)
        update = _furthest(learned, named_leaves(other.host_state(state.learned), ""))
        lines.append({
            "algorithm": name, "precision": precision,
            "act: largest relative difference": f"{act[0]:.1e}", "of": act[1],
            "update: largest relative difference": f"{update[0]:.1e}", "in": update[1],
        })  # fmt: skip
        parts.close()
    cpu.close()
    return lines


def _changed(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether parameters are different; counters alone are no update."""
    import numpy as np

    return any(
        name.startswith(".params") and not np.array_equal(array, before[name])
        for name, array in after.items()
    )


def _parts(algorithm: str, name: str, placement: str, precision: str) -> Any:
    """A run's parts, compiled."""
    from flatout.run.build import assemble
    from flatout.run.resolve import resolve_run
    from flatout.spans import Spans

    config = _config(algorithm, name)
    run = replace(config.run, placement=placement, precision=precision)
    return assemble(resolve_run(replace(config, run=run)), Spans())


def _config(algorithm: str, name: str) -> Any:
    """A run's settings."""
    from flatout.config.settings import resolve

    env, around, hyper = SETTINGS[name]
    return resolve(algorithm, {"env": env, **around, **hyper, "steps": 4096, "seed": 1})


def _acted(parts: Any, spec: Any, obs: Any, precision: str) -> dict[str, Any]:
    """Return the outputs of acting for these observations, with noise and greedily."""
    from flatout.engine.act import Policy
    from flatout.spans import Spans

    drawing = parts.schedule._policies[0]
    greedy = Policy(parts.algorithm, spec, len(obs), drawing.device, precision=precision)
    greedy.compile()
    made = {}
    for policy, act in (
        (drawing, lambda: drawing.act(obs, 0)),
        (greedy, lambda: greedy.greedy(obs)),
    ):
        learner = parts.schedule.learner
        policy.publish(learner.publish(learner.start().learned), 0, Spans())
        how = "greedy" if policy is greedy else "drawn"
        row = policy.layout.read(act()[None])
        made |= {f"{output}, {how}": value for output, value in row.items()}
    return made


def _furthest(one: dict[str, Any], other: dict[str, Any]) -> tuple[float, str]:
    """The largest difference over an array's largest magnitude, and the array's name."""
    import numpy as np

    worst, where = 0.0, "-"
    for name, mine in one.items():
        a, b = np.asarray(mine, np.float64), np.asarray(other[name], np.float64)
        both = ~(np.isnan(a) & np.isnan(b))
        a, b = a[both], b[both]
        if not a.size:
            continue
        apart = float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-8))
        if apart > worst or not np.isfinite(apart):
            worst, where = apart, name
    return worst, where


ROWS = [
    Row(
        f"agree/{name}", partial(compare, name), needs=("ale_py",) if name == "nature" else (),
        limit_s=150,
    )
    for name in SETTINGS
]  # fmt: skip
