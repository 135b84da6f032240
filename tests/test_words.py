"""Docstrings, comments and messages say directly what they mean."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCOPE = ("src/flatout", "explain/src/flatout_explain")
INSTEAD = {
    "so many": "the number's name, as in `count` rows",
    "what is kept": "saved, or the names of what is saved",
    "goes on with": "resumes, continues",
    "go on with": "resume, continue",
    "without a word": "without an error message",
    "of your making": "created by you (or by another user)",
    "whoever": "the user, the caller, or the program that is meant",
}
"""Phrases that a reader has to decode, and words to write instead."""

PHRASES = re.compile(rf"\b({'|'.join(INSTEAD)})\b".replace(" ", r"\s+"), re.IGNORECASE)
WHAT = re.compile(r"\s*What\b")


def files() -> list[Path]:
    """The Python files of the scope."""
    return [file for name in SCOPE for file in sorted((ROOT / name).rglob("*.py"))]


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
    """Lines with a docstring that begins with "What", or with one of `INSTEAD`, and what to write
    there."""
    found = [
        (line, f"{text[:60]!r}: begin with a verb (Return ...) or name the thing itself")
        for line, text in docstrings(source) if WHAT.match(text)
    ]  # fmt: skip
    return found + [
        (line, f"{match.group()!r}: write {INSTEAD[' '.join(match.group().lower().split())]}")
        for line, text in texts(source) for match in PHRASES.finditer(text)
    ]  # fmt: skip


def test_all_is_written_in_direct_sentences() -> None:
    scope = files()
    assert len(scope) > 250, "the folders are where the scope says"
    wrong = {
        f"{file.relative_to(ROOT)}:{line}": text
        for file in scope
        for line, text in faults(file.read_text())
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('def f():\n    """What f returns."""\n', ["begin with a verb"]),
        ("# So  many rows\n", ["`count` rows"]),
        ('raise E(\n    "it goes on with the rest"\n)\n', ["resumes"]),
        ("X = 1\n'''What is\nkept: whoever asks.'''\n", ["verb", "saved", "the caller"]),
        ('def f():\n    """Return rows. What is new is added, of late next to others."""\n', []),
    ],
)
def test_a_fault_is_found_and_says_what_to_write(source: str, words: list[str]) -> None:
    found = faults(source)
    assert len(found) == len(words)
    assert all(word in text for word, (_, text) in zip(words, found, strict=True))
