"""Signature and documentation of agents' classes, made from the settings on first use."""

from __future__ import annotations

import functools
import inspect
from dataclasses import MISSING, fields
from typing import Any

from flatout.config.settings import parts_of
from flatout.config.texts import sentences

FIRST = {
    "env": "a Gymnasium id, module:factory, an environment object, also a "
    "gymnasium.vector.VectorEnv, a flatout.DeviceEnv, or a function that makes environments.",
    "eval_env": "another environment with the same spaces, for evaluations during training "
    "(eval_every); by default one like env, which an object cannot be.",
    "network": "a torso's name, a function (key, observation_shape) -> equinox.Module, or a dict "
    "of such functions by the paths of a nested observation.",
    "preset": "tuned settings by name, which the others change.",
}
"""Texts of arguments that are not fields of the settings' classes or accept more values."""


class Signature:
    """The ``__signature__`` of a class of agents: every setting with its default."""

    def __get__(self, agent: Any, kind: type[Any]) -> inspect.Signature:
        """Return the signature; `AttributeError` for a class with its own ``__init__``."""
        if not kind.algorithm or any("__init__" in vars(one) for one in kind.__mro__[:-2]):
            raise AttributeError("__signature__")
        made = inspect.Parameter
        first = [
            made("env", made.POSITIONAL_OR_KEYWORD, default=None), made("rest", made.VAR_POSITIONAL)
        ]  # fmt: skip
        rest = [
            made(name, made.KEYWORD_ONLY, default=default)
            for name, (default, _) in described(kind.algorithm).items()
            if name != "env"
        ]
        return inspect.Signature([*first, *rest])


@functools.cache
def described(algorithm: str) -> dict[str, tuple[Any, str]]:
    """Return each argument's default and text, the algorithm's own settings first."""
    environment, network, hyper, run = parts_of(algorithm)
    found = {name: (None, text) for name, text in FIRST.items() if hyper.acts}
    for part in (hyper, environment, network, run) if hyper.acts else (hyper, run):
        texts = sentences(part)
        for spec in fields(part):
            made = spec.default_factory
            default = spec.default if made is MISSING else made()
            default = hyper.defaults.get(spec.name, default)
            found.setdefault(spec.name, (default, texts.get(spec.name, "")))
    return found
