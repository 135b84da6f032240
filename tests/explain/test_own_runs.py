"""Explaining Flatout's own runs: pure rules over tables of times, and what real runs leave."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from flatout.cli.changed_command import repeatable, with_commands
from flatout.config.placement import Placement, parse
from flatout.config.schema import TrainConfig
from flatout.config.settings import resolve, revise
from flatout.config.workers import with_workers
from flatout.errors import CheckpointError, FlatoutError, UsageError
from flatout.explain.facts import RunFacts, Use, facts, mean_use, shared_out
from flatout.explain.proposals import measured_gain
from flatout.explain.rules import bottleneck, findings, headline
from flatout.explain.runs import Evidence, _spans, diagnose_evidence, read_run
from flatout.explain.settings import flags, more_envs, placed, possible
from flatout.hardware.inventory import inventory
from flatout.planning.answer import Answer
from flatout.planning.predict import Prediction
from flatout.planning.resets import Resets
from flatout.planning.stages import Stages
from flatout.run import auto
from flatout.run.recording import load_words
from flatout.spans import NAMES, NO_RESETS, ResetTimes
from flatout.storage.checkpoint import FORMAT
from flatout.storage.run_folder import load_config
from flatout.storage.span_records import (
    MAIN,
    WAIT_LEARNER,
    SpanRecord,
    Totals,
    Worker,
    as_line,
)
from flatout.types import NAMED
from flatout_explain.cards import card_uses
from flatout_explain.causes import CAUSES, HEALTHY
from flatout_explain.diagnosis import Diagnosis, lanes, verdict
from flatout_explain.hardware.core_use import CoreUse
from flatout_explain.hardware.gpus import GpuSample
from flatout_explain.hardware.monitor import MonitorSample, merged
from flatout_explain.phases import PHASES
from flatout_explain.report import meters
from tests import tiny
from tests.conftest import TINY, Result
from tests.kills import finish, spawn, wait_for
from tests.storage.test_span_records import record

Cli = Callable[..., Result]
PPO = resolve("ppo", {"env": "Hopper-v5", "envs": 8, "n_steps": 32, "placement": "cpu"}).flat()
DQN = resolve("dqn", {"env": "Hopper-v5", "placement": "cpu"}).flat()


def resolved(settings: dict[str, Any]) -> TrainConfig:
    return resolve(settings["algorithm"], settings)


def told(
    main: dict[str, float], *, settings: dict[str, Any] = PPO, placement: str = "cpu",
    cores: int = 4, steps: int = 20_480, updates: int = 3_000, iterations: int = 80,
    use: Use | None = None, workers: tuple[Worker, ...] = (),
    learner: dict[str, float] | None = None, gpus: tuple[str, ...] = (),
    resets: ResetTimes = NO_RESETS,
) -> RunFacts:  # fmt: skip
    """Facts of a run of these seconds."""
    totals = Totals(
        sum(main.values()), steps, updates, iterations, main, learner, workers, resets=resets
    )
    return facts(
        totals, config=resolved(settings | {"placement": placement}), placement=parse(placement),
        envs=int(settings["envs"]), cores=cores, use=use, gpus=gpus,
    )  # fmt: skip


def diagnose_run(path: Path) -> Diagnosis:
    return diagnose_evidence(read_run(path))


def first(given: RunFacts) -> Any:
    return findings(given)[0]


# --- The rules ----------------------------------------------------------------------------------


def test_an_environment_with_a_twin_is_better_stepped_on_the_device() -> None:
    twin = resolve("ppo", {"env": "CartPole-v1", "envs": 8, "n_steps": 256}).flat()
    spent = {"env": 6.4, "act": 2.6, "learn": 1.0}
    assert first(told(spent, settings=twin)).setting[:2] == ("--env-backend", "device")
    assert "--env-backend" not in first(told(spent)).setting


def measured_here(here: float, there: float, measured: bool = True) -> Answer:
    """What planning found: steps per second on the host and in one program."""
    stages = Stages(
        envs=8, horizon=256, cores=4, env=(1e-5,), act={"cpu": ((8, 1e-5),)},
        learn={"cpu cpu": 0.01}, rollout={"cpu": 0.004}, stepping={"cpu": 0.001},
        inside={"cpu": 0.005}, apart={"cpu": 0.0},
    )  # fmt: skip
    rows = [
        Prediction(parse(text), rate, 0.9 * rate, 1.1 * rate, {}, rate if measured else None)
        for text, rate in (("cpu", here), ("act=cpu sampler=device schedule=fused", there))
    ]
    return Answer(stages, ("device",), rows, [], 20.0)


@pytest.mark.parametrize("there", [60_000.0, 300_000.0])
def test_the_gain_of_a_twin_is_the_measured_one(there: float) -> None:
    twin = resolve("ppo", {"env": "CartPole-v1", "envs": 8, "n_steps": 256}).flat()
    spent = {"env": 6.0, "act": 2.0, "learn": 1.0, "eval": 1.0}
    given = told(spent, settings=twin)
    unknown = first(given)
    assert unknown.gain is None
    assert "--measure" in unknown.remedy
    found = first(replace(given, plan=measured_here(30_000.0, there)))
    expected = 1 / (0.1 + 0.9 * 30_000.0 / there)
    assert found.gain.gain == pytest.approx(expected), "evaluation stays"
    assert found.gain.low < found.gain.gain < found.gain.high
    assert found.gain.how == "planning measured both placements here"
    predicted = replace(given, plan=measured_here(30_000.0, there, measured=False))
    derived = measured_gain(predicted, {"env_backend": "device", "placement": found.setting[-1]})
    assert derived is not None
    assert derived.gain == pytest.approx(expected)
    assert derived.how == "computed from stages that planning measured here"
    assert measured_gain(given, {"placement": found.setting[-1]}) is None, "nothing was measured"
    assert measured_gain(predicted, {"placement": found.setting[-1], "envs": 16}) is None
    assert found.setting[-1] == "act=cpu sampler=device schedule=fused"
    assert f"Measured here: {there:,.0f} steps per second" in found.remedy
    slower = first(replace(given, plan=measured_here(30_000.0, 20_000.0)))
    assert "--env-backend" not in slower.setting, "it is not proposed where it is slower"


def test_the_proposal_that_was_measured_to_gain_most_is_made() -> None:
    """Without measurements the first is proposed, and no gain is printed."""
    given = told({"env": 6.0, "act": 1.0, "learn": 3.0})
    processes, overlapped = "sampler=processes workers=4x2", "schedule=overlapped"
    unknown = first(given)
    assert (unknown.setting, unknown.gain) == (("--placement", processes), None)

    def plan(**rates: float) -> Answer:
        places = {"now": "cpu", "processes": processes, "overlapped": overlapped}
        rows = [
            Prediction(with_workers(parse(places[name]), 8, 4), rate, rate, rate, {}, rate)
            for name, rate in rates.items()
        ]
        return replace(measured_here(1.0, 1.0), predictions=rows, lagged=[])

    fast = first(replace(given, plan=plan(now=1e3, processes=15e2, overlapped=3e3)))
    assert fast.setting == ("--placement", overlapped)
    assert fast.gain.gain == pytest.approx(3.0)
    slow = first(replace(given, plan=plan(now=1e3, processes=9e2, overlapped=9e2)))
    assert (slow.setting, slow.gain) == ((), None), "what was measured to be slower"
    assert slow.remedy


@pytest.mark.parametrize(
    ("placement", "share"),
    [("act=cpu sampler=device schedule=fused", "55 %"),
     ("act=cpu sampler=device", "71 %")],
)  # fmt: skip
def test_the_parts_of_a_program_are_named(placement: str, share: str) -> None:
    twin = resolve("ppo", {"env": "CartPole-v1", "envs": 8, "n_steps": 256}).flat()
    spent = {"fused": 9.9, "log": 0.1} if "fused" in placement else {"env": 6.0, "learn": 4.0}
    given = told(spent, settings=twin, placement=placement)
    assert any("--measure" in words for words in first(given).evidence)
    found = first(replace(given, plan=measured_here(1.0, 2.0)))
    (parts,) = (words for words in found.evidence if "timed alone" in words)
    for name in ("stepping the environments", "choosing actions"):
        assert name in parts
    assert f"learning {share}" in parts
    elsewhere = replace(measured_here(1.0, 2.0).stages, rollout={"gpu:0": 1.0})
    plan = replace(measured_here(1.0, 2.0), stages=elsewhere)
    assert any("--measure" in words for words in first(replace(given, plan=plan)).evidence)


def test_slow_environments_come_first_and_processes_are_the_remedy() -> None:
    found = first(told({"env": 6.4, "act": 0.6, "learn": 2.8, "other": 0.2}))
    assert found.id == "env-bound"
    assert found.setting[0] == "--placement"
    assert "sampler=processes workers=4x2" in found.setting[1]


LONG_RESETS = ResetTimes(100, 4.0, 0.2, 4.0)
"""A hundred resets of 40 ms on average."""


def test_resets_are_a_part_of_the_environments_time() -> None:
    given = told({"env": 6.0, "act": 1.0, "learn": 3.0}, resets=LONG_RESETS)
    assert given.resetting == pytest.approx(0.4)
    assert given.phases["env"] == pytest.approx(0.6)
    assert first(given).evidence[-1] == (
        "resets take 40 % of the time, 67 % of the environments' own: 40.0 ms each (± 20.0 ms), "
        "one for every 205 steps"
    )
    few = told({"env": 6.0, "act": 1.0, "learn": 3.0}, resets=ResetTimes(100, 0.1, 1e-4, 0.1))
    assert not any("resets" in words for words in first(few).evidence)


@pytest.mark.parametrize(
    ("waited", "given", "setting"),
    [
        (4.0, None, ("--spare-envs", "all")),
        (2.0, None, ("--placement", "sampler=processes workers=4x2")),  # most is steps
        (4.0, "0", ("--placement", "sampler=processes workers=4x2")),
        (0.2, None, ("--placement", "sampler=processes workers=4x2")),
    ],
    ids=["most is resets", "most is steps", "refused", "short"],
)  # fmt: skip
def test_spares_are_the_remedy_where_steps_wait_for_resets(
    waited: float, given: str | None, setting: tuple[str, ...]
) -> None:
    settings = resolve("ppo", PPO | {"spare_envs": given}).flat()
    resets = ResetTimes(100, waited, waited**2 / 50, waited)
    main = {"env": 6.0, "act": 1.0, "learn": 3.0}
    assert first(told(main, settings=settings, resets=resets)).setting == setting


def test_spares_are_no_remedy_where_there_can_be_none() -> None:
    """The environments of a vector reset themselves; those of an object cannot be made again."""
    given = told({"env": 6.0, "act": 1.0, "learn": 3.0}, resets=LONG_RESETS)
    assert first(given).setting == ("--spare-envs", "all")
    assert "--spare-envs" not in first(replace(given, could_have_spares=False)).setting


@pytest.mark.parametrize("asked", ["all", None], ids=["asked for", "by default"])
def test_spares_hide_resets_that_are_still_shown(asked: str | None) -> None:
    settings = resolve("ppo", PPO | {"spare_envs": asked}).flat()
    hidden = ResetTimes(100, 4.0, 0.2, 0.5)
    given = told({"env": 6.0, "act": 1.0, "learn": 3.0}, settings=settings, resets=hidden)
    assert given.resetting == pytest.approx(0.05)
    assert first(given).evidence[-1].endswith("one for every 205 steps, in the background")
    assert "--spare-envs" not in first(given).setting


def test_the_gain_of_spares_follows_from_measured_stages() -> None:
    """Resets of the plan take half of the environments' time, and sleep."""
    stages = replace(
        measured_here(1.0, 1.0).stages, env=(1e-3,), learn={"cpu cpu": 1e-3}, computing=0.0,
        resets=Resets((0.1,), 0.01, computing=0.0), rollout={},
    )  # fmt: skip
    given = told({"env": 8.0, "act": 0.5, "learn": 1.5}, resets=LONG_RESETS)
    plan = replace(measured_here(1.0, 1.0), stages=stages)
    found = first(replace(given, plan=plan))
    assert found.setting == ("--spare-envs", "all")
    assert found.gain.gain == pytest.approx(2.0, rel=0.05)
    assert found.gain.low < found.gain.gain < found.gain.high
    assert found.gain.how == "computed from stages that planning measured here"


@pytest.mark.parametrize("uneven", [True, False])
def test_turns_that_resets_make_uneven_are_the_resets_fault(uneven: bool) -> None:
    """One turn in a hundred has a reset of 0.2 s; or none has, and steps differ as much."""
    resets = ResetTimes(10, 2.0, 0.4, 2.0) if uneven else NO_RESETS
    worker = Worker(4.0, 0.0, 1000, 1000 * 2e-3**2 + 0.4, resets)
    main = {"wait": 9.0, "act": 0.5, "learn": 0.5}
    given = told(main, placement="sampler=processes workers=4x2", workers=(worker,) * 4)
    found = first(given)
    assert found.id == "waiting"
    assert found.setting[0] == ("--spare-envs" if uneven else "--placement")
    assert any("resets of environments" in words for words in found.evidence) is uneven


def test_the_resets_of_processes_are_those_of_their_steps() -> None:
    """Half of what the processes did was resetting, while this process waited for them."""
    worker = Worker(8.0, 0.0, 1000, 1000 * 0.008**2, ResetTimes(50, 4.0, 0.32, 4.0))
    main = {"wait": 8.3, "act": 0.7, "learn": 1.0}
    given = told(main, placement="sampler=processes workers=2x4", workers=(worker,) * 2)
    assert given.phases["env"] > 0.7
    assert given.resetting == pytest.approx(given.phases["env"] / 2)
    assert given.resets.number == 100


def test_the_headline_says_how_idle_the_learner_is() -> None:
    given = told({"env": 6.4, "act": 0.7, "learn": 2.9})
    assert headline(findings(given), given) == (
        "the learner is idle 71 % of the time; 64 % of the time goes into stepping environments"
    )


def test_environments_that_sleep_get_more_processes_than_there_are_cores() -> None:
    sleeping = Use(cpu=0.05, cpu_all=0.06)
    found = first(told({"env": 9.5, "act": 0.2, "learn": 0.3}, cores=2, use=sleeping))
    assert "workers=8x1" in " ".join(found.setting)
    assert any("they sleep" in sentence for sentence in found.evidence)


@pytest.mark.parametrize("envs", [1, 8])
def test_environments_with_quick_steps_stay_in_the_main_process(envs: int) -> None:
    """The way to a process and back would take longer than all of their steps."""
    settings = resolve("ppo", {"env": "Hopper-v5", "envs": envs, "n_steps": 256}).flat()
    quick = told({"env": 6.0, "act": 1.0, "learn": 3.0}, settings=settings, steps=2_000_000)
    assert first(quick).id == "env-bound"
    assert "processes" not in " ".join(first(quick).setting)


def test_on_one_core_nobody_is_told_to_use_more_processes() -> None:
    found = first(told({"env": 9.0, "act": 0.5, "learn": 0.5}, cores=1))
    assert found.id == "env-bound"
    assert "processes" not in " ".join(found.setting)


def test_calls_for_one_environment_are_shared_among_more() -> None:
    settings = resolve("ppo", {"env": "Hopper-v5", "placement": "cpu"}).flat()
    found = first(told({"act": 7.0, "env": 1.0, "learn": 2.0}, settings=settings, cores=1))
    assert found.id == "acting-bound"
    words = dict(zip(found.setting[::2], found.setting[1::2], strict=True))
    assert int(words["--envs"]) * int(words["--n-steps"]) == 2048, "rollouts stay what they were"
    assert "compare returns" in found.remedy


def test_learning_for_most_of_the_time_is_healthy() -> None:
    given = told({"learn": 9.0, "env": 0.6, "act": 0.4}, updates=300)
    found = findings(given)
    assert (verdict(found), found[0].id) == (HEALTHY, "compute-bound")


def test_a_healthy_run_that_collects_for_long_can_try_overlapping() -> None:
    found = first(told({"learn": 5.5, "env": 3.5, "act": 1.0}, updates=300, cores=1 + 1))
    assert found.id == "compute-bound"
    assert "schedule=overlapped" in found.setting[1]
    alone = first(told({"learn": 9.5, "env": 0.4, "act": 0.1}, updates=300))
    assert (alone.id, alone.setting) == ("compute-bound", ())


def test_many_short_turns_are_launch_bound() -> None:
    main = {"env": 1.5, "act": 2.0, "learn": 4.0, "replay": 1.5, "other": 1.0}
    given = told(main, settings=DQN, steps=40_000, updates=10_000, iterations=10_000)
    found = findings(given)
    assert verdict(found) == "launch-bound"
    assert found[0].setting == ("--train-freq", "64", "--gradient-steps", "16")


def test_updates_that_are_all_launching_are_launch_bound() -> None:
    found = first(told({"learn": 8.0, "env": 2.0}, updates=400_000))
    assert found.id == "launch-bound"
    assert found.setting == ("--batch-size", "256")


@pytest.mark.parametrize(
    ("span", "flag"), [("checkpoint", "--checkpoint-every"), ("log", "--log-every")]
)
def test_writing_is_made_rarer(span: str, flag: str) -> None:
    found = first(told({span: 6.0, "env": 2.0, "learn": 2.0}))
    assert found.id == "io-bound"
    assert found.setting[0] == flag


@pytest.mark.parametrize(
    ("evaluates", "setting"), [(0, ()), (100, ("--eval-every", "10000"))]
)  # fmt: skip
def test_a_run_without_checkpoints_is_not_told_to_write_fewer(
    evaluates: int, setting: tuple[str, ...]
) -> None:
    """Its best parameters are still saved, after evaluations."""
    settings = PPO | {"checkpoint_every": 0, "eval_every": evaluates}
    found = first(told({"checkpoint": 6.0, "env": 2.0, "learn": 2.0}, settings=settings))
    assert (found.id, found.setting) == ("io-bound", setting)
    assert "every 0" not in " ".join((*found.evidence, found.remedy))


def test_evaluation_is_named_and_made_rarer() -> None:
    given = told({"eval": 7.0, "env": 1.0, "learn": 2.0}, settings=PPO | {"eval_every": 100})
    found = findings(given)
    assert found[0].setting[0] == "--eval-every"
    assert headline(found, given).startswith("evaluation takes 70 %")
    assert given.phases["eval"] == pytest.approx(0.7)


def test_a_classifier_is_evaluated_on_its_test_set() -> None:
    settings = resolve("classify", {"eval_every": 100}).flat()
    found = first(told({"eval": 7.0, "learn": 3.0}, settings=settings))
    assert found.setting[0] == "--eval-every"
    words = " ".join((*found.evidence, found.remedy))
    assert "the test set every 100 steps" in words
    assert "episodes" not in words


def test_gathering_batches_moves_into_the_compiled_update() -> None:
    main = {"replay": 6.0, "learn": 3.0, "env": 1.0}
    found = first(told(main, settings=DQN, iterations=10))
    assert (found.id, found.setting) == ("replay-bound", ("--placement", "replay=device"))


def test_waiting_is_told_apart() -> None:
    """Equal work, uneven work, and no work to speak of."""
    even = Worker(env_s=6.0, turns=1000, square=1000 * 0.006**2)
    assert shared_out(6.5, (even, even))["env"] == pytest.approx(6.0)
    assert shared_out(6.5, (even, even))["ipc"] == pytest.approx(0.5)
    slow = Worker(env_s=6.0, turns=1000, square=1000 * 0.006**2)
    fast = Worker(env_s=1.0, turns=1000, square=1000 * 0.001**2)
    parts = shared_out(6.2, (slow, fast))
    assert parts["wait"] == pytest.approx(2.5)
    idle = Worker(env_s=0.1, turns=1000, square=1000 * 0.0001**2)
    assert shared_out(5.0, (idle, idle))["ipc"] > 4.5
    assert shared_out(5.0, ()) == {"wait": 5.0}


@pytest.mark.parametrize(
    ("workers", "cause"),
    [
        ((Worker(8.0, 0.0, 1000, 1000 * 0.008**2),) * 2, "env-bound"),
        ((Worker(0.2, 0.0, 1000, 1000 * 0.0002**2),) * 2, "ipc-bound"),
        ((Worker(8.0, 0.0, 1000, 0.064), *(Worker(0.5, 0.0, 1000, 0.00025),) * 3), "waiting"),
    ],
)
def test_actor_processes_say_why_they_are_waited_for(
    workers: tuple[Worker, ...], cause: str
) -> None:
    main = {"wait": 8.3, "act": 0.7, "learn": 1.0}
    where = parse(f"sampler=processes workers={len(workers)}x{8 // len(workers)}")
    where = str(with_workers(where, 8, 4))  # with its groups, as a run records it
    found = first(told(main, placement=where, workers=workers, cores=4))
    assert found.id == cause
    if cause == "ipc-bound":
        assert "sampler=processes" not in found.setting[1], "its steps take less than the messages"
        assert "groups" not in found.setting[1], "planning measures it without"
    if cause == "waiting":
        assert "inference=local" in found.setting[1]


@pytest.mark.parametrize("count", [2, 4, 8])
def test_any_number_of_processes_may_choose_its_own_actions(count: int) -> None:
    """Steps take longer than messages, so that stepping in the main process is no remedy."""
    main = {"wait": 8.3, "act": 0.7, "learn": 1.0}
    workers = (Worker(3.0, 0.0, 1000, 1000 * 0.003**2),) * count
    where = with_workers(parse(f"sampler=processes workers={count}x{8 // count}"), 8, 8)
    found = findings(told(main, placement=str(where), workers=workers, cores=8))
    (ipc,) = (one for one in found if one.id == "ipc-bound")
    assert "inference=local" in ipc.setting[1], (ipc, where)


def test_waiting_for_the_learner_counts_as_learning() -> None:
    main = {"env": 1.0, "act": 1.0, WAIT_LEARNER: 8.0}
    given = told(main, placement="schedule=overlapped", learner={"learn": 9.5, "other": 0.5})
    assert given.phases["learn"] == pytest.approx(0.8)
    assert given.learner == pytest.approx(0.95)
    assert verdict(findings(given)) == HEALTHY


def test_an_unused_gpu_comes_first_only_where_updates_are_long() -> None:
    main = {"learn": 9.0, "env": 1.0}
    heavy = findings(told(main, updates=100, gpus=("H100",)))
    assert heavy[0].id == "gpu-unused"
    assert heavy[0].setting == ("--placement", "cpu+gpu")
    tiny = findings(told(main, updates=30_000, gpus=("H100",)))
    assert tiny[0].id == "compute-bound"
    assert tiny[-1].id == "gpu-unused"


def test_a_run_on_a_gpu_says_what_the_gpu_waits_for() -> None:
    main = {"env": 6.1, "replay": 2.2, "learn": 1.7}
    given = told(main, placement="act=cpu learn=gpu")
    card = GpuSample(0, "H100", busy=0.06, used_mb=900, total_mb=80_000, ours_mb=900, ours=(1,))
    used = card_uses([MonitorSample(t, 1.0, 4, 0.3, gpus=(card,)) for t in (1.0, 2.0)])
    assert headline(findings(given), given, used) == (
        "The GPU computes 6 % of the time. It waits 61 % of the time for environments, 22 % for "
        "batches, 11 % for the host to launch work"
    )
    idle = tuple(replace(card, busy=0.0) for card in used)
    assert "GPU" not in headline(findings(given), given, idle)


def test_samples_count_by_their_length_and_keep_the_most_memory() -> None:
    card = GpuSample(0, "H100", busy=1.0, used_mb=900, total_mb=80_000, ours_mb=900, ours=(1,))
    samples = [
        MonitorSample(1.0, 1.0, 4, 1.0, rss_mb=700.0, gpus=(card,)),
        MonitorSample(10.0, 9.0, 4, 0.0, rss_mb=5.0, gpus=(replace(card, busy=0.0, used_mb=10),)),
    ]
    (used,) = card_uses(samples)
    assert used.busy == pytest.approx(0.1)
    one = merged(samples)
    assert (one.rss_mb, one.gpus[0].used_mb, one.gpus[0].busy) == (700.0, 900, 0.1)


def test_crowded_cores_are_said() -> None:
    cores = CoreUse(2, used=1.94, others=0.04, runnable=9.0)
    use = Use(cpu=0.97, cpu_all=0.99, cores=cores)
    worker = Worker(6.0, 0.0, 1000, 1000 * 0.006**2)
    given = told(
        {"wait": 7.0, "act": 1.0, "learn": 2.0}, placement="sampler=processes workers=8x1",
        workers=(worker,) * 8, cores=2, use=use,
    )  # fmt: skip
    (found,) = [one for one in findings(given) if one.id == "oversubscribed"]
    assert "workers=2x4" in found.setting[1]
    learning = findings(told({"learn": 9.0, "env": 1.0}, cores=2, use=use))
    assert [one.id for one in learning][:2] == ["oversubscribed", "compute-bound"]
    assert verdict(learning) == "oversubscribed"
    few = replace(use, cores=replace(cores, runnable=3.0))  # the same order as in other programs
    learning = findings(told({"learn": 9.0, "env": 1.0}, cores=2, use=few))
    assert [one.id for one in learning][:2] == ["compute-bound", "oversubscribed"]


seconds = st.floats(0, 100).map(lambda x: round(x, 3))
tables = st.dictionaries(st.sampled_from([*NAMES, WAIT_LEARNER, "other"]), seconds, min_size=1)
actors = st.builds(Worker, seconds, seconds, st.integers(0, 10_000), st.floats(0, 10))
part = st.none() | st.floats(0, 1)
uses = st.none() | st.builds(
    CoreUse, st.integers(1, 16), st.floats(0, 16), st.floats(0, 16), st.none() | st.floats(0, 64),
    st.none() | st.floats(0, 64),
)  # fmt: skip
placements = st.sampled_from([
    "cpu", "schedule=overlapped", "sampler=processes workers=2x4", "cpu+gpu", "gpu",
    "sampler=processes workers=4x2 inference=local schedule=overlapped", "replay=device",
])  # fmt: skip


@hypothesis_settings(deadline=None, max_examples=150)
@given(
    tables, st.sampled_from([PPO, DQN | {"envs": 8}]), placements, st.integers(1, 16),
    st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**5),
    st.lists(actors, max_size=4).map(tuple), st.none() | tables,
    st.builds(Use, part, part, uses, part, part),
    st.sampled_from([(), ("H100",)]),
)  # fmt: skip
def test_whatever_the_times_a_diagnosis_is_sane(
    main: dict[str, float], settings: dict[str, Any], placement: str, cores: int, steps: int,
    updates: int, iterations: int, workers: tuple[Worker, ...], learner: dict[str, float] | None,
    use: Use, gpus: tuple[str, ...],
) -> None:  # fmt: skip
    given = told(
        main, settings=settings, placement=placement, cores=cores, steps=steps, updates=updates,
        iterations=iterations, workers=workers, learner=learner, use=use, gpus=gpus,
    )  # fmt: skip
    assert set(given.phases) == set(PHASES)
    assert math.isclose(sum(given.phases.values()), 1.0, abs_tol=1e-6)
    found = findings(given)
    assert found
    assert verdict(found) in {*CAUSES, HEALTHY}
    assert headline(found, given)
    for one in found:
        assert one.id in CAUSES
        assert 0 <= one.share <= 1 + 1e-9
        assert one.gain is None, "nothing was measured"
        assert one.evidence
        assert one.remedy
        if one.setting:  # what is proposed can be run
            names = [word.removeprefix("--").replace("-", "_") for word in one.setting[::2]]
            changes: dict[str, Any] = {}
            for name, text in zip(names, one.setting[1::2], strict=True):
                changes[name] = int(text) if text.isdigit() else text
            assert possible(given, changes), one.setting


def test_settings_that_cannot_be_are_not_proposed() -> None:
    def run_of(algorithm: str, **given: Any) -> RunFacts:
        config = resolve(algorithm, {"env": "Hopper-v5", "placement": "cpu"} | given)
        return told({"env": 1.0}, settings=config.flat(), placement=str(config.run.placement))

    ppo, genetic = run_of("ppo", envs=8, n_steps=32), run_of("genetic")
    assert not possible(ppo, {"n_steps": 3, "envs": 1})
    assert not possible(ppo, {"placement": "sampler=processes workers=3x3"})
    assert not possible(genetic, {"placement": "schedule=overlapped"})
    assert more_envs(genetic, 2) is None
    assert more_envs(run_of("ppo", envs=8, n_steps=25, batch_size=25), 2) is None
    split = more_envs(run_of("ppo", n_steps=32, placement="sampler=processes workers=2x4"), 2)
    assert split is not None
    assert "workers=2x8" in split["placement"]
    overlapped = placed(Placement(), schedule="overlapped", lag=1)
    assert overlapped == {"placement": "schedule=overlapped"}
    assert flags({"log_every": 5, "tensorboard": False}) == ("--log-every", "5", "--no-tensorboard")


def test_the_live_line() -> None:
    assert bottleneck({"env": 0.64, "learn": 0.3, "other": 0.06}) == ("env-bound", 0.64)
    assert bottleneck({}) == ("", 0.0)
    gpus = GpuSample(0, busy=0.4, full=0.25), GpuSample(1)
    sample = MonitorSample(1.0, 1.0, 2, 0.53, gpus=gpus)
    assert load_words(sample, 2, "env-bound", 0.64) == (
        "cpu 53 % of 2 cores   gpu:0 busy 40 % (25 % full)   now env-bound, 64 % of the time"
    )


# --- The files ----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from([MAIN, "learner"]), tables), max_size=6))
def test_the_time_line_is_in_order(rows: list[tuple[str, dict[str, float]]]) -> None:
    at, made = 0.0, list[SpanRecord]()
    for lane, spans in rows:
        d = sum(spans.values())
        made.append(SpanRecord(at, d, lane, spans))
        at += d
    for lane in lanes(_spans(made)):
        ends = 0.0
        for start, end, phase in lane.spans:
            assert ends - 1e-3 <= start < end
            assert phase in PHASES
            ends = end


# --- Real runs ----------------------------------------------------------------------------------

share = pytest.mark.usefixtures("shared_programs")


def train(flatout: Cli, run: Path, *more: object, algorithm: str = "ppo") -> dict[str, Any]:
    flags = ("train", algorithm, "--run-dir", run, "--json", "--quiet", "--no-tensorboard", *more)
    result = flatout(*flags)
    assert result.code == 0, result.err
    return json.loads(result.out)


SLOW = (*tiny.flags("ppo", env="tests.fault_envs:sleepy"), "--env-kwargs", "length=10000",
        "--checkpoint-every", "0")  # fmt: skip
"""No episode ends, so that no program is compiled again with room for more ends."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    from flatout.__main__ import main

    run = tmp_path_factory.mktemp("made") / "run"
    assert main(["train", "ppo", *TINY, "--run-dir", str(run)]) == 0
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(made, tmp_path / "run")


def test_a_slow_environment_is_found(flatout: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = (*SLOW, "--steps", 384, "--no-tensorboard")
    result = flatout("train", "ppo", "--run-dir", run, *words)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert any(line.startswith("VERDICT  env-bound: the learner is idle") for line in lines)
    time = re.compile(r"TIME     [\d.]+ m?s of training \(not included: .* [\d.]+ m?s\)")
    assert any(time.match(line) for line in lines)
    (tried,) = (line.split(maxsplit=1)[1] for line in lines if line.startswith("TRY "))
    assert tried.startswith("flatout train ppo --env")
    assert "--placement" in tried
    summary = json.loads((run / "summary.json").read_text())
    assert summary["verdict"] == "env-bound"
    assert "stepping environments" in summary["headline"]
    assert summary["try"]["setting"][0] == "--placement"
    diagnosis = diagnose_run(run)
    assert (diagnosis.verdict, diagnosis.headline) == (summary["verdict"], summary["headline"])
    assert max(diagnosis.phases, key=lambda phase: diagnosis.phases[phase]) == "env"
    assert {lane.name for lane in diagnosis.lanes} == {"main"}
    assert diagnosis.usage
    assert dict(diagnosis.apart)["start-up"] > 0
    assert diagnosis.cores >= 1


@pytest.mark.slow
@pytest.mark.parametrize("inference", ["central", "local"])
def test_workers_say_what_they_did(flatout: Cli, tmp_path: Path, inference: str) -> None:
    run = tmp_path / "run"
    where = f"sampler=processes workers=2x1 inference={inference} schedule=overlapped"
    words = (*SLOW, "--steps", 512, "--placement", where)
    summary = train(flatout, run, *words)
    diagnosis = diagnose_run(run)
    assert {lane.name for lane in diagnosis.lanes} == {"main", "learner", "worker 0", "worker 1"}
    assert summary["verdict"] == "env-bound", diagnosis
    assert max(diagnosis.phases, key=lambda phase: diagnosis.phases[phase]) == "env"


@share
def test_constant_evaluation_and_checkpoints_are_found(flatout: Cli, tmp_path: Path) -> None:
    run, saved = tmp_path / "a", tmp_path / "a.json"
    train(flatout, run, *TINY[:-1], "--eval-every", 64, "--eval-episodes", 40,
          "--checkpoint-every", 0)  # fmt: skip
    diagnosis = diagnose_run(run)
    assert diagnosis.phases["eval"] == max(diagnosis.phases.values())
    setting = diagnosis.findings[0].setting
    assert setting[0] == "--eval-every"
    shown = [flatout("explain", run, "--save", saved).out, flatout("explain", saved).err]
    for text in shown:  # the whole command with it
        (tried,) = (line.removeprefix("TRY") for line in text.splitlines() if line[:3] == "TRY")
        read, _ = tiny.train_config(shlex.split(tried)[2:])
        changed = {"eval_every": int(setting[1]), "run_dir": None, "quiet": False, "json": False}
        assert read.flat() == revise(load_config(run), changed).flat()
    often = ("--n-steps", 4, "--batch-size", 8, "--checkpoint-every", 1, "--n-epochs", 1)
    train(flatout, tmp_path / "b", *TINY[:-1], *often)
    diagnosis = diagnose_run(tmp_path / "b")
    assert diagnosis.verdict == "io-bound"
    assert diagnosis.findings[0].setting[0] == "--checkpoint-every"


@share
def test_a_resumed_run_cuts_what_came_after_its_checkpoint(flatout: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(flatout, run, *TINY[:-1], "--checkpoint-every", 128)
    shutil.rmtree(max((run / "checkpoints").iterdir(), key=lambda path: path.name))
    for name in ("spans.jsonl", "devices.jsonl"):
        with open(run / name, "a") as file:
            file.write('{"t": 99999.0, "d": 1.0, "lane": "main", "spans": {}}\n{"t": 3, "half')
    assert flatout("train", "--resume", run, "--quiet", "--steps", 512).code == 0
    for name in ("spans.jsonl", "devices.jsonl"):
        rows = [json.loads(line) for line in (run / name).read_text().splitlines()]
        assert all(row.get("t", 0.0) < 9999 for row in rows)
    lines = [json.loads(line) for line in (run / "spans.jsonl").read_text().splitlines()]
    assert [line["begin"]["envs"] for line in lines if "begin" in line][-1] == 2
    assert sum(line.get("iterations", 0) for line in lines) <= 512 // 64
    assert diagnose_run(run).findings


def test_a_killed_run_is_explained(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = spawn("train", "ppo", *SLOW, "--steps", "100000", "--run-dir", str(run),
                    "--no-tensorboard", "--quiet", "--placement", "cpu")  # fmt: skip
    spans = run / "spans.jsonl"
    wait_for(lambda: spans.exists() and spans.read_text().count('"steps"') >= 3)
    process.send_signal(signal.SIGKILL)
    assert finish(process).code == -signal.SIGKILL
    diagnosis = diagnose_run(run)
    assert diagnosis.verdict == "env-bound"
    assert any("has not ended" in note for note in diagnosis.notes)
    assert diagnosis.usage


def test_a_run_without_its_span_records_is_refused_in_a_sentence(run: Path) -> None:
    (run / "spans.jsonl").unlink()
    with pytest.raises(FlatoutError, match=r"no finished iteration in its spans\.jsonl"):
        diagnose_run(run)


def test_what_is_no_run_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        diagnose_run(tmp_path / "missing")
    with pytest.raises(UsageError, match="not a run folder"):
        diagnose_run(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        diagnose_run(tmp_path / "file")
    (tmp_path / "config.json").write_text(f'{{"format": {FORMAT}, "settings": 3}}')
    with pytest.raises(CheckpointError, match="corrupt"):
        diagnose_run(tmp_path)


def test_saved_evidence_is_diagnosed_elsewhere(flatout: Cli, made: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("d.json", "d.html", "e.json")}
    done = flatout("explain", made, "--json", files["d.json"], "--html", files["d.html"],
                   "--save", files["e.json"])  # fmt: skip
    assert done.code == 0
    shown = json.loads(files["d.json"].read_text())
    assert f"VERDICT  {shown['verdict']}" in done.out
    assert files["d.html"].stat().st_size > 1000
    saved = Evidence.from_json(json.loads(files["e.json"].read_text()))
    again = with_commands(diagnose_evidence(saved), saved)
    assert json.loads(json.dumps(again.as_json())) == shown
    with pytest.raises(UsageError, match="not saved evidence"):
        Evidence.from_json({"kind": "run"})


def test_nothing_that_a_folder_names_is_called(flatout: Cli, run: Path, tmp_path: Path) -> None:
    assert repeatable(run)
    config = json.loads((run / "config.json").read_text())
    config["settings"]["env"] = "os:system"
    (run / "config.json").write_text(json.dumps(config))
    assert isinstance(diagnose_run(run), Diagnosis)
    assert not repeatable(run)
    saved = tmp_path / "saved.json"
    shown = flatout("explain", run, "--save", saved)
    assert shown.code == 0, shown.err
    assert "os:system" not in shown.out, "nobody pastes a command that calls it"
    saved.write_text(saved.read_text().replace('"repeatable": false', '"repeatable": true'))
    assert "os:system" not in flatout("explain", saved).err


@share
def test_what_planning_kept_of_a_run_is_used(
    flatout: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    saved = tmp_path / "saved.json"
    assert flatout("explain", run, "--save", saved).code == 0
    assert json.loads(saved.read_text())["plan"] is None
    _, asked, _ = auto.asked_about(load_config(run, None))
    assert asked.env.env_backend is None, "as flatout plan asks without --env-backend"
    answer = measured_here(1.0, 1e6)
    auto.remember(asked, inventory(), NAMED, answer)
    assert flatout("explain", run, "--save", saved).code == 0
    evidence = Evidence.from_json(json.loads(saved.read_text()))
    assert evidence.plan == answer, "what is saved carries it to another machine"
    assert isinstance(diagnose_evidence(evidence), Diagnosis)
    plans: list[Any] = []

    def closing(evidence: Evidence) -> Diagnosis:
        plans.append(evidence.plan)
        return diagnose_evidence(evidence)

    monkeypatch.setattr("flatout.run.recording.diagnose_evidence", closing)
    train(flatout, tmp_path / "again", *TINY[:-1], "--placement", "cpu")
    assert plans == [answer], "and by the verdict at a run's end"


@pytest.mark.slow
def test_a_fused_run_is_measured_where_it_is_explained(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("flatout.cli.explain.MEASURE_S", 3.0)
    run = tmp_path / "run"
    long = ("--steps", 100_000, "--log-every", 100_000, "--checkpoint-every", 0)
    train(flatout, run, *TINY[:6], *long, "--env-backend", "device")
    report = tmp_path / "report.json"
    assert flatout("explain", run, "--json", report).code == 0
    assert "timed alone here" not in report.read_text()
    for more in (("--measure",), ()):  # it is kept
        result = flatout("explain", run, "--json", report, *more)
        assert result.code == 0, result.err
        assert "timed alone on this machine: stepping the environments" in report.read_text()


def test_samples_of_the_steady_state_are_the_ones_that_count() -> None:
    config = resolve("ppo", {"env": "Hopper-v5", "placement": "cpu"})
    lines = [{"begin": {"t": 0}}, as_line(record(0, first=True)), as_line(record(10)),
             as_line(record(11))]  # fmt: skip

    busy = MonitorSample(t=0.9, seconds=1.0, cores=2, cpu=1.0)
    calm = replace(busy, t=11.5, cpu=0.2)
    diagnosis = diagnose_evidence(Evidence("x", config, lines, [busy, calm]))
    assert len(diagnosis.usage) == 2
    assert mean_use([calm]).cpu == pytest.approx(0.2)
    assert diagnosis.seconds == 2
    # What follows training (an evaluation, a video) is no part of it.
    lines.append(as_line(replace(record(12), d=20.0, closing=True)))
    late = replace(busy, t=32.0, seconds=20.5)
    diagnosis = diagnose_evidence(Evidence("x", config, lines, [busy, calm, late]))
    assert diagnosis.explained == (10.0, 12.0)
    (cpu,) = meters(diagnosis)
    assert cpu.mean == pytest.approx((0.2 * 1.0 + 1.0 * 0.5) / 1.5)


def test_reading_changes_nothing(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    read_run(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_the_runs_of_a_population_are_named(flatout: Cli, tmp_path: Path) -> None:
    (tmp_path / "population.json").write_text("{}")
    said = flatout("explain", tmp_path).message
    assert said.endswith("is a population in which no run has begun: try again later.")
    for name in ("seed=1", "seed=0"):
        (tmp_path / "members" / name).mkdir(parents=True)
        (tmp_path / "members" / name / "spans.jsonl").touch()
    said = flatout("explain", tmp_path).message
    assert f"a population of 2 runs; explain one of them: flatout explain {tmp_path}/mem" in said
    assert said.endswith("members/seed=0.")
