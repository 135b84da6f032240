"""What the documents say of files and numbers holds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!http)([^)#]+)", text) + re.findall(r'src="([^"]+)"', text)
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:src/flatout|tests|benchmarks|docs|examples)/[\w./]+\.\w+)`", page.read_text()
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_performance_page_is_what_the_results_say() -> None:
    command = [sys.executable, ROOT / "benchmarks" / "performance.py", "--check"]
    assert subprocess.run(command, check=False).returncode == 0
