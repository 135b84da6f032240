"""Images per second of one small network: Flatout, PyTorch as written and compiled."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from gpu_rows.base import Bench, Figures, Row, share
from images import write_images

PEER = str(Path(__file__).parent.parent / "peers" / "small_network.py")
SIDES = {
    "flatout, highest": "highest", "flatout, default": "default", "PyTorch": "torch",
    "PyTorch, compiled": "torch-compiled",
}  # fmt: skip
BATCHES = (128, 1_024, 4_096, 16_384)


def batch(size: int, bench: Bench) -> list[Figures]:
    """One batch size on all sides, which take the same steps over the same images."""
    data = bench.folder / "images"
    write_images(data, bench.size(40_000, 2_000), bench.size(1_000, 100))
    compiled = not bench.dry or size == BATCHES[0]  # on a CPU that takes half a minute
    size = bench.size(size, size // 32)
    steps, start = bench.size(400, 40), bench.size(200, 20)
    common = ("--data", data, "--steps", steps, "--batch-size", size)
    lines = []
    for name, how in SIDES.items():
        if how == "torch-compiled" and not compiled:
            continue
        busy: Figures = {}
        if name.startswith("flatout"):
            result = bench.train(
                "classify", *common, "--size", "small", "--precision", how, "--log-every", 10,
                placement="gpu", name=how, window_from=start,
            )  # fmt: skip
            busy = result["busy"]
        else:
            try:
                done = bench.run([
                    sys.executable, PEER, "--library", how, *map(str, common), "--window-from",
                    str(start),
                ])  # fmt: skip
            except Exception as error:
                if how != "torch-compiled":
                    raise
                bench.notes.append(
                    f"torch.compile does not work here: {str(error).splitlines()[-1]}"
                )
                continue
            result = json.loads(done.stdout)
        window = result["window"]
        lines.append({
            "batch": size, "side": name, "images/s": window["steps"] * size / window["s"],
            "ms per update": 1000 * window["s"] / window["steps"],
            "GPU busy": share(busy.get("gpu")), "GPU full": share(busy.get("full")),
        })  # fmt: skip
    return lines


ROWS = [
    Row(f"classify/{size}", partial(batch, size), ("torch",), 240, free_mb=6_000)
    for size in BATCHES
]
