"""The texts below the fields of a settings class, read from its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import is_dataclass

from flatout.config.values import hints


def sentences(part: type) -> dict[str, str]:
    """Return the text below each field of a settings class and of the classes that it extends."""
    found: dict[str, str] = {}
    for kind in reversed(part.__mro__):
        if not is_dataclass(kind):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = below.value if isinstance(below, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found[field.target.id] = " ".join(text.value.split())
    return {name: found.get(name, "") for name in hints(part)}
