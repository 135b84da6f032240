"""Export the policy to a file that needs neither the library nor its framework."""

import importlib

import numpy as np

from flatout import PPO

PPO("CartPole-v1", n_steps=256).learn(1_024).export("policy.py")
policy = importlib.import_module("policy")
print(policy.predict(np.zeros(4, np.float32), deterministic=True)[0])
