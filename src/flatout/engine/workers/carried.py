"""The user's code that travels to a cluster's machines, and the packages that must be there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flatout.config.modules import POOL
from flatout.config.own_code import import_path, own_code
from flatout.errors import UsageError
from flatout.hardware.facts import loaded_with
from flatout.storage.trust import named_code
from flatout.types import UserCode

if TYPE_CHECKING:
    from flatout.config.schema import TrainConfig
    from flatout.envs.task import Task


def runtime_environment(
    config: TrainConfig, code: UserCode, task: Task, working_dir: str | None
) -> dict[str, Any]:
    """Return Ray's ``runtime_env`` of the workers: the user's modules, and a folder if asked for.

    A function of a program's script is sent by value, and what the script imports travels with it.

    Args:
        code: the objects that a Python program passed; a function of an imported module is sent by
            its name.
        working_dir: the folder, which Ray copies.

    Raises:
        UsageError: there is no such folder, or a module cannot be copied without its folder.
    """
    if working_dir is not None and not os.path.isdir(working_dir):
        raise UsageError(f"--ray-working-dir {working_dir[:200]}: there is no such folder.")
    modules = [value.partition(":")[0] for _, value in named_code(config)]
    modules += [getattr(passed, "__module__", "") or "" for passed in vars(code).values()]
    files: dict[str, None] = {}
    for name, file in _own_code([*modules, *environment_modules(task)]):
        place = outermost(name, Path(file))
        if place.is_dir() or place.suffix == ".py":
            files[str(place)] = None
        elif working_dir is None:
            raise UsageError(
                f"the module {name} ({file}) cannot be copied to the machines of a Ray cluster "
                "without its folder: send that with --ray-working-dir."
            )
    environment: dict[str, Any] = {}
    if files:
        environment["py_modules"] = list(files)
    if working_dir is not None:
        environment["working_dir"] = working_dir
    return environment


def outermost(module: str, file: Path) -> Path:
    """Return what has to be copied for a module of this file: the folder of its outermost package,
    with or without an ``__init__.py``, or the file of a module in no package."""
    path, depth = (file.parent if file.stem == "__init__" else file), module.count(".")
    return path.parents[depth - 1] if depth else path


def environment_modules(task: Task) -> list[str]:
    """Return the modules that make a task's environment."""
    source = task.source
    if source.atari:
        return ["ale_py"]
    if source.pooled:
        return [POOL]
    found = [source.library] if source.library else []
    if source.imported:
        found.append(source.name.partition(":")[0])
    registered = source.registered
    made_by = source.passed if registered is None else registered.entry_point
    if isinstance(made_by, str):
        found.append(made_by.partition(":")[0])
    elif made_by is not None:
        found.append(getattr(made_by, "__module__", None) or type(made_by).__module__)
    return found


def environment_packages(task: Task) -> Sequence[str]:
    """Return the distributions that a task's environment uses, for `facts_here`: those of its
    modules and of what the user's modules import, and whatever these have loaded."""
    imported: set[str] = set(environment_modules(task))
    for _ in _own_code(environment_modules(task), imported):
        pass
    return loaded_with(imported)


def _own_code(
    modules: Iterable[str], installed: set[str] | None = None
) -> Iterable[tuple[str, str]]:
    """Yield the user's modules among these and those that they import; see `own_code`.

    Instead of ``__main__`` follow what this program's script imports, or what a notebook has.
    """
    path, named, script = import_path(), [module for module in modules if module], ""
    if "__main__" in named:
        main = sys.modules["__main__"]
        script = getattr(main, "__file__", None) or ""
        if script:
            path = [str(Path(script).parent), *path]
            named.append(Path(script).stem)
        else:
            named += map(_module_of, list(vars(main).values()))
    for name, file in own_code((n for n in named if n != "__main__"), path, installed=installed):
        if not script or not Path(file).samefile(script):
            yield name, file


def _module_of(value: Any) -> str:
    """Return the name of a module, or of the module of a function or class; else nothing."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""
