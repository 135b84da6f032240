"""Writes src/flatout/api/agents.py: the agents' classes, with every setting's name, type, default
and text for editors and type checkers.

Run it after a setting has changed: python tools/write_agents.py
"""

from __future__ import annotations

import textwrap
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from flatout.api.describe import described
from flatout.config.hyper import HYPER, Hyper
from flatout.config.schema import EnvConfig, NetworkConfig, RunConfig

FILE = Path(__file__).parent.parent / "src" / "flatout" / "api" / "agents.py"

NAMES = {"genetic": "Genetic"}
"""Of classes that are not called as their algorithm in capitals."""

HEAD = '''\
"""The agents by algorithm. tools/write_agents.py writes this file from the settings' classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from flatout.api import Agent
from flatout.networks.torsos import OwnNetwork

# fmt: off


class ClassifierSettings(TypedDict, total=False):
    """{doc}
    """

'''

OTHERS = {
    "policy": "str | None", "policy_kwargs": "Mapping[str, Any] | None", "device": "str | None",
    "verbose": "int", "lr": "float | str | None", "total_timesteps": "int | None",
    "n_envs": "int | None", "num_envs": "int | None", "preset": "str | None", "eval_env": "Any",
}  # fmt: skip
"""Arguments that are no settings: names of Stable-Baselines3 (docs/coming-from.md), and presets."""

WIDER = {
    "learning_rate": "Callable[[float], float]", "clip_range": "Callable[[float], float]",
    "train_freq": "tuple[int, str]", "action_noise": "Any",
}  # fmt: skip
"""Further types of settings: values of Stable-Baselines3 that are translated."""

CLASS = '''

class {name}(Agent):
    """{doc}
    """

    algorithm = "{algorithm}"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
{parameters}
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


def annotations(*parts: type, leave_out: set[str]) -> dict[str, str]:
    """The settings of some classes with their types."""
    hints = {name: hint for part in parts for name, hint in get_type_hints(part).items()}
    found = {name: shown(hint) for name, hint in hints.items() if name not in leave_out}
    return found | ({"run_dir": "str | Path | None"} if "run_dir" in found else {})


def parameters(algorithm: str, hyper: type[Hyper], constants: set[str]) -> str:
    """The keyword parameters of an agent's class, one a line."""
    own = annotations(hyper, leave_out=constants)
    common = annotations(EnvConfig, NetworkConfig, RunConfig, leave_out={"env", "network", *own})
    defaults = described(algorithm)
    lines = list[str]()
    for name, kind in (own | common).items():
        default = defaults[name][0]
        wider = f" | {WIDER[name]}" if name in WIDER else ""
        text = "..." if default == {} else repr(default).replace("'", '"')
        lines.append(f"{name}: {kind}{wider} = {text},")
    lines += [f"{name}: {kind} = {0 if kind == 'int' else None}," for name, kind in OTHERS.items()]
    return textwrap.indent("\n".join(lines), " " * 12)


def documented(own: str, algorithm: str) -> str:
    """A class's documentation with every setting's, as it is indented."""
    lines = [own, "", "Args:"]
    for name, (default, text) in described(algorithm).items():
        entry = f"{name} = {default!r}: {text}"
        lines += textwrap.wrap(entry, 92, initial_indent="    ", subsequent_indent="        ")
    return textwrap.indent("\n".join(lines), "    ").strip()


def text() -> str:
    """The whole file."""
    constants = set(get_type_hints(Hyper))
    written, classes = "", list[str]()
    for algorithm, hyper in HYPER.items():
        if hyper.acts:
            doc = documented((hyper.__doc__ or "").strip(), algorithm)
            classes.append(
                CLASS.format(
                    name=NAMES.get(algorithm, algorithm.upper()), algorithm=algorithm, doc=doc,
                    parameters=parameters(algorithm, hyper, constants),
                )
            )  # fmt: skip
        else:  # its class is written by hand
            taken = annotations(RunConfig, hyper, leave_out=constants | {"network", "data"})
            others = {name: OTHERS[name] for name in ("device", "verbose", "lr", "total_timesteps")}
            lines = [f"    {name}: {kind}" for name, kind in (taken | others).items()]
            doc = documented("Keyword arguments of `Classifier`.", algorithm)
            written = HEAD.format(doc=doc) + "\n".join(lines) + "\n"
    return written + "".join(classes)


if __name__ == "__main__":
    FILE.write_text(text())
