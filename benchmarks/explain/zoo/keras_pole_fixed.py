"""`keras_pole.py` calling its model directly instead of `predict`."""

import keras_pole
import numpy as np


class DQNAgent(keras_pole.DQNAgent):
    def q_values(self, state):
        return np.asarray(self.model(state))


keras_pole.DQNAgent = DQNAgent

if __name__ == "__main__":
    keras_pole.main()
