"""`dqn_agent.py` playing 8 games at once, whose actions one call without gradients chooses."""

import dqn_agent
import gymnasium as gym
import numpy as np
import torch
from pace import Pace

GAMES = 8


class Agent(dqn_agent.Agent):
    @torch.no_grad()
    def act_all(self, states):
        q = self.model(torch.from_numpy(np.stack(states)))
        self.best = [*self.best, q.max()][-100:]
        explores = np.random.rand(GAMES) < 0.05
        return np.where(explores, np.random.randint(self.actions, size=GAMES), q.argmax(1).numpy())


def main():
    pace = Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    np.random.seed(0)
    games = [gym.make("CartPole-v1") for _ in range(GAMES)]
    agent = Agent(4, 2)
    states = [game.reset(seed=seed)[0] for seed, game in enumerate(games)]
    step = 0
    while pace.on():
        for number, action in enumerate(agent.act_all(states)):
            after, reward, terminated, truncated, _ = games[number].step(action)
            agent.remember(states[number], action, reward, after, terminated)
            ended = terminated or truncated
            states[number] = games[number].reset()[0] if ended else after
        step += GAMES
        if step > 500 and step % 32 == 0:
            agent.learn()
        if step % 2000 == 0:
            agent.target.load_state_dict(agent.model.state_dict())
        pace.add(GAMES)
    pace.report()


if __name__ == "__main__":
    main()
