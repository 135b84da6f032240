"""Hold a card's memory except for some MiB until this is killed, as another user's program does.

python holder.py LEFT_MIB READY_FILE [--dry]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

MIB = 1024 * 1024


def main() -> None:
    """Allocate, tell, wait."""
    left, ready, dry = int(sys.argv[1]), Path(sys.argv[2]), "--dry" in sys.argv
    held = []
    if not dry:
        os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"  # plain allocations, no pool
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        import jax
        import jax.numpy as jnp
        import pynvml

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        held.append(jnp.zeros(1))  # opens the context, which takes memory of its own
        for block in (4096, 256, 32):
            while int(pynvml.nvmlDeviceGetMemoryInfo(card).free) > (left + block) * MIB:
                held.append(jax.block_until_ready(jnp.zeros((block * MIB,), jnp.uint8)))
    ready.touch()
    time.sleep(600)
    del held


if __name__ == "__main__":
    main()
