"""Sweeps on Ray: the same file, the same bits; lost workers, lost clusters, wrong addresses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flatout.hardware import ray_cluster
from flatout.hardware.inventory import Gpu, Hardware
from flatout.installing import install
from flatout.storage import signing
from flatout.sweeps import place
from tests.conftest import Result, furthest, last_saved
from tests.kills import finish, spawn, wait_for
from tests.runs_made import sweep_file

Cli = Callable[..., Result]
ON_RAY = ("--engine", "ray")
SLOW = ("--env", "tests.fault_envs:sleepy", "--env-kwargs", "seconds=0.005", "--eval-every", "0")

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 64 * "0"}
"""Without one Ray writes its own into the home."""

STARTED = """
import ray, sys, warnings
warnings.simplefilter("ignore")
ray.init("local", num_cpus=2, object_store_memory=200_000_000, include_dashboard=False,
         log_to_driver=False, logging_level="ERROR")
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""
"""A Ray of its own, as long as this program's stdin is open."""


def sweep(folder: Path, **more: Any) -> Path:
    section = """
    [grid]
    learning_rate = [1e-4, 1e-3]
    """
    return sweep_file(folder, section, checkpoint_every=64, **more)


# --- What needs no Ray -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "slurm"], "not one of local, ray"),
        (["--ray-address", "auto"], "give both"),
        (["--placement", "sampler=cluster workers=2x1"], "start a Ray of its own"),
        ([*ON_RAY, "--placement", "sampler=cluster workers=2x1"], "leave one of the two out"),
        ([*ON_RAY, "--dry-run"], "leave out --engine ray"),
        ([*ON_RAY, "--ray-address", "cluster"], "neither HOST:PORT nor auto"),
        ([*ON_RAY, "--ray-address", "ray://cluster:10001"], "neither HOST:PORT nor auto"),
        ([*ON_RAY, "--ray-address", "127.0.0.1:1"], "no Ray answers there (Connection refused)"),
        ([*ON_RAY, "--ray-address", "127.0.0.1:99999"], "no Ray answers there"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], said: str, flatout: Cli, tmp_path: Path
) -> None:
    result = flatout("sweep", sweep(tmp_path), *words, "--run-dir", tmp_path / "f")
    assert result.code in (1, 2)
    assert said in result.message
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_that_is_no_ray_is_not_waited_for(
    greeting: bytes, flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        lines = list[socket.socket]()

        def serve() -> None:
            line, _ = server.accept()
            lines.append(line)
            line.sendall(greeting)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        words = (*ON_RAY, "--ray-address", f"127.0.0.1:{server.getsockname()[1]}")
        result = flatout("sweep", sweep(tmp_path), *words, "--run-dir", tmp_path / "f")
        thread.join(10)
        lines[0].close()
    assert result.code == 1
    assert "no Ray answers there" in result.message


def test_without_ray_one_sentence_says_so(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = flatout("sweep", sweep(tmp_path), *ON_RAY, "--run-dir", tmp_path / "f")
    assert result.code == 2
    assert result.message == f"--engine ray needs its package: {install('ray')}."
    assert not (tmp_path / "f").exists()


def test_a_share_of_a_card_is_a_cap_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(free: int) -> None:
        gpus = (Gpu(0, "A", 10_000, free, 2),)
        hardware = Hardware("cpu", 8, 1000, 1000, gpus=gpus, cuda_plugin=True)
        monkeypatch.setattr("flatout.hardware.inventory.inventory", lambda: hardware)

    seen(10_000)
    assert place._card(0) == []
    assert place._card(3) == [{"XLA_CLIENT_MEM_FRACTION": "0.300"}]
    seen(2_000)  # others hold most of it
    assert place._card(3) == [{"XLA_CLIENT_MEM_FRACTION": "0.180"}]


# --- A real Ray --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def there() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A local Ray that this module starts: its address, and its process."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'flatout[ray]'")
    process = started()
    yield address(process), process
    finish(process)


def started() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", STARTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True, env=os.environ | TOKEN,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TOKEN.items():
        monkeypatch.setenv(name, value)


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def trials(result: Result) -> dict[str, Any]:
    return json.loads(result.out)["trials"]


def steps(run: Path) -> list[int]:
    """Of its metrics' rows."""
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The cluster's processes that hold a place."""
    found = list[psutil.Process]()
    for one in psutil.Process(process.pid).children(recursive=True):
        try:
            if "ray::Place" in " ".join(one.cmdline()):
                found.append(one)
        except psutil.Error:  # it has ended
            continue
    return found


@pytest.mark.slow
def test_the_same_file_gives_the_same_bits(flatout: Cli, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'flatout[ray]'")
    file = sweep(tmp_path, steps=320, seeds=2)
    process = spawn("sweep", str(file), *ON_RAY, "--run-dir", str(tmp_path / "ray"), "--json")
    result = finish(process)
    assert result.code == 0, result.err
    local = flatout("sweep", file, "--run-dir", tmp_path / "local", "--json")
    assert trials(result) == trials(local)
    assert len(trials(result)) == 4
    for name in trials(result):
        here = tmp_path / "ray" / name
        assert furthest(last_saved(here), last_saved(tmp_path / "local" / name)) == 0.0
        values = json.loads((here / "config.json").read_text())
        assert signing.is_own(signing.RUN, values)
        assert values["settings"]["run_dir"] == str(here)
    assert sorted(path.name for path in (tmp_path / "ray").iterdir() if path.name[0] == ".") == [
        ".sweep"
    ]
    assert flatout("eval", here, "--episodes", 1).code == 0


@pytest.mark.slow
def test_populations_come_back(
    there: tuple[str, subprocess.Popen[str]], flatout: Cli, tmp_path: Path
) -> None:
    words = ("--env-backend", "device", "--strategy", "spread", "--json")
    file = sweep(tmp_path, steps=320, seeds=2)
    on_ray = (*words, *ON_RAY, "--ray-address", there[0], "--run-dir", str(tmp_path / "ray"))
    result = finish(spawn("sweep", str(file), *on_ray))
    assert result.code == 0, result.err
    local = flatout("sweep", file, *words, "--run-dir", tmp_path / "local")
    assert trials(result) == trials(local)
    found = sorted(path.relative_to(tmp_path / "ray") for path in tmp_path.glob("ray/*/members/*"))
    assert len(found) == 4
    for path in found:
        ours, theirs = last_saved(tmp_path / "ray" / path), last_saved(tmp_path / "local" / path)
        assert furthest(ours, theirs) == 0.0
    for path in tmp_path.glob("ray/*/population.json"):
        values = json.loads(path.read_text())
        assert signing.is_own(signing.RUN, values)
        assert Path(values["settings"]["run_dir"]).parent.parent == path.parent


@pytest.mark.slow
@pytest.mark.fault
def test_a_killed_worker_costs_its_trial_nothing_but_time(
    there: tuple[str, subprocess.Popen[str]], flatout: Cli, tmp_path: Path
) -> None:
    """The retry begins with the last checkpoint that had come home; the other goes on."""
    where, ray = there
    file = sweep(tmp_path, steps=1600)
    words = (str(file), *SLOW, *ON_RAY, "--ray-address", where, "--json")
    wait_for(lambda: not workers(ray))  # of the test before
    process = spawn("sweep", *words, "--run-dir", str(tmp_path / "f"))
    wait_for(lambda: len(list((tmp_path / "f").glob("*/checkpoints"))) == 2)
    workers(ray)[0].kill()
    result = finish(process)
    assert result.code == 0, result.err
    assert {one["state"] for one in trials(result).values()} == {"done"}
    said = "its machine was lost. It is tried again; lost workers do not count as failures."
    assert result.err.count(said) == 1
    whole = flatout("sweep", file, *SLOW, "--run-dir", tmp_path / "whole", "--json")
    for name in trials(whole):
        ours, theirs = tmp_path / "f" / name, tmp_path / "whole" / name
        assert furthest(last_saved(ours), last_saved(theirs)) == 0.0
        assert steps(ours) == steps(theirs)


@pytest.mark.slow
@pytest.mark.fault
def test_ctrl_c_saves_and_a_resume_goes_on(
    there: tuple[str, subprocess.Popen[str]], flatout: Cli, tmp_path: Path
) -> None:
    where, _ = there
    file = sweep(tmp_path, steps=1600, seeds=2)
    on_ray = (*ON_RAY, "--ray-address", where)
    folder = tmp_path / "f"
    process = spawn("sweep", str(file), *SLOW, *on_ray, "--run-dir", str(folder))
    wait_for(lambda: len(list(folder.glob("*/metrics.jsonl"))) >= 2)
    process.send_signal(signal.SIGINT)
    stopped = finish(process)
    assert stopped.code == 130, stopped.err
    assert "resume with: flatout sweep --resume" in stopped.err
    saved = [path.parent.parent for path in folder.glob("*/checkpoints/step_*")]
    assert saved
    process = spawn("sweep", "--resume", str(folder), *on_ray, "--json")
    result = finish(process)
    assert result.code == 0, result.err
    assert {one["state"] for one in trials(result).values()} == {"done"}
    own = ("--resume", folder, "--json")  # on this machine there is nothing left to do
    assert trials(flatout("sweep", *own)) == trials(result)


@pytest.mark.slow
@pytest.mark.fault
def test_a_cluster_that_goes_away_is_said_and_costs_nothing_that_came_home(
    flatout: Cli, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'flatout[ray]'")
    ray = started()
    file = sweep(tmp_path, steps=1600)
    folder = tmp_path / "f"
    words = (*SLOW, *ON_RAY, "--ray-address", address(ray), "--run-dir", str(folder))
    process = spawn("sweep", str(file), *words)
    wait_for(lambda: len(list(folder.glob("*/checkpoints"))) == 2)
    ray.kill()
    result = finish(process)
    finish(ray)
    assert result.code == 1
    said = "was lost. The results that had arrived are saved; resume with: flatout sweep --resume"
    assert said in result.message
    result = flatout("sweep", "--resume", folder, "--json")
    assert result.code == 0, result.err
    assert {one["state"] for one in trials(result).values()} == {"done"}
