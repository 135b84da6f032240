"""Runs a script of the zoo for a number of turns of its main loop, and writes what it ends with.

The JSON file holds the number of turns, and a digest over the bytes of every array that the main
loop's variables lead to, such as parameters, optimiser states and stored steps.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import runpy
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PASSED_OVER = (
    types.ModuleType, types.FrameType, types.CodeType, types.FunctionType,
    types.BuiltinFunctionType, type,
)  # fmt: skip
"""Objects that belong to libraries, or lead to all of them."""


def array_of(value: Any) -> Any:
    """A framework's or NumPy's array as NumPy's; None of anything else."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return value if value.dtype != object else None
    package = type(value).__module__.partition(".")[0]
    if package == "torch" and hasattr(value, "untyped_storage"):
        return value.detach().cpu().contiguous().numpy()
    if package in ("jax", "jaxlib") and hasattr(value, "addressable_shards"):
        import jax

        typed = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(value) if typed else value)
    if package == "tensorflow" and hasattr(value, "numpy") and hasattr(value, "shape"):
        return np.asarray(value.numpy())
    return None


def arrays(roots: list[Any]) -> Iterator[Any]:
    """The arrays that these objects lead to, each once."""
    waiting, seen = list(roots), set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, PASSED_OVER):
            continue
        seen.add(id(value))
        found = array_of(value)
        if found is not None:
            yield found
        elif type(value).__module__.partition(".")[0] not in ("jax", "jaxlib", "tensorflow"):
            waiting += gc.get_referents(value)


def digest(roots: list[Any]) -> tuple[str, int]:
    """A digest over all arrays in any order, and their number."""
    each = sorted(
        hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()
        for array in arrays(roots)
    )
    return hashlib.sha256("".join(each).encode()).hexdigest()[:16], len(each)


def main() -> None:
    """Run the script, whose own output goes to standard error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--turns", type=int, default=None, help="of its main loop; without, --seconds ends it")
    add("--to", type=Path, required=True, help="the file")
    add("script", nargs="+", help="after --: the script and its arguments")
    args = parser.parse_args()
    sys.argv = args.script
    sys.path[0] = str(Path(args.script[0]).parent)
    sys.stdout = sys.stderr
    from pace import Pace

    class Counted(Pace):
        turns = 0

        def on(self) -> bool:
            goes_on = super().on() if args.turns is None else self.turns < args.turns
            self.turns += goes_on
            return goes_on

        def report(self) -> None:
            frame, roots = sys._getframe(1), []
            while frame is not None and frame.f_code.co_filename == args.script[0]:
                roots += [frame.f_locals, frame.f_globals]
                frame = frame.f_back
            found, number = digest(roots)
            result = {"turns": self.turns, "digest": found, "arrays": number}
            args.to.write_text(json.dumps(result))

    sys.modules["pace"].Pace = Counted
    runpy.run_path(args.script[0], run_name="__main__")


if __name__ == "__main__":
    main()
