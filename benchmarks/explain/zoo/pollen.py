"""Pollen grains under the microscope: a classifier, with a module and a trainer apart."""

import numpy as np
import torch
import torch.nn.functional as F
from pace import Pace
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES, RAW, CROP, BATCH = 6, 224, 64, 32


def grain(rng, label):
    """A slide with one grain of `label`: the number of its pores tells the species."""
    image = Image.fromarray(rng.integers(180, 220, (RAW, RAW, 3), dtype=np.uint8))
    pen = ImageDraw.Draw(image)
    x, y, r = *rng.integers(90, 135, 2).tolist(), int(rng.integers(45, 65))
    pen.ellipse((x - r, y - r, x + r, y + r), fill=(190, 160, 70), outline=(90, 70, 20), width=3)
    for k in range(label + 1):
        px = x + 0.6 * r * np.cos(2 * np.pi * k / (label + 1))
        py = y + 0.6 * r * np.sin(2 * np.pi * k / (label + 1))
        pen.ellipse((px - 5, py - 5, px + 5, py + 5), fill=(80, 50, 20))
    return image


class Slides(Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, CLASSES, n)
        self.images = [grain(rng, int(label)) for label in self.labels]

    def __len__(self):
        return len(self.images)

    def augment(self, image):
        image = image.rotate(np.random.uniform(0, 360), Image.BICUBIC, fillcolor=(200, 200, 200))
        side = int(np.random.uniform(0.7, 1.0) * RAW)
        left, top = np.random.randint(0, RAW - side + 1, 2).tolist()
        image = image.crop((left, top, left + side, top + side)).resize((CROP, CROP), Image.LANCZOS)
        for enhance in (ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Brightness):
            image = enhance(image).enhance(np.random.uniform(0.7, 1.3))
        if np.random.rand() < 0.5:
            image = image.filter(ImageFilter.GaussianBlur(np.random.uniform(0.2, 1.5)))
        return image.transpose(Image.FLIP_LEFT_RIGHT) if np.random.rand() < 0.5 else image

    def __getitem__(self, i):
        x = np.asarray(self.augment(self.images[i]), np.float32) / 255.0
        x = x + np.random.normal(0.0, 0.03, x.shape).astype(np.float32)
        x = (x - x.mean((0, 1))) / (x.std((0, 1)) + 1e-3)
        return torch.from_numpy(x.transpose(2, 0, 1).copy()), int(self.labels[i])


class PollenModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES),
        )  # fmt: skip

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, y), "acc": (logits.argmax(1) == y).float().mean()}

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-4)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.8)


class PollenData:
    def setup(self):
        self.train_set = Slides(1000)

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=BATCH, shuffle=True, drop_last=True)


class Trainer:
    def __init__(self, pace):
        self.pace = pace
        self.logged = {}

    def fit(self, module, data):
        data.setup()
        loader = data.train_dataloader()
        optimizer, scheduler = module.configure_optimizers()
        module.train()
        running = self.pace.on()
        while running:
            for batch_idx, batch in enumerate(loader):
                out = module.training_step(batch, batch_idx)
                optimizer.zero_grad(set_to_none=True)
                out["loss"].backward()
                optimizer.step()
                self.pace.add(len(batch[1]))
                if batch_idx % 20 == 0:
                    self.logged = {k: v.item() for k, v in out.items()}
                running = self.pace.on()
                if not running:
                    break
            scheduler.step()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    pace = Pace.from_args()
    Trainer(pace).fit(PollenModule(), PollenData())
    pace.report()


if __name__ == "__main__":
    main()
