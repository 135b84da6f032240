"""Forty scripts of Stable-Baselines3's documentation run on Flatout, or end as their table says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "sb3_scripts"
IMPORT = re.compile(r"^(\s*(?:from|import) )(?:stable_baselines3|sb3_contrib)\b", re.M)
TABLE = re.findall(
    r"^\| \[(\w+)\]\(\1\.py\) \| .+? \| .+ \| (.+?) \|$", (SCRIPTS / "README.md").read_text(), re.M
)
"""Each script's name, and "runs" or the error with which it ends."""

TORCH = {
    "__init__.py": "from torch import nn\nclass Tensor: ...\n",
    "nn.py": "class Module: ...\nclass ReLU(Module): ...\n",
}
"""Stands for PyTorch: Flatout reads no more than the name of an activation's class."""


def test_the_table_has_every_script_and_says_how_many_run() -> None:
    assert {name for name, _ in TABLE} == {path.stem for path in SCRIPTS.glob("*.py")}
    good = sum(ending == "runs" for _, ending in TABLE)
    assert f"{good} of the {len(TABLE)} run" in (SCRIPTS / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "ending"), TABLE, ids=[name for name, _ in TABLE])
def test_a_script_runs_or_ends_as_the_table_says(
    name: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    for file, text in TORCH.items():
        (tmp_path / "torch" / file).write_text(text)
    for module in ("torch", "torch.nn"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = SCRIPTS / f"{name}.py"
    code = compile(IMPORT.sub(r"\1flatout.sb3", path.read_text()), path, "exec")
    said = "runs"
    try:
        exec(code, {"__name__": "__main__", "__file__": str(path)})
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    assert said == ending
