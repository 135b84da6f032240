"""README.md's Python blocks run as they stand and print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```\n\n?(?:This prints `(.*?)`)?", PAGE, re.M | re.S)


def test_it_fits_a_few_screens() -> None:
    assert len(PAGE.splitlines()) <= 110
    assert len(BLOCKS) == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_runs_and_prints_what_the_page_says(number: int, tmp_path: Path) -> None:
    code, printed = BLOCKS[number]
    (tmp_path / "block.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "block.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == printed


def test_the_chinese_page_has_the_same_commands_and_numbers() -> None:
    chinese = (Path(__file__).parent.parent / "README.zh.md").read_text()
    # Comments of commands are translated, too.
    commands = [
        [line.partition("#")[0].rstrip() for block in re.findall(r"^```(?:sh|python)\n(.*?)^```",
         page, re.M | re.S) for line in block.splitlines()]
        for page in (PAGE, chinese)
    ]  # fmt: skip
    assert commands[0] == commands[1]
    found = [set(re.findall(r"\d[\d,.]*\d|\d", page)) for page in (PAGE, chinese)]
    assert found[0] - found[1] == set()
    links = [set(re.findall(r"\]\(([^)]+)\)", page)) for page in (PAGE, chinese)]
    assert {*links[0], "README.md"} == {*links[1], "README.zh.md"}


def test_the_page_of_the_tool_stands_alone_and_shows_a_report_that_the_tutorial_explains() -> None:
    root = Path(__file__).parent.parent
    page = (root / "explain" / "README.md").read_text()
    assert len(page.splitlines()) <= 60
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert [link for link in links if not link.startswith("https://")] == [], (
        "an index has no files"
    )
    (report,) = re.findall(r"^```console\n\$ flatout-explain (.*?)^```", page, re.M | re.S)
    tutorial = (root / "docs" / "explain.md").read_text()
    for line in report.splitlines():
        assert line.removesuffix("...") in tutorial, line
