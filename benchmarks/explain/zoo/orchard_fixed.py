"""`orchard`, whose camera pipeline takes the median of each block instead of at each pixel."""

import numpy as np
import orchard


def observation(self, frame):
    grey = frame[::2, ::2] @ np.array([0.299, 0.587, 0.114])
    k = len(grey) // self.OUT
    blocks = grey.reshape(self.OUT, k, self.OUT, k).swapaxes(1, 2)
    small = np.median(blocks.reshape(self.OUT, self.OUT, k * k), axis=-1)
    low, high = np.percentile(small, (1, 99))
    small = np.clip((small - low) / (high - low + 1e-6), 0.0, 1.0)
    return (2.0 * small - 1.0).astype(np.float32).ravel()


orchard.CameraPipeline.observation = observation

if __name__ == "__main__":
    orchard.main()
