"""Deep Q-learning on CartPole with Keras, in the style of its tutorials."""

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
from phases import phase

env = gym.make("CartPole-v1")
model = keras.Sequential(
    [
        keras.layers.Input((4,)),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(2),
    ]
)
target_model = keras.models.clone_model(model)
optimizer = keras.optimizers.Adam(learning_rate=1e-3, clipnorm=1.0)
loss_function = keras.losses.Huber()
history = []
batch_size, gamma, epsilon = 32, 0.99, 0.1


def train_step(states, actions, rewards, following, done):
    future = target_model.predict(following, verbose=0)
    targets = rewards + gamma * (1 - done) * future.max(axis=1)
    masks = tf.one_hot(actions, 2)
    with tf.GradientTape() as tape:
        q_values = model(states)
        q_action = tf.reduce_sum(q_values * masks, axis=1)
        loss = loss_function(targets.astype("float32"), q_action)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


for episode in range(1_000_000):
    state, _ = env.reset(seed=episode)
    done = False
    while not done:
        with phase("acting"):
            if np.random.random() < epsilon:
                action = np.random.choice(2)
            else:
                values = model(tf.expand_dims(tf.convert_to_tensor(state), 0), training=False)
                action = int(tf.argmax(values[0]).numpy())
        with phase("env"):
            following, reward, terminated, truncated, _ = env.step(action)
        history.append((state, action, reward, following, float(terminated)))
        state, done = following, terminated or truncated
        if len(history) > batch_size and len(history) % 4 == 0:
            with phase("replay"):
                rows = np.random.choice(len(history), batch_size)
                batch = [np.array([history[row][part] for row in rows]) for part in range(5)]
            with phase("learning"):
                train_step(*batch)
        if len(history) % 1_000 == 0:
            target_model.set_weights(model.get_weights())
