"""SAC of SBX on Pendulum, as its README has it."""

import jax
from methods import time_method
from phases import PATH
from sbx import SAC

model = SAC("MlpPolicy", "Pendulum-v1")
train = model.train


def train_and_wait(gradient_steps, batch_size):
    train(gradient_steps, batch_size)
    jax.block_until_ready(model.policy.actor_state.params)


if PATH:  # the timer of learning includes what the device computes
    model.train = train_and_wait
time_method(model.get_env(), "step", "env")
time_method(model, "predict", "acting")
time_method(model.replay_buffer, "add", "replay")
time_method(model.replay_buffer, "sample", "replay")
time_method(model, "train", "learning")
model.learn(total_timesteps=100_000_000)
