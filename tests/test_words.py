"""Docstrings, comments and messages of the core say directly what they mean."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "algorithms", "config", "engine", "envs", "networks", "supervised",
)  # fmt: skip
FILES = ("child", "errors", "evaluation", "installing", "output", "packing", "purity", "randomness",
         "casts", "spans", "types")  # fmt: skip
SCOPE = [
    *(f"{root}/{name}" for name in FOLDERS for root in ("src/flatout", "tests")),
    *(f"src/flatout/{name}.py" for name in FILES),
    "src/flatout/explain",
    "explain/src/flatout_explain",
]
UNCLEAR = re.compile(
    r"\b(anew|beside|amid|of\s+late|told|goes\s+on\s+with|go\s+on\s+with|so\s+many|whoever"
    r"|what\s+is\s+kept)\b",
    re.IGNORECASE,
)
WHAT = re.compile(r"\s*What\b")


def files() -> list[Path]:
    """The Python files of the scope."""
    found = [ROOT / name for name in SCOPE]
    return [
        file for path in found if path.exists()
        for file in ([path] if path.suffix == ".py" else sorted(path.rglob("*.py")))
    ]  # fmt: skip


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Every comment and string of a file, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Every string that stands by itself: docstrings, and what follows a constant or a field."""
    for node in ast.walk(ast.parse(source)):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) and (
                isinstance(child.value.value, str)
            ):  # fmt: skip
                yield child.lineno, child.value.value


def faults(source: str) -> list[tuple[int, str]]:
    """Lines with a docstring that begins with "What", or with an unclear word."""
    found = [(line, text[:60]) for line, text in docstrings(source) if WHAT.match(text)]
    return found + [
        (line, match.group()) for line, text in texts(source) for match in UNCLEAR.finditer(text)
    ]


def test_the_core_is_written_in_direct_sentences() -> None:
    scope = files()
    assert len(scope) > 150
    wrong = {
        f"{file.relative_to(ROOT)}:{line}": text
        for file in scope
        for line, text in faults(file.read_text())
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('def f():\n    """What f returns."""\n', 1),
        ("# So  many rows\n", 1),
        ('raise E(\n    "it goes on with the rest"\n)\n', 1),
        ("X = 1\n'''What is\nkept: whoever asks.'''\n", 3),
        ('def f():\n    """Return rows. What is new is added."""\n', 0),
        ("retold = besides = 1\n", 0),
    ],
)
def test_faults_are_found_wherever_words_stand(source: str, count: int) -> None:
    assert len(faults(source)) == count
