"""Predictions for machines of a Ray cluster, from stages and networks that are known."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from flatout.config.placement import Placement, parse
from flatout.config.workers import with_workers
from flatout.planning.answer import Answer, Question
from flatout.planning.found import Found, conclude
from flatout.planning.hosts import ASSUMED, Host, Hosts, Network, alike
from flatout.planning.limits import cluster_parts
from flatout.planning.machine import keep_network, known_network
from flatout.planning.plan import Allowed, candidates
from flatout.planning.predict import ENV, predict
from flatout.planning.stages import Stages
from flatout.planning.what_if import Outcome, changed, outcome
from flatout.planning.what_if import parse as parse_changes
from flatout.planning.workers import collecting_s
from flatout_explain.documents import convert
from tests.tiny import train_config

FAST = Network(way_s=5e-3, bytes_per_s=1e9, where="by a test")
THERE = Hosts((Host(2), Host(2)), FAST, request_s=0.0)
"""Two machines of two cores each; the run is on a third one."""

STAGES = Stages(
    envs=16, horizon=50, cores=2, env=(2e-3,), act={"cpu": ((1, 1e-4), (16, 2e-4))},
    learn={"cpu cpu": 0.01}, full=1.0, local=((1, 1e-4),), step_bytes=100.0, params_bytes=1e4,
    hosts=THERE,
)  # fmt: skip


def placed(text: str, stages: Stages = STAGES) -> Placement:
    return with_workers(parse(text), stages.envs, stages.cores)


def rate(text: str, stages: Stages = STAGES) -> float:
    return predict(stages, placed(text, stages)).rate


def answer(stages: Stages, *texts: str) -> Answer:
    rows = [predict(stages, placed(text, stages), known=True) for text in texts]
    return Answer(stages, ("inline", "local"), rows, [], 1.0)


def what_if(question: str, stages: Stages, lag: bool = False) -> Outcome:
    now = answer(stages, "cpu", "act=cpu sampler=processes workers=2x8 inference=local")
    (change,) = parse_changes([question])
    then, wider = changed(stages, [change], FAST)
    return outcome(question, now, replace(now, stages=then), wider, lag)


def test_an_iteration_on_a_cluster_is_its_slowest_worker_and_its_way() -> None:
    seconds = 50 * (4 * 2e-3 + 1e-4) + 1e4 / 1e9 + 5e-3 + 4 * 50 * 100 * 4 / 1e9 + 0.01
    assert rate("sampler=cluster workers=4x4") == pytest.approx(800 / seconds, rel=0.01)


def test_workers_share_the_cores_of_their_machine() -> None:
    four = replace(STAGES, hosts=replace(THERE, machines=(Host(4),)))
    crowded = replace(STAGES, hosts=replace(THERE, machines=(Host(1), Host(1))))
    text = "sampler=cluster workers=4x4"
    assert rate(text, four) == pytest.approx(rate(text), rel=0.01)
    # Two workers have no room there: they step on the run's two cores.
    assert rate(text, crowded) == pytest.approx(rate(text), rel=0.05)
    assert crowded.hosts is not None
    assert crowded.hosts.assigned(4) == [0, 1, -1, -1]


def test_a_full_network_is_the_limit_whatever_the_cores() -> None:
    """A trajectory of 8 MB takes 0.8 s at 10 MB/s, longer than its steps."""
    slow = replace(THERE, network=replace(FAST, bytes_per_s=1e7))
    images = replace(STAGES, step_bytes=1e4, hosts=slow)
    seconds = 800 * 1e4 / 1e7
    for text in ("sampler=cluster workers=2x8", "sampler=cluster workers=4x4"):
        taken = 800 / rate(text, images)
        assert taken > seconds
    large = replace(STAGES, params_bytes=1e7, hosts=slow)  # to each of the two machines
    assert 800 / rate("sampler=cluster workers=4x4", large) > 2 * 1e7 / 1e7


def test_an_overlapped_schedule_hides_the_way_behind_learning() -> None:
    far = replace(THERE, network=replace(FAST, way_s=0.5))
    stages = replace(STAGES, learn={"cpu cpu": 1.2}, hosts=far)
    serial = rate("sampler=cluster workers=4x4", stages)
    assert serial < 0.8 * rate("sampler=cluster workers=4x4 schedule=overlapped", stages)


def test_more_hosts_help_until_a_limit_which_is_named() -> None:
    found = what_if("hosts=8", replace(STAGES, hosts=None, learn={"cpu cpu": 0.2}))
    assert found.then.placement.on_cluster
    assert found.then.placement.workers == (16, 1)
    gains, limit, network = found.notes
    assert gains.startswith("1.00 times with 1 host, ")
    assert gains.endswith("with 8 hosts")
    assert limit == "the learner is the limit from 8 hosts on"
    assert "(measured: by a test)" in network
    assert found.bottleneck == "learning"
    assert found.gain > 2.0


def test_environments_of_a_worker_that_step_at_the_same_time_are_no_longer_part() -> None:
    stages = replace(STAGES, hosts=THERE, learn={"cpu cpu": 0.2}, lanes=4)
    placement = parse("sampler=cluster workers=4x4")
    found = cluster_parts(stages, placement)
    assert 4 * found[ENV] == cluster_parts(replace(stages, lanes=1), placement)[ENV]
    assert found[ENV] < collecting_s(stages, placement) < 4 * found[ENV]


def test_a_full_network_is_named() -> None:
    images = replace(STAGES, hosts=None, env=(2e-2,), step_bytes=2e6)
    found = what_if("hosts=8", images)
    assert any(note.startswith("the network is full from ") for note in found.notes), found.notes


def test_hosts_without_environments_are_named() -> None:
    found = what_if("hosts=100", replace(STAGES, hosts=None, learn={"cpu cpu": 1e-3}))
    assert found.then.placement.workers == (16, 1)
    (note,) = [note for note in found.notes if "have work for" in note]
    assert note.startswith("16 environments have work for 8 hosts with 2 cores")


def test_an_assumed_network_is_named_as_assumed_and_widens_the_interval() -> None:
    assert "assumed, not measured" in ASSUMED.words()
    measured = replace(ASSUMED, measured=True)
    text = placed("sampler=cluster workers=4x4")
    sure, unsure = (
        predict(replace(STAGES, hosts=replace(THERE, network=network)), text)
        for network in (measured, ASSUMED)
    )
    assert unsure.rate == sure.rate
    assert unsure.low < 0.95 * sure.low


def test_a_measured_network_is_kept_for_the_next_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert known_network() == ASSUMED
    keep_network({"environments_lost": 0})
    assert known_network() == ASSUMED
    keep_network({"network_way_s": 0.0123, "network_bytes_per_s": 5e7})
    found = known_network()
    assert (found.way_s, found.bytes_per_s) == (pytest.approx(0.0123), 5e7)
    assert found.measured


@pytest.mark.parametrize(("count", "env_s"), [(2, 2e-3), (8, 8e-3)])
def test_iterations_shorter_than_a_round_trip_are_refused_with_the_reason(
    count: int, env_s: float
) -> None:
    """Workers would step for 8 ms and wait for 30 ms. On many machines an overlapped schedule is
    still faster than this machine, though not with the most workers: each costs a request."""
    far = Hosts((Host(2),) * count, replace(FAST, way_s=0.03))
    short = replace(STAGES, horizon=1, env=(env_s,), hosts=far, learn={"cpu cpu": 0.03})
    found = [str(p) for p in candidates(short, Placement(), Allowed(lag=True))]
    clustered = [text for text in found if "sampler=cluster" in text]
    assert clustered
    assert all("schedule=overlapped" in text for text in clustered)
    question = Question(train_config(["ppo", "--env", "CartPole-v1"])[0], Placement(), 1.0)
    made = conclude(question, Found(short, ("inline",), {text: {} for text in found}))
    (note,) = [note for note in made.notes if note.startswith("sampler=cluster is refused")]
    assert "a worker steps for 8.1 ms in an iteration" in note
    assert "shorter than the 30.0 ms of a request" in note
    helps = count == 8
    assert ("workers=8x2 groups=8 schedule=overlapped" in note) is helps, note
    assert ("--n-steps" in note) is not helps


def test_hosts_survive_json() -> None:
    assert convert(json.loads(json.dumps(asdict(STAGES))), Stages) == STAGES
    assert alike(3, 2, FAST).cores == 6
