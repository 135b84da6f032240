"""A parallel game of PettingZoo in which one policy moves all agents: pursuers that catch evaders.

The agents of a few games are the environments of one vector. All agents of a game end together, and
the game is reset within that step. It needs PettingZoo with its SISL games:
``pip install 'pettingzoo[sisl]'``. It prints:

    mean return of a pursuer: -9.4 at first, -5.5 after learning
"""

import gymnasium as gym
import numpy as np

from flatout import PPO


class SharedPolicy(gym.vector.VectorEnv):
    """The agents of several parallel games, which have the same spaces, as environments.

    Args:
        make_game: makes a game of PettingZoo's parallel interface.
        games: the number of games.
    """

    def __init__(self, make_game, games: int) -> None:
        self.games = [make_game() for _ in range(games)]
        self.agents = list(self.games[0].possible_agents)
        self.num_envs = games * len(self.agents)
        self.single_observation_space = self.games[0].observation_space(self.agents[0])
        self.single_action_space = self.games[0].action_space(self.agents[0])
        self.observation_space = gym.vector.utils.batch_space(
            self.single_observation_space, self.num_envs
        )
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}

    def reset(self, *, seed=None, options=None):
        seeds = [None if seed is None else seed + number for number in range(len(self.games))]
        resets = [game.reset(seed=each) for game, each in zip(self.games, seeds, strict=True)]
        return self.rows([observations for observations, _ in resets]), {}

    def step(self, actions):
        seen, last, steps = [], [], []
        each = np.asarray(actions).reshape(len(self.games), len(self.agents), -1)
        for game, chosen in zip(self.games, each, strict=True):
            moves = {agent: move[0] for agent, move in zip(self.agents, chosen, strict=True)}
            observations, *step, _ = game.step(moves)
            steps.append(step)
            last.append(observations)
            seen.append(observations if game.agents else game.reset()[0])
        rewards, terminated, truncated = (
            self.rows([step[part] for step in steps]) for part in range(3)
        )
        infos = {"final_obs": self.rows(last)} if (terminated | truncated).any() else {}
        return self.rows(seen), rewards, terminated, truncated, infos

    def rows(self, games):
        """Return the values of all agents, game after game."""
        return np.stack([game[agent] for game in games for agent in self.agents])

    def close_extras(self, **kwargs):
        for game in self.games:
            game.close()


def pursuit():
    import pettingzoo

    return pettingzoo.make(
        "parallel", "sisl/pursuit-v5", x_size=8, y_size=8, n_pursuers=4, n_evaders=4, max_cycles=100
    )


def make() -> gym.vector.VectorEnv:
    return SharedPolicy(pursuit, games=4)


if __name__ == "__main__":
    agent = PPO(make, envs=16, n_steps=100, batch_size=400, gamma=0.95, seed=1)
    agent.learn(1600)
    before = agent.evaluate(32, deterministic=False).return_mean
    agent.learn(60_000)
    after = agent.evaluate(32, deterministic=False).return_mean
    print(f"mean return of a pursuer: {before:.1f} at first, {after:.1f} after learning")
