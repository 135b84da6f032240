"""Build both distributions as they are uploaded: with their links, and tried in fresh environments.

    python tools/release.py              # make release; writes dist/
    python tools/release.py --check      # only say what is missing

What only the publishers know stands in release.toml. While it is empty somewhere, or another fact
of a release is missing, nothing is built, and the list of them is printed. Links in README.md lead
to files of this repository; in the distributions they lead to its address.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import smoke

ROOT = smoke.ROOT
PYTHONS = ("python3.11", "python3.12", "python3.13")
ADDRESSES = {
    "repository": "Repository", "issues": "Issues", "documentation": "Documentation",
}  # fmt: skip
"""Keys of release.toml, with their names on a registry's page."""
LINK = re.compile(r"(!?\[[^\]]*\]\()(?![a-z]+:|#)([^)#\s]+)")
PICTURE = re.compile(r"""(\b(?:src|srcset)=["'])(?![a-z]+:)([^"'\s]+)""")


def version() -> str:
    """The version in the source."""
    found = re.search(
        r'__version__ = "(.+)"', (ROOT / "src" / "flatout" / "version.py").read_text()
    )
    assert found is not None
    return found[1]


def missing(facts: dict[str, Any], changes: str, pythons: tuple[str, ...]) -> list[str]:
    """Return what is missing for a release.

    Args:
        facts: of release.toml.
        changes: the text of CHANGELOG.md.
        pythons: with which it is to be tried.
    """
    found = list[str]()
    for key in (*ADDRESSES, "security"):
        text = facts.get(key, "")
        if not text:
            found.append(f"release.toml: {key} is empty")
        elif key in ADDRESSES and not re.fullmatch(r"https://[^/\s]+(/\S*)?[^/\s]", text):
            found.append(f"release.toml: {key} = {text!r} is no https:// address without a last /")
    authors = facts.get("authors") or [{}]
    for number, author in enumerate(authors, 1):
        found += [
            f"release.toml: the {key} of author {number} is empty"
            for key in ("name", "email") if not author.get(key)
        ]  # fmt: skip
    heading = re.search(rf"^## {re.escape(version())} \((.*)\)$", changes, re.MULTILINE)
    try:
        date.fromisoformat(heading[1] if heading else "")
    except ValueError:
        found.append(f"CHANGELOG.md: no heading '## {version()} (YYYY-MM-DD)'")
    return found + [f"{python} is not installed" for python in pythons if not starts(python)]


def starts(python: str) -> bool:
    """Return whether a Python can be started: a version manager's command may only say no."""
    found = shutil.which(python)
    return found is not None and not subprocess.run([found, "-V"], capture_output=True).returncode


def uncommitted() -> list[str]:
    """Return what git says of files that are not committed."""
    words = ["git", "-C", str(ROOT), "status", "--porcelain"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return ["this is no git repository, so that nobody could find the source again"]
    return [f"not committed: {line[3:]}" for line in done.stdout.splitlines()]


def linked(text: str, folder: str, repository: str, tag: str) -> str:
    """Return a page whose links to files of the repository lead to its address.

    Args:
        text: in Markdown.
        folder: of the page, as a path within the repository; "" is its root.
        tag: of the release.
    """

    def address(path: str, kind: str) -> str:
        inside = (ROOT / folder / path).resolve().relative_to(ROOT).as_posix()
        kind = "tree" if kind == "blob" and (ROOT / inside).is_dir() else kind
        return f"{repository}/{kind}/{tag}/{inside}"

    def of_link(match: re.Match[str]) -> str:
        return match[1] + address(match[2], "raw" if match[1].startswith("!") else "blob")

    text = LINK.sub(of_link, text)
    return PICTURE.sub(lambda match: match[1] + address(match[2], "raw"), text)


def metadata(facts: dict[str, Any]) -> tuple[str, str]:
    """Return the table of addresses and the line of authors for a pyproject.toml."""
    authors = ", ".join(
        f"{{ name = {json.dumps(one['name'])}, email = {json.dumps(one['email'])} }}"
        for one in facts["authors"]
    )
    urls = [f"{name} = {json.dumps(facts[key])}" for key, name in ADDRESSES.items()]
    changes = json.dumps(f"{facts['repository']}/blob/v{version()}/CHANGELOG.md")
    security = facts["security"]
    if security.startswith("https://"):
        urls.append(f"Security = {json.dumps(security)}")
    table = "\n".join(["[project.urls]", *urls, f"Changelog = {changes}", ""])
    return table, f"authors = [{authors}]"


def prepare(facts: dict[str, Any], folder: Path) -> dict[str, Path]:
    """Copy what both distributions are built from, with the facts and links written into it; return
    the folder of each."""
    copies = dict[str, Path]()
    urls, authors = metadata(facts)
    for package, root in smoke.PROJECTS.items():
        copy = copies[package] = folder / package
        copy.mkdir()
        for name in smoke.BUILT_FROM:
            if (root / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(root / name, copy / name, ignore=ignored)
            else:
                shutil.copy(root / name, copy)
        project = (copy / "pyproject.toml").read_text()
        project = project.replace("[project]\n", f"[project]\n{authors}\n", 1)
        project = project.replace("[project.scripts]\n", f"{urls}\n[project.scripts]\n", 1)
        (copy / "pyproject.toml").write_text(project)
        page, inside = copy / "README.md", root.relative_to(ROOT).as_posix()
        page.write_text(linked(page.read_text(), inside, facts["repository"], f"v{version()}"))
    return copies


def release(facts: dict[str, Any], out: Path, pythons: tuple[str, ...]) -> None:
    """Build, check and try both distributions, and write them to `out`.

    Raises:
        SmokeError, SubprocessError: a step failed; nothing is written.
    """
    with tempfile.TemporaryDirectory(prefix="flatout-release-") as name:
        folder = Path(name).resolve()
        place = smoke.Place(folder, sys.executable)
        place.fresh()
        (folder / "copies").mkdir()
        built = smoke.build(place, folder, prepare(facts, folder / "copies"))
        files = [*built[0], *built[1]]
        place.run("python", "-m", "pip", "install", "--quiet", "twine")
        print(place.run("twine", "check", "--strict", *files).strip(), flush=True)
        for python in pythons:
            smoke.try_out(python, built=built)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for file in files:
            shutil.copy(file, out)
            print(f"{out / file.name}  {file.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    """Build a release, or say what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--check", action="store_true", help="only say what is missing")
    add("--facts", type=Path, default=ROOT / "release.toml", help="instead of release.toml")
    add("--out", type=Path, default=ROOT / "dist", help="the folder of the finished files")
    add("--pythons", nargs="+", default=PYTHONS, help="with which they are tried")
    add("--uncommitted", action="store_true", help="of files as they are, to try this command")
    asked = parser.parse_args()
    pythons = tuple(asked.pythons)
    facts = tomllib.loads(asked.facts.read_text())
    lacking = missing(facts, (ROOT / "CHANGELOG.md").read_text(), pythons)
    lacking += [] if asked.uncommitted else uncommitted()
    if lacking:
        listed = "".join(f"\n- {one}" for one in lacking)
        sys.exit(f"release: nothing was built; missing:{listed}")
    if asked.check:
        print(f"nothing is missing for {version()}")
        return
    try:
        release(facts, asked.out, pythons)
    except (smoke.SmokeError, subprocess.SubprocessError) as error:
        sys.exit(f"release: {error}")
    print(f"next: git tag v{version()}, git push --tags, twine upload {asked.out}/*")


if __name__ == "__main__":
    main()
