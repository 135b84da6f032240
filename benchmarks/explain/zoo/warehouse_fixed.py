"""`warehouse`, whose cameras lie in shared memory; only small things are sent."""

import multiprocessing as mp

import numpy as np
import warehouse
from pace import end_with_parent
from warehouse import ForkliftSim, H, W

SHAPES = {"front": ((H, W, 3), "u1"), "rear": ((H, W, 3), "u1"), "depth": ((H, W), "f4")}


def views(blocks):
    return {
        k: np.frombuffer(blocks[k], dtype).reshape(shape) for k, (shape, dtype) in SHAPES.items()
    }


def simulate(seed, pipe, blocks):
    end_with_parent()
    sim = ForkliftSim(seed)
    shared = views(blocks)
    for k in ("front", "rear"):
        shared[k][:] = sim.frames[k]
    shared["depth"][:] = sim.depth
    sim.frames, sim.depth = {k: shared[k] for k in ("front", "rear")}, shared["depth"]
    pipe.send(sim.reset()["odometry"])
    while (action := pipe.recv()) is not None:
        obs, reward, done = sim.step(action)
        pipe.send((obs["odometry"], reward, done))


class Fleet(warehouse.Fleet):
    def __init__(self, n):
        self.pipes, self.processes, self.shared = [], [], []
        for seed in range(n):
            ours, theirs = mp.Pipe()
            blocks = {
                k: mp.RawArray("b", int(np.prod(shape)) * np.dtype(dtype).itemsize)
                for k, (shape, dtype) in SHAPES.items()
            }
            process = mp.Process(target=simulate, args=(seed, theirs, blocks), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)
            self.shared.append(views(blocks))

    def first(self):
        return [
            {**shared, "odometry": odometry}
            for shared, odometry in zip(self.shared, super().first(), strict=True)
        ]

    def step(self, actions):
        return [
            ({**shared, "odometry": odometry}, reward, done)
            for shared, (odometry, reward, done) in zip(
                self.shared, super().step(actions), strict=True
            )
        ]


warehouse.Fleet = Fleet

if __name__ == "__main__":
    warehouse.main()
