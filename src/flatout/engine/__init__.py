"""The iteration: trajectories are collected and learned from, on every placement.

- `state` is what a run changes: parameters, replay, counts, environments of a device.
- `schedule` (serial), `overlapped`, and `fused` with `loop` say who waits for whom; `members` train
  in one program.
- `sampler` is what collects: `collect` and `workers/` act for `groups` of environments on the host,
  whose `episodes` end; `device` has the compiled `rollout`.
- `act` chooses actions, and a `trajectory` holds what comes of them.
- `buffer` and `replay/` say what is learned from, `learn` does it on the devices of a `mesh`.
- `own_loop` is the iteration as pure functions, which `flatout.engine.make` returns.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from flatout.api.own_loop import make as make


def __getattr__(name: str) -> Any:
    """Load `make` on first use. It takes settings, which only higher packages resolve; nothing in
    the engine uses it."""
    if name != "make":
        raise AttributeError(f"module 'flatout.engine' has no attribute {name!r}")
    from flatout.api.own_loop import make

    return make
