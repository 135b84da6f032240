"""Keyword spotting (PyTorch): sounds are read and turned into spectra by a DataLoader's worker."""

import io
import zlib

import numpy as np
import torch
from pace import Pace
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

RATE, WORDS = 8000, 4


def record(word, rng):
    """One compressed second of a tune with noise."""
    t = np.arange(RATE) / RATE
    wave = np.sin(2 * np.pi * (200 + 90 * word) * t * (1 + 0.1 * t)) + rng.normal(0, 0.4, RATE)
    buffer = io.BytesIO()
    np.save(buffer, (wave * 8000).astype(np.int16))
    return zlib.compress(buffer.getvalue(), 6)


class Sounds(IterableDataset):
    """Compressed sounds, decoded, stretched and noised anew each time."""

    def __init__(self, n=300):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, WORDS, n).tolist()
        self.files = [record(word, rng) for word in self.labels]

    def __iter__(self):
        rng = np.random.default_rng(torch.initial_seed() % 2**32)
        while True:
            i = int(rng.integers(len(self.files)))
            wave = np.load(io.BytesIO(zlib.decompress(self.files[i]))).astype(np.float64) / 8000
            speed = rng.uniform(0.9, 1.1)
            wave = np.interp(np.arange(0, RATE, speed)[:7000], np.arange(RATE), wave)
            wave = wave + rng.normal(0, 0.1, len(wave))
            window, frames = np.hanning(256), []
            for start in range(0, 6700, 64):
                power = np.abs(np.fft.rfft(wave[start : start + 256] * window)) ** 2
                frames.append(np.log(power + 1e-3)[:64])
            yield np.array(frames, dtype=np.float32), self.labels[i]


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(64, 32, 5, stride=3)
        self.head = nn.Linear(32, WORDS)

    def forward(self, spectra):
        return self.head(torch.relu(self.conv(spectra.transpose(1, 2))).mean(-1))


if __name__ == "__main__":
    pace = Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Sounds(), batch_size=32, num_workers=1, prefetch_factor=2, multiprocessing_context="spawn"
    )
    model = Spotter()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches, average = iter(loader), 0.0
    next(batches)  # the worker is there
    while pace.on():
        spectra, words = next(batches)
        loss = nn.functional.cross_entropy(model(spectra), words)
        opt.zero_grad()
        loss.backward()
        opt.step()
        average = 0.95 * average + 0.05 * loss.item()
        pace.add(32)
    del batches
    print(f"loss {average:.3f}")
    pace.report()
