"""The Python interface: agents that learn, predict, are saved and loaded."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, NoReturn, Self

import numpy as np
from gymnasium.vector import VectorEnv

from flatout import tree
from flatout.algorithms.own import MakeAlgorithm
from flatout.api.aliases import attribute, refuse_setting, reset_argument, translated
from flatout.api.arguments import flag, one_training, path_argument, preset_settings, whole_number
from flatout.api.describe import Signature
from flatout.api.history import History
from flatout.api.names import algorithm_name, consent, environment_name, network_name
from flatout.api.restore import restored
from flatout.api.saved_files import read_agent
from flatout.api.training import train
from flatout.config.hyper import algorithm_called
from flatout.config.schema import EPISODES, SEEDS, TrainConfig
from flatout.config.settings import resolve, settings_of
from flatout.config.values import Range
from flatout.engine.act import Policy
from flatout.envs.task import Task
from flatout.envs.vector_kind import size_of
from flatout.errors import UsageError, writing
from flatout.evaluation import Evaluation
from flatout.networks.torsos import OwnNetwork
from flatout.reports.curves import Picture, Run, picture
from flatout.reports.figure import check_file
from flatout.run.acting import Acting
from flatout.run.callbacks import CallbackLike
from flatout.run.curve import ACCURACIES, RETURNS
from flatout.run.evaluate import record
from flatout.run.notebook import page
from flatout.run.opening import other_environment
from flatout.run.trainer import Trainer
from flatout.run.video import MOST
from flatout.storage.agent_file import save_parameters
from flatout.storage.trust import ADDRESSES
from flatout.types import UserCode
from flatout_explain import output_file


class Agent:
    """An agent of any algorithm. `PPO`, `A2C`, `DQN`, `DDPG`, `TD3`, `SAC` and `TQC` name one each.

    Args:
        env: a Gymnasium id, ``"module:factory"``, an environment object (for one environment), a
            `gymnasium.vector.VectorEnv` (for all of its environments), a `flatout.DeviceEnv` (for
            any number), or a function that makes one of these.
        given: the environment as a positional argument, also after a policy's name as in
            Stable-Baselines3.
        network: one of the built-in torsos by name, or a custom one: ``(key, observation_shape) ->
            equinox.Module`` that maps one observation ``[...]`` float32 to features ``[F]``; for a
            Dict observation also a dict of such functions by path, for some of its arrays.
        algorithm: your own algorithm, as a function that makes a `flatout.Algorithm` or its
            ``"module:function"``. `Agent` itself takes any algorithm's name.
        eval_env: another environment with the same spaces, for evaluations during training
            (``eval_every``); by default one like `env`, which an object cannot be.
        settings: any setting by its flag's name: ``seed=1, envs=8, learning_rate="lin_0.001"``;
            names of other libraries are translated or refused as docs/coming-from.md says.

    The environment is made, reset, stepped once and closed, so that an unusable one is refused
    here. An environment object is only reset; a vector environment may also be played until its
    first episodes end, to see how it resets.

    Raises:
        UsageError: unknown or impossible settings, or spaces that cannot be used.
        EnvironmentFailure: the environment cannot be made, or its observations are outside of its
            observation space.
    """

    algorithm: str = ""
    _loads = False  # it is made from what was saved, perhaps only to predict
    __signature__ = Signature()

    def __init__(
        self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
        algorithm: MakeAlgorithm | str | None = None, eval_env: Any = None, **settings: Any,
    ) -> None:  # fmt: skip
        make = None if isinstance(algorithm, str) else algorithm
        if algorithm is not None:
            if self.algorithm:
                raise UsageError(f"{type(self).__name__} has its algorithm; use flatout.Agent.")
            self.algorithm = algorithm_called(algorithm_name(algorithm))
        if not self.algorithm:
            raise UsageError("Agent needs algorithm=, or use PPO, DQN, SAC, ...")
        names = settings_of(self.algorithm)
        sizes = [size_of(one) for one in (env, *given) if isinstance(one, VectorEnv)]
        env, settings, self._verbose = translated(given, env, settings, names, *sizes[:1])
        name, source = environment_name(env)
        if isinstance(env, VectorEnv):
            settings.setdefault("envs", size_of(env))
        built_in, network = network_name(network)
        settings |= built_in
        tuned = preset_settings(settings, self.algorithm)
        named = {} if name is None else {"env": name}
        self.config: TrainConfig = resolve(self.algorithm, tuned, named, settings)
        if not self.config.env.env:
            raise UsageError("no environment: pass an id, a factory or an environment object.")
        other = None if eval_env is None else environment_name(eval_env)
        self._code = UserCode(source, network, make, other)
        self._set_up(Acting(self.config, self._code))
        if self.config.hyper.acts and not self._loads:
            self._acting.check()

    def _set_up(self, acting: Acting) -> None:
        """Set the initial state, in which nothing is learned."""
        self._acting = acting
        self._predicted = 0
        self._history = History()
        self._learning = threading.Lock()
        self._run: tuple[Trainer, bool] | None = None  # in progress, and whether it is a new one
        self.summary: dict[str, Any] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse an attribute that nothing would read, such as ``agent.learning_rate = 1e-5``."""
        if not name.startswith("_"):  # ours, some of it at each prediction
            settings = self.config.flat() if "config" in vars(self) else {}
            refuse_setting(name, value, type(self), settings)
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # a checker knows what there is

        def __getattr__(self, name: str) -> Any:
            config = None if name.startswith("_") else vars(self).get("config")
            return attribute(name, type(self).__name__, config.flat() if config else {})

    def __repr__(self) -> str:
        steps, words = self._steps, "nothing learned here"
        if self._run is not None:
            words = f"training, {steps or 0:,} steps"
        elif self.summary:
            before = None if self._history.counts_loaded else self._history.loaded_steps
            words = f"{steps:,} steps" + (f" after {before:,} loaded" if before else "")
        elif self._acting.arrays is not None:
            words = "loaded" if steps is None else f"loaded, {steps:,} steps"
        return f"<{self._title}: {words}>"

    @property
    def _steps(self) -> int | None:
        """Environment steps of the run in progress, or else of the last run, or else those that the
        loaded agent had learned from."""
        if self._run is not None:
            return self._run[0].progress.steps
        if self.summary and not self._history.kept:  # the folder's run had ended
            return self.summary["steps"]
        return self._history.steps

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an agent is neither pickled nor copied: save(path) writes it, and load(path) reads it."
        )

    def learn(
        self,
        total_timesteps: int | None = None,
        callback: CallbackLike | Sequence[CallbackLike] | None = None,
        *,
        progress_bar: bool | None = None,
        run_dir: str | Path | None = None,
        reset: bool = False,
        reset_num_timesteps: bool | None = None,
        **others: Never,
    ) -> Self:
        """Train for this many environment steps.

        A second call continues the run of the first one: counters, schedules, environments and
        replay. After `load`, the call starts a new run from the loaded agent. After `load` of a
        run folder, the new run starts from the newest checkpoint, with its optimiser and replay;
        if `run_dir` is that folder, the run in it is resumed instead.

        With ``reset_num_timesteps=False`` the loaded run continues, also in another folder: its
        step counter, schedules and exploration, and from a run folder its whole state.

        Args:
            total_timesteps: the number of additional steps; by default the rest of the settings'
                `steps`, or `steps` again if none are left.
            callback: a `flatout.Callback`, a function ``callback(progress, metrics)`` that is
                called after every iteration and stops the run by returning False, or a list.
            progress_bar: show the live display; by default, only with `verbose`.
            run_dir: the run folder to write; without it, nothing is written.
            reset: start a new run with the learned parameters and the optimiser; counters,
                schedules, replay and warm-up start again.
            reset_num_timesteps: Stable-Baselines3's name: True is `reset`, and False continues a
                run that was loaded.
            others: refused.

        Returns:
            This agent; `summary` holds the run's results. In a notebook and at Python's prompt,
            Ctrl-C also returns the agent, with what it has learned until then; a second one raises
            KeyboardInterrupt at once, and the agent keeps what it had learned before this call.

        Raises:
            FlatoutError: the run failed; the agent keeps what it had learned before the failure.
            KeyboardInterrupt: a signal, in a script; the agent keeps what it has learned.
        """
        with one_training(self._learning, self._acting.training):
            total = total_timesteps
            if total is not None:
                total = whole_number("total_timesteps", total, Range(1))
            given = self.config.run.run_dir if run_dir is None else run_dir
            path = None if given is None else path_argument("run_dir", given)
            shows = flag("progress_bar", self._verbose if progress_bar is None else progress_bar)
            begins = reset_argument(
                others, reset_num_timesteps, reset, type(self).__name__, self.config.flat()
            )
            stopped = train(self, total, callback, shows, path, begins)
        if stopped is not None and not (stopped == signal.SIGINT and hasattr(sys, "ps1")):
            raise KeyboardInterrupt
        return self

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None,
        deterministic: bool = False, *, action_mask: Any = None, **others: Never,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Return the action for one observation ``[...]`` or a batch ``[B, ...]``, and the state.

        Order, defaults and result are those of Stable-Baselines3. The action goes into ``env.step``
        as it is. Batches are padded to a power of two: the first of a new power compiles.

        Args:
            observation: the raw observation, as the environment returns it.
            state: for a recurrent agent, the state returned for the previous step; None starts
                episodes. Other agents have no state: they take and return None.
            episode_start: for a recurrent agent, ``[B]`` bool, True where an episode starts: the
                memory begins again there. Needed with a state; other agents ignore it.
            deterministic: return the mode of the distribution instead of a draw.
                docs/coming-from.md says how each algorithm draws.
            action_mask: the allowed values of the action, ``[K]`` or ``[B, K]``, where the
                environment masks its actions and the observation does not hold the mask.
            others: refused.

        Raises:
            UsageError: the agent is not trained, the observation has a wrong shape, a mask is
                missing or allows no action, an agent without a state gets one, or a recurrent
                agent gets one of another form, or one without `episode_start`.
        """
        if isinstance(state, bool | np.bool_):
            raise UsageError(
                f"predict's second argument is the state, not {state}: write predict(observation, "
                f"deterministic={state})."
            )
        if "action_masks" in others:
            raise UsageError("predict takes the allowed actions as action_mask=.")
        for name in others:
            raise UsageError(
                f"predict takes no {name}=; it takes observation, state, episode_start, "
                "deterministic and action_mask."
            )
        greedy = flag("deterministic", deterministic) or self._has_best
        acting, spec = self._acting, self.task.action_spec
        if state is not None and not acting.recurrent:
            raise UsageError(
                f"predict was given a state, but {self._title} is not recurrent and has no state: "
                "leave it out, or pass None."
            )
        batch, single = acting.observed(observation, action_mask)
        begun = None
        if state is not None:
            state, begun = acting.remembered(state, episode_start, len(tree.first(batch)))
        chosen, carry = acting.batch(batch, greedy, self._predicted, state, begun)
        self._predicted += not greedy
        action = spec.first(chosen) if single else spec.to_env(chosen)
        return action, carry if acting.recurrent else None

    def evaluate(
        self, episodes: int = 20, *, seed: int | None = None, env: Any = None,
        deterministic: bool = True,
    ) -> Evaluation:  # fmt: skip
        """Play episodes and return their results. Their seeds derive from `seed`, by default the
        agent's.

        Args:
            env: another environment with the same spaces.
            deterministic: act greedily instead of drawing actions, as in `predict`.
        """
        episodes = whole_number("episodes", episodes, EPISODES)
        greedy = flag("deterministic", deterministic) or self._has_best
        return self._acting.evaluate(episodes, self._seed(seed), *environment_name(env), greedy)

    @property
    def _has_best(self) -> bool:
        """Whether its best member acts: draws would be of members that no episode has selected."""
        return self.config.algorithm == "genetic"

    def _seed(self, seed: int | None) -> int:
        """Return the seed of episodes; by default the agent's."""
        return self.config.run.seed if seed is None else whole_number("seed", seed, SEEDS)

    def record(
        self, path: str | Path, *, episodes: int = 1, seed: int | None = None, env: Any = None
    ) -> float:
        """Write greedy episodes, several in a grid, as .gif or .mp4 of at most 2,000 frames; return
        their mean return.

        Args:
            env: another environment with the same spaces, as an agent of a vector environment
                needs it.
        """
        episodes = whole_number("episodes", episodes, Range(1, MOST))  # a grid of them
        # An environment may change the working folder.
        path, seed = path_argument("path", path).absolute(), self._seed(seed)
        if env is None:
            return record(self.policy, self._acting.played(), seed, path, episodes)
        task = other_environment(self.config, self._code, environment_name(env), self.task)
        try:
            return record(self.policy, task, seed, path, episodes)
        finally:
            task.close()

    def export(self, path: str | Path) -> Path:
        """Write the agent as one Python file that needs only NumPy.

        The file's ``predict`` takes and returns the same as the agent's.

        Raises:
            UsageError: nothing was learned or loaded yet, or a network or an algorithm of your own.
        """
        from flatout.api.export import source

        named = path_argument("path", path)
        where = named.absolute()  # an environment may change the working folder
        check_file(named, (".py",))
        output_file.write(where, source(self.config, self.task, self._acting.params()))
        return named

    def plot(self, out: str | Path | None = None) -> Picture:
        """Return the learning curve of this agent's runs as a picture; see `flatout.plot`."""
        made = picture([self.curve()])
        if out is not None:
            made.save(path_argument("out", out))
        return made

    def curve(self) -> Run:
        """Return the learning curve as data.

        Raises:
            UsageError: this agent was not trained here, or no episode has ended.
        """
        return self._history.curve(self._title, self._values)

    @property
    def _title(self) -> str:
        return f"{type(self).__name__} on {self.config.env.env}"

    @property
    def _values(self) -> str:
        """The kind of values in its learning curve: returns, or a classifier's accuracies."""
        return RETURNS if self.config.hyper.acts else ACCURACIES

    def _repr_html_(self) -> str:
        loaded = self._acting.arrays is not None
        return page(self._title, self.summary, loaded, self._history.points, self._values)

    @property
    def task(self) -> Task:
        """The environment's spaces, and how to make it."""
        return self._acting.task

    @property
    def policy(self) -> Policy:
        """A policy that acts greedily in one environment."""
        return self._acting.policy()

    def save(self, path: str | Path) -> Path:
        """Write the agent, its optimiser included, as one safetensors file.

        Raises:
            UsageError: nothing was learned or loaded yet.
        """
        if self._acting.arrays is None:
            raise UsageError("there is nothing to save yet: call learn first.")
        path = path_argument("path", path)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        new_run = self._run is not None and self._run[1]
        learned = self._history.learned + new_run
        save_parameters(path, self.config, self._acting.arrays, None, True, learned, self._steps)
        return path

    @classmethod
    def load(
        cls, path: str | Path, env: Any = None, *, network: OwnNetwork | None = None,
        algorithm: MakeAlgorithm | str | None = None, eval_env: Any = None, trust: bool = False,
        **settings: Any,
    ) -> Self:  # fmt: skip
        """Load an agent from a file that `save` wrote, or from a run folder: the best parameters
        by evaluation, or the last ones if there was none.

        Args:
            env: an environment to use instead of the saved id.
            network: the custom torso that the agent was made with.
            algorithm: your own algorithm that it was made with, if the module that the file names
                is not trusted.
            eval_env: as when it was made; it is not saved.
            trust: run the code that the file names as ``module:factory``, although another user
                created the file, or the code lies next to it.
            settings: settings to change for further training.

        Raises:
            CheckpointError: the file is missing, corrupt or another algorithm's, or it names code
                that is not trusted.
        """
        path = path_argument("path", path)
        named = {name: settings.get(name) for name in ("env_kwargs", *ADDRESSES)}
        consented = consent(flag("trust", trust), env=env, algorithm=algorithm, **named)
        saved = read_agent(path, "best", consented)
        path = path.absolute()
        return restored(cls, saved, path, env, network, algorithm, settings, eval_env=eval_env)
