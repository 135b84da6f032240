"""DQN from Stable-Baselines3 catches apples, from camera frames."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from pace import Pace
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback


class OrchardEnv(gym.Env):
    """Apples fall, a basket moves left or right below them."""

    SIDE = 160

    def __init__(self):
        self.observation_space = spaces.Box(0, 255, (self.SIDE, self.SIDE, 3), np.uint8)
        self.action_space = spaces.Discrete(3)
        self.grass = np.full((self.SIDE, self.SIDE, 3), (90, 140, 80), np.uint8)

    def _frame(self):
        frame = self.grass.copy()
        x, y = self.apple
        frame[y : y + 12, x : x + 12] = (200, 30, 40)
        frame[-16:-6, self.basket : self.basket + 28] = (120, 80, 20)
        salt = self.np_random.integers(0, self.SIDE, (2, 200))
        frame[salt[0], salt[1]] = 255
        return frame

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.basket = self.SIDE // 2
        self.apple = [int(self.np_random.integers(0, self.SIDE - 12)), 0]
        self.drops = 0
        return self._frame(), {}

    def step(self, action):
        self.basket = int(np.clip(self.basket + (action - 1) * 8, 0, self.SIDE - 28))
        self.apple[1] += 10
        reward = 0.0
        if self.apple[1] >= self.SIDE - 24:
            reward = 1.0 if -12 < self.apple[0] - self.basket < 28 else -1.0
            self.apple = [int(self.np_random.integers(0, self.SIDE - 12)), 0]
            self.drops += 1
        return self._frame(), reward, self.drops >= 20, False, {}


class CameraPipeline(gym.ObservationWrapper):
    """Grey, without the specks, 20 by 20, contrast stretched, as a vector."""

    OUT = 20

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Box(-1.0, 1.0, (self.OUT * self.OUT,), np.float32)

    def observation(self, frame):
        grey = frame.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
        padded = np.pad(grey, 1, mode="edge")
        h, w = grey.shape
        shifted = [padded[i : i + h, j : j + w] for i in range(3) for j in range(3)]
        clean = np.median(np.stack(shifted), axis=0)
        k = h // self.OUT
        small = np.zeros((self.OUT, self.OUT))
        for row in range(self.OUT):
            for col in range(self.OUT):
                small[row, col] = clean[row * k : (row + 1) * k, col * k : (col + 1) * k].mean()
        low, high = np.percentile(small, (1, 99))
        small = np.clip((small - low) / (high - low + 1e-6), 0.0, 1.0)
        return (2.0 * small - 1.0).astype(np.float32).ravel()


class PaceCallback(BaseCallback):
    """Stops the learning when the time is over."""

    def __init__(self, pace):
        super().__init__()
        self.pace = pace

    def _on_step(self):
        self.pace.add(1)
        return self.pace.on()


def main():
    torch.set_num_threads(1)
    pace = Pace.from_args()
    env = CameraPipeline(OrchardEnv())
    model = DQN(
        "MlpPolicy",
        env,
        learning_rate=5e-4,
        buffer_size=50_000,
        learning_starts=100,
        batch_size=64,
        train_freq=4,
        target_update_interval=500,
        exploration_fraction=0.001,
        policy_kwargs={"net_arch": [128, 128]},
        seed=0,
        device="cpu",
    )
    model.learn(total_timesteps=10_000_000, callback=PaceCallback(pace))
    pace.report()


if __name__ == "__main__":
    main()
