"""`a2c_tanker.py` with each of its 4 environments in a process of its own."""

import a2c_tanker
import gymnasium as gym


def make_envs():
    return gym.vector.AsyncVectorEnv([a2c_tanker.Tanker] * a2c_tanker.ENVS)


a2c_tanker.make_envs = make_envs

if __name__ == "__main__":
    a2c_tanker.main()
