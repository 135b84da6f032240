"""Products of matrices in two threads with a quota of less than one core."""

import argparse
import threading

import numpy as np
from truth import Counts

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
args = parser.parse_args()

rng = np.random.default_rng(0)
layers = [rng.normal(size=(300, 300)) / 20 for _ in range(4)]
over = threading.Event()


def improve(layers):
    for layer in layers:
        layer += 1e-6 * (layer @ layer.T) @ layer


def work():
    while not over.is_set():
        improve(layers[2:])


helper, counts = threading.Thread(target=work), Counts("quota", args.seconds)
helper.start()
while counts.on():
    improve(layers[:2])
over.set()
helper.join()
