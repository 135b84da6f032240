"""`td3_arm.py` with experience in preallocated arrays, of which a batch takes rows."""

import numpy as np
import td3_arm
import torch


class Experience:
    def __init__(self):
        widths = (td3_arm.OBS, td3_arm.JOINTS, None, td3_arm.OBS)
        keep = td3_arm.KEEP
        self.columns = [np.zeros((keep, w) if w else keep, np.float32) for w in widths]
        self.count = 0

    def push(self, *transition):
        for column, value in zip(self.columns, transition, strict=True):
            column[self.count % td3_arm.KEEP] = value
        self.count += 1

    def draw(self, n):
        rows = np.random.randint(0, min(self.count, td3_arm.KEEP), n)
        return [torch.from_numpy(column[rows]) for column in self.columns]


td3_arm.Experience = Experience

if __name__ == "__main__":
    td3_arm.main()
