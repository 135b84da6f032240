"""The Python interface of classification: a user's network and data in place of an environment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self, Unpack

import numpy as np

from flatout.api import Agent
from flatout.api.agents import ClassifierSettings
from flatout.api.aliases import translated
from flatout.api.arguments import flag, path_argument
from flatout.api.names import algorithm_name, consent, environment_name
from flatout.api.saved_files import read_agent
from flatout.config.hyper import BUILT_IN
from flatout.config.modules import PASSED
from flatout.config.settings import parts_of, resolve
from flatout.config.values import hints
from flatout.envs.spaces import as_array
from flatout.errors import CheckpointError, EnvironmentFailure, UsageError
from flatout.networks.torsos import Network
from flatout.run.classifying import ClassifierActing
from flatout.supervised.datasets import Dataset, described_spec, load_dataset, own_dataset
from flatout.supervised.own_data import checked_labels, result_of
from flatout.types import UserCode


def _names() -> list[str]:
    """Return the names of a classifier's settings, without those of environments."""
    *_, hyper, run = parts_of("classify")
    return [*hints(hyper), *hints(run)]


def _dataset(data: Any) -> tuple[str | None, Dataset]:
    """Return a dataset that is passed in Python or named, and the name that a run folder saves.

    Raises:
        UsageError: the data cannot be learned from.
    """
    if data is None or isinstance(data, str | Path):
        name = None if data is None else str(data)
        return name, load_dataset(name)
    name = environment_name(data)[0] if callable(data) else None
    if callable(data):
        data = result_of(data, "data")
    dataset = own_dataset("", data, "data")
    if name is None or name.endswith(PASSED) or name.startswith("__main__:"):
        name = dataset.description
    return name, replace(dataset, name=name)


class Classifier(Agent):
    """A classifier with the user's network and data, on one device or several.

    `network` is a function ``(key, shape) -> module`` or its ``"module:function"``. The module maps
    one example ``[...]`` float32 to a vector of logits. None is the built-in network for images.
    `data` is ``(x, y)`` or ``(x, y, x_test, y_test)``, a dict with these names, an .npz file, a
    function that returns one of these, its ``"module:function"``, or a folder with MNIST's files;
    None takes the bundled digits. Labels are 0 to classes - 1; examples of uint8 are divided by
    255. Without a test set every fifth example of each class is held out.

    ``Classifier(network, (x, y), steps=500).learn()`` trains, where a step is a gradient step;
    `predict` returns labels, and `evaluate` the accuracy. It is an `Agent` because it learns, saves
    and resumes in the same way; it has no environment, so `record` and `export` are refused.
    """

    algorithm = "classify"

    def __init__(
        self, network: Network | str | None = None, data: Any = None,
        **settings: Unpack[ClassifierSettings],
    ) -> None:  # fmt: skip
        if network is not None and not callable(network) and not isinstance(network, str):
            raise UsageError(
                f"network is a function (key, shape) -> module or its name, not "
                f"{type(network).__name__}: Classifier(network, (x, y))."
            )
        env, given, self._verbose = translated((), None, settings, _names())
        if env is not None:
            raise UsageError("a classifier has no environment: pass data=(x, y).")
        known = described_spec(data) if isinstance(data, str) else None
        self._data: Dataset | None = None
        if known is None:
            data, self._data = _dataset(data)
            known = self._data.example_spec, self._data.classes
        name = BUILT_IN if network is None else algorithm_name(network)
        self.config = resolve(self.algorithm, given, {"network": name, "data": data})
        make = network if callable(network) else None
        self._code = UserCode(self._data, make)
        self._example, self._classes = known
        self._classifying = ClassifierActing(self.config, self._code, *known)
        self._set_up(self._classifying)

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Any
    ) -> Any:
        """Return the label of one example ``[...]``, or the labels of a batch ``[B, ...]``.

        Raises:
            UsageError: nothing was learned yet, or the examples do not fit: fractions do not where
                those learned from were uint8, because the cast would cut them off.
        """
        spec = self._example
        given = as_array(x, spec)
        if spec.dtype == "uint8" and given.dtype.kind == "f":
            cut = np.isfinite(given) & (given != np.trunc(given))
            if cut.any():
                raise UsageError(
                    f"predict was given an example with {given[cut][0]}, but this classifier "
                    f"learned from uint8, which it divides by {spec.high} itself: pass whole "
                    "numbers, as it learned from."
                )
        return super().predict(x, deterministic=True)[0]

    def evaluate(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Any = None, y: Any = None
    ) -> float:
        """Return the accuracy on the test set, or on the given examples and labels.

        Raises:
            UsageError: nothing was learned yet, the examples do not fit, or there is not one label
                of the classifier's for each.
        """
        if x is None and y is None:
            return self._classifying.accuracy(load_dataset(self.config.hyper.data, self._data))
        found = np.asarray(self.predict(x))
        labels = checked_labels("y", y if found.ndim else [y], "x", found.size, "evaluate")
        over = labels >= self._classes
        if over.any():
            row = int(over.argmax())
            raise UsageError(
                f"evaluate: y[{row}] is {labels[row]}, but the classifier's labels are 0 to "
                f"{self._classes - 1}."
            )
        return float((found == labels).mean())

    def export(self, path: str | Path) -> NoReturn:
        """Raise a `UsageError`: a classifier cannot be exported."""
        raise UsageError("a classifier cannot be exported; save(path) writes it, load reads it.")

    @classmethod
    def load(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, path: str | Path, data: Any = None, *, network: Network | str | None = None,
        trust: bool = False, **settings: Any,
    ) -> Self:  # fmt: skip
        """Load a classifier from a file that `save` wrote, or from a run folder.

        Args:
            data: the data to learn from, if it is not the saved name's. Arrays that were passed in
                Python are needed again for `learn`, but not for `predict`.
            network: the network that it was made with, if its name cannot be imported.
            trust: run the code that the file names, although another user created it.
            settings: settings to change for further training.

        Raises:
            CheckpointError: the file is missing, corrupt or another algorithm's, or it names code
                that is not trusted.
        """
        path = path_argument("path", path)
        _, settings, verbose = translated((), None, settings, _names())
        consented = consent(flag("trust", trust), data=data, network=network)
        saved = read_agent(path, "best", consented)
        if saved.config.algorithm != cls.algorithm:
            raise CheckpointError(f"{path} holds an agent of {saved.config.algorithm}.")
        before = saved.config.flat() | {"run_dir": None}
        flat: dict[str, Any] = {name: before[name] for name in _names()}
        name, source = flat.pop("network"), flat.pop("data")
        given = (None if name == BUILT_IN else name) if network is None else network
        try:
            agent = cls(given, source if data is None else data, **(flat | settings))
            agent._verbose = verbose
        except (UsageError, EnvironmentFailure) as error:
            if data is None and source is not None and source in str(error):
                raise type(error)(
                    f"{saved.file}: cannot load the data that it learned from: pass data=. {error}"
                ) from error
            raise
        agent._acting.learned(saved.arrays)
        agent._history.load(saved, path.absolute(), settings)
        try:  # check it now
            agent._acting.packed()
        except CheckpointError as error:
            raise CheckpointError(f"{saved.file} does not fit its settings: {error}") from error
        except UsageError as error:
            hint = "" if network is not None else f"cannot make the network {name}: pass network=. "
            raise UsageError(f"{saved.file}: {hint}{error}") from error
        return agent


Classifier.__doc__ = f"{Classifier.__doc__}\n{ClassifierSettings.__doc__}"
