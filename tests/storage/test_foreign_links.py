"""Links in what others made: no command writes, makes or removes anything where they lead.

Each file and folder of a run, a population and a sweep is replaced in turn by a link to the same
thing in a victim's copy, so that a command that followed the link could do its work there.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from flatout.api.callbacks import RecordEvery
from flatout.cli.population import _draw as draw_curves
from flatout.errors import UsageError
from flatout.hardware import ray_cluster
from flatout.run.interrupts import Interrupts
from flatout.sweeps import cluster, engine, place, worker
from flatout.sweeps.folder import PLAN, Folder
from flatout.sweeps.plan import Group, Job, SweepPlan
from tests import tiny
from tests.conftest import Result, replay_run
from tests.populations.test_population import SMALL

pytestmark = pytest.mark.usefixtures("shared_programs")

Cli = Callable[..., Result]
Kind = tuple[Path, Callable[[Path, Path], list[tuple[object, ...]]]]
"""A folder, not to be changed, and the commands for a copy of it that write into another folder."""

PROGRAMS = dict[str, Any]()
"""Of the trials of all sweeps here."""


class InProcess:
    """The engine `flatout.sweeps.engine.Local`, with jobs that run in this process at once."""

    def __init__(self, *_: Any) -> None:
        self._events = list[Mapping[str, Any]]()

    def warm(self, count: int) -> None:
        pass

    def start(self, job: Job) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "_limit", lambda cap_mb: None)
            told = self._events
            worker._do(job, lambda **event: told.append(event), Interrupts(), PROGRAMS)
        told.append({"done": job.name})

    def poll(self, timeout_s: float) -> list[Mapping[str, Any]]:
        events, self._events = self._events, []
        return events

    def stop(self, job: str) -> None:
        pass

    def close(self) -> None:
        pass


class RayError(Exception):
    pass


class Ray:
    """A Ray whose actors are objects of this process; each call is made at once."""

    exceptions = SimpleNamespace(
        RayError=RayError, OutOfMemoryError=RayError, RayTaskError=RayError
    )

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="127.0.0.1:1")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1, "memory": 1 << 34}

    def remote(self, **_: Any) -> Callable[[type], Any]:
        return lambda kind: SimpleNamespace(remote=lambda *given: Actor(kind(*given)))

    def wait(self, refs: list[Any], num_returns: int = 1, timeout: float = 0) -> Any:
        return refs, []

    def get(self, ref: Any) -> Any:
        if ref.error is not None:
            raise RayError(str(ref.error)) from ref.error
        return ref.value

    def kill(self, actor: Any) -> None:
        pass

    def shutdown(self) -> None:
        pass


class Actor:
    def __init__(self, made: Any) -> None:
        self._made = made

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            value, error = None, None
            try:
                value = getattr(self._made, name)(*given)
            except Exception as raised:
                error = raised
            return type("Ref", (), {"value": value, "error": error})()

        return SimpleNamespace(remote=call)


@pytest.fixture(autouse=True)
def _engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process and no real Ray is started."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(engine, "Local", InProcess)
    monkeypatch.setattr(place, "Local", InProcess)
    monkeypatch.setattr(ray_cluster, "connect", lambda *_: Ray())
    monkeypatch.setattr(cluster, "refuse_silent", lambda address: None)
    monkeypatch.chdir(tmp_path)


# --- What is linked --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with replay."""
    made = replay_run(tmp_path_factory.mktemp("run") / "r", "--checkpoint-every", "128")
    (made / "error.log").write_text("")
    return made


def of_run(path: Path, other: Path) -> list[tuple[object, ...]]:
    return [
        ("eval", path, "--episodes", 1), ("eval", path, "--show", "--episodes", 1),
        ("explain", path), ("report", path), ("runs", path), ("runs", "--compare", path, path),
        ("report", "--curves", path), ("report", "--curves", path, "--out", other / "plot.svg"),
        ("export", path, "--out", other / "a.py"),
        ("train", "--from", path, "--steps", 64, "--quiet", "--run-dir", other / "new"),
        ("train", "--resume", path, "--steps", 320, "--quiet"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished population, trained as one program, with one checkpoint of all members."""
    from flatout.__main__ import main

    path = tmp_path_factory.mktemp("population") / "p"
    words = (*SMALL[:-1], "--seeds", 2, "--strategy", "together", "--run-dir", path)
    assert main(["train", *map(str, words)]) == 0
    return path


def of_population(path: Path, other: Path) -> list[tuple[object, ...]]:
    return [
        ("report", path), ("runs", path), ("report", "--curves", path), ("explain", path),
        ("eval", path), ("report", "--curves", path, "--out", other / "plot.svg"),
        ("train", "--resume", path, "--steps", 704),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep whose trial ``seed=0`` and member ``seed=2`` have half of their steps."""
    from flatout.__main__ import main

    path = tmp_path_factory.mktemp("sweep") / "f"
    words = (*tiny.flags("ppo"), "--steps", 128, "--checkpoint-every", 64, "--no-tensorboard")
    sweep = tiny.sweep(["ppo", *map(str, words), "--run-dir", str(path)])
    with closing(Folder(path, False)) as folder:
        some = {"population-1": ["seed=2", "seed=3"]}
        folder.save(SweepPlan(sweep.base, range(4), [Group("", {})], path, "spread", some))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "Local", InProcess)
        assert main(["sweep", "--resume", str(path), "--quiet"]) == 0
    for half in (path / "seed=0", path / "population-1" / "members" / "seed=2"):
        (half / "summary.json").unlink()
        shutil.rmtree(half / "checkpoints" / "step_000000000128")
    for name in ("seed=0", "seed=1", "population-1"):
        (path / ".arriving" / name).mkdir(parents=True)
        (path / ".arriving" / name / "notes").write_text("mine")
    return path


def of_sweep(path: Path, other: Path) -> list[tuple[object, ...]]:
    return [
        ("report", path), ("runs", path), ("report", "--curves", path), ("explain", path),
        ("sweep", "--resume", path, "--quiet", "--engine", "ray"),
        ("sweep", "--resume", path, "--quiet"),
    ]  # fmt: skip


KINDS: Mapping[str, Callable[[Path, Path], list[tuple[object, ...]]]] = {
    "run": of_run, "population": of_population, "sweep": of_sweep,
}  # fmt: skip

PART = "0123456789abcdef.part"
"""The end of a temporary name."""

MADE = {
    "run": ["best.safetensors", ".running", "fault.log", "trace.json", f".summary.json.{PART}",
            f".config.json.{PART}", "checkpoints/step_000000000320",
            "checkpoints/.step_000000000320.tmp"],
    "population": ["curves.png", f".curves.svg.{PART}", "groups/1", "groups/0/replay",
                   "groups/0/checkpoints/.step_000000000704.tmp",
                   "members/seed=0/.running", "members/seed=0/replay"],
    "sweep": ["optuna.log", ".arriving/.old", ".arriving/.old/seed=0", "population-1/groups",
              "seed=0/.running", f"seed=0/.summary.json.{PART}", f".sweep.json.{PART}"],
}  # fmt: skip
"""Names that a finished one has not, and commands might make: links to files and folders, too."""


# --- The property ----------------------------------------------------------------------------


def tree(folder: Path) -> dict[str, Any]:
    """Everything below a folder: names, kinds, contents and times."""
    found = dict[str, Any]()
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path.relative_to(folder))] = status.st_mode, status.st_mtime_ns, content
    return found


def entries(kind: str, made: Path) -> list[str]:
    """All that is replaced by a link; of names that differ in numbers alone, the first: in a sweep,
    that of a trial which goes on. The files of members are linked in a population alone."""
    names = sorted((str(path.relative_to(made)) for path in made.rglob("*")), reverse=True)
    if kind == "sweep":
        names = [name for name in names if not re.match(r"population-1/members/[^/]+/.*\.", name)]
    return [*{re.sub(r"\d+", "N", name): name for name in names}.values(), *MADE[kind]]


def linked(made: Path, name: str, place: Path) -> tuple[Path, Path]:
    """A copy in which one file or folder is a link, and the victim's copy, to which it leads."""
    place.mkdir()
    mine = Path(shutil.copytree(made, place / "theirs"))
    victim = Path(shutil.copytree(made, place / "victim"))
    target = victim / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix or name.endswith((".running", ".tmp")):
            target.write_text("mine")
        else:
            target.mkdir()
            (target / "notes").write_text("mine")
    link = mine / name
    if link.is_dir():
        shutil.rmtree(link)
    else:
        link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    return mine, victim


def check(flatout: Cli, kind: str, made: Path, name: str, place: Path, last: int = 0) -> None:
    """Run the commands, or only so many of them, the last, on a copy with this link."""
    mine, victim = linked(made, name, place)
    (place / "other").mkdir()
    before = tree(victim)
    for words in KINDS[kind](mine, place / "other")[-last:]:
        result = flatout(*words)
        said = f"{name} is a link: flatout {' '.join(map(str, words))}: {result.err[-500:]}"
        assert "Traceback" not in result.err, said
        assert tree(victim) == before, said
    shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_command_changes_anything_through_a_link(
    kind: str, request: pytest.FixtureRequest, flatout: Cli, tmp_path: Path
) -> None:
    made = request.getfixturevalue(kind)
    for number, name in enumerate(entries(kind, made)):
        check(flatout, kind, made, name, tmp_path / str(number))


@pytest.mark.parametrize(
    "name", ["members", "members/seed=0", "groups", "groups/0", "groups/0/checkpoints"]
)
def test_a_population_is_not_resumed_through_a_link(
    name: str, population: Path, flatout: Cli, tmp_path: Path
) -> None:
    """A sample of the product above: what is written first."""
    check(flatout, "population", population, name, tmp_path / "p", last=1)


@pytest.mark.parametrize(
    "name",
    [".arriving", "population-1/members", "seed=0/checkpoints",
     *(pytest.param(name, marks=pytest.mark.slow) for name in (
         ".arriving/seed=0", "seed=0", "population-1", "population-1/members/seed=2"))],
)  # fmt: skip
def test_a_sweep_is_not_resumed_through_a_link(
    name: str, sweep: Path, flatout: Cli, tmp_path: Path
) -> None:
    """A sample, too: with Ray's engine and with this machine's."""
    check(flatout, "sweep", sweep, name, tmp_path / "f", last=2)


@pytest.mark.parametrize("name", ["curves.svg", f".curves.svg.{PART}", "curves.png"])
def test_the_curves_of_a_population_replace_a_link(
    name: str, population: Path, tmp_path: Path
) -> None:
    mine, victim = linked(population, name, tmp_path / "p")
    before = tree(victim)
    draw_curves(mine, Console(file=io.StringIO()))
    assert (mine / "curves.svg").read_text().startswith("<svg")
    assert not (mine / "curves.svg").is_symlink()
    assert tree(victim) == before


def test_a_recorded_episode_replaces_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    video = tmp_path / "r" / "video_000000000064.gif"
    video.parent.mkdir()
    video.symlink_to(tmp_path / "victim")
    agent = SimpleNamespace(record=lambda path, env: path.write_bytes(b"GIF"))
    run: Any = SimpleNamespace(agent=agent, folder=video.parent, progress=SimpleNamespace(steps=64))
    RecordEvery(64).due(run)
    assert video.read_bytes() == b"GIF"
    assert (tmp_path / "victim").read_text() == "mine"


def test_the_folder_that_the_user_names_may_be_a_link(
    sweep: Path, population: Path, flatout: Cli, tmp_path: Path
) -> None:
    for made, words in ((sweep, ("sweep", "--resume")), (population, ("train", "--resume"))):
        shutil.copytree(made, tmp_path / "disk" / made.name)
        (tmp_path / made.name).symlink_to(tmp_path / "disk" / made.name)
        result = flatout(*words, tmp_path / made.name, "--quiet")
        assert result.code == 0, result.err
    half = tmp_path / "disk" / "f" / "seed=0" / "summary.json"
    assert json.loads(half.read_text())["steps"] == 128


# --- Names from files ------------------------------------------------------------------------

NO_NAMES = ["..", ".", "", ".a", "../up", "/etc", "a/b", "a\\b", "a b", "a\0", "x" * 256]


def edited(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A JSON file as a stranger would have changed it: its signature is gone."""
    values = json.loads(file.read_text())
    del values["signature"]
    change(values)
    file.write_text(json.dumps(values))


@pytest.mark.parametrize("name", ["Documents", "seed=0", *NO_NAMES])
def test_a_population_of_a_sweep_is_no_other_folder(
    name: str, sweep: Path, flatout: Cli, tmp_path: Path
) -> None:
    home, folder = tmp_path / "home", Path(shutil.copytree(sweep, tmp_path / "f"))
    (home / "Documents").mkdir(parents=True)
    (home / "Documents" / "thesis").write_text("mine")
    shutil.rmtree(folder / ".arriving")
    (folder / ".arriving").symlink_to(home)
    before = tree(home)
    edited(folder / PLAN, lambda v: v.update(populations={name: ["seed=2", "seed=3"]}))
    for words in ((), ("--engine", "ray")):
        result = flatout("sweep", "--resume", folder, *words)
        assert result.code == 1
        assert "is no folder's name" in result.message
        assert tree(home) == before


@pytest.mark.parametrize("name", NO_NAMES[3:])
def test_trials_and_members_have_folders_of_their_own(
    name: str, sweep: Path, population: Path, flatout: Cli, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(sweep, tmp_path / "f"))
    edited(folder / PLAN, lambda v: v.update(groups={name: {}}, populations={}))
    assert "is no folder's name" in flatout("sweep", "--resume", folder).message
    folder = Path(shutil.copytree(population, tmp_path / "p"))
    edited(folder / "population.json", lambda v: v.update(members={name: {}}))
    assert "is impossible" in flatout("train", "--resume", folder).message
    (tmp_path / "m.toml").write_text(f"[{json.dumps(name)}]\nseed = 3\n")
    result = flatout("train", *SMALL, "--population", tmp_path / "m.toml", "--run-dir", "new")
    assert result.code == 2
    assert f"{name[:100]!r} is not a plain folder name" in result.message
    assert not (tmp_path / "new").exists()


def test_names_of_members_with_spaces_can_be_resumed(tmp_path: Path) -> None:
    from flatout.populations.members import members
    from tests.tiny import train_config

    config, _ = train_config([str(word) for word in SMALL])
    found = members(config, None, ["gamma=0.98, 0.99"], tmp_path)
    assert [one.name for one in found] == ["gamma=0.98", "gamma=0.99"]
    with pytest.raises(UsageError, match="is not a plain folder name"):
        members(config, None, [f"gamma=0.{'9' * 300}"], tmp_path)
