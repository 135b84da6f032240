"""Does a change leave every learned number as it was? Seeded runs, compared by hashes.

    python tools/same_bits.py save before.json            # at the commit before
    python tools/same_bits.py compare before.json         # after the change: 1 where a bit differs

Each algorithm, sampler and schedule trains briefly with the source tree beside this file (or
``--source FOLDER``). Hashes are of the arrays alone, whatever their names and order.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load

CARTPOLE = ("--env", "CartPole-v1", "--envs", "4")
PENDULUM = ("--env", "Pendulum-v1", "--envs", "4")
ROLLOUT = (*CARTPOLE, "--n-steps", "32", "--batch-size", "64", "--steps", "1024")
REPLAY = ("--learning-starts", "128", "--batch-size", "32", "--train-freq", "32",
          "--gradient-steps", "8", "--buffer-size", "1024", "--steps", "640")  # fmt: skip
WORKERS = "sampler=processes workers=2x2"
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
    "ddpg": ("ddpg", *PENDULUM, *REPLAY),
    "td3": ("td3", *PENDULUM, *REPLAY),
    "sac": ("sac", *PENDULUM, *REPLAY),
    "classify": ("classify", "--steps", "40"),
}  # fmt: skip


def trained(source: Path, words: tuple[str, ...]) -> str:
    """The hash of a run's final arrays, or how it failed."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        done = subprocess.run(
            [sys.executable, "-m", "flatout", "train", *words, "--run-dir", str(run), "--quiet",
             "--seed", "7", "--no-tensorboard"],
            env=os.environ | {"PYTHONPATH": str(source)}, cwd=folder, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            return f"failed: {done.stderr.strip().splitlines()[-1:]}"
        arrays = load((run / "params.safetensors").read_bytes())
    each = sorted(
        hashlib.sha256(f"{a.dtype}{a.shape}".encode() + a.tobytes()).hexdigest()
        for a in arrays.values()
    )
    return hashlib.sha256("".join(each).encode()).hexdigest()


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
    before = json.loads(args.file.read_text()) if args.what == "compare" else {}
    found: dict[str, str] = {}
    for name, words in RUNS.items():
        if args.only and name not in args.only:
            continue
        found[name] = trained(args.source, words)
        said = found[name] if found[name].startswith("failed") else found[name][:12]
        if args.what == "compare":
            said += "  same" if found[name] == before.get(name) else f"  WAS {before.get(name)}"
        print(f"{name:18} {said}", flush=True)
    if args.what == "save":
        args.file.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    return int(any(before.get(name) != value for name, value in found.items()))


if __name__ == "__main__":
    sys.exit(main())
