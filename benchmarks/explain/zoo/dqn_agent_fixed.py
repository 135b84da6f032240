"""`dqn_agent.py` choosing its actions under `torch.no_grad()`."""

import dqn_agent
import torch


class Agent(dqn_agent.Agent):
    @torch.no_grad()
    def act(self, state):
        return super().act(state)


dqn_agent.Agent = Agent

if __name__ == "__main__":
    dqn_agent.main()
