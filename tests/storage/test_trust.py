"""A run folder is data: what it names is not run because it says so, one's own runs go on."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any, Literal

import pytest

from flatout import PPO, Agent, CheckpointError, FlatoutError, UsageError
from flatout.storage import checkpoint, signing, trust
from flatout.storage.checkpoint import FORMAT
from flatout_explain.files import import_path
from flatout_explain.files.user_folders import user_folder
from tests import tiny
from tests.cli.test_bad_input import ROOT, Cli, contents, sentence
from tests.conftest import TINY, Result
from tests.own_algorithms import good
from tests.storage.test_bad_files import header, metadata, settings
from tests.tiny import train_config

RUN = (*TINY, "--checkpoint-every", "64", "--log-every", "64")
EVIL = 'import os\n\nos.close(os.open("{}", os.O_CREAT | os.O_WRONLY))\nimport gymnasium\n\n\n' + (
    'def make(**kwargs):\n    return gymnasium.make("CartPole-v1", **kwargs)\n'
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "resume": ("train", "--quiet", "--steps", "320", "--resume"),
    "resume in processes": ("train", "--quiet", "--placement", "sampler=processes workers=1x2",
                            "--steps", "320", "--resume"),
    "eval": ("--episodes", "1", "eval"),
    "eval final": ("--episodes", "1", "--checkpoint", "final", "eval"),
    "show": ("--episodes", "1", "--show", "eval"),
    "video": ("--episodes", "1", "--out", "out.gif", "eval"),
    "explain --try": ("--try", "explain"),
    "explain --measure": ("--measure", "explain"),
}  # fmt: skip


def of(command: str, run: str) -> tuple[str, ...]:
    """A command's words; the run comes first where the command needs it so."""
    *flags, last = COMMANDS[command]
    return (*flags, last, run) if last == "--resume" else (last, run, *flags)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    from flatout.__main__ import main

    path = tmp_path_factory.mktemp("made") / "run"
    assert main(["train", "ppo", *RUN, "--run-dir", str(path)]) == 0
    lines = [{"t": t, "d": 1.0, "lane": "main", "steps": 64, "updates": 10, "iterations": 1,
              "spans": {"env": 0.9}} for t in (1.0, 2.0, 3.0)]  # fmt: skip
    begin = {"begin": {"t": 0.5, "cores": 4, "envs": 2, "placement": "cpu"}}  # so that it can --try
    rows = [json.dumps(line) for line in (begin, *lines)]
    (path / "spans.jsonl").write_text("\n".join(rows) + "\n")
    return path


class Got:
    """A stranger's run folder `got` with code in it, in the working folder."""

    def __init__(self, made: Path, place: Path) -> None:
        self.place, self.run, self.mark = place, place / "got", place / "pwned"
        shutil.copytree(made, self.run)
        for name in ("pwn.py", "evilmod.py", "numpy.py", "difflib.py", "argparse.py"):
            (self.run / name).write_text(EVIL.format(self.mark))

    def name(self, env: str, **kwargs: Any) -> None:
        """Let everything in it name this environment."""
        settings(env=env, env_kwargs=kwargs)(self.run)
        change = metadata(lambda c: c["settings"].update(env=env, env_kwargs=kwargs))
        for file in ("params.safetensors", "best.safetensors"):
            path = self.run / file
            if path.exists():
                path.write_bytes(change(path.read_bytes()))

    @property
    def ran(self) -> bool:
        """Whether code in it ran."""
        return self.mark.exists()


@pytest.fixture
def got(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_programs: None) -> Got:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("got", "got.pwn", "pwn", "evilmod"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return Got(made, tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_code_in_a_downloaded_folder_does_not_run(got: Got, flatout: Cli, command: str) -> None:
    got.name("got.pwn:make")
    result = flatout(*of(command, "got"))
    assert not got.ran
    words = "got.pwn:make|--trust|--env got.pwn:make|got/pwn.py"
    assert result.code == 1, result.err
    for word in words.split("|"):
        assert word in result.message


@pytest.mark.parametrize("command", ["resume", "eval"])
@pytest.mark.parametrize(
    "env",
    [
        "evilmod:x-v0", "this:foo-v1", "got.evilmod:a/b", "pwn:make-v", "got.pwn:", "got/pwn:make",
        ":", "::", "..:x", "got..pwn:make", "got.pwn.:x", " :x", "ALE/pwn:X-v5", "os:system",
        "flatout.envs.atari:cropped2", "gymnasium:CartPole-v1", "\x00:x", "a" * 900 + ":b",
    ],
)  # fmt: skip
def test_every_way_to_name_a_module_is_refused(
    got: Got, flatout: Cli, command: str, env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(got.run))
    before = set(sys.modules)
    got.name(env)
    message = flatout(*of(command, "got")).message
    assert not got.ran
    assert not {"this", "evilmod", "got", "pwn"} & (set(sys.modules) - before)
    assert "names the environment" in message
    assert len(message) < 1000


@pytest.mark.parametrize("extra", [("--trust",), ("--env", "got.pwn:make")])
def test_what_the_user_names_or_trusts_runs(got: Got, flatout: Cli, extra: tuple[str, ...]) -> None:
    got.name("got.pwn:make")
    result = flatout("eval", "got", "--episodes", "1", *extra)
    assert (result.code, got.ran) == (0, True), result.err
    result = flatout("train", "--resume", "got", "--steps", "320", "--quiet", *extra)
    assert result.code == 0, result.err
    # Signed by now, but what is signed is the name and not the code beside it.
    del sys.modules["got.pwn"]
    got.mark.unlink()
    assert "lies next to" in flatout("train", "--resume", "got", "--steps", "384").message
    assert not got.ran


@pytest.mark.parametrize(
    "changes",
    [
        {"env_kwargs": {"xml_file": "/etc/passwd"}},
        {"env_kwargs": {"desc": ["SFFF", {"a": "pwn:make"}]}},
        {"env_kwargs": {"/up": 1}},
        {"env_kwargs": {"env_id": "pwn:Id-v0"}},
        {"env_kwargs": {"file": "~root"}},
        {"env_kwargs": {"file": ".hidden"}},
        {"wandb": "anothers-project"},
        {"ray_address": "10.0.0.9:6379"},
        {"ray_working_dir": "/home/mine"},
    ],
)
def test_other_settings_that_reach_outside(got: Got, flatout: Cli, changes: dict[str, Any]) -> None:
    settings(**changes)(got.run)
    (name,) = changes
    result = flatout("train", "--resume", "got", "--quiet")
    sentence(result, 1, f"--{name.replace('_', '-')}|--trust")


def child(*words: str, cwd: Path, **variables: str) -> Result:
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )
    return Result(done.returncode, done.stdout, done.stderr)


SCRIPT = str(Path(sys.executable).with_name("flatout"))


@pytest.mark.parametrize("how", ["script", "-m", "PYTHONPATH"])
def test_within_the_folder_itself(got: Got, how: str) -> None:
    """Modules that shadow installed ones lie there, too."""
    got.name("pwn:make")
    start = (sys.executable, "-m", "flatout") if how == "-m" else (SCRIPT,)
    path = {"PYTHONPATH": str(got.run)} if how == "PYTHONPATH" else {}
    if how == "PYTHONPATH":  # Python itself imports from there before Flatout does anything
        for name in ("numpy.py", "difflib.py", "argparse.py"):
            (got.run / name).unlink()
    result = child(*start, "train", "--resume", ".", "--quiet", cwd=got.run, **path)
    assert not got.ran
    assert "pwn:make" in result.message
    assert "--trust" in result.message


def test_a_plain_id_imports_nothing_from_the_folder(got: Got) -> None:
    """In workers neither, and an unsigned folder that names no code goes on without a question."""
    settings(env_kwargs={"sutton_barto_reward": False})(got.run)
    (got.run / "sitecustomize.py").write_text("")
    result = child(sys.executable, "-m", "flatout", *of("resume in processes", "."), cwd=got.run)
    assert result.code == 0, result.err
    assert not got.ran


# Algorithms of one's own


ALGORITHM = "got.brain:good"
BRAIN = (
    "import os\n\nos.close(os.open('{}', os.O_CREAT | os.O_WRONLY))\n"
    "from tests.own_algorithms import good\n"
)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a user's algorithm; not to be changed."""
    from flatout.__main__ import main

    path = tmp_path_factory.mktemp("learned") / "run"
    flags = ("--env", "CartPole-v1", "--envs", "2", "--steps", "64", "--quiet")
    with contextlib.chdir(ROOT):
        name = "tests.own_algorithms:good"
        assert main(["train", name, *flags, "--run-dir", str(path)]) == 0
    return path


@pytest.fixture
def brain(learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's run folder ``got``, whose algorithm's code lies in it; returns what that code
    makes as it runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    for name in ("got", "got.brain"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    run, mark = tmp_path / "got", tmp_path / "ran"
    shutil.copytree(learned, run)
    (run / "brain.py").write_text(BRAIN.format(mark))
    values = json.loads((run / "config.json").read_bytes())
    values["algorithm"] = values["settings"]["algorithm"] = ALGORITHM
    (run / "config.json").write_text(json.dumps(values))

    def rename(config: dict[str, Any]) -> None:
        config["algorithm"] = config["settings"]["algorithm"] = ALGORITHM

    final = run / "params.safetensors"
    final.write_bytes(metadata(rename)(final.read_bytes()))
    return mark


NAMING: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "resume": (("train",), ("train", ALGORITHM)),
    "eval": (("eval",), ("eval", "--algorithm", ALGORITHM)),
    "show": (("eval", "--show"), ("eval", "--show", "--algorithm", ALGORITHM)),
}
"""Commands without and with the algorithm's name."""


@pytest.mark.parametrize("command", NAMING)
def test_a_strangers_algorithm_runs_only_where_the_user_says_so(
    brain: Path, flatout: Cli, command: str
) -> None:
    bare, named = NAMING[command]
    run = ("--resume", "got", "--steps", "128", "--quiet") if command == "resume" else ("got",)
    words = f"names the algorithm {ALGORITHM}|train {ALGORITHM}|--algorithm|--trust|got/brain.py"
    sentence(flatout(*bare, *run), 1, words)
    assert not brain.exists()
    done = flatout(*named, *run)
    assert (done.code, brain.exists()) == (0, True), done.err


@pytest.mark.parametrize("command", NAMING)
def test_a_strangers_algorithm_runs_where_all_is_trusted(
    brain: Path, flatout: Cli, command: str
) -> None:
    bare, _ = NAMING[command]
    run = ("--resume", "got", "--steps", "128", "--quiet") if command == "resume" else ("got",)
    done = flatout(*bare, *run, "--trust")
    assert (done.code, brain.exists()) == (0, True), done.err


def test_loading_an_agent_of_a_strangers_algorithm(brain: Path) -> None:
    with pytest.raises(CheckpointError, match=r"got\.brain:good.*algorithm=.*trust=True"):
        Agent.load("got")
    with pytest.raises(CheckpointError, match="algorithm="):
        Agent.load("got", env="CartPole-v1")
    assert Agent.load("got", algorithm=good).predict([0.0] * 4, deterministic=True)[0] in (0, 1)
    assert not brain.exists()  # another was given in its place
    Agent.load("got", trust=True)
    assert brain.exists()


@pytest.mark.parametrize(
    "algorithm", ["os:system", "this:x", "got..brain:good", ":", "x" * 900 + ":y"]
)
def test_a_module_that_is_no_algorithm_is_not_imported(
    brain: Path, flatout: Cli, algorithm: str
) -> None:
    path = Path("got/config.json")
    values = json.loads(path.read_bytes())
    values["algorithm"] = values["settings"]["algorithm"] = algorithm
    path.write_text(json.dumps(values))
    result = flatout("train", "--resume", "got", "--steps", "128")
    assert result.code == 1
    assert "names the algorithm" in result.message
    assert len(result.message) < 1000
    assert not brain.exists()
    assert "this" not in sys.modules


def test_a_settings_file_may_not_bring_an_algorithm(brain: Path, flatout: Cli) -> None:
    file = Path("settings.toml")
    file.write_text(f'algorithm = "{ALGORITHM}"\nenv = "CartPole-v1"\nsteps = 32\nhp.rate = 0.5\n')
    words = f"--config settings.toml names the algorithm {ALGORITHM}|train {ALGORITHM}|--trust"
    sentence(flatout("train", "--config", file), 2, words)
    assert not brain.exists()
    sentence(flatout("train", "ppo", "--config", file), 2, f"for {ALGORITHM}, not ppo")
    done = flatout("train", ALGORITHM, "--config", file, "--run-dir", "one", "--quiet")
    assert (done.code, brain.exists()) == (0, True), done.err
    done = flatout("train", "--config", file, "--trust", "--run-dir", "two", "--quiet", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["algorithm"] == ALGORITHM
    assert json.loads(Path("two/config.json").read_bytes())["settings"]["hp"] == {"rate": 0.5}


# One's own


MORE = """

def imports():
    import later
    from shapes import round


__import__("importlib").import_module("shapes.square")
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with a key in `config`, and in `project` a module with an environment of
    one's own and a run of it; not to be changed."""
    from flatout.__main__ import main

    home = tmp_path_factory.mktemp("home")
    project = home / "project"
    project.mkdir()
    (project / "mine.py").write_text(EVIL.format(home / "ran") + MORE)
    (project / "later.py").write_text("")
    (project / "shapes").mkdir()
    for name in ("__init__", "round", "square"):
        (project / "shapes" / f"{name}.py").write_text("")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(home / "config"))
        patched.setattr(sys, "path", list(sys.path))
        patched.chdir(project)
        patched.delitem(sys.modules, "mine", raising=False)
        flags = [*RUN, "--run-dir", "runs/one"]
        assert main(["train", "ppo", *tiny.latest((*flags, "--env", "mine:make"))]) == 0
        del sys.modules["mine"]
    return home


@pytest.fixture
def mine(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_programs: None
) -> Path:
    """A run of one's own environment, whose module lies in the working folder."""
    for name in ("config", "project"):
        shutil.copytree(home / name, tmp_path / name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path / "project" / "runs" / "one"


def test_own_runs_go_on_without_asking_wherever_they_are(
    mine: Path, flatout: Cli, tmp_path: Path
) -> None:
    key = tmp_path / "config" / "flatout" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    moved = shutil.move(mine, tmp_path / "elsewhere")
    assert flatout("eval", moved, "--episodes", "1").code == 0
    del sys.modules["mine"]
    assert flatout("train", "--resume", moved, "--steps", "320", "--quiet").code == 0
    del sys.modules["mine"]
    assert flatout("train", "--resume", moved, "--steps", "384", "--quiet").code == 0


@pytest.mark.parametrize("lost", ["key", "signature", "public key", "short key", "another's"])
def test_without_key_or_hash_they_ask(mine: Path, flatout: Cli, tmp_path: Path, lost: str) -> None:
    run = mine
    key = tmp_path / "config" / "flatout" / "key"
    if lost == "key":
        key.unlink()
    elif lost == "public key":
        key.chmod(0o644)
    elif lost == "short key":
        key.write_bytes(key.read_bytes()[:8])
    elif lost == "another's":
        key.write_bytes(bytes(32))
    else:
        values = json.loads((run / "config.json").read_bytes())
        del values["signature"]
        (run / "config.json").write_text(json.dumps(values))
        final = run / "params.safetensors"
        final.write_bytes(header(lambda h: h["__metadata__"].pop("signature"))(final.read_bytes()))
    for command in (("train", "--quiet", "--resume"), ("eval",)):
        assert "--env mine:make" in flatout(*command, run).message
    assert "mine" not in sys.modules
    assert flatout("eval", run, "--episodes", "1", "--trust").code == 0


@pytest.mark.parametrize("change", ["env_kwargs", "seed", "format", "placement", "hidden"])
def test_the_hash_covers_all_of_it(mine: Path, flatout: Cli, change: str) -> None:
    run = mine
    values = json.loads((run / "config.json").read_bytes())
    new = {"env_kwargs": {"x": 1}, "seed": 1, "hidden": [64, 64, 64]}
    if change in new:
        values["settings"][change] = new[change]
    else:
        values[change] = {"format": float(FORMAT), "placement": "cpu+gpu"}[change]
    (run / "config.json").write_text(json.dumps(values))
    assert "mine:make" in flatout("train", "--resume", run).message
    assert "mine" not in sys.modules


class ImportsMeanwhile(str):
    """A module's name during whose reading another thread imports a module."""

    def partition(self, sep: str) -> tuple[str, str, str]:
        sys.modules.setdefault("imported_meanwhile", sys)
        return super().partition(sep)


def test_code_is_hashed_while_other_threads_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of a population start in threads, and each of them imports what it needs."""
    name = ImportsMeanwhile("slow_to_import")
    monkeypatch.setitem(sys.modules, name, sys)
    monkeypatch.delitem(sys.modules, "imported_meanwhile", raising=False)
    try:
        assert trust.code_of(["tests.masked_envs:Picky"])
    finally:
        sys.modules.pop("imported_meanwhile", None)


def sign_again(run: Path) -> None:
    """Sign a run with the code that it names as that is now."""
    values = json.loads((run / "config.json").read_bytes())
    del values[signing.SIGNATURE]
    values[signing.CODE] = trust.code_of(["mine:make"])
    (run / "config.json").write_text(json.dumps(signing.signed(signing.RUN, values)))


EVIL_FILES = {
    "the module": "mine.py",
    "a module that it imports within a function": "later.py",
    "a package of its name": "mine/__init__.py",
    "a module that is installed": "gymnasium.py",
    "a file of its package": "shapes/round.py",
    "a file that its package imports by a computed name": "shapes/square.py",
}


@pytest.mark.parametrize("what", EVIL_FILES)
def test_code_that_came_back_changed_into_the_working_folder_is_not_run(
    mine: Path, flatout: Cli, tmp_path: Path, what: str
) -> None:
    """A repository that was given away and returned, with its runs in it."""
    mark, file = tmp_path / "pwned", tmp_path / "project" / EVIL_FILES[what]
    file.parent.mkdir(exist_ok=True)
    file.write_text(EVIL.format(mark))
    for command in (("train", "--quiet", "--resume"), ("eval",)):
        message = flatout(*command, mine).message
        for words in ("names the environment mine:make", str(file), "--env mine:make", "--trust"):
            assert words in message
    assert not mark.exists()
    assert "mine" not in sys.modules


def test_compiled_code_that_came_back_is_not_run(mine: Path, flatout: Cli, tmp_path: Path) -> None:
    """Python runs a compiled file in place of its source if the file says that it is current."""
    evil = tmp_path / "evil.py"
    evil.write_text(EVIL.format(tmp_path / "pwned"))
    source = tmp_path / "project" / "mine.py"
    py_compile.compile(
        str(evil), importlib.util.cache_from_source(str(source)),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )  # fmt: skip
    assert flatout("eval", mine, "--episodes", "1").code == 0
    assert not (tmp_path / "pwned").exists()


def test_code_within_an_archive_is_never_unchanged(
    mine: Path, flatout: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file has no hash of its own."""
    with zipfile.ZipFile("modules.zip", "w") as archive:
        archive.write("mine.py")
    Path("mine.py").unlink()
    monkeypatch.syspath_prepend("modules.zip")
    sign_again(mine)
    assert "modules.zip/mine.py" in flatout("train", "--resume", mine, "--quiet").message
    assert "mine" not in sys.modules


def test_a_run_of_ones_own_goes_on_after_the_code_was_changed(mine: Path, flatout: Cli) -> None:
    module = Path("mine.py")
    module.write_text(module.read_text() + "\n# changed\n")
    assert "code was changed" in flatout("eval", mine).message
    done = flatout("train", "--resume", mine, "--steps", "320", "--quiet", "--env", "mine:make")
    assert done.code == 0, done.err
    del sys.modules["mine"]
    assert flatout("eval", mine, "--episodes", "1").code == 0, "it is signed with the code as it is"


def test_a_signed_name_is_not_the_code_that_came_back_with_it(
    mine: Path, flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given away and returned with another `mine.py` inside."""
    run = Path(shutil.move(mine, tmp_path / "back"))
    mark = tmp_path / "pwned"
    (run / "mine.py").write_text(EVIL.format(mark))
    (run / "gymnasium.py").write_text(EVIL.format(mark))
    monkeypatch.chdir(run)
    for command in (("train", "--resume"), ("eval",)):
        assert "lies next to" in flatout(*command, ".").message
    # In the folder, but with one's own module on the path: nothing else comes from the folder.
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    (run / "mine.py").unlink()
    path = os.pathsep.join([".", str(tmp_path / "project")])
    monkeypatch.setenv("PYTHONPATH", path)
    (run / "gymnasium.py").unlink()
    flags = ("--placement", "sampler=processes workers=1x2", "--steps", "320")
    (run / "pickle.py").write_text(EVIL.format(mark))
    (tmp_path / "project" / "mine.py").write_text("import helper\n" + EVIL.format(mark))
    sign_again(run)
    (run / "helper.py").write_text(EVIL.format(mark))
    assert "helper" in flatout("train", "--resume", ".", "--quiet", *flags).message
    assert not mark.exists()


# In Python


def test_loading_a_saved_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab.py").write_text(EVIL.format(tmp_path / "ran"))
    agent = PPO("lab:make", envs=2, n_steps=16, batch_size=32)
    agent.learn(32)
    (tmp_path / "agents").mkdir()
    file = agent.save(tmp_path / "agents" / "own.safetensors")
    again = PPO.load(file)  # one's own, the module imported already
    assert again.config == agent.config
    del sys.modules["lab"]
    PPO.load(file)
    file.write_bytes(metadata(lambda c: c["settings"].update(seed=5))(file.read_bytes()))
    del sys.modules["lab"]
    with pytest.raises(CheckpointError, match=r"lab:make.*env=.*trust=True"):
        PPO.load(file)
    assert "lab" not in sys.modules
    assert PPO.load(file, env="lab:make").config.run.seed == 5
    assert PPO.load(file, trust=True).config.run.seed == 5


def test_a_strangers_agent_chooses_no_address(tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", envs=2, n_steps=16, batch_size=32).learn(32)
    file = agent.save(tmp_path / "agent")
    there = {"placement": "sampler=cluster workers=2x1", "ray_address": "10.0.0.9:6379"}
    file.write_bytes(metadata(lambda c: c["settings"].update(there))(file.read_bytes()))
    with pytest.raises(CheckpointError, match=r"asks for --ray-address 10\.0\.0\.9:6379"):
        PPO.load(file)
    assert PPO.load(file, ray_address="10.0.0.1:1").config.run.ray_address == "10.0.0.1:1"


def test_a_settings_file_is_a_file(flatout: Cli, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('algorithm = "ppo"\nenv = "this:make"\n')
    sentence(flatout("train", "--config", file), 2, "this:make|--trust|--env this:make")
    assert "this" not in sys.modules
    sentence(flatout("train", "--config", file, "--env", "CartPol-v1"), 2, "CartPol-v1")


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("env_kwargs = { xml_file = '/etc/passwd', n = 1 }", "--env-kwargs xml_file=/mine.xml"),
        ("env_kwargs = { maps = ['SFFF', { a = 'pwn:make' }] }", "--env-kwargs maps=4x4"),
        ("wandb = 'anothers-project'", "--wandb mine"),
        ("ray_address = '10.0.0.9:6379'", "--ray-address 10.0.0.1:6379"),
        ("ray_working_dir = '/home/mine'", "--ray-working-dir ."),
        ("algorithm = 'classify'\ndata = '../secrets'", "--data digits.npz"),
    ],
)
@pytest.mark.parametrize("kind", ["toml", "json"])
def test_what_a_settings_file_reaches_is_named_by_the_user_too(
    line: str, typed: str, kind: str, tmp_path: Path
) -> None:
    text = line if "algorithm" in line else f"algorithm = 'ppo'\nenv = 'CartPole-v1'\n{line}"
    file = tmp_path / f"settings.{kind}"
    file.write_text(text if kind == "toml" else json.dumps(tomllib.loads(text)))
    flag, _, value = typed.partition(" ")
    with pytest.raises(UsageError, match=f"{file.name} asks for {flag} .*--trust"):
        train_config(["--config", str(file)])
    train_config(["--config", str(file), flag, value])
    train_config(["--config", str(file), "--trust"])


# Formats


@pytest.mark.parametrize("number", [None, checkpoint.FORMAT - 1, checkpoint.FORMAT + 1])
def test_another_format_is_one_sentence(got: Got, flatout: Cli, number: int | None) -> None:
    saved = contents(got.run)
    values = json.loads((got.run / "config.json").read_bytes()) | {"format": number}
    (got.run / "config.json").write_text(json.dumps(values))
    said = "no format number" if number is None else f"has format {number}"
    for words in (
        ("train", "--resume", "got"),
        ("explain", "got"),
        ("runs", "--compare", "got", "got"),
    ):
        sentence(flatout(*words), 1, f"got/config.json|{said}")
    final = got.run / "params.safetensors"
    text = json.dumps(number)
    final.write_bytes(header(lambda h: h["__metadata__"].update(format=text))(final.read_bytes()))
    sentence(flatout("eval", "got"), 1, f"params.safetensors|{said}")
    changed = {"config.json", "params.safetensors"}
    assert {n for n, text in contents(got.run).items() if saved[n] != text} == changed, "unwritten"


def test_a_shared_key_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    one = signing.signed(signing.RUN, {"a": (1, 2)})
    assert signing.is_own(signing.RUN, json.loads(json.dumps(one)))
    assert not signing.is_own(signing.AGENT, one)
    assert not signing.is_own(signing.RUN, one | {"b": 1})
    assert [path.name for path in (tmp_path / "flatout").iterdir()] == ["key"]
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/no/such")
    assert signing.signed(signing.RUN, {"a": 1}) == {"a": 1}


@pytest.mark.parametrize("kind", ["cache", "config"])
def test_the_users_folders_are_never_in_the_working_folder(
    kind: Literal["cache", "config"], monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"XDG_{kind.upper()}_HOME"
    monkeypatch.setenv("HOME", "/home/me")
    for value, folder in (("/x", "/x"), ("x", f"/home/me/.{kind}"), ("", f"/home/me/.{kind}")):
        monkeypatch.setenv(variable, value)
        assert user_folder(kind) == Path(folder) / "flatout"
    monkeypatch.setenv("HOME", ".")
    with pytest.raises(FlatoutError, match=f"set HOME or {variable} to an absolute path"):
        user_folder(kind)
    assert signing.signed(signing.RUN, {"a": 1}).keys() - {"signature"} == {"a"}


def test_what_lies_outside_stays_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "run" / "lib", tmp_path / "running"
    (tmp_path / "link").symlink_to(tmp_path / "run")
    paths = [str(inside), str(outside), str(tmp_path / "link"), "", sys.prefix]
    monkeypatch.setattr(sys, "path", list(paths))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.chdir(outside.parent)
    import_path.keep_out(tmp_path / "run")
    assert sys.path == [str(outside), "", sys.prefix]
    assert os.environ["PYTHONPATH"].split(os.pathsep) == sys.path


def test_flatouts_own_folder_stays_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkout may lie in the folder that is named, as in ``flatout explain .``."""
    import flatout

    home = str(Path(flatout.__file__).parents[1])
    monkeypatch.setattr(sys, "path", [home, str(Path(home).parent / "x"), *sys.path])
    import_path.keep_out(Path(home).parent)
    assert home in sys.path
    assert str(Path(home).parent / "x") not in sys.path
