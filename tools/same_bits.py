"""Does a change leave every learned number as it was? Seeded runs, compared by hashes.

    python tools/same_bits.py save before.json            # at the commit before
    python tools/same_bits.py compare before.json         # after the change: 1 where a bit differs

Each algorithm, sampler and schedule trains briefly with the source tree next to this file (or
``--source FOLDER``): step by step, as one compiled program, as members of a population, and
resumed. A hash covers the arrays of the final parameters, whatever their names and order, and the
counts and the last losses of the summary (of an overlapped run the arrays alone: what it has
collected by its end depends on time). Programs are compiled for AVX2, so that a file that was
saved on one machine can be compared on another one with a CPU of the same maker; with another
version of JAX, or between AMD and Intel, last bits differ.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from safetensors.numpy import load

CARTPOLE = ("--env", "CartPole-v1", "--envs", "4")
PENDULUM = ("--env", "Pendulum-v1", "--envs", "4")
ROLLOUT = (*CARTPOLE, "--n-steps", "32", "--batch-size", "64", "--steps", "1024")
REPLAY = ("--learning-starts", "128", "--batch-size", "32", "--train-freq", "32",
          "--gradient-steps", "8", "--buffer-size", "1024", "--steps", "640")  # fmt: skip
WORKERS = "sampler=processes workers=2x2"
BREAKOUT = ("--env", "BreakoutNoFrameskip-v4", "--envs", "4", "--n-steps", "16", "--batch-size",
            "32", "--n-epochs", "1", "--steps", "192")  # fmt: skip
SNAKE_STACKS = ("--env", "flatout/Snake-v0", "--env-kwargs", "size=4", "--env-kwargs", "patience=6",
                "--frame-stack", "3", "--network", "mlp", "--envs", "4", "--batch-size", "32",
                "--n-epochs", "1")  # fmt: skip
ON_DEVICE = ("--env-backend", "device")
ON_HOST_SCHEDULE = "sampler=device schedule=serial"
FUSED_ROLLOUT = (*ROLLOUT, *ON_DEVICE)
AVX2 = "--xla_cpu_max_isa=AVX2"
THEN = "then"
"""Separates the words of one command from those of the next, in the same run folder."""

SUMMARY = ("steps", "updates", "iterations", "episodes", "return_mean_last", "last")
"""The entries of `summary.json` that follow from the seed."""

RUNS: dict[str, tuple[str, ...]] = {
    "ppo": ("ppo", *ROLLOUT),
    "ppo-pendulum": ("ppo", *PENDULUM, *ROLLOUT[4:], "--normalize-observation"),
    "ppo-episodes": ("ppo", "--preset", "cartpole-ppo-w2", "--steps", "400"),
    "ppo-trajectories": ("ppo", *ROLLOUT, "--replay-trajectories", "2"),
    "ppo-snake": ("ppo", "--preset", "snake-ppo", "--envs", "4", "--n-steps", "16",
                  "--batch-size", "64", "--steps", "256"),
    "ppo-processes": ("ppo", *ROLLOUT, "--placement", WORKERS),
    "ppo-local": ("ppo", *ROLLOUT, "--placement", f"{WORKERS} inference=local"),
    "ppo-overlapped": ("ppo", *ROLLOUT, "--placement", f"{WORKERS} schedule=overlapped"),
    "ppo-shards": ("ppo", *ROLLOUT, "--shards", "2", "--virtual-devices", "2", "--placement",
                   "learn=cpu:0,cpu:1", "--reduce", "ordered"),
    "ppo-micro": ("ppo", *ROLLOUT, "--micro-batch", "16"),
    "a2c": ("a2c", *ROLLOUT[:6], "--steps", "1024"),
    "genetic": ("genetic", "--env", "CartPole-v1", "--envs", "8", "--n-steps", "32",
                "--steps", "1024"),
    "dqn": ("dqn", *CARTPOLE, *REPLAY),
    "dqn-prioritised": ("dqn", *CARTPOLE, *REPLAY, "--prioritized", "--n-step", "3", "--dueling"),
    "dqn-device": ("dqn", *CARTPOLE, *REPLAY, "--placement", "act=cpu replay=device"),
    "dqn-overlapped": ("dqn", *CARTPOLE, *REPLAY, "--placement", f"{WORKERS} schedule=overlapped"),
    "dqn-shards": ("dqn", *CARTPOLE, *REPLAY, "--shards", "2"),
    "dqn-breakout": ("dqn", "--preset", "breakout-dqn", "--envs", "2", "--learning-starts", "64",
                     "--steps", "128", "--buffer-size", "256"),
    "ppo-breakout": ("ppo", *BREAKOUT),
    "ppo-breakout-workers": ("ppo", *BREAKOUT, "--placement", WORKERS),
    "ppo-breakout-trajectories": ("ppo", *BREAKOUT, "--replay-trajectories", "2"),
    "ppo-breakout-shards": ("ppo", *BREAKOUT, "--shards", "2"),
    "ppo-snake-stacks": ("ppo", *SNAKE_STACKS, "--n-steps", "16", "--steps", "512"),
    "ppo-snake-episodes": ("ppo", *SNAKE_STACKS, "--rollout-episodes", "2", "--env-kwargs",
                           "max_episode_steps=16", "--n-steps", "32", "--steps", "512",
                           "--placement", f"{WORKERS} inference=local"),
    "ddpg": ("ddpg", *PENDULUM, *REPLAY),
    "td3": ("td3", *PENDULUM, *REPLAY),
    "sac": ("sac", *PENDULUM, *REPLAY),
    "classify": ("classify", "--steps", "40"),
    "fused-ppo": ("ppo", *FUSED_ROLLOUT),
    "fused-ppo-pendulum": ("ppo", *PENDULUM, *FUSED_ROLLOUT[4:], "--normalize-observation"),
    "fused-ppo-episodes": ("ppo", "--preset", "cartpole-ppo-w2", "--steps", "400", *ON_DEVICE),
    "fused-ppo-shards": ("ppo", *FUSED_ROLLOUT, "--shards", "2"),
    "fused-snake": ("ppo", "--preset", "snake-ppo", "--envs", "4", "--n-steps", "16",
                    "--batch-size", "64", "--steps", "256", *ON_DEVICE),
    "fused-a2c": ("a2c", *FUSED_ROLLOUT[:6], "--steps", "1024", *ON_DEVICE),
    "fused-genetic": ("genetic", "--env", "CartPole-v1", "--envs", "8", "--n-steps", "32",
                      "--steps", "1024", *ON_DEVICE),
    "fused-dqn": ("dqn", *CARTPOLE, *REPLAY, *ON_DEVICE),
    "fused-dqn-prioritised": ("dqn", *CARTPOLE, *REPLAY, "--prioritized", "--n-step", "3",
                              *ON_DEVICE),
    "fused-td3": ("td3", *PENDULUM, *REPLAY, *ON_DEVICE),
    "fused-sac": ("sac", *PENDULUM, *REPLAY, *ON_DEVICE),
    "device-ppo": ("ppo", *FUSED_ROLLOUT, "--placement", ON_HOST_SCHEDULE),
    "device-ppo-trajectories": ("ppo", *FUSED_ROLLOUT, "--replay-trajectories", "2",
                                "--placement", ON_HOST_SCHEDULE),
    "device-ppo-shards": ("ppo", *FUSED_ROLLOUT, "--shards", "2", "--virtual-devices", "2",
                          "--placement", f"{ON_HOST_SCHEDULE} learn=cpu:0,cpu:1", "--reduce",
                          "ordered"),
    "device-dqn": ("dqn", *CARTPOLE, *REPLAY, *ON_DEVICE, "--placement", ON_HOST_SCHEDULE),
    "members-ppo": ("ppo", *FUSED_ROLLOUT, "--seeds", "3", "--strategy", "together"),
    "members-dqn": ("dqn", *CARTPOLE, *REPLAY, *ON_DEVICE, "--seeds", "2", "--strategy",
                    "together"),
    "members-rates": ("ppo", *FUSED_ROLLOUT, "--population", "learning-rate=1e-3,1e-4",
                      "--strategy", "together"),
    "members-spread": ("ppo", *ROLLOUT, "--seeds", "2", "--strategy", "spread"),
    "resumed-ppo": ("ppo", *ROLLOUT[:-1], "512", THEN, "--steps", "1024"),
    "resumed-dqn": ("dqn", *CARTPOLE, *REPLAY[:-1], "320", THEN, "--steps", "640"),
    "resumed-breakout": ("ppo", *BREAKOUT[:-1], "128", THEN, "--steps", "192"),
    "resumed-overlapped": ("ppo", *ROLLOUT[:-1], "512", "--placement",
                           f"{WORKERS} schedule=overlapped", THEN, "--steps", "1024"),
    "resumed-fused": ("ppo", *FUSED_ROLLOUT[:-3], "512", *ON_DEVICE, THEN, "--steps", "1024"),
    "resumed-members": ("ppo", *FUSED_ROLLOUT[:-3], "512", *ON_DEVICE, "--seeds", "2",
                        "--strategy", "together", THEN, "--steps", "1024"),
}  # fmt: skip


def trained(source: Path, words: tuple[str, ...]) -> str:
    """The hash of what a run learned, or how it failed."""
    paths = os.pathsep.join(map(str, (source, source.parent / "explain" / "src")))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for number, command in enumerate(_commands(words)):
            target = ["--resume", str(run)] if number else ["--run-dir", str(run), "--seed", "7"]
            quiet = ["--quiet"] if number else ["--quiet", "--no-tensorboard"]
            done = subprocess.run(
                [sys.executable, "-m", "flatout", "train", *command, *target, *quiet],
                env=os.environ | {"PYTHONPATH": paths, "XLA_FLAGS": AVX2}, cwd=folder,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                return f"failed: {done.stderr.strip().splitlines()[-1:]}"
        counts = not any("overlapped" in word for word in words)
        found = [_learned(file.parent, counts) for file in sorted(run.rglob("params.safetensors"))]
    if not found:
        return "failed: no parameters were written"
    return found[0] if len(found) == 1 else _hash("".join(found))


def _commands(words: tuple[str, ...]) -> list[list[str]]:
    """The words of each command of a run."""
    found: list[list[str]] = [[]]
    for word in words:
        if word == THEN:
            found.append([])
        else:
            found[-1].append(word)
    return found


def _learned(run: Path, counts: bool) -> str:
    """The hash of one run folder: its final parameters, and also its counts and losses."""
    arrays = load((run / "params.safetensors").read_bytes())
    each = sorted(
        hashlib.sha256(f"{a.dtype}{a.shape}".encode() + a.tobytes()).hexdigest()
        for a in arrays.values()
    )
    if not counts:
        return _hash("".join(each))
    summary = json.loads((run / "summary.json").read_text())
    summary["last"] = {k: v for k, v in summary["last"].items() if not k.endswith("_mb")}
    return _hash("".join(each) + json.dumps([summary.get(key) for key in SUMMARY]))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def cpu_maker() -> str:
    """The maker of this machine's CPU, GenuineIntel for example, or its architecture."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        for line in lines:
            if line.startswith("vendor_id"):
                return line.partition(":")[2].strip()
    return platform.machine()


def main() -> int:
    """Save, or compare and tell what differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("save", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--source", type=Path, default=Path(__file__).resolve().parent.parent / "src"
    )
    parser.add_argument("--only", nargs="*", default=[], help="names of runs")
    args = parser.parse_args()
    if not (args.source / "flatout").is_dir():
        parser.error(f"--source {args.source} holds no flatout package: name the folder src.")
    before: dict[str, str] = {}
    if args.what == "compare":
        saved = json.loads(args.file.read_text())
        if saved["jax"] != version("jax"):
            parser.error(f"{args.file} was saved with JAX {saved['jax']}, not {version('jax')}.")
        if saved["cpu"] != cpu_maker():
            parser.error(
                f"{args.file} was saved on a CPU of {saved['cpu']}, not {cpu_maker()}: save the "
                "commit before on this machine."
            )
        before = saved["bits"]
    found: dict[str, str] = {}
    for name, words in RUNS.items():
        if args.only and name not in args.only:
            continue
        found[name] = trained(args.source, words)
        said = found[name] if found[name].startswith("failed") else found[name][:12]
        if args.what == "compare":
            said += "  same" if found[name] == before.get(name) else f"  WAS {before.get(name)}"
        print(f"{name:22} {said}", flush=True)
    if args.what == "save":
        saved = {"jax": version("jax"), "cpu": cpu_maker(), "bits": found}
        args.file.write_text(json.dumps(saved, indent=1) + "\n")
        return 0
    return int(any(before.get(name) != value for name, value in found.items()))


if __name__ == "__main__":
    sys.exit(main())
