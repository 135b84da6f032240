"""What mkdocs runs while it builds the site: a file outside of docs/ that a page links to becomes
a page, too, so that no link leaves the site. Pages keep the links that work in the repository."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the files that pages link to, and those that these link to."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for link in LINK.findall(text_of(page)) if page.suffix == ".md" else ():
            path = Path(os.path.normpath(page.parent / link))
            made = File.generated(
                config, uri(path), content=text_of(path), inclusion=InclusionLevel.NOT_IN_NAV
            ) if path.is_file() and DOCS not in path.parents else None  # fmt: skip
            if made is not None and files.get_file_from_path(made.src_uri) is None:
                files.append(made)
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links to files outside of docs/ into links to their pages."""
    here = page.file.src_uri
    folder = (
        ROOT / here.removeprefix("files/") if here.startswith("files/") else DOCS / here
    ).parent

    def moved(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / link[0]))
        return os.path.relpath(uri(path), os.path.dirname(here)) if path.is_file() else link[0]

    # GitHub wants \| for a bar in a table's code; Python-Markdown would show the backslash.
    bare = re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), markdown)
    return LINK.sub(moved, bare)


def uri(path: Path) -> str:
    """Where a file of the repository stands among the site's sources."""
    if DOCS in path.parents:
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return f"files/{name}" if path.suffix in (".md", ".svg") else f"files/{name}.md"


def text_of(path: Path) -> str:
    """A file as Markdown; pictures as they are."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        return "\n\n".join(
            source if kind == "markdown" else f"```python\n{source}\n```" for kind, source in cells
        )
    language = {".py": "python"}.get(path.suffix, "text")
    return (
        text
        if uri(path).endswith(path.name)
        else f"# {path.name}\n\n~~~~{language}\n{text}\n~~~~\n"
    )
