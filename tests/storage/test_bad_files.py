"""Runs and agents on disk that are damaged, hostile or another's: refused, and nothing lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as dump_tensors

from flatout import PPO
from flatout.errors import CheckpointError
from tests.cli.test_bad_input import Cli, contents, sentence
from tests.conftest import TINY

# Every test here runs the same few runs; how their programs are made is not the subject.
pytestmark = pytest.mark.usefixtures("shared_programs")

RUN = (*TINY, "--checkpoint-every", "64")
NEWEST = Path("checkpoints") / "step_000000000256"
NESTED = b"[" * 99999


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with checkpoints at 128, 192 and 256 steps; not to be changed."""
    from flatout.__main__ import main

    path = tmp_path_factory.mktemp("runs") / "finished"
    assert main(["train", "ppo", *RUN, "--run-dir", str(path)]) == 0
    return path


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


# Resuming with other settings


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--seed 3", "cannot change seed|from 0 to 3"),
        ("--learning-rate 0.1", "cannot change learning_rate|0.0003|0.1"),
        ("--env Pendulum-v1", "cannot change env|CartPole-v1|Pendulum-v1"),
        ("--hidden 32", "cannot change hidden|(64, 64)|(32,)"),
        ("--n-steps 7", "cannot change n_steps|32|7"),
        ("--env-kwargs sutton_barto_reward=true", "cannot change env_kwargs|sutton_barto_reward"),
        ("--preset cartpole-ppo", "--preset cannot change"),
        ("--config pyproject.toml", "--config cannot change"),
        ("--run-dir elsewhere", "--run-dir cannot change"),
    ],
)
def test_resume_with_other_settings(flatout: Cli, run_dir: Path, flags: str, words: str) -> None:
    before = contents(run_dir)
    sentence(flatout("train", "--resume", run_dir, "--quiet", *flags.split()), 2, words)
    assert contents(run_dir) == before


def test_a_resumed_run_may_have_spare_environments(flatout: Cli, run_dir: Path) -> None:
    """They change no episode: only whether steps wait for resets."""
    done = flatout("train", "--resume", run_dir, "--quiet", "--spare-envs", "all", "--dry-run")
    assert done.code == 0, done.err


def test_resume_as_another_algorithm(flatout: Cli, run_dir: Path) -> None:
    sentence(flatout("train", "pqo", "--resume", run_dir), 2, f"{run_dir}|ppo|pqo")


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_resume_of_no_run(flatout: Cli, tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "empty":
        path.mkdir()
    if kind == "file":
        path.write_text("")
    said = {"missing": "does not exist", "empty": "config.json", "file": "is a file"}[kind]
    sentence(flatout("train", "--resume", path), 2, f"{path}|{said}")
    assert not (tmp_path / "missing").exists()


# Checkpoints


def tensors(change: Callable[[bytes], bytes], signed: bool = False) -> Callable[[Path], None]:
    """Change the arrays' file; signed, so that its digests are right."""

    def damage(run: Path) -> None:
        path = run / NEWEST / "state.safetensors"
        content = change(path.read_bytes())
        path.write_bytes(content)
        if signed:
            state(lambda d: d.update(sha256=hashlib.sha256(content).hexdigest()))(run)

    return damage


def header(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """Change what a safetensors file says about itself."""

    def rewrite(content: bytes) -> bytes:
        (length,) = struct.unpack("<Q", content[:8])
        said = json.loads(content[8 : 8 + length])
        change(said)
        text = json.dumps(said).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + length :]

    return rewrite


def state(change: Callable[[dict[str, Any]], Any], signed: bool = True) -> Callable[[Path], None]:
    """Change the counters' file; signed, so that its own digest is right, as a stranger can."""

    def damage(run: Path) -> None:
        path = run / NEWEST / "state.json"
        data = json.loads(path.read_bytes())
        digest = data.pop("digest")
        change(data)
        if signed:
            digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps(data | {"digest": digest}))

    return damage


def text(name: str | Path, content: bytes) -> Callable[[Path], Any]:
    """Overwrite one file."""
    return lambda run: (run / name).write_bytes(content)


def settings(**changes: Any) -> Callable[[Path], None]:
    """Edit the run's config.json by hand."""

    def damage(run: Path) -> None:
        path = run / "config.json"
        config = json.loads(path.read_bytes())
        config["settings"].update(changes)
        path.write_text(json.dumps(config))

    return damage


def flip(content: bytes) -> bytes:
    """One bit of the last array changed."""
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


def huge(content: bytes) -> bytes:
    """A header of 2**60 bytes claimed."""
    return struct.pack("<Q", 2**60) + content[8:]


CHECKPOINT, CONFIG = str(NEWEST), "config.json"
DAMAGED: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "truncated": (CHECKPOINT, tensors(lambda b: b[: len(b) // 2])),
    "truncated, signed": (CHECKPOINT, tensors(lambda b: b[: len(b) // 2], signed=True)),
    "flipped": (CHECKPOINT, tensors(flip)),
    "2**60": (CHECKPOINT, tensors(huge)),
    "2**60, signed": (CHECKPOINT, tensors(huge, signed=True)),
    "huge shape": (CHECKPOINT, tensors(header(
        lambda h: h["sampler/obs"].update(shape=[2**40, 2**20])), signed=True)),
    "unknown type": (CHECKPOINT, tensors(header(
        lambda h: h["sampler/obs"].update(dtype="BF16", shape=[4, 4])), signed=True)),
    "array missing": (CHECKPOINT, tensors(header(
        lambda h: h.update(x=h.pop("sampler/obs"))), signed=True)),
    "no arrays": (CHECKPOINT, lambda run: (run / NEWEST / "state.safetensors").unlink()),
    "no counters": (CHECKPOINT, lambda run: (run / NEWEST / "state.json").unlink()),
    "empty JSON": (CHECKPOINT, text(NEWEST / "state.json", b"")),
    "garbage": (CHECKPOINT, text(NEWEST / "state.json", b"\x00\xffgarbage")),
    "a list": (CHECKPOINT, text(NEWEST / "state.json", b"[]")),
    "nested": (CHECKPOINT, text(NEWEST / "state.json", b'{"digest": ' + NESTED)),
    "many digits": (CHECKPOINT, text(NEWEST / "state.json", b"9" * 5000)),
    "wrong digest": (CHECKPOINT, state(lambda d: d.update(step=3), signed=False)),
    "wrong format": (f"{CHECKPOINT}|format 99", state(lambda d: d.update(format=99))),
    "no SHA-256": (CHECKPOINT, state(lambda d: d.pop("sha256"))),
    "no data": (CHECKPOINT, state(lambda d: d.pop("data"))),
    "data a list": (CHECKPOINT, state(lambda d: d.update(data=[]))),
    "no progress": (CHECKPOINT, state(lambda d: d["data"].pop("progress"))),
    "steps a text": (CHECKPOINT, state(lambda d: d["data"]["progress"].update(steps="x"))),
    "no sampler": (CHECKPOINT, state(lambda d: d["data"].pop("sampler"))),
    "one episode": (CHECKPOINT, state(lambda d: d["data"]["sampler"].update(episode=[1]))),
    "version a list": (CHECKPOINT, state(lambda d: d["data"].update(version=[]))),
    "none left": ("checkpoint", lambda run: shutil.rmtree(run / "checkpoints")),
    "other network": (f"{CHECKPOINT}|[64, 4]|[32, 4]", settings(hidden=[32, 32])),
    "other depth": (CHECKPOINT, settings(hidden=[64, 64, 64])),
    "other environment": (CHECKPOINT, settings(env="Pendulum-v1")),
    "other count": (CHECKPOINT, settings(envs=4)),
    "config garbage": (CONFIG, text("config.json", b"\xff{")),
    "config nested": (CONFIG, text("config.json", NESTED)),
    "config a list": (CONFIG, text("config.json", b"[]")),
    "config unknown": (f"{CONFIG}|'nope'", settings(nope=3)),
    "config impossible": (f"{CONFIG}|gamma = 7", settings(gamma=7)),
    "config too large": (f"{CONFIG}|gamma", settings(gamma=10**400)),
}  # fmt: skip


BUILT = ("other depth", "other environment", "other count")
"""Found only after all is built, as another network is."""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow if kind in BUILT else ()) for kind in DAMAGED],
)
def test_damaged_checkpoints(flatout: Cli, run_dir: Path, kind: str) -> None:
    words, damage = DAMAGED[kind]
    damage(run_dir)
    before = contents(run_dir)
    more = ("--steps", "320", "--quiet")  # of a run without a step left, less is read
    sentence(flatout("train", "--resume", run_dir, *more), 1, f"{run_dir}|{words}")
    after = contents(run_dir)
    assert {name for name in before if before[name] != after.get(name)} <= {"config.json"}


def test_the_way_back_that_is_offered(flatout: Cli, run_dir: Path) -> None:
    tensors(flip)(run_dir)
    command = ("train", "--resume", run_dir, "--quiet")
    sentence(flatout(*command), 1, "Remove that folder to continue from step 192")
    shutil.rmtree(run_dir / NEWEST)
    assert flatout(*command).code == 0
    assert (run_dir / NEWEST).is_dir()


# Saved agents


def metadata(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """Change what a saved agent says about its settings."""

    def rewrite(said: dict[str, Any]) -> None:
        config = json.loads(said["__metadata__"]["config"])
        change(config)
        said["__metadata__"]["config"] = json.dumps(config)

    return header(rewrite)


def calls(env: str, **kwargs: Any) -> Callable[[bytes], bytes]:
    """An agent whose environment is some function of Python's."""
    return metadata(lambda c: c["settings"].update(env=env, env_kwargs=kwargs))


AGENTS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "empty": ("is empty", lambda b: b""),
    "truncated": ("is not a whole saved agent|it ends before", lambda b: b[:1000]),
    "without its end": ("is not a whole saved agent|it ends before", lambda b: b[:-1000]),
    "half a header": ("is not a whole saved agent", lambda b: b[:100]),
    "flipped": ("", flip),
    "2**60": ("is not a saved agent", huge),
    "pickle": ("is not a saved agent", lambda b: b"\x80\x04\x95" + bytes(100)),
    "foreign": ("", lambda b: dump_tensors({"w": np.zeros(3, np.float32)})),
    "no algorithm": ("", lambda b: dump_tensors({"w": np.zeros(3)}, {"config": "{}"})),
    "nested": ("", header(lambda h: h["__metadata__"].update(config=NESTED.decode()))),
    "unknown": ("'nope'", metadata(lambda c: c["settings"].update(nope=3))),
    "algorithm": ("for ppo, not dqn", metadata(lambda c: c.update(algorithm="dqn"))),
    "network": ("[32, 4]", metadata(lambda c: c["settings"].update(hidden=[32, 64]))),
    "environment": ("[64, 3]", metadata(lambda c: c["settings"].update(env="Pendulum-v1"))),
    "runs a builtin": ("os:mkdir", calls("os:mkdir", path="pwned")),
    "runs a function": ("numpy.testing:runstring", calls(
        "numpy.testing:runstring", astr="import os; os.mkdir('pwned')", dict={})),
}  # fmt: skip


@pytest.mark.parametrize("kind", AGENTS)
def test_damaged_agents(
    flatout: Cli, run_dir: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, change = AGENTS[kind]
    monkeypatch.chdir(tmp_path)
    file = run_dir / "params.safetensors"
    file.write_bytes(change(file.read_bytes()))
    result = flatout("eval", run_dir, "--episodes", "1")
    assert not (tmp_path / "pwned").exists(), "a file made us call a function"
    sentence(result, 1, f"{file}|{words}")


OTHERS = {
    "page": b"# A page\n\nof some words.\n" * 40,
    "archive": b"PK\x03\x04" + bytes(range(256)) * 4,
    "JSON": b'{"format": 5, "algorithm": "ppo"}',
    "five bytes": b"12345",
    "zeros": bytes(100),
}


@pytest.mark.parametrize("command", ["eval", "export"])
@pytest.mark.parametrize("kind", OTHERS)
def test_a_file_of_another_kind_is_named_in_one_sentence(
    flatout: Cli, tmp_path: Path, kind: str, command: str
) -> None:
    """Numbers that are read where a header's size would stand mean nothing to its user."""
    file = tmp_path / "other"
    file.write_bytes(OTHERS[kind])
    more = ("--out", tmp_path / "policy.py") if command == "export" else ()
    result = flatout(command, file, *more)
    sentence(result, 1, f"{file} is not a saved agent; an agent is a .safetensors file that")
    assert "bytes" not in result.err
    with pytest.raises(CheckpointError, match="is not a saved agent; an agent is"):
        PPO.load(file)


def test_a_run_that_would_call_a_function(flatout: Cli, run_dir: Path, tmp_path: Path) -> None:
    kwargs = {"path": str(tmp_path / "pwned")}
    settings(env="os:mkdir", env_kwargs=kwargs)(run_dir)
    result = flatout("train", "--resume", run_dir, "--quiet")
    assert not (tmp_path / "pwned").exists(), "a file made us call a function"
    sentence(result, 1, f"{run_dir / 'config.json'}|os:mkdir")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--episodes 0", "episodes = 0"),
        ("--seed -1", "seed = -1"),
        ("--checkpoint bset", "bset|'best'"),
        ("--out out.jpg", "out.jpg|.gif"),
    ],
)
def test_eval_arguments(
    flatout: Cli,
    run_dir: Path,
    flags: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    sentence(flatout("eval", run_dir, *flags.split()), 2, words)


def test_eval_of_no_agent(flatout: Cli, run_dir: Path) -> None:
    (run_dir / "params.safetensors").unlink()
    result = flatout("eval", run_dir, "--episodes", "2")  # of a run that goes on
    assert result.code == 0
    assert "step_" in result.out
    shutil.rmtree(run_dir / "checkpoints")
    sentence(flatout("eval", run_dir), 2, f"{run_dir}|params.safetensors|no checkpoint")
