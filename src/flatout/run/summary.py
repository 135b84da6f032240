"""A run's summary: its result and where its time went, as summary.json and in words."""

from __future__ import annotations

import platform
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from flatout import spans
from flatout.config.schema import TrainConfig
from flatout.output import shell_word
from flatout.spans import PHASE_WORDS, Times
from flatout.version import __version__

if TYPE_CHECKING:
    from flatout.run.build import Components
    from flatout.run.progress import Progress

WORTH, WORTH_S = 0.05, 1.0
"""Share of the environments' time, and seconds, from which waiting for resets is mentioned."""


def versions() -> dict[str, str]:
    """Return the versions of the packages on which the numbers depend."""
    installed = {"python": platform.python_version(), "flatout": __version__}
    for name in ("jax", "equinox", "optax", "gymnasium", "numpy"):
        installed[name] = "unknown"
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def peak_rss_mb() -> float:
    """Return the process's largest resident set so far, in MiB."""
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        used = psutil.Process().memory_info()
        return getattr(used, "peak_wset", used.rss) / (1024 * 1024)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def summarise(
    config: TrainConfig,
    progress: Progress,
    components: Components,
    times: Times,
    *,
    steps_per_s: float,
    last: dict[str, float],
    run_dir: str | None,
    ended: str,
    verdict: dict[str, Any],
    parent: str | None,
) -> dict[str, Any]:
    """Return the summary, whose keys docs/metrics.md describes.

    Args:
        last: the newest means of the algorithm's scalars.
        ended: why the run ended.
        verdict: what the run waited for (`flatout.run.recording.closing_verdict`).
        parent: the run or saved agent that this one started from.
    """
    reached = {str(goal): progress.reached.get(str(goal)) for goal in config.run.goals}
    flow = components.schedule.stats()
    if components.could_have_spares and "reset_wait_s" in flow:
        flow["spares_save_at_most_s"] = flow["reset_wait_s"]
    learned: dict[str, Any] = {}
    if not config.hyper.acts:
        learned["test_accuracy"] = progress.evaluated
        learned["examples_per_s"] = steps_per_s * config.hyper.batch_size
    return {
        "algorithm": config.algorithm,
        "env": config.env.env,
        "seed": config.run.seed,
        "envs": config.env.envs,
        "steps": progress.steps,
        "updates": progress.updates,
        "iterations": progress.iterations,
        "episodes": progress.episodes,
        "ended": ended,
        "wall_s": progress.wall_s + times.wall_s,
        "startup_s": times.startup_s,
        "compile_s": times.compile_s,
        "compile_later_s": times.compile_later_s,
        "steps_per_s": steps_per_s,
        "placement": str(components.placement),
        "return_mean_100": progress.return_mean_100,
        "return_mean_last": progress.return_mean_last,
        "last_eval_return": progress.evaluated,
        "best_eval_return": progress.best_return,
        **learned,
        "last": last,
        "time_to_return_s": {key: at and at[1] for key, at in reached.items()},
        "steps_to_return": {key: at and int(at[0]) for key, at in reached.items()},
        "phases": times.phases,
        "flow": flow,
        "peak_rss_mb": peak_rss_mb(),
        "memory_expected_mb": {
            str(device): round(sum(expected.values()), 1)
            for device, expected in components.memory_mb.items()
        },
        "memory_mb": memory(components),
        "notes": components.notes,
        **verdict,
        "run_dir": run_dir,
        "pictures": components.pictures,
        "parent": parent,
        "versions": versions(),
    }


def memory(components: Components) -> dict[str, dict[str, Any]]:
    """Return, by device, the `expected` memory and the memory in use at the end (`live`)."""
    live = components.schedule.memory()
    expected = {
        str(device): {what: round(mb, 3) for what, mb in taken.items()}
        for device, taken in components.memory_mb.items()
    }
    return {
        device: {"expected": expected.get(device, {}), "live": live.get(device, {})}
        for device in sorted({*expected, *live})
    }


def phase_words(name: str, summary: dict[str, Any]) -> str:
    """Return the name of a phase in a run's summary."""
    if name == "other" and not summary.get("steady"):  # start-up is a part of those shares
        return PHASE_WORDS[name]
    return spans.phase_words(name, summary["updates"])


def flow_words(flow: dict[str, float]) -> list[str]:
    """Return sentences about waiting between collecting and learning, about copies to devices and
    trajectories of other machines, and about lost environments."""
    sentences: list[str] = []
    copied = {part: flow.get(f"{part}_bytes_per_step", 0.0) for part in ("act", "learn")}
    if any(copied.values()):
        sentences.append(
            f"each step copied {sum(copied.values()) / 1000:.3g} kB to the device: "
            f"{copied['act'] / 1000:.3g} to act and {copied['learn'] / 1000:.3g} to learn"
        )
    if "policy_lag" in flow:
        sentences.append(
            f"collecting waited {flow['sampler_wait_s']:.1f} s for learning, learning "
            f"{flow['learner_wait_s']:.1f} s for collecting; a trajectory waited "
            f"{flow['queue_s']:.3f} s; policy lag {flow['policy_lag']:.2f}"
        )
    if lost := int(flow["environments_lost"]):
        sentences.append(
            f"{lost} environments were lost with their processes and began new episodes"
        )
    if "network_bytes_per_step" in flow:
        words = (
            f"trajectories of other machines: {flow['network_bytes_per_step']:,.0f} bytes per "
            f"step, at least {1e3 * flow['network_round_trip_s']:.1f} ms on the way"
        )
        if "network_full_steps_per_s" in flow:
            words += (
                f"; at {flow['network_bytes_per_s'] / 1e6:,.0f} MB/s the network is full at "
                f"{flow['network_full_steps_per_s']:,.0f} steps/s"
            )
        sentences.append(words)
    if spares := int(flow.get("spare_envs", 0)):
        sentences.append(
            f"{spares} spare environments took about {flow['spare_mb']:,.0f} MiB; steps waited "
            f"{flow.get('reset_wait_s', 0.0):.1f} s for resets that took "
            f"{flow.get('reset_s', 0.0):.1f} s"
        )
    waited = flow.get("spares_save_at_most_s", 0.0)
    if waited > WORTH_S and waited > WORTH * flow["env_s"]:
        sentences.append(
            f"steps waited {waited:,.0f} s for resets ({waited / flow['env_s']:.0%} of the "
            "environments' time): --spare-envs all resets a second copy of each environment in the "
            "background, which hides resets that sleep, and a part of those that compute"
        )
    return sentences


Step = tuple[str, str]
"""A sentence and a command for a shell; one of them may be empty."""


def next_commands(summary: dict[str, Any]) -> list[Step]:
    """Return the commands that show what an agent in a run folder has learned."""
    if not summary["run_dir"] or "examples_per_s" in summary:
        return []
    folder = shell_word(summary["run_dir"])
    commands = [("", f"flatout eval {folder}")]
    if summary.get("pictures", True):  # earlier summaries do not say it
        commands.append(("", f"flatout eval {folder} --show"))
    return commands


def next_step(summary: dict[str, Any]) -> list[Step]:
    """Return the next step towards the result, if there is one; the verdict advises about speed."""
    phases: dict[str, float] = summary["phases"]
    missed = [goal for goal, steps in summary["steps_to_return"].items() if steps is None]
    if summary["ended"] == "steps" and missed:
        folder = shell_word(summary["run_dir"] or "RUN_DIR")
        command = f"flatout train --resume {folder} --steps {2 * summary['steps']}"
        if summary["episodes"] < 100:
            return [(f"the goal {missed[0]} counts from 100 episodes on; to continue:", command)]
        return [("", command)]
    if phases["compile"] + phases["other"] > 0.5:
        words = (
            "most of this short run was start-up; compiled programs are cached, so the same "
            "shapes start faster next time"
        )
        return [(words, "")]
    return []
