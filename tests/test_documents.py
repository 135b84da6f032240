"""JSON and TOML files of strangers are limited in size and depth; commands refuse in a sentence."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from flatout.errors import CheckpointError
from flatout.storage.checkpoint import FORMAT
from flatout.storage.run_folder import load_config
from flatout_explain.documents import (
    DEPTH,
    LONGEST_LINE,
    bounded_lines,
    parse_json,
    parse_line,
    parse_toml,
    read_json,
)
from flatout_explain.files import nofollow
from tests.cli.test_bad_input import Cli


@pytest.mark.parametrize("levels", [DEPTH + 2, 10**5])
def test_deep_documents_are_refused(levels: int) -> None:
    lists, tables = "[" * levels + "]" * levels, '{"a":' * levels + "1" + "}" * levels
    for text in (lists, tables):
        with pytest.raises(ValueError, match="deep"):
            parse_json(text)
    with pytest.raises(ValueError, match="deep"):
        parse_toml(f"a = {lists}")


def test_dotted_keys_are_levels_too() -> None:
    for text in (f"{'a.' * 200_000}a = 1", f"[{'a.' * 200_000}a]", f"x = {{ {'a.' * 101}a = 1 }}"):
        with pytest.raises(ValueError, match="deep"):
            parse_toml(text)


def test_a_document_of_the_largest_depth_is_read() -> None:
    text = "[" * DEPTH + "]" * DEPTH
    assert parse_json(text) == parse_toml(f"a = {text}")["a"]


@pytest.mark.parametrize("text", ["NaN", "[1, -Infinity]", '{"a": Infinity}'])
def test_numbers_that_json_does_not_have_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="for a number"):
        parse_json(text)


def test_a_large_file_and_a_pipe_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_text(" " * 1001)
    with pytest.raises(ValueError, match="1,001 bytes"):
        read_json(tmp_path / "large", limit=1000)
    with pytest.raises(OSError, match="ordinary"):
        read_json(Path("/dev/zero"))


@pytest.mark.parametrize("line", [b"[" * 200, b"[[],[]" * 99, b"1" + b" " * LONGEST_LINE])
def test_a_line_that_no_run_writes_is_not_parsed(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json, "loads", lambda text: pytest.fail("it was parsed"))
    with pytest.raises(ValueError, match="a line has more than"):
        parse_line(line)


def test_a_line_of_a_run_that_diverged_is_read() -> None:
    assert str(parse_line(b'{"loss": NaN, "top": Infinity}')) == "{'loss': nan, 'top': inf}"


@pytest.mark.parametrize("length", [LONGEST_LINE + 1, 2 * LONGEST_LINE, 5 * LONGEST_LINE - 1])
def test_long_lines_are_skipped_completely(length: int) -> None:
    lines = [b"1\n", b"x" * (length - 1) + b"\n", b"2\n", b"y" * (LONGEST_LINE - 1) + b"\n", b"3"]
    kept = list(bounded_lines(io.BytesIO(b"".join(lines))))
    assert kept == [line for line in lines if len(line) <= LONGEST_LINE]


def test_the_files_of_a_run_are_limited_in_depth(tmp_path: Path) -> None:
    """`json.loads` reads settings that are nested 400 levels deep, but Flatout refuses them."""
    deep = json.loads("[" * 400 + "]" * 400)
    values = {"format": FORMAT, "algorithm": "ppo", "settings": {"env_kwargs": {"a": deep}}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="deep"):
        load_config(tmp_path, None)
    with pytest.raises(ValueError, match="deep"):
        nofollow.read_json(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("explain",), "d.json"),
        (("train", "ppo", "--env", "CartPole-v1", "--config"), "d.json"),
        (("train", "ppo", "--env", "CartPole-v1", "--config"), "d.toml"),
        (("train", "ppo", "--env", "CartPole-v1", "--population"), "d.toml"),
        (("sweep",), "d.toml"),
        (("plan", "ppo", "--env", "CartPole-v1", "--machine"), "d.json"),
    ],
)
def test_commands_refuse_a_deep_file_in_a_sentence(
    flatout: Cli, tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    file = tmp_path / name
    file.write_text(("a = " if name.endswith("toml") else "") + "[" * 200_000)
    result = flatout(*words, file)
    assert result.code in (1, 2)
    assert str(file) in result.message
    assert "deep" in result.message
