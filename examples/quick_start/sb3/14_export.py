"""Export the policy to a file that needs neither the library nor its framework."""

import numpy as np
import onnxruntime as ort
import torch
from stable_baselines3 import PPO


class Exported(torch.nn.Module):
    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def forward(self, observation):
        return self.policy(observation, deterministic=True)


model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, device="cpu").learn(1_024)
policy, observation = Exported(model.policy), torch.zeros(1, 4)
torch.onnx.export(policy, observation, "policy.onnx", input_names=["observation"], dynamo=False)
session = ort.InferenceSession("policy.onnx")
print(session.run(None, {"observation": np.zeros((1, 4), np.float32)})[0])
