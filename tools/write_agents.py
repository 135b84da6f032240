"""Writes src/flatout/api/agents.py: the agents' classes, with every setting's name and type for
editors and type checkers. Run it after a setting has changed: python tools/write_agents.py"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from flatout.config.hyper import HYPER, Hyper
from flatout.config.schema import EnvConfig, NetworkConfig, RunConfig

FILE = Path(__file__).parent.parent / "src" / "flatout" / "api" / "agents.py"

NAMES = {"genetic": "Genetic"}
"""Of classes that are not called as their algorithm in capitals."""

HEAD = '''\
"""The agents by algorithm. tools/write_agents.py writes this file from the settings' classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from flatout.api import Agent
from flatout.networks.torsos import OwnNetwork

# fmt: off


class RunSettings(TypedDict, total=False):
    """Keyword arguments of every agent and classifier; `help(PPO)` says what they mean."""

'''

OTHERS = """\
    # as Stable-Baselines3 calls them: docs/coming-from.md
    device: str
    verbose: int
    lr: float | str
    total_timesteps: int


class Settings(RunSettings, total=False):
    \"\"\"Keyword arguments of every agent.\"\"\"

    policy: str
    policy_kwargs: Mapping[str, Any] | None
    n_envs: int
    num_envs: int
    preset: str
"""

CLASS = '''

class {name}(Agent):
    """{doc}"""

    algorithm = "{algorithm}"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            **settings: Unpack[{name}Settings],
        ) -> None: ...
'''


def shown(hint: Any) -> str:
    """A type as an annotation; what is converted is taken in the forms that are converted."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " | ".join(shown(one) for one in inside)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, inside))}]".replace("'", '"')
    if origin is tuple:
        return f"Sequence[{shown(inside[0])}] | {shown(inside[0])}"
    if origin is dict:
        return "Mapping[str, Any]"
    return "None" if hint is types.NoneType else hint.__name__


def fields(part: type, leave_out: set[str]) -> list[str]:
    """Lines of a TypedDict."""
    hints = get_type_hints(part).items()
    lines = [f"    {name}: {shown(hint)}" for name, hint in hints if name not in leave_out]
    return [line.replace("run_dir: str", "run_dir: str | Path") for line in lines]


def text() -> str:
    """The whole file."""
    constants = set(get_type_hints(Hyper))
    run, *common = (
        "\n".join(fields(part, {"env", "network"})) + "\n"
        for part in (RunConfig, EnvConfig, NetworkConfig)
    )
    written = HEAD + run + OTHERS + "".join(common)
    classes = list[str]()
    for algorithm, hyper in HYPER.items():
        if hyper.acts:
            name = NAMES.get(algorithm, algorithm.upper())
            written += f"\n\nclass {name}Settings(Settings, total=False):\n"
            written += f'    """Keyword arguments of `{name}`."""\n\n'
            written += "\n".join(fields(hyper, constants)) + "\n"
            doc = (hyper.__doc__ or "").strip()
            classes.append(CLASS.format(name=name, algorithm=algorithm, doc=doc))
        else:  # its class is written by hand
            written += "\n\nclass ClassifierSettings(RunSettings, total=False):\n"
            written += '    """Keyword arguments of `Classifier`."""\n\n'
            written += "\n".join(fields(hyper, constants | {"network", "data"})) + "\n"
    return written + "".join(classes)


if __name__ == "__main__":
    FILE.write_text(text())
