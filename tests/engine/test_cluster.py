"""Runs whose workers act on the machines of a Ray cluster: the same bits, and nothing lost."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from flatout.config.placement import parse
from flatout.config.settings import build, change
from flatout.engine.workers import cluster, pool, remote_actor
from flatout.engine.workers.carried import environment_packages, runtime_environment
from flatout.engine.workers.pool import MachineLost, WorkerLost
from flatout.engine.workers.shared_memory import SharedArrays
from flatout.envs.source import EnvSource
from flatout.errors import EnvironmentFailure, UsageError
from flatout.explain.runs import diagnose_evidence, read_run
from flatout.hardware.facts import differences, facts_here
from flatout.installing import install
from flatout.storage import checkpoint
from flatout.types import NAMED, UserCode
from tests import cluster_link, tiny
from tests.cluster_nodes import ACTOR_PROCESS, RAY_ACTOR, Nodes, new_token, processes
from tests.conftest import Result
from tests.kills import ROOT, assert_same, final_state, finish, spawn, wait_for

Cli = Callable[..., Result]

TINY = ("train", "ppo", "--env", "CartPole-v1", "--envs", "8", "--n-steps", "16", "--batch-size",
        "32", "--hidden", "8", "--steps", "512",
        "--checkpoint-every", "128", "--quiet")  # fmt: skip
THERE, HERE = "sampler=cluster workers=2x4", "sampler=processes inference=local workers=2x4"


@pytest.fixture(scope="module")
def started() -> Iterator[Nodes]:
    pytest.importorskip("ray", reason="needs Ray: pip install 'flatout[ray]'")
    with Nodes((2, 2)) as found:
        yield found


@pytest.fixture
def nodes(started: Nodes, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """A cluster of a head without CPUs and two nodes with two each."""
    for name, value in started.variables.items():
        monkeypatch.setenv(name, value)
    return started


def left() -> int:
    """The number of processes of workers on the cluster."""
    return len(processes(RAY_ACTOR)) + len(processes(ACTOR_PROCESS))


# --- What needs no Ray ------------------------------------------------------------------------


def test_workers_of_a_cluster_act_where_they_step() -> None:
    placement = parse("sampler=cluster workers=64x8 schedule=overlapped")
    assert placement.acts_in_workers
    assert str(placement) == "act=cpu sampler=cluster workers=64x8 schedule=overlapped"
    assert parse(str(placement)) == placement
    with pytest.raises(UsageError, match=r"inference=central.*cross the network twice"):
        parse("sampler=cluster inference=central")


def test_without_ray_one_sentence_says_so(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = flatout(*TINY, "--placement", THERE, "--run-dir", tmp_path / "run")
    assert result.code == 2
    assert result.message == f"sampler=cluster needs its package: {install('ray')}."


def test_no_module_imports_ray_unless_a_run_asks_for_it() -> None:
    for file in (ROOT / "src").rglob("*.py"):
        lines = file.read_text().splitlines()
        assert not [line for line in lines if re.match(r"(import|from) ray\b", line)], file


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ray-address", "127.0.0.1:1"], "no Ray answers there (Connection refused)"),
        (["--ray-address", "ray://cluster:10001"], "neither HOST:PORT nor auto"),
        (["--ray-working-dir", "nowhere"], "--ray-working-dir nowhere: there is no such folder"),
    ],
)
def test_a_wrong_setting_is_named(
    words: list[str], said: str, flatout: Cli, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'flatout[ray]'")
    result = flatout(*TINY, "--placement", THERE, *words, "--run-dir", tmp_path / "run")
    assert result.code in (1, 2)
    assert said in result.message


@pytest.mark.parametrize(
    "words", [("--ray-address", "auto"), ("--ray-working-dir", "."), ("--same-bits",)]
)
def test_a_setting_of_a_cluster_needs_one(
    words: tuple[str, ...], flatout: Cli, tmp_path: Path
) -> None:
    address = words[0] == "--ray-address"  # which the placement auto may use
    for placed in (("--placement", "cpu"), *([] if address else [()])):
        result = flatout(*TINY, *words, *placed, "--run-dir", tmp_path / "run")
        assert result.code == 2
        assert f"{' '.join(words)} is for workers on a Ray cluster" in result.message


def test_another_placement_leaves_the_cluster_of_a_resumed_run() -> None:
    run = build("ppo", {"placement": THERE, "ray_address": "a:1", "same_bits": True, "envs": 8})
    assert change(run, {"steps": 8}).run.ray_address == "a:1"
    assert change(run, {"placement": f"{THERE} schedule=overlapped"}).run.ray_address == "a:1"
    moved = change(run, {"placement": HERE}).run
    assert (moved.ray_address, moved.same_bits) == (None, False)


def test_members_of_a_population_have_no_cluster(flatout: Cli, tmp_path: Path) -> None:
    words = (*TINY, "--seeds", "2", "--placement", THERE)
    result = flatout(*words, "--run-dir", tmp_path / "all")
    assert result.code == 2
    assert "cannot share a Ray cluster" in result.message


def test_what_differs_between_machines_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    here = dict(facts_here(["ale-py"]))
    assert differences(here, here) == []
    assert here["ale-py"] != "not installed"
    there = here | {"numpy": "1.0", "CPU flags": "avx2 sse4_2"}
    one, two = differences(here | {"CPU flags": "avx2 avx512f"}, there)
    assert one == f"numpy 1.0 instead of {here['numpy']}"
    assert two == "a CPU without avx512f and with sse4_2"
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")  # workers compute on their CPU anyway
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0 --xla_cpu_enable_fast_math=true")
    assert sorted(differences(here, facts_here(["ale-py"]))) == [
        "JAX_ENABLE_X64 1 instead of not set",
        "XLA_FLAGS --xla_cpu_enable_fast_math=true instead of not set",
    ]


def environment(name: str, passed: Any = None) -> Any:
    """As much of a task as says where its environment comes from."""
    return SimpleNamespace(source=EnvSource(name, {}, passed))


def test_simulators_that_an_environment_loads_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module("ale_py")
    (tmp_path / "games_there.py").write_text("def make():\n    import gymnasium\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("CartPole-v1", "games_there:make"):
        found = environment_packages(environment(name))
        assert {"gymnasium", "ale-py"} <= {*found}
        assert not {"typing-extensions", "typing_extensions", "flatout"} & {*found}
    assert "ale-py" in environment_packages(environment("ALE/Pong-v5"))


def test_modules_travel_from_namespace_packages_and_beside_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_there" / "part").mkdir(parents=True)
    (tmp_path / "plain_there" / "part" / "game.py").write_text("import beside_there, numpy")
    (tmp_path / "beside_there.py").touch()
    (tmp_path / "script_there.py").write_text("def make():\n    import plain_there.part.game")
    monkeypatch.syspath_prepend(tmp_path)
    wanted = {str(tmp_path / "plain_there"), str(tmp_path / "beside_there.py")}

    def sent(name: str, code: UserCode = NAMED) -> set[str]:
        config = build("ppo", {"env": name})
        found = runtime_environment(config, code, environment(name, code.env), None)
        return set(found.get("py_modules", ()))

    assert sent("plain_there.part.game:make") == wanted
    assert sent("CartPole-v1") == set()
    # A function of a script is sent by value, without the script.
    script = str(tmp_path / "script_there.py")
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", script, raising=False)
    make = type("make", (), {"__module__": "__main__"})
    assert sent("make (...)", UserCode(env=make)) == wanted
    # A notebook has no script, but the modules that it has imported.
    monkeypatch.delattr(main, "__file__")
    assert sent("make (...)", UserCode(env=make)) == set()
    monkeypatch.setattr(main, "game", ModuleType("plain_there.part.game"), raising=False)
    assert sent("make (...)", UserCode(env=make)) == wanted


def test_a_module_that_cannot_travel_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"compiled_there{EXTENSION_SUFFIXES[0]}"
    file.touch()
    monkeypatch.syspath_prepend(tmp_path)
    config, task = build("ppo", {"env": "compiled_there:make"}), environment("compiled_there:make")
    with pytest.raises(UsageError, match=r"compiled_there .*--ray-working-dir"):
        runtime_environment(config, NAMED, task, None)
    assert runtime_environment(config, NAMED, task, str(tmp_path)) == {"working_dir": str(tmp_path)}


def test_a_module_that_is_missing_there_is_no_reason_to_try_again() -> None:
    """The environment imports it when it is made."""
    worker: Any = Failing(WorkerLost, 0)
    why = "failed: ModuleNotFoundError: No module named 'levels' (make.py:3)"
    answer = remote_actor._loss(WorkerLost(worker, why))
    assert answer.kind == "UsageError"
    assert "(No module named 'levels'): install it there" in answer.value
    assert "--ray-working-dir" in answer.value
    assert remote_actor._loss(WorkerLost(worker, "died of SIGSEGV")).kind == "lost"
    refused = remote_actor._refusal(UsageError("--env a:make: there is no module 'levels'."))
    assert "--ray-working-dir" in refused.value


class Failing:
    """A worker whose environments fail at each start."""

    job: Any = SimpleNamespace(first=0, count=1, local=None)

    def __init__(self, lost: type[WorkerLost], starts: int) -> None:
        self._lost, self._starts = lost, starts

    def start(self) -> None:
        self._starts -= 1

    def send_job(self) -> None:
        pass

    def ready(self) -> None:
        if self._starts >= 0:
            raise self._lost(self, "failed")  # pyright: ignore[reportArgumentType]


def test_only_losses_of_machines_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that always fails ends a run on a cluster, too, however slowly it fails."""
    monkeypatch.setattr(pool, "WINDOW_S", 0.0)
    for lost, starts in ((MachineLost, 20), (WorkerLost, 20)):
        worker: Any = Failing(lost, starts)
        workers = pool.WorkerPool([worker], SharedArrays({}), lambda _: None, SimpleNamespace())
        if lost is MachineLost:
            workers.restart(lost(worker, "was lost"))
        else:
            with pytest.raises(EnvironmentFailure, match="failed, after 5 restarts"):
                workers.restart(lost(worker, "failed"))


def test_lost_machines_leave_the_restarts_for_failures_of_environments() -> None:
    worker = cast(Any, Failing(MachineLost, 9))
    notes = list[str]()
    pooled = pool.WorkerPool([worker] * 5, SharedArrays({}), notes.append, SimpleNamespace())
    pooled.restart(MachineLost(worker, "was lost"))
    assert "(restart 10 of at most 15)" in notes[-1]
    pooled.restart(WorkerLost(worker, "failed"))
    assert "(restart 1 of at most 5)" in notes[-1]


def test_a_worker_that_was_lost_before_its_episodes_began_is_started_again() -> None:
    worker, notes = cast(Any, Failing(WorkerLost, 0)), list[str]()
    workers = pool.WorkerPool([worker], SharedArrays({}), notes.append)
    workers.restart(WorkerLost(worker, "died"), playing=False)
    workers.restart(WorkerLost(worker, "died"))
    assert [note.partition(" (")[0] for note in notes] == [
        "worker 0 died; it is started again",
        "worker 0 died; its environment begins a new episode",
    ]


class Placing:
    """A worker that Ray starts after it was looked for some times."""

    job: Any = SimpleNamespace(first=0, count=4)
    lost = machine = None

    def __init__(self, looks: float) -> None:
        self._looks, self.here = looks, False

    def place(self, deadline: float) -> tuple[str, str, Any] | None:
        self._looks -= 1
        return None if self._looks >= 0 else ("node", "there", {})

    def step_here(self) -> None:
        self.here = True

    def begin(self) -> None: ...


@pytest.mark.parametrize(
    ("looks", "full", "said"),
    [
        (3, False, ""),
        (math.inf, True, "found no free CPU for environments 0 to 3 within 0 s"),
        (math.inf, False, "did not start a worker for environments 0 to 3 within 0.5 s"),
    ],
    ids=["slow", "full", "too slow"],
)
def test_a_slow_start_is_no_full_cluster(
    looks: float, full: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ROOM_S", 0.0)
    monkeypatch.setattr(cluster, "SLOW_S", 0.5)
    ray, worker, notes = object.__new__(cluster.Cluster), Placing(looks), list[str]()
    ray.report, ray._full_until, ray._compared = notes.append, 0.0, {"node"}
    ray._placing = [cast(Any, worker)]
    monkeypatch.setattr(ray, "_full", lambda: full)
    ray.place()
    assert worker.here == bool(said)
    assert [said in note for note in notes] == ([True] if said else [])


# --- Real nodes -------------------------------------------------------------------------------


def train(nodes: Nodes, run: Path, *more: str, placement: str = THERE) -> tuple[str, ...]:
    there = ("--ray-address", nodes.address) if "cluster" in placement else ()
    return (*TINY, *more, "--placement", placement, *there, "--run-dir", str(run))


def saved(run: Path) -> bool:
    return bool(checkpoint.checkpoints(run / "checkpoints"))


IMAGES = ("--env", "ALE/Breakout-v5", "--env-kwargs", "img_height=12", "--env-kwargs",
          "img_width=12", "--network", "mlp", "--steps", "256")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), IMAGES], ids=["vectors", "frame stacks"])
def test_a_cluster_gives_the_bits_of_local_workers(
    words: tuple[str, ...], nodes: Nodes, flatout: Cli, tmp_path: Path
) -> None:
    result = finish(spawn(*train(nodes, tmp_path / "there", *words, "--json")))
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert summary["placement"].startswith("act=cpu sampler=cluster")
    assert summary["notes"] == [] or not any("differs" in note for note in summary["notes"])
    here = (*TINY, *words, "--placement", HERE, "--run-dir", tmp_path / "here")
    assert flatout(*here).code == 0
    assert_same(final_state(tmp_path / "there"), final_state(tmp_path / "here"))
    assert processes(RAY_ACTOR) == []
    # Observations of 4 floats, and what PPO needs of each step.
    assert 16 < summary["flow"]["network_bytes_per_step"] < 200
    assert 0 < summary["flow"]["network_round_trip_s"] < 10
    assert summary["flow"]["network_full_steps_per_s"] > 1e3
    explained = diagnose_evidence(read_run(tmp_path / "there"))
    assert [one.workers for one in explained.machines] == [1, 1], "a worker on each node"
    assert all(0.0 < one.work <= 1.0 for one in explained.machines)
    assert 0.0 < summary["flow"]["network_clocks_s"] < 1.0


@pytest.mark.slow
@pytest.mark.fault
def test_a_process_that_dies_there_is_replaced_as_here(nodes: Nodes, tmp_path: Path) -> None:
    """It dies in the first iteration after a resume, whose truncated episodes end with restored
    observations. There is one worker, because the first of several to arrive would die."""
    runs: list[dict[str, Any]] = []
    for name, placement in (("there", THERE), ("here", HERE)):
        (tmp_path / name).mkdir()
        kwargs = ("fault=kill", "at=37", f"folder={tmp_path / name}")
        words = ("--env", "tests.fault_envs:faulty", *(f"--env-kwargs={one}" for one in kwargs))
        run = tmp_path / f"{name}_run"
        alone = placement.replace("2x4", "1x8")
        begun = train(nodes, run, *words, "--steps", "256", placement=alone)
        result = finish(spawn(*begun))
        assert result.code == 0, result.err
        resumed = ("--resume", str(run), "--steps", "512", "--quiet", "--json")
        result = finish(spawn("train", *resumed))
        assert result.code == 0, result.err
        assert json.loads(result.out)["flow"]["environments_lost"] == 8
        runs.append(final_state(run)["arrays"])
    assert_same(runs[0], runs[1])


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("lost", ["actor", "node", "silent actor"])
def test_what_is_lost_is_replaced(lost: str, nodes: Nodes, tmp_path: Path) -> None:
    words = ("--env", "tests.fault_envs:sleepy", "--env-kwargs", "seconds=0.03", "--json")
    run = tmp_path / "run"
    wait_for(lambda: not processes(RAY_ACTOR))  # of the test before
    process = spawn(*train(nodes, run, *words))
    wait_for(lambda: saved(run) or process.poll() is not None)
    actor = processes(RAY_ACTOR)[0]
    if lost == "actor":
        actor.kill()
    elif lost == "node":
        nodes.ask("remove")
    else:
        actor.suspend()
    result = finish(process)
    if lost == "node":
        nodes.ask("add")
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert summary["steps"] == 512
    assert summary["flow"]["environments_lost"] in (4, 8)
    assert any("begin new episodes" in note for note in summary["notes"])
    wait_for(lambda: not left())


@pytest.mark.slow
@pytest.mark.fault
def test_a_killed_run_resumes_to_the_same_bits_without_a_cluster(
    nodes: Nodes, flatout: Cli, tmp_path: Path
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    words = ("--env", "tests.fault_envs:sleepy", "--env-kwargs", "seconds=0.005")
    process = spawn(*train(nodes, run, *words))
    wait_for(lambda: saved(run) or process.poll() is not None)
    assert process.poll() is None, finish(process)
    process.kill()
    finish(process)
    wait_for(lambda: not left())
    assert flatout("train", "--resume", run, "--placement", HERE, "--quiet").code == 0
    assert flatout(*TINY, *words, "--placement", HERE, "--run-dir", whole).code == 0
    assert_same(final_state(run)["arrays"], final_state(whole)["arrays"])


@pytest.mark.slow
def test_workers_without_room_step_here(nodes: Nodes, tmp_path: Path) -> None:
    """Five workers need five CPUs; the cluster has four."""
    words = ("--envs", "5", "--batch-size", "16", "--steps", "160", "--json")
    placed = "sampler=cluster workers=5x1"
    result = finish(spawn(*train(nodes, tmp_path / "run", *words, placement=placed)))
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert [note for note in summary["notes"] if "no free CPU" in note] != []
    assert summary["steps"] == 160


@pytest.mark.slow
def test_planning_predicts_workers_on_a_cluster(nodes: Nodes) -> None:
    words = ("ppo", "--env", "tests.fault_envs:sleepy", "--env-kwargs", "seconds=0.01", *TINY[4:12])
    asked = (*words, "--ray-address", nodes.address, "--seconds", "4", "--json", "--allow-lag")
    result = finish(spawn("plan", *asked))
    assert result.code == 0, result.err
    planned = json.loads(result.out)
    hosts = planned["stages"]["hosts"]
    assert [(one["cores"], one["here"]) for one in hosts["machines"]] == [(2, False)] * 2
    assert hosts["network"]["measured"]
    assert 0.0 < hosts["network"]["way_s"] < 1.0
    there = [one for one in planned["predictions"] if "sampler=cluster" in one["placement"]]
    assert {"workers=4x2"} <= {word for one in there for word in one["placement"].split()}
    assert any(note.startswith("the network to other machines: ") for note in planned["notes"])


@pytest.mark.slow
def test_trials_of_a_sweep_share_a_cluster(nodes: Nodes, tmp_path: Path) -> None:
    """One process trains them, and connects twice."""
    words = ("--placement", THERE, "--ray-address", nodes.address, "--seeds", "2", "--at-once", "1",
             "--run-dir", str(tmp_path / "all"), "--eval-every", "0")  # fmt: skip
    result = finish(spawn("sweep", *TINY[1:], *words))
    assert result.code == 0, result.err
    again = ("--resume", str(tmp_path / "all"), "--ray-address", nodes.address)
    assert finish(spawn("sweep", *again, "--quiet")).code == 0
    for seed in (0, 1):
        summary = json.loads((tmp_path / "all" / f"seed={seed}" / "summary.json").read_text())
        assert summary["steps"] == 512
        assert summary["flow"]["network_bytes_per_step"] > 16


@pytest.mark.slow
@pytest.mark.fault
def test_a_cut_network_is_no_end(tmp_path: Path) -> None:
    """Two nodes in network namespaces of their own; no packet arrives any more. Ray itself notices
    about a minute later."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'flatout[ray]'")
    words = ("--env", "tests.fault_envs:sleepy", "--env-kwargs", "seconds=0.03", "--json")
    run, variables = tmp_path / "run", os.environ | new_token() | {"PYTHONPATH": str(ROOT)}
    if subprocess.run([*cluster_link.INSIDE, "test", "-w", "/dev/net/tun"], check=False).returncode:
        pytest.skip("needs network namespaces and /dev/net/tun")
    with cluster_link.linked_nodes(variables, quiet=True) as (address, joining, ask):
        argv = tiny.latest([*TINY, *words, "--placement", THERE, "--ray-address", address])
        process = subprocess.Popen(
            [*joining, sys.executable, "-m", "flatout", *argv, "--run-dir", str(run)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables,
        )  # fmt: skip
        wait_for(lambda: saved(run) or process.poll() is not None)
        ask("cut")
        result = finish(process)
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert summary["steps"] == 512
    assert summary["flow"]["environments_lost"] == 8
    assert any("its machine was silent" in note for note in summary["notes"])
    # No worker is placed on the silent machine again, and lost there again.
    assert sum("(restart " in note for note in summary["notes"]) == 2


@pytest.mark.slow
def test_a_module_of_the_user_travels(nodes: Nodes, tmp_path: Path) -> None:
    """Workers find Ray's copy where the original folder does not exist, as on another machine."""
    (tmp_path / "parts_there").mkdir()  # a package without __init__.py
    (tmp_path / "parts_there" / "length.py").write_text("LENGTH = 7\n")
    (tmp_path / "helper_there.py").write_text("from parts_there.length import LENGTH\n")
    (tmp_path / "mine_there.py").write_text(f"""
import sys
import gymnasium as gym
from pathlib import Path
from helper_there import LENGTH

def make():
    with open({str(tmp_path / "seen")!r}, "a") as file:
        print(*(path for path in sys.path if Path(path, "helper_there.py").exists()), file=file)
    return gym.wrappers.TimeLimit(gym.make("CartPole-v1"), LENGTH)
""")
    words = train(nodes, tmp_path / "run", "--env", "mine_there:make", "--steps", "128", "--trust")
    result = finish(spawn(*words, cwd=tmp_path))
    assert result.code == 0, result.err
    paths = set((tmp_path / "seen").read_text().split())
    assert any("runtime_resources" in path for path in paths), paths
