"""`flatout eval` and `flatout watch`: a trained agent plays greedy episodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from flatout.cli.flags import parse, refuse_json
from flatout.config.values import need
from flatout.errors import UsageError, refuse_empty
from flatout.output import on_one_line, print_json, printable, reserve_stdout
from flatout.run.video import MOST, writer
from flatout_explain.cli.parsing import existing

if TYPE_CHECKING:
    from flatout.api import Agent


@dataclass(frozen=True)
class PlayArguments:
    """Flags of both commands."""

    path: Annotated[Positional[str | None], arg(metavar="RUN_DIR")] = None
    """A run folder or a saved agent."""
    episodes: int = 20
    """How many."""
    seed: int | None = None
    """Seed of the episodes; by default the run's own evaluation episodes."""
    env: str | None = None
    """The environment once more, where it is module:factory and the agent not of your making."""
    algorithm: str | None = None
    """The algorithm once more, where it is module:function and the agent not of your making."""
    trust: bool = False
    """Run the code that the agent names, though it is not of your making."""


@dataclass(frozen=True)
class EvalArguments(PlayArguments):
    """Play greedy episodes with a trained agent."""

    video: str | None = None
    """Also write a video, .gif or .mp4."""
    video_episodes: int = 1
    """Episodes in the video, side by side."""
    checkpoint: Literal["best", "final"] = "best"
    """best (by evaluation; the final parameters where none was made; else the newest checkpoint's)
    or final."""
    json: bool = False
    """Print the result as JSON, alone on stdout."""


@dataclass(frozen=True)
class WatchArguments(PlayArguments):
    """See a trained agent play in the terminal."""

    episodes: int = 3
    fps: float | None = None
    """Frames per second; by default the environment's own."""
    gif: str | None = None
    """Write one episode as an animated GIF instead."""
    checkpoint: Literal["newest", "best", "final"] = "newest"
    """newest (also of a run that goes on), best (by evaluation) or final."""


def _folder(command: str, path: str | None, gif: str | None) -> Path:
    """The run folder, refused before anything is loaded."""
    if path is None:
        raise UsageError(
            f"{command} needs a run folder or a saved agent: flatout {command} RUN_DIR."
        )
    if gif is not None:
        writer(Path(gif))
    return existing(path)


def evaluate(argv: list[str]) -> int:
    """Run ``flatout eval``; returns the exit code."""
    asked = parse(EvalArguments(), "flatout eval", argv)
    if asked.json:
        reserve_stdout()
    refuse_empty("--video", asked.video)
    path = _folder("eval", asked.path, asked.video)
    need(1 <= asked.video_episodes <= MOST, "video_episodes", asked.video_episodes, f"1 to {MOST}")
    from flatout.api.load import load_any

    # An environment may change the working folder.
    video = None if asked.video is None else Path(asked.video).absolute()
    agent, file = load_any(path, asked.checkpoint, asked.env, asked.trust, asked.algorithm)
    result = agent.evaluate(asked.episodes, seed=asked.seed)
    if video is not None:
        agent.record(video, episodes=asked.video_episodes, seed=asked.seed)
    low, high = min(result.returns), max(result.returns)
    if asked.json:
        shown = {
            "agent": str(file), "env": agent.config.env.env, "episodes": asked.episodes,
            "return_mean": result.return_mean, "return_std": result.return_std, "return_min": low,
            "return_max": high, "length_mean": result.length_mean,
            "returns": list(result.returns), "video": asked.video,
        }  # fmt: skip
        print_json(shown)
        return 0
    print(
        f"{printable(agent.config.env.env)}: return {result.return_mean:.2f} ± "
        f"{result.return_std:.2f} over {asked.episodes} greedy episodes (lowest {low:.2f}, highest "
        f"{high:.2f}), mean length {result.length_mean:.1f}\n{on_one_line(str(file))}"
    )
    if asked.video is not None:
        print(f"video: {asked.video}")
    return 0


def show(argv: list[str]) -> int:
    """Run ``flatout watch``; returns the exit code."""
    refuse_json(
        argv,
        "watch has no --json: it shows episodes; flatout eval RUN_DIR --json prints their returns.",
    )
    asked = parse(WatchArguments(), "flatout watch", argv)
    refuse_empty("--gif", asked.gif)
    if asked.gif is not None and not asked.gif.lower().endswith(".gif"):
        raise UsageError(f"--gif {asked.gif}: name a .gif file; eval --video writes .mp4, too.")
    path = _folder("watch", asked.path, asked.gif).absolute()
    if asked.episodes < 1:
        raise UsageError(f"--episodes {asked.episodes} is impossible: at least 1.")
    if asked.fps is not None and not 0 < asked.fps <= 1000:
        raise UsageError(f"--fps {asked.fps:g} is impossible: it lies above 0 and up to 1000.")
    from rich.console import Console

    from flatout.api.load import load_any
    from flatout.cli.watch import watch

    def newest() -> tuple[Agent, Path]:
        return load_any(path, asked.checkpoint, asked.env, asked.trust, asked.algorithm)

    if asked.gif is not None:
        gif = Path(asked.gif).absolute()
        total = newest()[0].record(gif, seed=asked.seed)
        print(f"{asked.gif}: one episode, return {total:g}")
        return 0
    returns = watch(newest, asked.episodes, asked.fps, asked.seed, Console())
    if len(returns) > 1:
        print(f"mean return of {len(returns)} episodes: {sum(returns) / len(returns):g}")
    return 0
