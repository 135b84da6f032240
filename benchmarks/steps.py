"""Steps of Atari games alone: Flatout next to ale-py's own vector environment and others.

All sides play Breakout with the same number of games and take turns in one process: A B C A B C.
With random actions episodes end; with no-ops the ball is never served again, and none ends. A step
in which another library only resets a game does not count. `--slice` measures a part; each finished
slice is kept, and the section is written from all that are there.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from harness import Command, Row, Store, main, parser
from report import per_round, provenance, spread, table, write_section

NAME = "steps"
STEADY, STICKY = "BreakoutNoFrameskip-v4", "ALE/Breakout-v5"
ALE, ALE_SAME = "ale-py, resets in the next step", "ale-py, resets in the same step"
INLINE, SPARES = "Flatout, inline", "Flatout, inline with spares"
PROCESSES = "Flatout, processes"
SYNC, ASYNC = "Gymnasium, SyncVectorEnv", "Gymnasium, AsyncVectorEnv"
ENVPOOL = "EnvPool"
SLICES: dict[str, dict[str, Any]] = {
    "32": {"count": 32, "cores": 2, "game": STEADY, "turns": 100, "others": True},
    "sticky": {"count": 32, "cores": 2, "game": STICKY, "turns": 500},
    "1 core": {"count": 32, "cores": 1, "game": STEADY, "turns": 60},
    "8": {"count": 8, "cores": 2, "game": STEADY, "turns": 400},
    "256": {"count": 256, "cores": 2, "game": STEADY, "turns": 15},
    "16 cores": {"count": 32, "cores": 16, "game": STEADY, "turns": 200, "fresh": True},
    "16 cores, sticky": {"count": 32, "cores": 16, "game": STICKY, "turns": 200, "fresh": True},
}
"""Those of 16 cores are measured only by name. A round of turns of sticky games is long enough for
one seeded reset. With `fresh`, none are due: to spread them takes minutes on some machines."""
GOALS = {STEADY: 0.9, STICKY: 0.85}
THREADS = (1, 2, 4, 8, 16)
EPISODE = 180
"""Steps of an episode of Breakout with random actions, on average."""
SPREAD = 32
"""With more games, seeded resets would be spread only after minutes; none are due."""

Turn = Callable[[np.ndarray], int]
"""Takes a step of all games; returns how many steps count."""


# --- The sides --------------------------------------------------------------------------------


def sides(part: dict[str, Any]) -> Iterator[tuple[str, Turn]]:
    """Open each side's games, and yield its name and a function that takes a turn."""
    count, cores, game = part["count"], part["cores"], part["game"]
    yield ALE, vector_turn(ale_vector(game, count, cores, "NEXT_STEP"), count)
    fresh = part.get("fresh", False)
    yield INLINE, inline_turn(game, count, cores, spares=False, fresh=fresh)
    if count > SPREAD:  # to open them takes a minute
        return
    yield ALE_SAME, vector_turn(ale_vector(game, count, cores, "SAME_STEP"), 0)
    if game == STEADY:
        yield SPARES, inline_turn(game, count, cores, spares=True, fresh=fresh)
    if not part.get("others"):
        return
    yield PROCESSES, processes_turn(game, count, cores)
    try:
        import envpool  # pyright: ignore[reportMissingImports]
    except ImportError:
        pass
    else:
        pool: Any = envpool.make(
            "Breakout-v5", env_type="gymnasium", num_envs=count, num_threads=cores,
            use_inter_area_resize=True,
        )  # fmt: skip
        pool.reset()
        yield ENVPOOL, vector_turn(pool, count)
    import gymnasium as gym
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    made = [one_game] * count
    some: list[tuple[str, gym.vector.VectorEnv[Any, Any, Any]]] = [
        (SYNC, SyncVectorEnv(made)), (ASYNC, AsyncVectorEnv(made, context="spawn")),
    ]  # fmt: skip
    for name, vector in some:
        vector.reset(seed=0)
        yield name, vector_turn(vector, count)


def one_game() -> Any:
    """Return one game with Gymnasium's usual wrappers."""
    import gymnasium as gym

    from flatout.envs.ale_ids import load

    load()
    env = gym.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30)
    return gym.wrappers.FrameStackObservation(env, 4)


def ale_vector(game: str, count: int, threads: int, mode: str) -> Any:
    """Return ale-py's vector environment with a game's settings and its own resets."""
    from ale_py.vector_env import AtariVectorEnv
    from gymnasium.vector import AutoresetMode

    from flatout.config.schema import EnvConfig
    from flatout.envs.ale import vector_settings

    settings: Any = vector_settings(EnvConfig(game)) | {"num_threads": threads}
    vector = AtariVectorEnv(num_envs=count, autoreset_mode=AutoresetMode[mode], **settings)
    vector.reset(seed=np.arange(count))
    return vector


def vector_turn(vector: Any, dead: int) -> Turn:
    """Return the turn of a vector environment; `dead` is not 0 if the step after an end only resets
    the game."""
    over = np.zeros(vector.num_envs if hasattr(vector, "num_envs") else dead, np.bool_)

    def turn(actions: np.ndarray) -> int:
        steps = len(actions) - int(over.sum()) if dead else len(actions)
        _, _, terminated, truncated, _ = vector.step(actions)
        np.logical_or(terminated, truncated, out=over)
        return steps

    return turn


def inline_turn(game: str, count: int, threads: int, spares: bool, fresh: bool = False) -> Turn:
    """Return the turn of the games of Flatout's inline sampler, with or without spares."""
    from flatout.config.schema import EnvConfig
    from flatout.envs.atari import AtariEnvs
    from flatout.envs.atari_pool import AtariPool
    from flatout.envs.vector import RARELY

    # As in a trajectory's arrays, there is room for the newest frames.
    obs, rewards = np.zeros((count, 84, 84, 1), np.uint8), np.zeros(count, np.float32)
    envs: Any
    if spares:
        envs = AtariPool(EnvConfig(game), count, 0, RARELY)
    else:
        envs = AtariEnvs(EnvConfig(game), count, 0, reseeding=RARELY, threads=threads)
    envs.reset_all(obs)
    # As in the middle of a run, seeded resets are due at different times.
    if game == STICKY and not fresh:
        envs.steps_to_replay[:] = [env * RARELY.steps // count for env in range(count)]
    elif count <= SPREAD and not fresh:
        episodes = [env * RARELY.episodes // count for env in range(count)]
        envs.replay_all([0] * count, episodes, [np.zeros(0, np.int32)] * count, obs)
    if spares:  # their resets, up to `RARELY.episodes` each, would slow down all sides
        wait(start.reached for start in envs._next)

    def turn(actions: np.ndarray) -> int:
        envs.step(actions, obs, rewards, lambda *_: None)
        return count

    return turn


def processes_turn(game: str, count: int, workers: int) -> Turn:
    """Return the turn of the games of Flatout's actor processes, with actions sent to them."""
    from flatout.config.settings import resolve
    from flatout.engine.workers.groups import WorkerEnvGroup
    from flatout.run.factory import Factory
    from flatout.run.job import Job
    from flatout.run.resolve import resolve_run

    config = resolve("ppo", {
        "env": game, "envs": count, "n_steps": 2, "batch_size": 2 * count,
        "placement": f"sampler=processes workers={workers}x{count // workers}",
    })  # fmt: skip
    pool: Any = Factory(Job(resolve_run(config, checks=False))).pool()
    pool.wait()
    every = WorkerEnvGroup(pool, pool.workers)
    every.reset_all()

    def turn(actions: np.ndarray) -> int:
        every.send(0, 0, actions, None)
        every.receive(lambda *_: None)
        return count

    return turn


# --- Measuring --------------------------------------------------------------------------------


def measure(part: dict[str, Any], rounds: int) -> Row:
    """Return, by side and by whether episodes end, the seconds of a turn, the seconds of a step
    that counts and the busy cores of each round; and the parts of a turn."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: part["cores"]])
    opened, found = dict(sides(part)), dict[str, Any]()
    rng, count = np.random.default_rng(0), part["count"]
    for ends in (False, True):
        for number in range(rounds + 1):
            for name, turn in opened.items():
                turns = max(part["turns"] // (4 if name in (SYNC, ASYNC) else 1), 4)
                plan = rng.integers(0, 4 if ends else 1, (turns, count), dtype=np.int32)
                if ends and not number:  # so that games are at different places
                    before = max(turns, EPISODE if turns == part["turns"] else 0)
                    for actions in rng.integers(0, 4, (before, count), dtype=np.int32):
                        turn(actions)
                wall, cpu = time.perf_counter(), time.process_time()
                steps = sum(map(turn, plan))
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                if number:  # the first round warms up
                    one = wall / turns, wall / steps, cpu / wall
                    found.setdefault(f"{name}/{ends}", []).append(one)
    installed = {name: version(name) for name in ("ale-py", "gymnasium", "numpy")}
    if any(name.startswith(ENVPOOL) for name in found):
        installed["envpool"] = version("envpool")
    return {"found": found, "parts": parts(part), "versions": installed}


def parts(part: dict[str, Any]) -> Row:
    """Return milliseconds of parts of a turn, and of single resets."""
    from flatout.envs.ale import write_frames

    count, cores = part["count"], part["cores"]
    stacks, out = np.zeros((count, 4, 84, 84), np.uint8), np.zeros((count, 84, 84, 1), np.uint8)
    vector = ale_vector(part["game"], 8, cores, "SAME_STEP")
    first = np.arange(8) == 0

    def reset(seed: int) -> Callable[[], object]:
        return lambda: vector.reset(seed=np.array([seed]), options={"reset_mask": first})

    spares = spares_overhead(count) if part.get("others") else 0.0
    return {
        "spares": spares, "copies": ms(lambda: write_frames(stacks, out), 20),
        "reset": ms(reset(-1), 10),
        "seeded": ms(reset(3), 5), "act": ms(acting(part["game"], count), 20),
    }  # fmt: skip


def spares_overhead(count: int) -> float:
    """Return the milliseconds of a turn that the caller's thread needs for games with spares, while
    no game computes."""
    from flatout.config.schema import EnvConfig
    from flatout.envs.ale import write_frames
    from flatout.envs.atari_pool import FULL_STRENGTH, AtariPool
    from flatout.envs.vector import RARELY

    out = np.zeros((count, 84, 84, 1), np.uint8)
    pool, taken = AtariPool(EnvConfig(STEADY), count, 0, RARELY), list[float]()
    pool.reset_all(out)
    time.sleep(2.0)  # until the spares are at their starts
    for _ in range(20):
        begin = time.perf_counter()
        for game in pool._games:
            game.ale.send((0,), FULL_STRENGTH)
        sent = time.perf_counter() - begin
        time.sleep(0.05)  # until all have stepped
        begin = time.perf_counter()
        for env in range(count):
            write_frames(pool._receive(env)[0], out[env : env + 1])
        taken.append(1e3 * (sent + time.perf_counter() - begin))
    pool.close()
    return statistics.median(taken)


def acting(game: str, count: int) -> Callable[[], object]:
    """Return a call of PPO's compiled policy for `count` games."""
    import jax

    from flatout.algorithms.registry import build_algorithm
    from flatout.config.settings import resolve
    from flatout.engine.act import Policy
    from flatout.envs.task import open_task
    from flatout.packing import PackedParams
    from flatout.randomness import ACT, INIT, raw_key
    from flatout.spans import Spans

    config = resolve("ppo", {"env": game, "envs": count, "n_steps": 2, "batch_size": 2 * count})
    task = open_task(config.env, None)
    pure = build_algorithm(config, *task.spaces)
    device = jax.devices("cpu")[0]
    policy = Policy(pure, task.obs_spec, count, device, raw_key(0, ACT), frames=True)
    policy.compile()
    actor = pure.actor(pure.init(raw_key(0, INIT), pure.hp), pure.hp)
    packed = PackedParams(pure.actor_shapes).pack(actor, np)
    policy.publish(jax.device_put(packed, device), 0, Spans())
    obs, age = np.zeros((4, count, 84, 84, 1), np.uint8), np.full(count, 9, np.uint8)
    return lambda: np.asarray(policy.begin(obs, 0, 0, age=age, follows=True))


def ms(call: Callable[[], object], times: int) -> float:
    """Return the median of a call's milliseconds."""
    call()
    taken: list[float] = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken)


# --- The model --------------------------------------------------------------------------------


def modelled(
    games: int, threads: int, step: float, reset: float, end: float, *,
    same_step: bool, seeded: float = 0.0, due: float = 0.0, overhead: float = 0.0,
) -> float:  # fmt: skip
    """Return the milliseconds of a step that counts: `games` games on `threads` threads, which take
    them in order.

    Args:
        games, threads: how many.
        step, reset: milliseconds of a game's step, and of a reset without a seed.
        end: the probability that a step ends an episode.
        same_step: whether the thread resets the game at once, or instead of its next step.
        seeded, due: milliseconds of a seeded reset, for which all games wait, and the probability
            that an end makes one due.
        overhead: milliseconds of a turn, on the caller's thread.
    """
    rng, turns = np.random.default_rng(0), 4000
    over, total, steps = np.zeros(games, np.bool_), 0.0, 0
    for _ in range(turns):
        if same_step:
            over = rng.random(games) < end
            work, steps = step + reset * over, steps + games
        else:
            work, steps = np.where(over, reset, step), steps + games - int(over.sum())
            over = (rng.random(games) < end) & ~over
        free = [0.0] * threads
        for task in work.tolist():
            heapq.heapreplace(free, free[0] + task)
        total += max(free) + overhead + over.sum() * due * seeded  # what is expected
    return total / steps


def model_rows(measured: dict[str, Row]) -> list[list[str]]:
    """Return the rows of the table of threads, from the slices of one and of two cores."""
    from flatout.envs.vector import RARELY

    two, rows, games = measured["32"], list[list[str]](), 32
    step = 1e3 * statistics.median(wall * busy for _, wall, busy in two["found"][f"{ALE}/False"])
    reset, seeded = two["parts"]["reset"], two["parts"]["seeded"]
    extra = max(median_turn(two, INLINE, False) - median_turn(two, ALE, False), 0.0)
    kinds = {STEADY: 1 / RARELY.episodes, STICKY: EPISODE / RARELY.steps}
    seen = {STEADY: {1: measured["1 core"], 2: measured["32"]}, STICKY: {2: measured["sticky"]}}
    for game, due in kinds.items():
        for threads in THREADS:
            given = partial(modelled, games, threads, step)
            ale = given(reset, 1 / EPISODE, same_step=False)
            ours = given(reset, 1 / EPISODE, same_step=True, seeded=seeded, due=due, overhead=extra)
            spares = "-"
            if game == STEADY:
                background = games / EPISODE * (2 * reset + due * seeded) / threads
                turn = given(0.0, 0.0, same_step=True, overhead=two["parts"]["spares"])
                spares = f"{ale / (turn + background / games):.2f}"
            row, found = seen[game].get(threads), ["-", "-"]
            if row is not None:
                found = [
                    spread(shares(row, side)) if f"{side}/True" in row["found"] else "-"
                    for side in (INLINE, SPARES)
                ]
            goal = f"{GOALS[game]:.2f}" if threads == max(THREADS) else ""
            rows.append([
                game, str(threads), f"{1e3 / ale:,.0f}", f"{ale / ours:.2f}", found[0], spares,
                found[1], goal,
            ])  # fmt: skip
    return rows


# --- The section ------------------------------------------------------------------------------


def median_turn(row: Row, side: str, ends: bool) -> float:
    """Return the median milliseconds of a side's turns."""
    return 1e3 * statistics.median(turn for turn, *_ in row["found"][f"{side}/{ends}"])


def shares(row: Row, side: str, ends: bool = True) -> list[float]:
    """Return a side's speed in each round as a share of ale-py's own."""
    first, mine = (row["found"][f"{name}/{ends}"] for name in (ALE, side))
    return per_round([wall for _, wall, _ in first], [wall for _, wall, _ in mine])


def speed_rows(name: str, row: Row) -> list[list[str]]:
    """Return the rows of a slice in the table of speeds."""
    part, rows = SLICES[name], list[list[str]]()
    for key, rounds in row["found"].items():
        side, ends = key.split("/")[0], key.endswith("True")
        busy = spread([cores for *_, cores in rounds])
        rows.append([
            part["game"], str(part["count"]), str(part["cores"]), "yes" if ends else "no", side,
            spread([1 / wall for _, wall, _ in rounds], 0), spread(shares(row, side, ends)),
            "-" if side in (PROCESSES, ASYNC) else busy,
        ])  # fmt: skip
    return rows


def part_rows(measured: dict[str, Row]) -> list[list[str]]:
    """Return the rows of the table of a turn's parts."""
    rows: list[list[str]] = []
    for name in ("8", "32", "256"):
        row, own = measured[name], measured[name]["parts"]
        games, resets = median_turn(row, ALE, False), median_turn(row, INLINE, True)
        python = median_turn(row, INLINE, False) - games - own["copies"]
        resets -= median_turn(row, INLINE, False)
        cells = games, resets, own["copies"], own["act"], python
        rows.append([name, *(f"{cell:.2f}" for cell in cells)])
    return rows


def benchmark(args: argparse.Namespace) -> None:
    """Measure the slices that are asked for, and write the section from all that are kept."""
    wanted = args.slice or [name for name, part in SLICES.items() if part["cores"] <= 2]
    kept: dict[str, Row | None] = {}
    for name, part in SLICES.items():
        store = Store(NAME, {"rounds": args.seeds, "slice": part}, args)
        args.fresh = False  # one file, which the first slice has put aside
        if name in wanted:
            argv = [sys.executable, __file__, "--measure", name, str(args.seeds)]
            store.run(name, 0, Command(argv))
        kept[name] = store.get(name, 0)
    measured = {name: row["result"] for name, row in kept.items() if row is not None}
    speeds = [line for name, row in measured.items() for line in speed_rows(name, row)]
    head = ["game", "games", "cores", "ends", "side", "steps/s", "of the first", "busy cores"]
    text = f"""## Steps of Atari games alone

{provenance(args, {name: [row] for name, row in kept.items() if row is not None})}
- Random actions, or no-ops, with which no episode ends. {args.seeds} interleaved rounds after one
  that warms up; the first side of each group is ale-py's vector environment with its own resets in
  its default mode. Busy cores are CPU seconds per second of this process and its threads.

{table(head, speeds)}
"""
    if {"8", "32", "256"} <= set(measured):
        columns = ["games", "games, ms", "resets, ms", "copies, ms", "act, ms", "Python, ms"]
        text += f"""
A turn on 2 cores: *games* is ale-py's without ends, *copies* moves its frames to where the sampler
keeps them, *act* is PPO's compiled policy for all games, and *Python* is the rest.

{table(columns, part_rows(measured))}
"""
    if {"1 core", "32", "sticky"} <= set(measured):
        columns = ["game", "threads", "ale-py, steps/s", "Flatout", "measured", "with spares",
                   "measured", "goal"]  # fmt: skip
        text += f"""
A model of T threads, from the CPU time of steps and the times of resets and seeded resets;
Flatout's as shares of ale-py's own. What the caller's thread does in a turn is added in full, and
so is the background's work, divided by the threads. Sticky actions: no spares are possible.

{table(columns, model_rows(measured))}
"""
    write_section(args, NAME, text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(SLICES[sys.argv[2]], int(sys.argv[3]))))
        sys.stdout.flush()
        os._exit(0)  # the other sides' games and processes are not closed
    options = parser(__doc__, seeds=5, fewest=3)
    options.add_argument("--slice", nargs="*", choices=list(SLICES), help="measure these only")
    main(benchmark, options.parse_args())
