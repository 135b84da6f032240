# %% [markdown]
# Which way is uphill? A convnet looks at height maps of 40x40 and says one of 8 directions.

# %%

import torch
import torch.nn as nn
import torch.nn.functional as F
from pace import Pace

torch.manual_seed(0)
N, SIDE, BATCH = 6000, 40, 256

# %% data: a plane in a random direction, and hills on it
angle = torch.rand(N) * 2 * torch.pi
label = ((angle / (torch.pi / 4)).round().long()) % 8
axis = torch.linspace(-1, 1, SIDE)
plane = (
    torch.cos(angle)[:, None, None] * axis[None, None]
    + torch.sin(angle)[:, None, None] * axis[:, None]
)
hills = F.interpolate(torch.randn(N, 1, 6, 6), size=(SIDE, SIDE), mode="bicubic")
maps = 0.6 * plane[:, None] + hills
maps = (maps - maps.mean((1, 2, 3), keepdim=True)) / maps.std()

# %% model


def block(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)
    )


model = nn.Sequential(
    block(1, 32), block(32, 64), block(64, 128), nn.Flatten(), nn.Linear(128 * 25, 512), nn.ReLU(),
    nn.Linear(512, 8),
)  # fmt: skip
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)

# %% train
if __name__ == "__main__":
    pace = Pace.from_args()
    losses = []
    while pace.on():
        rows = torch.randint(0, N, (BATCH,))
        loss = F.cross_entropy(model(maps[rows]), label[rows], label_smoothing=0.05)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        pace.add(BATCH)
    print(f"loss {losses[0]:.3f} -> {sum(losses[-5:]) / len(losses[-5:]):.3f}")
    pace.report()
