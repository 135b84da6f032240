"""`flatout eval`: a trained agent plays greedy episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from flatout.cli.flags import Word, parse
from flatout.config.schema import SEEDS
from flatout.config.values import Range
from flatout.errors import UsageError
from flatout.output import on_one_line, print_json, printable, reserve_stdout, shell_word
from flatout.run.video import MOST, writer
from flatout_explain.cli.parsing import existing

if TYPE_CHECKING:
    from flatout.api import Agent

EPISODES, SHOWN = 20, 3
"""Default numbers of episodes, without and with ``--show``."""


@dataclass(frozen=True)
class EvalArguments:
    """Play greedy episodes with a trained agent."""

    usage: ClassVar[tuple[str, ...]] = (
        "RUN_DIR [--episodes 20] [--out video.mp4]", "RUN_DIR --show",
    )  # fmt: skip

    path: Annotated[str | None, Word("RUN_DIR")] = None
    """A run folder or a saved agent."""
    episodes: Annotated[int | None, Range(1, 1_000_000)] = None
    """Number of episodes; by default 20, with --show 3."""
    seed: Annotated[int | None, SEEDS] = None
    """Seed of the episodes; by default the run's own evaluation episodes."""
    show: bool = False
    """Show the episodes in the terminal, also while the agent learns: each episode is played by the
    newest checkpoint."""
    fps: Annotated[float | None, Range(0, 1000, above=True)] = None
    """With --show: frames per second; by default the environment's own."""
    out: Annotated[str | None, "FILE.gif|FILE.mp4"] = None
    """Also record a video, .gif or .mp4."""
    video_episodes: Annotated[int, Range(1, MOST)] = 1
    """Episodes in the video, side by side."""
    checkpoint: Literal["best", "final", "newest"] | None = None
    """best (by evaluation; the final parameters if there was none; before the end of a run the
    newest checkpoint), final, or newest; by default best, with --show newest."""
    env: Annotated[str | None, "ID|MODULE:FACTORY"] = None
    """Another environment with the same spaces: a single one for --show and --out, if the agent
    learned in a vector environment; any, if the agent's own was passed as a Python object. Or the
    agent's environment again, if it is module:factory and another user created the agent."""
    algorithm: Annotated[str | None, "MODULE:FUNCTION"] = None
    """The algorithm again, if it is module:function and another user created the agent."""
    trust: bool = False
    """Run the code that the agent names, although another user created it."""
    json: bool = False
    """Print the result as JSON, alone on stdout."""


def evaluate(argv: list[str]) -> int:
    """Run ``flatout eval``; return the exit code."""
    asked = parse(EvalArguments, "flatout eval", argv)
    _check(asked)
    if asked.json:
        reserve_stdout()
    if asked.path is None:
        raise UsageError("eval needs a run folder or a saved agent: flatout eval RUN_DIR.")
    path = existing(asked.path)
    if asked.show:
        path = path.absolute()  # an environment may change the working folder
    from flatout.api.load import load_any

    def agent_now() -> tuple[Agent, Path]:
        checkpoint = asked.checkpoint or ("newest" if asked.show else "best")
        agent, file = load_any(
            path, checkpoint, asked.env, asked.trust, asked.algorithm, command=True
        )
        if agent.task.vector is not None:
            _refuse_pictures(asked, agent.task.name)
        return agent, file

    if asked.show:
        return _show(asked, agent_now)
    video = None if asked.out is None else Path(asked.out).absolute()
    agent, file = agent_now()
    result = agent.evaluate(asked.episodes or EPISODES, seed=asked.seed)
    if video is not None:
        agent.record(video, episodes=asked.video_episodes, seed=asked.seed)
    low, high = min(result.returns), max(result.returns)
    count, kind = len(result.returns), _kind(file)
    if asked.json:
        shown = {
            "agent": str(file), "env": agent.config.env.env, "episodes": count,
            "return_mean": result.return_mean, "return_std": result.return_std, "return_min": low,
            "return_max": high, "length_mean": result.length_mean,
            "returns": list(result.returns), "video": asked.out,
        }  # fmt: skip
        print_json(shown)
        return 0
    print(
        f"{printable(agent.config.env.env)}: return {result.return_mean:.2f} ± "
        f"{result.return_std:.2f} over {count} greedy episodes (lowest {low:.2f}, highest "
        f"{high:.2f}), mean length {result.length_mean:.1f}\nagent: {on_one_line(str(file))}{kind}"
    )
    if asked.out is not None:
        print(f"video: {asked.out}")
    return 0


def _kind(file: Path) -> str:
    """Return which parameters of a run a file holds, in parentheses; empty for other files."""
    from flatout.storage.agent_file import BEST, FINAL

    if file.parent.name == "checkpoints":
        return " (the newest checkpoint)"
    kinds = {BEST: "the best of the run's evaluations", FINAL: "the run's final parameters"}
    return f" ({kinds[file.name]})" if file.name in kinds else ""


def _check(asked: EvalArguments) -> None:
    """Refuse impossible combinations before anything is loaded."""
    if asked.out is not None:
        writer(file := Path(asked.out))
        if file.is_dir() or not file.parent.is_dir():  # before minutes of episodes
            raise UsageError(f"--out {file} is no file in an existing folder.")
    if asked.show and (asked.out is not None or asked.json):
        flag = "--json" if asked.json else f"--out {asked.out}"
        raise UsageError(f"--show and {flag} cannot be combined: leave out one of them.")
    if asked.video_episodes > 1 and asked.out is None:
        raise UsageError("--video-episodes is for --out: flatout eval RUN_DIR --out video.mp4.")
    if asked.fps is not None and not asked.show:
        raise UsageError("--fps is for --show: flatout eval RUN_DIR --show --fps 30.")


def _refuse_pictures(asked: EvalArguments, env: str) -> None:
    """Refuse to show or record a vector environment."""
    flag = "--show" if asked.show else f"--out {shell_word(asked.out)}"
    if asked.show or asked.out is not None:
        raise UsageError(
            f"{env} is a vector environment, of which no pictures are made; give a single "
            f"environment with the same spaces: flatout eval {shell_word(asked.path)} {flag} --env "
            "ID."
        )


def _show(asked: EvalArguments, agent_now: Callable[[], tuple[Agent, Path]]) -> int:
    """Show episodes in the terminal."""
    from rich.console import Console

    from flatout.cli.watch import watch

    returns = watch(agent_now, asked.episodes or SHOWN, asked.fps, asked.seed, Console())
    if len(returns) > 1:
        print(f"mean return of {len(returns)} episodes: {sum(returns) / len(returns):g}")
    return 0
