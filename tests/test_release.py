"""A release: what is missing is listed, and links lead from a registry's page to the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FACTS = {
    "repository": "https://host.invalid/group/flatout",
    "issues": "https://host.invalid/group/flatout/issues",
    "documentation": "https://host.invalid/flatout",
    "security": "security@host.invalid",
    "authors": [{"name": 'A "quoted" name', "email": "name@host.invalid"}],
}
CHANGES = "# Changelog\n\n## 0.1.0 (2026-12-01)\n\n- A line.\n"


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of `make release`."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import release

    monkeypatch.setattr(release, "starts", lambda python: python != "python4")
    monkeypatch.setattr(release, "version", lambda: "0.1.0")
    return release


def test_a_release_whose_facts_are_known_lacks_nothing(release: Any) -> None:
    assert release.missing(FACTS, CHANGES, ("python3",)) == []


@pytest.mark.parametrize(
    ("facts", "changes", "python", "said"),
    [
        ({"issues": ""}, CHANGES, "python3", "issues is empty"),
        ({"repository": "https://host.invalid/x/"}, CHANGES, "python3", "without a last /"),
        ({"repository": "host.invalid/x"}, CHANGES, "python3", "no https:// address"),
        ({"authors": []}, CHANGES, "python3", "the name of author 1 is empty"),
        ({"authors": [{"name": "A"}]}, CHANGES, "python3", "the email of author 1 is empty"),
        ({}, "## 0.1.0 (unreleased)", "python3", "no heading '## 0.1.0 (YYYY-MM-DD)'"),
        ({}, "## 0.1.01 (2026-12-01)", "python3", "no heading '## 0.1.0 (YYYY-MM-DD)'"),
        ({}, CHANGES, "python4", "python4 is not installed"),
    ],
)
def test_what_is_missing_is_listed(
    facts: dict[str, Any], changes: str, python: str, said: str, release: Any
) -> None:
    found = " ".join(release.missing(FACTS | facts, changes, (python,)))
    assert said in found


def test_the_facts_are_empty_in_the_repository_or_complete(release: Any) -> None:
    """No address is invented: a part of them is filled by nobody."""
    facts = tomllib.loads((ROOT / "release.toml").read_text())
    lacking = [one for one in release.missing(facts, CHANGES, ()) if "release.toml" in one]
    assert len(lacking) in (0, 6)


def test_links_of_both_pages_lead_to_files_of_the_repository(release: Any, tmp_path: Path) -> None:
    copies = release.prepare(FACTS, tmp_path)
    for package, copy in copies.items():
        page = (copy / "README.md").read_text()
        links = re.findall(r"\]\(([^)\s]+)\)", page)
        base = f"{FACTS['repository']}/"
        files = [link.removeprefix(base).split("#")[0] for link in links if link.startswith(base)]
        assert files or package == "flatout_explain"
        for link in files:
            kind, tag, path = link.split("/", 2)
            assert kind in ("blob", "tree", "raw")
            assert tag == "v0.1.0"
            assert (ROOT / path).is_dir() if kind == "tree" else (ROOT / path).is_file()
        assert not [link for link in links if not link.startswith(("https://", "#"))]
        project = tomllib.loads((copy / "pyproject.toml").read_text())["project"]
        assert project["authors"] == FACTS["authors"]
        assert project["urls"]["Repository"] == FACTS["repository"]
        assert project["scripts"]


def test_pictures_lead_to_their_bytes(release: Any) -> None:
    text = '<source srcset="docs/data-flow.svg"> ![flow](docs/data-flow.svg) [page](docs#x)'
    linked = release.linked(text, "", "https://host.invalid/x", "v0.1.0")
    assert linked.count("https://host.invalid/x/raw/v0.1.0/docs/data-flow.svg") == 2
    assert "(https://host.invalid/x/tree/v0.1.0/docs#x)" in linked


def test_the_data_that_is_bundled_has_its_notice() -> None:
    folder = ROOT / "src" / "flatout" / "supervised" / "data"
    notice = (folder / "NOTICE.md").read_text()
    assert [path.name for path in folder.glob("*.gz") if f"`{path.name}`" not in notice] == []
