"""Signed does not mean sane: values that no run has are refused before anything large is made."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as dump_tensors

from flatout.storage import checkpoint
from tests.cli.test_bad_input import Cli, sentence
from tests.conftest import replay_run
from tests.storage.test_bad_files import NEWEST, metadata, settings, state

# Every test here runs the same few runs; how their programs are made is not the subject.
pytestmark = pytest.mark.usefixtures("shared_programs")

CONFIG, CHECKPOINT = "config.json", str(NEWEST)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with replay; not to be changed."""
    return replay_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """What is allocated beyond a few gigabytes fails."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 30), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def arrays(name: str, value: Any) -> Callable[[Path], None]:
    """Put a value into an array of the newest checkpoint, digests right."""

    def damage(run: Path) -> None:
        path = run / NEWEST / "state.safetensors"
        held = {n: np.array(array) for n, array in load_tensors(path.read_bytes()).items()}
        held[next(n for n in held if name in n)].flat[0] = value
        content = dump_tensors(held)
        path.write_bytes(content)
        state(lambda d: d.update(sha256=hashlib.sha256(content).hexdigest()))(run)

    return damage


def books(**changes: Any) -> Callable[[Path], None]:
    return state(lambda d: d["data"]["progress"].update(changes))


def sampler(**changes: Any) -> Callable[[Path], None]:
    return state(lambda d: d["data"]["sampler"].update(changes))


def buffer(**changes: Any) -> Callable[[Path], None]:
    return state(lambda d: d["data"]["buffer"].update(changes))


def segment(**changes: Any) -> Callable[[Path], None]:
    return state(lambda d: d["replay"]["segments"][0].update(changes))


def later(run: Path) -> None:
    """The newest checkpoint under a name beyond all steps."""
    (run / NEWEST).rename(run / "checkpoints" / "step_999999999999999")


INSANE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "NaN weights": (f"{CHECKPOINT}|NaN", arrays("learner.params.network", np.nan)),
    "infinite weights": (f"{CHECKPOINT}|infinite", arrays(
        "learner.params.target", np.inf)),
    "step 1e15": (f"{CHECKPOINT}|1000000000000000", state(lambda d: d.update(step=10**15))),
    "step -5": (f"{CHECKPOINT}|-5", state(lambda d: d.update(step=-5))),
    "step 1e15 in its name": ("step_999999999999999|256", later),
    "books' step 1e15": (f"{CHECKPOINT}|1,000,000,000,000,000", books(steps=10**15)),
    "books' step -5": (f"{CHECKPOINT}|steps = -5", books(steps=-5)),
    "updates -1": (f"{CHECKPOINT}|updates = -1", books(updates=-1)),
    "iterations 1e300": (f"{CHECKPOINT}|iterations = 1", books(iterations=10**300)),
    "wall NaN": (f"{CHECKPOINT}|wall_s", books(wall_s=float("nan"))),
    "returns of text": (f"{CHECKPOINT}", books(returns=["x"])),
    "best text": (f"{CHECKPOINT}", books(best_return="x")),
    "room 1e12": (f"{CHECKPOINT}|1000000000000", buffer(room=10**12)),
    "head 1e12": (f"{CHECKPOINT}|1000000000000", buffer(head=10**12)),
    "rows to 1e15": (CHECKPOINT, state(lambda d: d["replay"].update(stored=[0, 10**15]))),
    "segment to 1e15": (CHECKPOINT, lambda run: (
        state(lambda d: d["replay"].update(stored=[0, 10**15]))(run), segment(end=10**15)(run))),
    "segment is text": (CHECKPOINT, segment(end="x")),
    "segment elsewhere": (CHECKPOINT, segment(file="../../etc/passwd")),
    "episode -1": (f"{CHECKPOINT}|episode -1", sampler(episode=[-1, 0])),
    "origin 1e300": (f"{CHECKPOINT}|origin 1", sampler(origin=[10**300, 0])),
    "version -1": (f"{CHECKPOINT}|version -1", state(lambda d: d["data"].update(version=-1))),
    "hidden 1e9": (f"{CONFIG}|hidden|1000000000", settings(hidden=[10**9])),
    "1000 hidden": (f"{CONFIG}|hidden|1000 layers", settings(hidden=[64] * 1000)),
    "hidden wide twice": (f"{CONFIG}|hidden|weights", settings(hidden=[65536, 65536])),
    "eval_episodes 1e12": (f"{CONFIG}|eval_episodes|1000000000000", settings(
        eval_episodes=10**12, eval_every=1)),
    "envs 1e9": (f"{CONFIG}|envs|1000000000", settings(envs=10**9)),
    "frame_skip 1e9": (f"{CONFIG}|frame_skip", settings(frame_skip=10**9)),
    "resize 1e9": (f"{CONFIG}|resize", settings(resize=10**9)),
    "worker_timeout 1e300": (f"{CONFIG}|worker_timeout", settings(worker_timeout=1e300)),
    "env :": (f"{CONFIG}|:", settings(env=":")),
    "env empty": ("environment", settings(env="")),
    "env long": (f"{CONFIG}|1000 characters", settings(env="x" * 10**6)),
    "text of a megabyte": (CONFIG, settings(gamma="x" * 10**6)),
    "buffer 2e9": ("MiB", settings(buffer_size=2**31 - 1)),
    "batch 2e9": ("MiB", settings(buffer_size=2**31 - 1, batch_size=2**31 - 1)),
}  # fmt: skip


@pytest.mark.parametrize("kind", INSANE)
def test_insane_runs(run: Path, flatout: Cli, kind: str) -> None:
    words, damage = INSANE[kind]
    damage(run)
    result = flatout("train", "--resume", run, "--steps", "320", "--quiet")
    assert result.code in (1, 2), result.err
    message = result.message
    assert len(message) < 1000
    for word in words.split("|"):
        assert word in message


AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "hidden": ("hidden", {"hidden": [10**9]}),
    "wide": ("weights", {"hidden": [65536, 65536]}),
    "episodes": ("eval_episodes", {"eval_episodes": 10**12}),
    "env": ("':'|--env", {"env": ":"}),
    "envs": ("envs", {"envs": 10**9}),
}


@pytest.mark.parametrize("kind", AGENTS)
def test_insane_agents(run: Path, flatout: Cli, kind: str) -> None:
    words, changes = AGENTS[kind]
    file = run / "params.safetensors"
    file.write_bytes(metadata(lambda c: c["settings"].update(changes))(file.read_bytes()))
    message = flatout("eval", run).message
    assert words.split("|")[0].strip("'") in message
    assert len(message) < 1000


def test_an_agent_with_weights_that_are_no_numbers(run: Path, flatout: Cli) -> None:
    file = run / "params.safetensors"
    held, said = checkpoint.load_agent(file)
    name = next(n for n in held if n.startswith("learner.params.network"))
    held[name] = np.full_like(held[name], np.nan)
    checkpoint.save_agent(file, held, {n: v for n, v in said.items() if n != "sha256"})
    sentence(flatout("eval", run), 1, f"{file}|NaN")


def test_too_many_episodes(run: Path, flatout: Cli) -> None:
    sentence(flatout("eval", run, "--episodes", "1e12"), 2, "episodes = 1000000000000|1000000")


def test_settings_of_a_thousand_names(run: Path, flatout: Cli) -> None:
    values = json.loads((run / CONFIG).read_bytes())
    values["settings"] |= {f"x{number}": number for number in range(10**4)}
    (run / CONFIG).write_text(json.dumps(values))
    sentence(flatout("train", "--resume", run), 1, "config.json|x0")
