"""The iteration: trajectories are collected and learned from, on every placement.

- `state` is what a run changes: parameters, replay, counts, environments of a device.
- `schedule` (serial), `overlapped`, and `fused` with `loop` say who waits for whom; `members` train
  in one program.
- `sampler` is what collects: `collect` and `workers/` act for `groups` of environments on the host,
  whose `episodes` end; `device` has the compiled `rollout`.
- `act` chooses actions, and a `trajectory` holds what comes of them.
- `buffer` and `replay/` say what is learned from, `learn` does it on the devices of a `mesh`.
"""
