"""Read and change a policy's parameters."""

import numpy as np
from stable_baselines3 import A2C

model = A2C("MlpPolicy", "CartPole-v1").learn(200)
parameters = model.get_parameters()
policy = parameters["policy"]
name = next(iter(policy))
policy[name] = policy[name] * 0.5
model.set_parameters(parameters, exact_match=True)
again = model.get_parameters()["policy"][name]
assert np.allclose(np.asarray(again), np.asarray(policy[name]))
print("changed", name)
