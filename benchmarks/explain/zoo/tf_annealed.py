"""Policy gradient (TensorFlow) whose update is a `tf.function` with an annealed entropy bonus."""

import numpy as np
import tensorflow as tf
from pace import Pace

ARMS, CONTEXT = 10, 16


class Policy(tf.Module):
    def __init__(self):
        super().__init__()
        self.w1 = tf.Variable(tf.random.normal((CONTEXT, 64)) / 4)
        self.w2 = tf.Variable(tf.random.normal((64, ARMS)) / 8)

    def __call__(self, x):
        return tf.tanh(x @ self.w1) @ self.w2


@tf.function
def act(policy, x):
    return tf.random.categorical(policy(x), 1)[:, 0]


@tf.function
def update(policy, x, action, reward, bonus):
    with tf.GradientTape() as tape:
        logp = tf.nn.log_softmax(policy(x))
        chosen = tf.gather(logp, action, batch_dims=1)
        entropy = -tf.reduce_sum(tf.exp(logp) * logp, 1)
        loss = -tf.reduce_mean(chosen * reward + bonus * entropy)
    variables = policy.trainable_variables
    for v, g in zip(variables, tape.gradient(loss, variables), strict=True):
        v.assign_sub(0.01 * g)
    return loss


def annealed(step):
    return 0.1 * 0.999**step


def main():
    pace = Pace.from_args()
    tf.random.set_seed(0)
    rng, policy = np.random.default_rng(0), Policy()
    taste, step = rng.normal(size=(CONTEXT, ARMS)).astype(np.float32), 0
    while pace.on():
        x = rng.normal(size=(128, CONTEXT)).astype(np.float32)
        action = act(policy, x)
        reward = (x @ taste)[np.arange(128), action.numpy()]
        update(policy, x, action, (reward - reward.mean()) / reward.std(), annealed(step))
        step += 1
        pace.add()
    pace.report()


if __name__ == "__main__":
    main()
