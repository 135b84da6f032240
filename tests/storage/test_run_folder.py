"""A run's folder by default: a name that nobody else has."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

BEGIN = """
import sys, time
from flatout.cli.arguments import train_config
from flatout.storage.run_folder import new_folder

config, _ = train_config(["ppo", "--env", "CartPole-v1"])
print("ready", flush=True)
at = float(sys.stdin.readline())
while time.time() < at:
    pass
folder = new_folder(config)
print(folder.path, flush=True)
sys.stdin.readline()
folder.write_config(config, "cpu")
folder.close()
"""


def test_runs_that_begin_at_the_same_moment_have_folders_of_their_own(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", BEGIN]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": tmp_path}
    begun = [subprocess.Popen(argv, **pipes) for _ in range(4)]  # type: ignore[call-overload]

    def told() -> list[str]:
        return [process.stdout.readline().strip() for process in begun]

    def tell(text: str) -> None:
        for process in begun:
            process.stdin.write(f"{text}\n")
            process.stdin.flush()

    assert told() == ["ready"] * 4
    tell(str(time.time() + 0.5))
    paths = told()
    tell("")
    assert len(set(paths)) == 4
    assert [process.wait(60) for process in begun] == [0] * 4
    for process in begun:
        process.stdin.close()
        process.stdout.close()
    assert all((tmp_path / path / "config.json").is_file() for path in paths)
