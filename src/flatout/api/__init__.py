"""The Python interface: agents that learn, predict, are saved and loaded."""

from __future__ import annotations

import functools
import multiprocessing
import signal
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Self

import numpy as np

from flatout.algorithms.own import MakeAlgorithm
from flatout.config.schema import EPISODES, SEEDS, TrainConfig
from flatout.config.settings import load_preset, resolve
from flatout.config.values import need
from flatout.envs.device.base import DeviceEnv
from flatout.envs.host import to_environment
from flatout.envs.task import Task
from flatout.errors import CheckpointError, UsageError, nearest, short, writing
from flatout.fleet.curves import Picture, Run, picture
from flatout.learner.policy import Policy
from flatout.networks.torsos import Network
from flatout.run.acting import Acting
from flatout.run.card import reached, verdict
from flatout.run.curve import Points
from flatout.run.evaluate import Evaluation, record
from flatout.run.notebook import NotebookDisplay, in_notebook, page
from flatout.run.progress import Display
from flatout.run.trainer import Callback, Trainer
from flatout.run.video import MOST
from flatout.storage import checkpoint
from flatout.storage.agent_file import find_agent, save_parameters, saved_config
from flatout.storage.checkpoint import PREFIX
from flatout.storage.run_folder import RunFolder
from flatout.storage.trust import Consent
from flatout.types import UserCode


class Agent:
    """An agent of any algorithm; `PPO`, `A2C`, `DQN`, `DDPG`, `TD3` and `SAC` are classes for it.

    Args:
        env: a Gymnasium id, ``"module:factory"``, an environment object (for one environment), a
            `flatout.DeviceEnv` (for any number), or a function that makes environments.
        network: one of the built-in torsos by name, or a custom one: ``(key, observation_shape) ->
            equinox.Module`` that maps one observation ``[...]`` float32 to features ``[F]``.
        algorithm: one of your own: a function that makes a `flatout.Algorithm`, or its
            ``"module:function"``; `Agent` itself takes any algorithm's name.
        settings: any setting by its flag's name: ``seed=1, envs=8, learning_rate="lin_0.001"``.

    Raises:
        UsageError: unknown or impossible settings, or an environment that cannot be used.
    """

    algorithm: str = ""

    def __init__(
        self, env: Any = None, *, network: Network | str | None = None,
        algorithm: MakeAlgorithm | str | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        name, source = _name(env)
        make = None if isinstance(algorithm, str) else algorithm
        if algorithm is not None:
            if self.algorithm:
                raise UsageError(f"{type(self).__name__} has its algorithm; use flatout.Agent.")
            self.algorithm = algorithm if isinstance(algorithm, str) else _name_of(algorithm)
        if not self.algorithm:
            raise UsageError("Agent needs algorithm=, or use PPO, DQN, SAC, ...")
        if network is not None and not callable(network) and not isinstance(network, str):
            raise UsageError(f"network is a name or a function, not {type(network).__name__}.")
        if isinstance(network, str):
            settings["network"] = network
            network = None
        preset = settings.pop("preset", None)
        tuned = {} if preset is None else load_preset(preset)
        if tuned.get("algorithm", self.algorithm) != self.algorithm:
            raise UsageError(f"preset {preset!r} is for {tuned['algorithm']}.")
        named = {} if name is None else {"env": name}
        self.config = resolve(self.algorithm, tuned, named, settings)
        if not self.config.env.env:
            raise UsageError("no environment: pass an id, a factory or an environment object.")
        self._code = UserCode(source, network, make)
        self._acting = Acting(self.config, self._code)
        self._predicted = 0
        self._learned = 0
        self._points: Points | None = None  # of what was learned here, with these settings
        self._trained: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what would be set and never read, such as ``agent.learning_rate = 1e-5``."""
        kind, why = type(self), ""
        if not name.startswith("_"):  # ours, some of it at each prediction
            settings = self.config.flat() if "config" in vars(self) else {}
            there = name in ("config", "summary") or hasattr(kind, name)
            if name in settings:
                given = "" if name == "env" else f", {name}={short(value)}"
                why = f"settings are chosen when an agent is made, by {kind.__name__}(env{given})."
            elif not there and kind.__module__ == __name__:
                why = f"{kind.__name__} has no such attribute; settings are given to "
                why += f"{kind.__name__}(env, ...).{nearest(name, settings)}"
        if why:
            raise UsageError(f"agent.{name} = {short(value)} would change nothing: {why}")
        super().__setattr__(name, value)

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        progress_bar: bool = False,
        callback: Callback | None = None,
        run_dir: str | Path | None = None,
    ) -> Self:
        """Train for this many environment steps; a second call goes on from the parameters.

        Args:
            total_timesteps: steps; by default the settings' `steps`.
            progress_bar: show the live display.
            callback: ``callback(progress, metrics)`` after every iteration; False stops.
            run_dir: keep a run folder; nothing is written without one.

        Returns:
            This agent; `summary` holds the figures. In a notebook and at Python's prompt Ctrl-C
            returns it too, with what was learned until then.

        Raises:
            FlatoutError: the run failed.
            KeyboardInterrupt: a signal, in a script; what was learned until then is kept.
        """
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise UsageError(
                "training started while a spawned process was importing this script: put the calls "
                'under if __name__ == "__main__":'
            )
        run = self.config.run
        path = run.run_dir if run_dir is None else run_dir
        changes = {
            "steps": run.steps if total_timesteps is None else total_timesteps,
            "run_dir": None if path is None else str(path),
            "seed": _continued(run.seed, self._learned),
        }
        config = resolve(self.algorithm, self.config.flat(), changes)
        display = Display()
        if progress_bar:
            from rich.console import Console

            from flatout.output import tolerant
            from flatout.run.display import LiveDisplay

            display = LiveDisplay(config, Console(file=tolerant(sys.stdout)))
            if in_notebook():
                display = NotebookDisplay(config)
        with nullcontext() if path is None else closing(RunFolder(Path(path))) as folder:
            trainer = Trainer(
                config, code=self._code, folder=folder,
                initial=self._acting.arrays, callback=callback, display=display,
            )  # fmt: skip
            self.summary = trainer.run()
        if trainer.final is not None:
            arrays = trainer.final.arrays.items()
            self._acting.learned({n: np.array(a) for n, a in arrays if n.startswith(PREFIX)})
            self._learned += 1
            self._points = _joined(self._points, trainer.points)
            self._trained = config.flat() | {"placement": self.summary["placement"]}
        stopped = trainer.interrupts.signum
        if stopped is not None and not (stopped == signal.SIGINT and hasattr(sys, "ps1")):
            raise KeyboardInterrupt
        return self

    def predict(self, observation: Any, deterministic: bool = True) -> Any:
        """The action for one observation ``[...]`` or a batch ``[B, ...]``.

        Args:
            observation: raw, as the environment returns it.
            deterministic: the distribution's mode; else a draw.

        Raises:
            UsageError: nothing was learned or loaded yet, or a wrong shape.
        """
        task = self.task
        shape = task.obs_spec.shape
        try:
            obs = np.asarray(observation)
        except ValueError:
            obs = np.asarray(None)
        single = obs.shape == shape
        if (not single and obs.shape[1:] != shape) or obs.dtype.kind not in "fiub":
            raise UsageError(
                f"predict takes observations of shape {list(shape)} or a batch of them, not "
                f"{obs.dtype}{list(obs.shape)}."
            )
        batch = (obs[None] if single else obs).astype(task.obs_spec.dtype)
        policy = self._acting.policy(len(batch), deterministic)
        if deterministic:
            row = policy.greedy(batch)
        else:
            row = policy.act(batch, self._predicted)
            self._predicted += 1
        actions = np.asarray(to_environment(task.action_spec, policy.layout.action(row)))
        return actions[0] if single else actions

    def evaluate(self, episodes: int = 20, *, seed: int | None = None) -> Evaluation:
        """Play greedy episodes; their seeds come from `seed`, by default the agent's."""
        EPISODES("episodes", episodes)
        seed = self.config.run.seed if seed is None else seed
        SEEDS("seed", seed)
        return self._acting.evaluate(episodes, seed)

    def record(self, path: str | Path, *, episodes: int = 1, seed: int | None = None) -> float:
        """Write greedy episodes, several in a grid, as .gif or .mp4; returns their mean return."""
        need(1 <= episodes <= MOST, "episodes", episodes, f"a grid has 1 to {MOST}")
        seed = self.config.run.seed if seed is None else seed
        return record(self.policy, self.task, seed, Path(path), episodes)

    def export(self, path: str | Path) -> Path:
        """Write the agent as one Python file that needs NumPy alone; ``predict`` in it acts
        greedily.

        Raises:
            UsageError: nothing was learned or loaded yet, or a network or an algorithm of your own.
        """
        from flatout.api.export import source, write

        return write(path, source(self.config, self.task, self._acting.params()))

    def plot(self, out: str | Path | None = None) -> Picture:
        """The learning curve of what was learned here; see `flatout.plot`."""
        made = picture([self.curve()])
        if out is not None:
            made.save(out)
        return made

    def curve(self) -> Run:
        """The learning curve as data.

        Raises:
            UsageError: nothing was learned here, or no episode has ended.
        """
        if self._points is None or not len(self._points[0]):
            why = "has learned nothing here" if self._points is None else "ended no episode yet"
            raise UsageError(f"there is nothing to plot: this agent {why}.")
        steps, seconds, values = self._points
        return Run(self._title, steps, values, self._trained, seconds)

    @property
    def _title(self) -> str:
        return f"{type(self).__name__} on {self.config.env.env}"

    def _repr_html_(self) -> str:
        told = self.summary
        if told:
            words = {
                "return": reached(told), "verdict": verdict(told),
                "steps": f"{told['steps']:,}, {told['steps_per_s']:,.0f} a second",
                "run folder": told["run_dir"] or "",
            }  # fmt: skip
        else:
            learned = self._acting.arrays is not None
            words = {"state": "loaded; call learn to go on" if learned else "nothing learned yet"}
        return page(self._title, words, self._points)

    @property
    def task(self) -> Task:
        """The environment's spaces, and how to make it."""
        return self._acting.task

    @property
    def policy(self) -> Policy:
        """Greedy acting for one environment."""
        return self._acting.policy()

    def save(self, path: str | Path) -> Path:
        """Write the agent, its optimiser included, as one safetensors file.

        Raises:
            UsageError: nothing was learned or loaded yet.
        """
        if self._acting.arrays is None:
            raise UsageError("there is nothing to save yet: call learn first.")
        path = Path(path)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        save_parameters(path, self.config, self._acting.arrays, None, True, self._learned)
        return path

    @classmethod
    def load(
        cls, path: str | Path, env: Any = None, *, network: Network | None = None,
        algorithm: MakeAlgorithm | str | None = None, trust: bool = False,
    ) -> Self:  # fmt: skip
        """An agent from what `save` wrote, or from a run folder.

        Args:
            env: an environment to use instead of the saved one's id.
            network: the custom torso that the agent was made with.
            algorithm: the algorithm of your own that it was made with, where its module is not to
                be trusted by itself.
            trust: run the code that the file names as ``module:factory`` though another user made
                it, or it lies beside the file.

        Raises:
            CheckpointError: the file is missing, corrupt, or another algorithm's; or it names
                code that is not to be trusted.
        """
        file = find_agent(Path(path))
        arrays, metadata = checkpoint.load_agent(file)
        config = saved_config(metadata, file, consent(env, trust, algorithm))
        return cls._restored(arrays, metadata, config, Path(path), env, network, algorithm)

    @classmethod
    def _restored(
        cls, arrays: dict[str, np.ndarray], metadata: dict[str, Any], config: TrainConfig,
        path: Path, env: Any, network: Network | None,
        algorithm: MakeAlgorithm | str | None = None,
    ) -> Self:  # fmt: skip
        if cls.algorithm not in ("", config.algorithm):
            raise CheckpointError(f"{path} holds an agent of {config.algorithm}.")
        if algorithm is not None and ":" not in config.algorithm:
            raise UsageError(
                f"{path} holds an agent of {config.algorithm}, which is no algorithm of your own: "
                "leave algorithm= out."
            )
        settings = config.flat() | {"run_dir": None}
        saved_env, built_in = settings.pop("env"), settings.pop("network")
        named = settings.pop("algorithm")
        if not cls.algorithm:
            settings["algorithm"] = algorithm or named
        agent = cls(saved_env if env is None else env, network=network or built_in, **settings)
        agent._acting.learned(arrays)
        learned = metadata.get("learned")
        agent._learned = learned if isinstance(learned, int) and learned >= 0 else 1
        try:  # check it now
            agent._acting.packed()
        except CheckpointError as error:
            hint = "" if network else " An agent with a network of its own is loaded with network=."
            raise CheckpointError(f"{path} does not fit its settings: {error}{hint}") from error
        return agent


class PPO(Agent):
    """Proximal policy optimisation (Schulman et al., 2017); Stable-Baselines3's defaults."""

    algorithm = "ppo"


class A2C(Agent):
    """Advantage actor-critic (Mnih et al., 2016); Stable-Baselines3's defaults."""

    algorithm = "a2c"


class Genetic(Agent):
    """A genetic algorithm over networks (Such et al., 2017), one member per environment."""

    algorithm = "genetic"


class DQN(Agent):
    """Deep Q-learning (Mnih et al., 2015), double, dueling, n-step, prioritised as options."""

    algorithm = "dqn"


class DDPG(Agent):
    """Deep deterministic policy gradient (Lillicrap et al., 2016)."""

    algorithm = "ddpg"


class TD3(Agent):
    """Twin delayed DDPG (Fujimoto et al., 2018)."""

    algorithm = "td3"


class SAC(Agent):
    """Soft actor-critic (Haarnoja et al., 2018), its entropy weight learned by default."""

    algorithm = "sac"


def consent(env: Any, trust: bool, algorithm: Any = None) -> Consent:
    named = {"env": env, "algorithm": algorithm}
    return Consent({name: value for name, value in named.items() if value is not None}, trust)


def _name_of(make: MakeAlgorithm) -> str:
    """``module:function``; of a script's function, as the command could import it."""
    if not callable(make):
        raise UsageError(f"algorithm is a name or a function, not {type(make).__name__}.")
    if isinstance(make, functools.partial):  # by its name alone it would be another
        return f"{_name_of(make.func)}(...)"
    module, name = make.__module__, getattr(make, "__qualname__", type(make).__name__)
    if module == "__main__":
        module = Path(getattr(sys.modules[module], "__file__", None) or "main").stem
    return f"{module}:{name}"


def _name(env: Any) -> tuple[str | None, Any]:
    """What to call an environment, and the object or factory where it is not a name."""
    if env is None or isinstance(env, str):
        return env, None
    if isinstance(env, DeviceEnv):
        return env.name, env
    spec = getattr(env, "spec", None)
    name = getattr(spec, "id", None) or getattr(env, "__name__", None) or type(env).__name__
    return str(name), env


def _joined(before: Points | None, after: Points) -> Points:
    """A curve that goes on; it begins anew where the steps do."""
    if before is None or not len(before[0]) or not len(after[0]) or after[0][0] <= before[0][-1]:
        return after
    steps, seconds, values = (np.concatenate(pair) for pair in zip(before, after, strict=True))
    return steps, seconds, values


def _continued(seed: int, learned: int) -> int:
    """The seed of the k-th call of `learn`: the given one, then ones derived from it."""
    if not learned:
        return seed
    return int(np.random.SeedSequence(seed, spawn_key=(learned,)).generate_state(1)[0])
