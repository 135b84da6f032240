"""Tests that the documents agree with the code: links, file names, commands, Python and numbers."""

from __future__ import annotations

import ast
import copy
import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from tools import draw_flow, write_reference, write_spaces

import flatout
from flatout.algorithms.base import BuildSpec
from flatout.algorithms.own import check
from flatout.api.describe import described
from flatout.api.load import AGENTS
from flatout.cli.arguments import SettingsArguments, TrainArguments, read_settings, settle
from flatout.cli.commands import COMMANDS, arguments_of, flags_of_command
from flatout.config.aliases import RENAMED
from flatout.config.schema import NetworkConfig
from flatout_explain.causes import CAUSES
from flatout_explain.cli.parsing import read
from tests import tiny

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), ROOT / "explain" / "README.md", *(ROOT / "docs").rglob("*.md")]
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
ROOTS = ("src/flatout", "explain", "explain/src/flatout_explain")
"""Folders below which pages name modules, as ``engine/loop.py``."""


def code(page: Path, language: str) -> list[str]:
    """Return a page's blocks of code in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@EACH_PAGE
def test_links_lead_to_files(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!http)([^)#]+)", text) + re.findall(r'src="([^"]+)"', text)
    there = (
        Path.is_file if ROOT / "docs" in page.parents else Path.exists
    )  # a site cannot link to a folder
    assert [link for link in links if not there(page.parent / link)] == []


@EACH_PAGE
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:src/flatout|tests|benchmarks|docs|examples)/[\w./]+\.\w+)`", page.read_text()
    )
    assert [name for name in named if not (ROOT / name).exists()] == []
    modules = re.findall(r"`((?:[a-z_]+/)+\w+\.py)`", page.read_text())
    roots = (ROOT, *(ROOT / root for root in ROOTS))
    assert [name for name in modules if not any((root / name).exists() for root in roots)] == []


def test_pages_of_speed_and_learning_agree_with_the_results() -> None:
    command = [sys.executable, ROOT / "benchmarks" / "write_results.py", "--check"]
    stale = subprocess.run(command, check=False).returncode
    assert stale == 0, "run python benchmarks/write_results.py"


# The reference


def test_the_reference_is_up_to_date() -> None:
    for name, text in write_reference.pages().items():
        page = write_reference.FOLDER / name
        assert page.read_text() == text, "run tools/write_reference.py"


@functools.cache
def test_the_picture_of_the_data_flow_names_files_that_begin_with_their_step() -> None:
    assert draw_flow.PICTURE.read_text() == draw_flow.picture(), "run tools/draw_flow.py"
    for steps in (draw_flow.INLINE, draw_flow.FUSED):
        for number, step in enumerate(steps, 1):
            words = (ROOT / "src" / "flatout" / step.file).read_text().partition(":")[0]
            last = number == len(steps) and "last step" in words
            assert last or re.search(rf"\b{number}\b", words.partition("\n")[0]), step.file


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_has_every_flag(command: str) -> None:
    page = (write_reference.FOLDER / "commands.md").read_text()
    page += (write_reference.FOLDER / "settings.md").read_text()
    flags = {flag.typed for flag in flags_of_command(command) if not flag.word}
    assert [flag for flag in flags if f"`{flag}`" not in page] == []


def test_the_reference_has_every_command() -> None:
    page = (write_reference.FOLDER / "commands.md").read_text()
    named = re.findall(r"^  ([a-z]+) ", write_reference.helped("--help"), re.MULTILINE)
    assert [command for command in named if f"\n## {command}\n" not in page] == []
    assert {"train", "sweep", "report"} <= set(named)


def test_every_page_is_in_the_sites_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in menu] == []


@EACH_PAGE
def test_lists_within_lists_are_indented_for_the_site(page: Path) -> None:
    """Python-Markdown, which makes the site, needs four spaces where GitHub needs two."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^ {1,3}(?:[-*+]|\d+\.) .*", text, re.MULTILINE) == []


def test_pictures_are_shown_and_small() -> None:
    pictures = [*(ROOT / "docs" / "pictures").iterdir()]
    text = "".join(page.read_text() for page in PAGES)
    assert [one.name for one in pictures if f"pictures/{one.name})" not in text] == []
    assert 0 < sum(one.stat().st_size for one in pictures) < 2_000_000


def test_every_cause_is_explained_with_its_rule() -> None:
    text = (ROOT / "docs" / "explain-reference.md").read_text()
    assert [cause for cause in CAUSES if f"| `{cause}` |" not in text] == []


# Commands


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of every `flatout` command in a page's blocks of code."""
    text = page.read_text().replace("\\\n", " ")
    console = "\n".join(code(page, "console")).replace("\\\n", " ")
    shown = re.findall(r"^\$ (.*)", console, re.MULTILINE)
    typed = re.findall(r"^    (flatout .*)", text, re.MULTILINE)
    blocks = [*code(page, "(?:sh|bash)"), *shown, *typed]
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "flatout" in words[:2]:
            yield words[words.index("flatout") + 1 :]


@EACH_PAGE
def test_commands_are_valid(page: Path) -> None:
    """Their words are read as the command does, without opening the run folders they name."""
    for command, *argv in commands(page):
        argv = argv[: argv.index("--")] if "--" in argv else argv
        kind = arguments_of(command)
        if not issubclass(kind, SettingsArguments):
            read(flags_of_command(command), command, argv)
            continue
        asked, given = read_settings(kind, command, argv)
        if isinstance(asked, TrainArguments):
            asked = replace(asked, resume=None, from_=None)
        if asked.algorithm is None and asked.preset is None:
            asked = replace(asked, algorithm="ppo")
        if command == "train":
            settle(asked, given)


# Python


@EACH_PAGE
def test_python_uses_public_names_and_settings(page: Path) -> None:
    for text in code(page, "python"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == "flatout":
                assert {name.name for name in node.names} <= set(flatout.__all__)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "flatout":
                assert node.attr in flatout.__all__
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("PPO", "DQN"):
                settings = described(ast.unparse(node.func).lower()).keys() | RENAMED
                others = {"policy_kwargs", "device", "verbose"}
                assert {word.arg for word in node.keywords} <= settings | others


def test_the_tables_of_spaces_follow_from_the_code() -> None:
    assert write_spaces.PAGE.read_text() == write_spaces.page(), "run tools/write_spaces.py"


CELLS = [
    (name, side, kind)
    for name in write_spaces.ALGORITHMS
    for side, kinds in write_spaces.SIDES.items()
    for kind in kinds
]


def test_an_empty_cell_names_another_algorithm() -> None:
    reasons = [reason for reason in write_spaces.cells().values() if reason]
    assert [reason for reason in reasons if not re.search(r"use \w+", reason)] == []


TREE = ("observations", "Dict or Tuple of these")


def all_kinds(kinds: dict[str, gym.Space[Any]]) -> gym.Space[Any]:
    """One space with all kinds but the last, which is a tree of some."""
    return gym.spaces.Dict({f"entry {n}": kind for n, kind in enumerate([*kinds.values()][:-1])})


PLAIN = write_spaces.spaces_of("a2c", "observations", "Box: numbers")


@pytest.mark.parametrize(
    ("name", "spaces"),
    [
        ("a2c", PLAIN),
        ("a2c", (all_kinds(write_spaces.OBSERVATIONS), PLAIN[1])),
        ("a2c", (PLAIN[0], all_kinds(write_spaces.ACTIONS))),
        *(
            pytest.param(name, write_spaces.spaces_of(name, *TREE), marks=pytest.mark.slow)
            for name in ("dqn", "sac")
        ),
    ],
    ids=["plain", "observations", "actions", "dqn", "sac"],
)
def test_the_shapes_of_a_cell_fit(name: str, spaces: tuple[Any, Any]) -> None:
    """Acting and an update give what the contract of algorithms says, by their shapes alone. Each
    kind of space meets one algorithm; a tree with an image also meets two that replay it. Alone,
    each kind meets an algorithm in the next test."""
    spec = BuildSpec(NetworkConfig(), *write_spaces.specs(*spaces), write_spaces.ENVS, 1000)
    check(name, write_spaces.built(name, *spaces), spec)


TRAINED = {
    "ppo": ("observations", "actions"), "dqn": ("actions",),
}  # fmt: skip
"""The sides whose every cell trains. Kinds of observations reach encoders alone and kinds of
actions distributions alone, which PPO shares with A2C, and SAC with DDPG and TD3."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side", "kind"),
    [
        (name, side, kind)
        for name, side, kind in CELLS
        if side in TRAINED.get(name, ()) or (side, kind) == TREE
    ],
)
def test_an_agent_of_a_cell_makes_an_update(name: str, side: str, kind: str) -> None:
    observed, acted = write_spaces.spaces_of(name, side, kind)
    if write_spaces.refusal(name, observed, acted):
        return
    sizes = "td3" if name == "ddpg" else name
    settings = tiny.python(sizes, env_kwargs={}, network="auto", hidden=(8,), seed=1)
    agent = AGENTS[name](functools.partial(Sampled, observed, acted), **settings).learn(48)
    assert agent.summary["updates"] > 0
    assert acted.contains(agent.predict(observed.sample(), deterministic=True)[0])


class Sampled(gym.Env[Any, Any]):
    """An environment whose observations and rewards are drawn at random."""

    def __init__(self, observed: gym.Space[Any], acted: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = copy.deepcopy(observed), acted
        self.spec = EnvSpec("Sampled-v0", max_episode_steps=8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.time += 1
        return self.observation_space.sample(), float(self.time % 3), False, self.time >= 8, {}
