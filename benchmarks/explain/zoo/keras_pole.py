"""Deep Q-learning with Keras (TensorFlow) on CartPole, as in many tutorials."""

import random
from collections import deque

import gymnasium as gym
import numpy as np
import tensorflow as tf
from pace import Pace


class DQNAgent:
    def __init__(self, state_size, action_size):
        self.action_size = action_size
        self.memory = deque(maxlen=2000)
        self.epsilon = 0.05
        self.model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((state_size,)),
                tf.keras.layers.Dense(24, activation="relu"),
                tf.keras.layers.Dense(24, activation="relu"),
                tf.keras.layers.Dense(action_size),
            ]
        )
        self.model.compile(loss="mse", optimizer=tf.keras.optimizers.Adam(learning_rate=1e-3))

    def q_values(self, state):
        return self.model.predict(state, verbose=0)

    def act(self, state):
        if random.random() <= self.epsilon:
            return random.randrange(self.action_size)
        return int(np.argmax(self.q_values(state)[0]))

    def replay(self, batch_size):
        states, actions, rewards, following, ends = map(
            np.array, zip(*random.sample(self.memory, batch_size), strict=True)
        )
        ahead = np.asarray(self.model(following)).max(1)
        wanted = np.array(self.model(states))
        wanted[np.arange(batch_size), actions] = rewards + 0.95 * ahead * (1 - ends)
        self.model.train_on_batch(states, wanted)


def main():
    pace = Pace.from_args()
    random.seed(0)
    tf.random.set_seed(0)
    env = gym.make("CartPole-v1")
    agent, step = DQNAgent(4, 2), 0
    state, _ = env.reset(seed=0)
    while pace.on():
        action = agent.act(state[None])
        following, reward, terminated, truncated, _ = env.step(action)
        agent.memory.append((state, action, reward, following, float(terminated)))
        state = env.reset()[0] if terminated or truncated else following
        step += 1
        if step > 64 and step % 8 == 0:
            agent.replay(32)
        pace.add()
    pace.report()


if __name__ == "__main__":
    main()
