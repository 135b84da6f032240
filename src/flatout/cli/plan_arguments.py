"""The flags of ``flatout plan``, which answers one of three questions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

from flatout.cli.arguments import SettingsArguments
from flatout.config.values import Range
from flatout.errors import UsageError
from flatout_explain.cli.parsing import option


@dataclass(frozen=True)
class PlanArguments(SettingsArguments):
    """Measure where each part of a run is fastest on this machine.

    The parts of a run are measured for a few seconds, the speed of every placement that leaves the
    mathematics alone is predicted, the best few are run for real, and one is recommended. `train`
    takes the same answer for the same settings from the cache. With --env-backend auto, placements
    that step a proven twin of the environment on the device are compared, too; with --allow-lag
    those that collect while they learn; with --ray-address those whose workers are on the machines
    of a Ray cluster; --remeasure ignores the cache.

    --compare-devices: the same work on several numbers of devices. --run measures time, rate,
    speed-up, efficiency, where the time goes, and what more devices wait for. All numbers of
    devices have the same --shards (by default the least that all of them divide), so that all learn
    the same. Where there are fewer GPUs, a CPU's virtual devices stand in for them, and share its
    cores. Finished runs: flatout runs --compare.

    --table: PPO on CartPole and DDPG on Pendulum, with networks from 64 to 256x256, on each
    placement that this machine has: seconds for a fixed number of episodes and to the return
    threshold, CPU and GPU in use, the fastest placement, and the one that planning chooses.

      flatout plan ppo --env CartPole-v1 --envs 8
      flatout plan dqn --env ALE/Breakout-v5 --envs 8 --what-if cores=16
      flatout plan classify --compare-devices 1,2,4 --steps 500 --run
      flatout plan --table --share 0.2 --out table.csv
    """

    usage: ClassVar[tuple[str, ...]] = (
        "ALGORITHM [--what-if KEY=VALUE] [--out FILE] [settings of train]",
        "ALGORITHM --compare-devices 1,2,4 [--run] [settings of train]",
        "--table [--share 0.2] [--hidden 64,64] [--out FILE]",
    )

    seconds: Annotated[float, Range(1, 3600)] = 20.0
    """Time for measuring."""
    what_if: Annotated[tuple[str, ...], "KEY=VALUE"] = ()
    """Predict for another machine or run: cores=16, hosts=8 (machines like this one on a Ray
    cluster), gpus=2, env-speed=10x, spare-envs=all, batch=256, hidden=512,512; may be repeated."""
    allow_batch_changes: bool = False
    """Also consider more environments, with rollouts of the same size."""
    save_machine: Annotated[str | None, "FILE"] = None
    """Save this machine's measurements of this run."""
    machine: Annotated[str | None, "FILE"] = None
    """Answer from such a file, measured elsewhere."""
    compare_devices: Annotated[tuple[int, ...], "1,2,4"] = ()
    """Compare the same work on these numbers of devices; without --run, say what would run."""
    run: bool = False
    """With --compare-devices: run the whole work on each number of devices, in a process of its
    own."""
    search: bool = False
    """With --run, where several devices are no faster: find the batch from which they are."""
    table: bool = False
    """CPU, GPU or both? by network and algorithm, trained on this machine."""
    share: Annotated[float, Range(0, 1, above=True)] = 1.0
    """With --table: play this share of the 500 (PPO) and 200 (DDPG) episodes. --hidden, repeatable,
    names the networks."""
    out: Annotated[tuple[str, ...], "FILE"] = ()
    """Write the result: .json, or a picture (.svg, .png, .pdf; pip install matplotlib). With
    --table also .csv: a line for each run, written when it ends; the same command with the same
    file continues after a stop. May be repeated."""
    json: bool = False
    """Print the result as one JSON object, alone on stdout."""


ONLY: dict[str, tuple[str, ...]] = {
    "--table": ("share",),
    "--compare-devices": ("run", "search"),
    "": ("seconds", "what_if", "allow_batch_changes", "save_machine", "machine"),
}
"""The flags of each of the command's three questions alone; the last one has no flag."""


def refuse_unused(asked: PlanArguments) -> None:
    """Refuse flags that the question does not use."""
    if asked.table and asked.compare_devices:
        raise UsageError("--table and --compare-devices cannot be combined.")
    question = "--table" if asked.table else "--compare-devices" if asked.compare_devices else ""
    defaults = {spec.name: spec.default for spec in fields(asked)}
    for where, names in ONLY.items():
        for name in names:
            if where == question or getattr(asked, name) == defaults[name]:
                continue
            if where:
                raise UsageError(f"{option(name)} is for {where}: give both.")
            raise UsageError(f"{option(name)} and {question} cannot be combined.")
    if asked.search and not asked.run:
        raise UsageError("--search is for --run: give both.")
