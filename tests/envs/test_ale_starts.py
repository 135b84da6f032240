"""Episodes of Atari games between seeded resets: resets by ale-py's own threads, and games whose
resets forget what was played."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from flatout.config.schema import EnvConfig
from flatout.envs.base import TRAINING, episode_seed
from flatout.envs.vector import Reseeding

pytest.importorskip("ale_py", reason="Atari needs ale-py")

from flatout.envs.ale import atari_specs, open_vector, vector_settings
from flatout.envs.ale_ids import atari_id, is_atari, load
from flatout.envs.ale_starts import FORGETFUL
from flatout.envs.atari import AtariEnvs

COUNT, SEED = 3, 5


def states(rom: str, resets: int, plays: bool) -> list[bytes]:
    """Reset a game as `AtariVectorEnv` does, with or without play in between; return memory and
    screen after each reset, and in some steps after the last one."""
    ale_py, rng, found = load(), np.random.default_rng(resets), list[bytes]()
    ale, no_ops = ale_py.ALEInterface(), np.random.default_rng(SEED)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", SEED)
    ale.loadROM(ale_py.roms.get_rom_path(rom))
    actions, noop, fire = ale.getMinimalActionSet(), ale_py.Action.NOOP, ale_py.Action.FIRE

    def step(action: Any) -> None:
        for _ in range(4):
            ale.act(action)

    def note() -> None:
        found.append(ale.getRAM().tobytes() + ale.getScreen().tobytes())

    for reset in range(resets + 1):
        for _ in range(int(rng.integers(1, 300)) if plays and reset else 0):
            step(actions[int(rng.integers(len(actions)))])
            if ale.game_over():
                break
        for byte in range(128 if plays and reset % 2 else 0):
            ale.setRAM(byte, int(rng.integers(256)))
        ale.reset_game()
        if fire in actions:
            ale.act(fire)
        for _ in range(int(no_ops.integers(30))):
            ale.act(noop)
            if ale.game_over():
                ale.reset_game()
        note()
    probe = np.random.default_rng(1)
    for _ in range(60):
        step(actions[int(probe.integers(len(actions)))])
        note()
    return found


@pytest.mark.parametrize("rom", ["breakout", "beam_rider", "ms_pacman"])
def test_a_reset_forgets_what_was_played(rom: str) -> None:
    assert rom in FORGETFUL
    assert states(rom, 3, plays=False) == states(rom, 3, plays=True)


@pytest.mark.slow
def test_the_games_whose_resets_forget_are_listed() -> None:
    names = {atari_id(spec.id).rom for spec in gym.registry.values() if is_atari(spec.id)}
    found = {rom for rom in names if states(rom, 4, False) == states(rom, 4, True)}
    assert found >= FORGETFUL
    assert len(names - found) > 10


class Single:
    """One game in a vector environment of its own, which is reset when it ends: by its number of
    episodes or steps since the last seeded reset, with a seed or without."""

    def __init__(self, config: EnvConfig, env: int, reseeding: Reseeding) -> None:
        self._vector, self._limit = (
            open_vector(vector_settings(config), 1, 1),
            atari_specs(config)[2],
        )
        self._env, self._reseeding = env, reseeding
        self._episode = self._since = self._steps = self._length = -1
        self._begin()

    def step(self, action: int) -> tuple[Any, ...]:
        """Return observation, reward, life lost, and what is known of an episode that ended."""
        stack, reward, terminated, _, info = self._vector.step(np.array([action], np.int32))
        lost, self._lives = int(info["lives"][0]) < self._lives, int(info["lives"][0])
        self._steps += 1
        self._length += 1
        end, over = None, bool(terminated[0])
        if over or self._length == self._limit:
            end = over, not over, self._lives, self._image(stack)
            lost = False
            self._begin()
            stack = self._stack
        return self._image(stack), float(reward[0]), lost, end

    def _begin(self) -> None:
        self._episode, self._since = self._episode + 1, self._since + 1
        every = self._reseeding
        due = self._since >= every.episodes if every.episodes else self._steps >= every.steps
        seed, self._length = -1, 0
        if due or not self._episode:
            seed = episode_seed(SEED, TRAINING, self._env, self._episode)
            self._since = self._steps = 0
        self._stack, info = self._vector.reset(seed=np.array([seed]))
        self._lives = int(info["lives"][0])

    def _image(self, stack: np.ndarray) -> bytes:
        return stack[0].transpose(1, 2, 0).tobytes()


@pytest.mark.parametrize(
    ("game", "reseeding", "ends"),
    [
        (EnvConfig("BreakoutNoFrameskip-v4"), Reseeding(episodes=2), "game"),
        pytest.param(EnvConfig("ALE/Pong-v5", sticky_actions=0,
                               env_kwargs={"max_num_frames_per_episode": 160}),
                     Reseeding(episodes=3), "limit", marks=pytest.mark.slow),
        pytest.param(EnvConfig("ALE/Breakout-v5"), Reseeding(steps=250), "game",
                     marks=pytest.mark.slow),
        pytest.param(EnvConfig("ALE/Breakout-v5", frame_skip=3,
                               env_kwargs={"max_num_frames_per_episode": 200}),
                     Reseeding(steps=100), "limit", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_game_among_others_is_played_as_one_alone(
    game: EnvConfig, reseeding: Reseeding, ends: str
) -> None:
    envs = AtariEnvs(game, COUNT, SEED, reseeding=reseeding)
    obs, rewards = np.zeros((COUNT, 84, 84, 4), np.uint8), np.zeros(COUNT, np.float32)
    seen: dict[int, Any] = {}

    def ended(env: int, terminated: bool, truncated: bool, final: np.ndarray) -> None:
        info = envs.finished(env).info or {}
        seen[env] = terminated, truncated, int(info["lives"]), final.tobytes()

    envs.reset_all(obs)
    alone = [Single(game, env, reseeding) for env in range(COUNT)]
    rng, over = np.random.default_rng(2), list[Any]()
    assert envs.life_lost is not None
    for _ in range(450 if ends == "game" else 210):
        seen.clear()
        actions = rng.integers(0, 4, COUNT).astype(np.int32)
        envs.step(actions, obs, rewards, ended)
        for env, one in enumerate(alone):
            end, lost = seen.get(env), bool(envs.life_lost[env])
            found = obs[env].tobytes(), float(rewards[env]), lost, end
            assert found == one.step(int(actions[env]))
        over += seen.values()
    assert len(over) > COUNT
    assert {terminated for terminated, *_ in over} == {ends == "game"}
    assert envs.seeded_episode != [0] * COUNT
    envs.close()
