"""The meaning of an environment's name, decided once. Nothing is imported or made here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flatout.config.modules import LIBRARIES, POOL
from flatout.config.schema import EnvConfig
from flatout.envs.ale_ids import is_atari
from flatout.envs.device.twins import TWINS, refusal

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec


@dataclass(frozen=True)
class EnvSource:
    """Where an environment comes from: a name with arguments, or what a Python program passed.

    Attributes:
        name: the name, which is for messages alone if something was passed.
        kwargs: arguments for the environment.
        passed: an environment object, also a vector of environments, or a function that makes one;
            None if the name decides.
    """

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    passed: Any = None

    @staticmethod
    def of(config: EnvConfig, passed: Any = None) -> EnvSource:
        """Return the source of a run's environment; `passed` may be this source already."""
        if isinstance(passed, EnvSource):
            return passed
        return EnvSource(config.env, config.env_kwargs, passed)

    @cached_property
    def atari(self) -> bool:
        """Whether it is a game of the Arcade Learning Environment (`is_atari`)."""
        return self.passed is None and is_atari(self.name)

    @property
    def library(self) -> str:
        """The library in whose list the name is, or an empty string."""
        library, colon, _ = self.name.partition(":")
        return library if self.passed is None and colon and library in LIBRARIES else ""

    @property
    def pooled(self) -> bool:
        """Whether it is ``envpool:NAME``."""
        return self.passed is None and self.name.startswith(f"{POOL}:")

    @property
    def imported(self) -> bool:
        """Whether it is ``module:factory``, or Gymnasium's ``module:id``."""
        module, colon, _ = self.name.partition(":")
        other = "/" in module or self.library or self.pooled
        return self.passed is None and bool(colon) and not other

    @property
    def inner(self) -> str:
        """The name without its library or module."""
        prefixed = self.library or self.imported or self.pooled
        return self.name.partition(":")[2] if prefixed else self.name

    @property
    def has_twin(self) -> bool:
        """Whether it is a Gymnasium id with a twin in JAX that takes the arguments."""
        known = self.passed is None and self.name in TWINS
        return known and not refusal(self.name, self.kwargs)

    @property
    def registered(self) -> EnvSpec | None:
        """Gymnasium's entry for the name in this process, if there is one."""
        import gymnasium  # here, because it takes a third of a second

        return None if self.passed is not None else gymnasium.registry.get(self.name)
