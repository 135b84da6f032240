"""DQN in TensorFlow 1 style (placeholders, `session.run`): six players, one memory."""

import numpy as np
import tensorflow.compat.v1 as tf
from pace import Pace

tf.disable_eager_execution()
PLAYERS, ACTIONS, MEMORY = 6, 4, 20_000


class Pitch:
    """Run past a keeper: own place and speed, the keeper's place."""

    def __init__(self, rng):
        self.rng = rng
        self.restart()

    def restart(self):
        self.me, self.keeper = np.array([0.0, self.rng.uniform(-1, 1)]), 0.0
        return self.state()

    def state(self):
        return np.array([*self.me, self.keeper, self.me[1] - self.keeper], np.float32)

    def run(self, action):
        self.me = self.me + [(0.1, 0), (0, 0.1), (0, -0.1), (0.05, 0)][action]
        self.keeper += np.clip(self.me[1] - self.keeper, -0.05, 0.05)
        scored = self.me[0] > 1 and abs(self.me[1] - self.keeper) > 0.3
        return self.state(), float(scored), bool(self.me[0] > 1 or abs(self.me[1]) > 1.5)


def q_network(x, scope):
    with tf.variable_scope(scope):
        for i, width in enumerate((64, 64)):
            w = tf.get_variable(f"w{i}", (int(x.shape[1]), width))
            x = tf.nn.relu(tf.matmul(x, w) + tf.get_variable(f"b{i}", (width,)))
        return tf.matmul(x, tf.get_variable("out", (64, ACTIONS)))


class Graph:
    def __init__(self):
        self.s, self.s2 = (tf.placeholder(tf.float32, (None, 4)) for _ in range(2))
        self.a, self.r = tf.placeholder(tf.int32, (None,)), tf.placeholder(tf.float32, (None,))
        self.end = tf.placeholder(tf.float32, (None,))
        self.q, ahead = q_network(self.s, "online"), q_network(self.s2, "target")
        self.best = tf.argmax(self.q, axis=1)
        target = tf.stop_gradient(self.r + 0.95 * (1 - self.end) * tf.reduce_max(ahead, 1))
        taken = tf.reduce_sum(self.q * tf.one_hot(self.a, ACTIONS), 1)
        self.loss = tf.reduce_mean(tf.square(taken - target))
        self.train = tf.train.AdamOptimizer(1e-3).minimize(self.loss)
        pairs = zip(tf.global_variables("online"), tf.global_variables("target"), strict=False)
        self.copy = [theirs.assign(ours) for ours, theirs in pairs]


def main():
    pace = Pace.from_args()
    tf.set_random_seed(0)
    rng, graph = np.random.default_rng(0), Graph()
    pitches = [Pitch(rng) for _ in range(PLAYERS)]
    states = [pitch.state() for pitch in pitches]
    S, S2 = np.zeros((MEMORY, 4), np.float32), np.zeros((MEMORY, 4), np.float32)
    A, R, E = np.zeros(MEMORY, np.int32), np.zeros(MEMORY, np.float32), np.zeros(MEMORY)
    n = rounds = 0
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(graph.copy)
        while pace.on():
            for i, pitch in enumerate(pitches):
                action = session.run(graph.best, feed_dict={graph.s: states[i][None]})[0]
                action = rng.integers(ACTIONS) if rng.random() < 0.05 else action
                following, reward, end = pitch.run(action)
                at = n % MEMORY
                S[at], A[at], R[at], S2[at], E[at] = states[i], action, reward, following, end
                states[i], n = pitch.restart() if end else following, n + 1
            rounds += 1
            if n > 600:
                j = rng.integers(0, min(n, MEMORY), 64)
                feed = {graph.s: S[j], graph.a: A[j], graph.r: R[j], graph.s2: S2[j]}
                session.run(graph.train, feed_dict={**feed, graph.end: E[j]})
            if rounds % 500 == 0:
                session.run(graph.copy)
            pace.add(PLAYERS)
    pace.report()


if __name__ == "__main__":
    main()
