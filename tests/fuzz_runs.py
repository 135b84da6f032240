"""Damages run folders at random and reads them under an audit hook: ``python tests/fuzz_runs.py``.

Runs in a process of its own. It prints one JSON object: how many mutations of each kind were made,
how often each outcome came, and what went wrong (nothing should).
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import io
import json
import os
import pickle
import random
import re
import shutil
import stat
import struct
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

HANG_S = 10
FOREIGN = {"pwn", "evilmod", "got", "this", "antigravity", "sitecustomize"}
"""Modules that only a mutated folder names."""
CODE = ("pwn:make", "evilmod:x-v0", "this:foo-v1", "got.pwn:make", "antigravity:a/b", ":", "pwn:",
        ":make", "os:system", "ALE/pwn:x-v5", "run.pwn:make", "gymnasium:CartPole-v1")  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -5, 2**31, 2**63, 10**12, 10**15, -(10**15), 10**300, 0.5, 1e308,
    -1e308, float("nan"), float("inf"), float("-inf"), "", "x", "x" * 1000, "../../precious/keys",
    "/dev/zero", "\x00", "\ud800", "\x1b[2J", [], [[]], {}, {"a": 1}, [1] * 100, [10**9], "NaN",
    "CartPole-v1", "MountainCar-v0", "sac", "overlapped", *CODE,
)  # fmt: skip
NAMES = ("a\nb", "x" * 200, "step_", "step_-1", "step_000000000999", "step_999999999999999999",
         ".step_000000000999.tmp", ".step_000000000999.old", "rows-0-1-0.safetensors", "..x",
         ".config.json.0123456789abcdef.part", "numpy.py", "pwn.py", "state.json",
         "config.json")  # fmt: skip


class Mutator:
    """Makes one random change to a run folder.

    Args:
        run: the folder.
        precious: what its links lead to.
        dice: where chance comes from.
    """

    def __init__(self, run: Path, precious: Path, dice: random.Random) -> None:
        self.run, self.precious, self.dice = run, precious, dice

    def mutate(self) -> str:
        """Make it; returns its kind."""
        kinds: dict[str, Callable[[], None]] = {
            "bytes": self.bytes, "value": self.value, "tensors": self.tensors, "link": self.link,
            "type": self.type, "name": self.name,
        }  # fmt: skip
        (kind,) = self.dice.choices(list(kinds), (3, 6, 2, 3, 2, 2))
        kinds[kind]()
        return kind

    def any(self, folders: bool = False) -> Path:
        """A file, or a file or a folder."""
        paths = sorted(self.run.rglob("*"))
        chosen = [path for path in paths if folders or ordinary(path)]
        return self.dice.choice(chosen)

    def bytes(self) -> None:
        path, dice = self.any(), self.dice
        content = bytearray(path.read_bytes())
        at = dice.randrange(len(content) + 1)
        junk = dice.randbytes(dice.choice((1, 8, 100)))
        if (how := dice.randrange(4)) == 0:
            content[at : at + len(junk)] = junk
        elif how == 1:
            del content[at:]
        elif how == 2:
            content[at:at] = junk
        else:
            content[:8] = struct.pack("<Q", dice.choice((0, 2**16, 2**40, 2**60, 2**64 - 1)))
        path.write_bytes(content)

    def value(self) -> None:
        """Replace, add or remove one value of some JSON."""
        files = [*self.run.glob("*.json"), *self.run.glob("checkpoints/*/state.json"),
                 *self.run.glob("*.jsonl"), *self.run.glob("*.safetensors")]  # fmt: skip
        path = self.dice.choice(sorted(filter(ordinary, files)))
        if path.suffix == ".safetensors":
            self.metadata(path)
        elif path.suffix == ".jsonl":
            lines = path.read_text().splitlines() or ["{}"]
            at = self.dice.randrange(len(lines))
            lines[at] = json.dumps(self.changed(json.loads(lines[at])))
            path.write_text("\n".join(lines) + "\n")
        else:
            value = json.loads(path.read_text())
            if path.name == "config.json" and self.dice.random() < 0.3:
                value["settings"]["env"] = self.dice.choice(CODE)
            else:
                value = self.changed(value)
            if path.name == "state.json" and isinstance(value, dict) and self.dice.random() < 0.9:
                value.pop("digest", None)  # signed, as a stranger can
                text = json.dumps(value, sort_keys=True)
                value["digest"] = hashlib.sha256(text.encode()).hexdigest()
            path.write_text(json.dumps(value))

    def changed(self, value: Any) -> Any:
        """A JSON value with one value in it changed."""
        places: list[tuple[Any, Any]] = []

        def walk(inner: Any) -> None:
            items = inner.items() if isinstance(inner, dict) else enumerate(inner)
            for key, one in list(items):
                places.append((inner, key))
                if isinstance(one, dict | list):
                    walk(one)

        if isinstance(value, dict | list):
            walk(value)
        if not places or self.dice.random() < 0.03:
            return self.dice.choice(VALUES)
        inner, key = self.dice.choice(places)
        if (how := self.dice.random()) < 0.75:
            inner[key] = self.dice.choice(VALUES)
        elif how < 0.9:
            del inner[key]
        elif isinstance(inner, dict):
            inner[self.dice.choice(("nope", "env", "hidden", "", "__class__"))] = inner.pop(key)
        else:
            inner.append(inner[key])
        return value

    def metadata(self, path: Path) -> None:
        """Of a saved agent: its settings, or what its header says."""
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        said = header["__metadata__"]
        name = self.dice.choice(sorted(said))
        if self.dice.random() < 0.8:
            value = json.loads(said[name])
            if name == "config" and self.dice.random() < 0.4:
                value["settings"]["env"] = self.dice.choice(CODE)
            else:
                value = self.changed(value)
            said[name] = json.dumps(value)
        else:
            header = self.changed(header)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])

    def tensors(self) -> None:
        """Of a checkpoint: one array changed in value, shape or type, or gone; digests right."""
        import numpy as np
        from safetensors.numpy import load, save

        folder = self.dice.choice(sorted(self.run.glob("checkpoints/*")))
        path, dice = folder / "state.safetensors", self.dice
        if not (ordinary(path) and ordinary(folder / "state.json")):
            return
        held = {name: np.array(array) for name, array in load(path.read_bytes()).items()}
        name = dice.choice(sorted(held))
        array = held.pop(name)
        if (how := dice.randrange(5)) == 0 and array.size:
            array.flat[dice.randrange(array.size)] = (
                dice.choice((np.nan, np.inf, -np.inf)) if array.dtype.kind == "f" else 1
            )
            held[name] = array
        elif how == 1:
            held[name] = np.concatenate([array.reshape(-1), array.reshape(-1)])
        elif how == 2:
            held[name] = array.astype(dice.choice(("float64", "int8", "bool", "uint16")))
        elif how == 3:
            held[name + "x"] = array
        elif array.dtype.kind in "iu" and array.size:
            array.flat[0] = np.iinfo(array.dtype).max
            held[name] = array
        content = save(held)
        path.write_bytes(content)
        state = json.loads((folder / "state.json").read_text())
        state.pop("digest")
        state["sha256"] = hashlib.sha256(content).hexdigest()
        digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
        (folder / "state.json").write_text(json.dumps(state | {"digest": digest}))

    def link(self) -> None:
        path = self.any(folders=True)
        remove(path)
        target = self.dice.choice([
            self.precious / path.relative_to(self.run), self.precious, self.precious / "keys",
            self.precious / "new", Path("/dev/zero"), Path("/dev/stdin"), path, Path(".."),
            Path("/proc/self/mem"),
        ])  # fmt: skip
        if self.dice.random() < 0.15 and target.is_file() and self.precious in target.parents:
            os.link(target, path)
        else:
            path.symlink_to(target)

    def type(self) -> None:
        path = self.any(folders=True)
        was_folder = path.is_dir()
        remove(path)
        if (how := self.dice.randrange(3)) == 0:
            os.mkfifo(path)
        elif how == 1 and not was_folder:
            path.mkdir()
            (path / "mine").write_text("mine")
        else:
            path.touch()

    def name(self) -> None:
        path, dice = self.any(folders=True), self.dice
        others = [*NAMES, self.any(folders=True).name]
        new = path.with_name(dice.choice(others))
        if dice.random() < 0.4:
            new = self.run / dice.choice(others)
        if new.exists() or new.is_symlink() or path in new.parents:
            remove(path)
        elif dice.random() < 0.5 and path.is_file():
            shutil.copy(path, new)
        else:
            path.rename(new)


def ordinary(path: Path) -> bool:
    """Whether a change to this file changes nothing elsewhere: no link leads to it."""
    if not path.is_file() or os.path.realpath(path) != str(path.absolute()):
        return False
    return path.stat().st_nlink == 1


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_witness(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether this starts what reports a crash: the shell of an environment, a fixed script to
    which a run's words are given as arguments only; or `tee` of a run that begins to train, which
    writes to the descriptor of an open file."""
    from flatout.envs.check import WITNESS

    if event == "subprocess.Popen" and arguments[0] == "tee":
        return re.fullmatch(r"/dev/fd/\d+", " ".join(arguments[1][1:])) is not None
    if event != "subprocess.Popen" or arguments[0] != "/bin/sh":
        return False
    return list(arguments[1])[:4] == ["/bin/sh", "-c", WITNESS, "sh"]


class Watch:
    """The audit hook: notes each import, write and deletion that must not be.

    Args:
        allowed: folders below which may be written.
    """

    WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    CHANGES = frozenset({"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link",
                         "os.symlink", "os.chmod", "os.chown", "shutil.rmtree"})  # fmt: skip
    STARTS = frozenset({"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen",
                        "socket.connect", "pickle.find_class"})  # fmt: skip

    def __init__(self, allowed: list[Path]) -> None:
        self.allowed = [os.path.realpath(path) + os.sep for path in allowed]
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "import" and arguments[0].partition(".")[0] in FOREIGN:
            self.seen.append(f"imported {arguments[0]}")
        elif event in self.STARTS and not is_witness(event, arguments):
            self.seen.append(f"{event} {arguments!r}"[:300])
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & self.WRITES:
            path, flags = arguments[0], arguments[2]
            below = isinstance(path, str) and os.sep not in path and flags & os.O_NOFOLLOW
            if not below:  # a single name that is not followed lies where its folder does
                self.check(event, path)
        elif event in self.CHANGES:
            for path in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
                relative = isinstance(path, str) and os.sep not in path
                if not (relative and any(isinstance(a, int) and a > 2 for a in arguments[1:])):
                    self.check(event, path, follow=False)

    def check(self, event: str, path: Any, follow: bool = True) -> None:
        if isinstance(path, int):
            return
        name = os.fsdecode(path)
        parent = os.path.realpath(os.path.dirname(name) or ".")
        real = os.path.realpath(name) if follow else os.path.join(parent, os.path.basename(name))
        inside = any((real + os.sep).startswith(folder) for folder in self.allowed)
        if not inside and real not in ("/dev/null", "/dev/tty"):
            self.seen.append(f"{event} {real}")


EXPLAINED: dict[bytes, Any] = {}
"""Diagnoses, each under the evidence from which it follows."""


def explain(run: Path) -> None:
    """Read a run's evidence and diagnose it, unless the same evidence was diagnosed before."""
    from flatout.explain.runs import diagnose_evidence, read_run

    evidence = read_run(run)
    name = pickle.dumps(evidence)
    if name not in EXPLAINED:
        EXPLAINED[name] = diagnose_evidence(evidence)


def readers(run: Path) -> list[Callable[[], Any]]:
    """All that reads a run folder, without training."""
    from flatout.cli.compare_devices import compared
    from flatout.run.progress import Progress
    from flatout.storage import checkpoint
    from flatout.storage.agent_file import find_agent, saved_config
    from flatout.storage.run_folder import RunFolder, load_config
    from flatout.storage.segments import SegmentStore
    from flatout.storage.span_records import cut_after
    from flatout.storage.trust import refuse_foreign

    def saved() -> None:
        path = checkpoint.latest(run)
        step, snapshot = checkpoint.load(path)
        with checkpoint.reading(path):
            Progress.from_json(snapshot.data["progress"])
            if snapshot.rows is not None:
                first, end = snapshot.rows.stored
                snapshot.rows.read(first, min(end, first + 4096))
        checkpoint.remove_unused(path.parent, SegmentStore(run / checkpoint.REPLAY))
        checkpoint.save(path.parent, step, snapshot, 1)

    def agent() -> None:
        file = find_agent(run)
        _, said = checkpoint.load_agent(file)
        refuse_foreign(saved_config(said, file, None), file, None)

    def owned() -> None:
        folder = RunFolder(run, resume=True)
        try:
            assert isinstance(folder.ended, bool)
            for name in ("spans.jsonl", "devices.jsonl"):
                with contextlib.suppress(OSError):
                    cut_after(run / name, 0.5)
            folder.write_json("summary.json", {})
        finally:
            folder.close()

    return [
        lambda: load_config(run), lambda: explain(run), lambda: compared([run]), agent, saved,
        owned,
    ]  # fmt: skip


def share_programs() -> None:
    """Runs of one shape share their programs: how these are made is not the subject."""
    import tiny  # beside this file
    from flatout.run import trainer

    assemble = trainer.assemble

    def sharing(run: Any, spans: Any, **more: Any) -> Any:
        programs = tiny.programs(tiny.shape(run.config), run.code)
        return assemble(run, spans, **more | {"programs": programs})

    trainer.assemble = sharing


def command(run: Path, dice: random.Random) -> None:
    """One command on the folder."""
    from flatout.__main__ import main
    from flatout.errors import FlatoutError

    words = dice.choice([
        ["train", "--resume", str(run), "--steps", "320", "--quiet"],
        ["train", "--resume", str(run), "--steps", "320", "--quiet"],
        ["eval", str(run), "--episodes", "1"], ["explain", str(run)],
        ["eval", str(run), "--show", "--episodes", "1"],
    ])  # fmt: skip
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    said = err.getvalue().strip()
    assert code in (0, 1, 2), (words, code)
    if code:
        assert said.startswith("flatout: "), said
        assert "\n" not in said and len(said) < 2000, said  # noqa: PT018
        raise FlatoutError(said)


def digest(folder: Path) -> str:
    """Names, kinds and contents of all that lies below a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        total.update(f"{path.relative_to(folder)} {stat.S_IFMT(mode)}\n".encode())
        if stat.S_ISREG(mode):
            total.update(path.read_bytes())
    return total.hexdigest()


def fuzz(bases: list[Path], place: Path, seed: int, count: int, commands: bool) -> dict[str, Any]:
    """Mutate and read so many times.

    Args:
        bases: whole run folders.
        place: an empty folder to work in.
        seed: of all choices.
        count: mutations.
        commands: run the command line in the place of the readers.

    Returns:
        ``kinds``, ``outcomes``, and ``wrong``: what must not happen, with its number.
    """
    from flatout.errors import FlatoutError

    os.fsync = lambda descriptor: None  # nothing here cuts the power
    os.environ |= {"COLUMNS": "20", "LINES": "10"}  # `eval --show` draws small pictures
    if commands:
        share_programs()
    precious, run = place / "precious", place / "run"
    shutil.copytree(bases[0], precious)
    (precious / "keys").write_text("secret")
    whole = digest(precious)
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", tempfile.gettempdir())
    config = os.environ["XDG_CONFIG_HOME"]
    machine = os.environ["XDG_CACHE_HOME"]  # how long compiling took is kept there
    watch = Watch([run, Path(cache), Path(config), Path(machine), Path("/dev/shm")])
    kinds, outcomes, wrong = Counter[str](), Counter[str](), list[str]()
    for number in range(count):
        dice = random.Random(f"{seed} {number}")
        if run.exists():
            shutil.rmtree(run)
        shutil.copytree(dice.choice(bases), run)
        for name in ("pwn.py", "evilmod.py", "numpy.py"):
            (run / name).write_text("raise SystemExit('code of the folder ran')\n")
        mutator = Mutator(run, precious, dice)
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        for _ in range(1 if dice.random() < 0.8 else 3):
            with contextlib.suppress(Exception):  # of what is no longer what it was
                kinds[mutator.mutate()] += 1
        jobs = [lambda dice=dice: command(run, dice)] if commands else readers(run)
        for job in jobs:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            watch.on = True
            try:
                job()
                outcomes["went on"] += 1
            except FlatoutError as error:
                outcomes["refused"] += 1
                if "Traceback" in str(error) or len(str(error)) > 2000:
                    wrong.append(f"{number}: {error}"[:500])
            except BaseException as error:
                where = traceback.format_exception(error)
                wrong.append(f"{number}: {type(error).__name__} {error}\n{''.join(where)}"[-1500:])
            finally:
                watch.on = False
                faulthandler.cancel_dump_traceback_later()
        if watch.seen:
            wrong.append(f"{number}: {watch.seen[:5]}")
            watch.seen.clear()
        if digest(precious) != whole:
            wrong.append(f"{number}: what lies outside was changed")
            break
    return {"kinds": kinds, "outcomes": outcomes, "wrong": wrong}


if __name__ == "__main__":
    place, seed, count, how, *bases = sys.argv[1:]
    found = fuzz(
        [Path(base) for base in bases], Path(place), int(seed), int(count), how == "command"
    )
    print(json.dumps(found))
