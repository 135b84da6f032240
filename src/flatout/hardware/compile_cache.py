"""JAX's cache of compiled programs: damaged entries are replaced, and entries written whole.

JAX writes an entry in place, so that a process killed while it writes leaves a part of one. Every
later process then warns that it cannot read the entry, compiles the program, and leaves the entry
as it is, because one of that name exists. A folder in an entry's place is treated likewise.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.output import say
from flatout_explain.files import nofollow
from flatout_explain.files.user_folders import user_folder
from flatout_explain.output_file import LEFT_S

_UNREADABLE = "Error reading persistent compilation cache entry"


_GIVEN = "JAX_COMPILATION_CACHE_DIR"


def compile_cache() -> Path | None:
    """The folder in which JAX keeps compiled programs; None where it is not on this machine."""
    jax: Any = sys.modules.get("jax")
    given = jax.config.values["jax_compilation_cache_dir"] if jax is not None else None
    given = given or os.environ.get(_GIVEN) or ""
    if "://" in given:
        return None
    return Path(given) if os.path.isabs(given) else user_folder("cache") / "xla"


def set_up() -> None:
    """Give JAX the folder for compiled programs, unless the user gave one, and mend its cache.

    A relative path is not used: compiled programs would come from any folder in which the command
    is started. Takes effect where JAX has not opened its cache yet.
    """
    import jax

    given, used = jax.config.values["jax_compilation_cache_dir"], compile_cache()
    if used is not None and given != str(used):
        jax.config.update("jax_compilation_cache_dir", str(used))
        if given:
            os.environ[_GIVEN] = str(used)  # so that child processes say nothing more
            say(
                f"the folder of compiled programs, {given!r}, is a relative path, and a program in "
                f"the working folder may be anybody's: {used} is used instead. Set {_GIVEN} to an "
                "absolute path to choose another folder."
            )
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    with suppress(ImportError, AttributeError):  # a version of JAX without these: its own behaviour
        _mend()


def _mend() -> None:
    """Replace JAX's class of a cache in a folder by one that replaces damaged entries."""
    from jax._src import compilation_cache, lru_cache

    module: Any = compilation_cache
    warnings.filterwarnings("ignore", _UNREADABLE)  # `put` reports it, once
    original: Any = lru_cache.LRUCache
    if module.LRUCache is not original:
        return

    class WholeEntries(original):
        """JAX calls `put` after a miss, and after it could not use what `get` returned."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if "://" not in str(self.path):
                with suppress(OSError), nofollow.folder(Path(str(self.path)), 0) as opened:
                    nofollow.remove_left(None, opened, LEFT_S)
            self._returned: set[str] = set()
            self._refused = False  # an entry could not be removed, and the user knows
            self._unwritten = False  # the same of an entry that could not be written

        def get(self, key: str) -> bytes | None:
            self._returned.add(key)
            try:
                value = super().get(key)
            except OSError:  # the entry cannot be read, so the program is compiled
                return None
            if value is None:
                self._returned.discard(key)
            return value

        def put(self, key: str, value: bytes) -> None:
            entry = Path(str(self.path)) / f"{key}-cache"
            if key in self._returned:
                self._returned.discard(key)
                try:
                    _remove(entry)
                except OSError as error:  # JAX would warn of each entry
                    if not self._refused:
                        say(
                            f"the entry {entry.name} of the compile cache {entry.parent} is "
                            f"damaged and cannot be removed ({error.strerror}), so that its "
                            "program is compiled in every run: remove it, or name another folder "
                            "with JAX_COMPILATION_CACHE_DIR."
                        )
                    self._refused = True
                    return
                say(
                    f"the entry {entry.name} of the compile cache {entry.parent} was damaged; its "
                    "program was compiled again, and the entry replaced."
                )
            if self.eviction_enabled or "://" in str(self.path):
                super().put(key, value)
            elif not entry.exists():
                try:
                    nofollow.replace(entry, value, durable=False)
                except OSError as error:  # JAX would warn of each entry
                    if not self._unwritten:
                        say(
                            f"compiled programs cannot be kept in {entry.parent} "
                            f"({error.strerror}), so that every run compiles them: make room "
                            f"there, or name another folder with {_GIVEN}."
                        )
                    self._unwritten = True

    module.LRUCache = WholeEntries


def _remove(entry: Path) -> None:
    """Remove an entry, which may be a folder by mistake."""
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)
