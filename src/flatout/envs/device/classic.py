"""Step 5 of the data flow, fused: Gymnasium's classic control in JAX.

The equations and start states are those of Gymnasium (`gymnasium/envs/classic_control`), in float32
instead of float64. `flatout.envs.device.make` builds them, and the compiled rollout steps them.

From the same state and action, one step agrees with Gymnasium's to 1e-5 (relative for numbers above
1). Over many steps, chaotic systems nevertheless diverge. One step of Acrobot differs by up to 2e-3
if both links are near their greatest speeds: the last stage of Runge-Kutta then computes
accelerations of tens of thousands. Episodes do not reach such states.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from flatout.envs.device.base import DeviceEnv
from flatout.types import Array, ContinuousSpec, DiscreteSpec, ObservationSpec

NOT_TRUNCATED = False
"""None of these environments truncates an episode by its rules; the caller counts the limit."""


def cartpole(limit: int | None = 500, sutton_barto_reward: bool = False) -> DeviceEnv:
    """Make ``CartPole-v1`` (with a limit of 200, ``CartPole-v0``); source: ``cartpole.py``.

    The state is ``[4]`` and equals the observation: the cart's position in metres and its speed,
    the pole's angle in radians and its speed.

    Args:
        limit: steps after which an episode is truncated, or None.
        sutton_barto_reward: the reward is -1 for the step that fails and 0 for the others, instead
            of 1 for each step.
    """
    gravity, cart, pole, half_length, force_size, tau = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    total = cart + pole
    x_limit, angle_limit = 2.4, 12 * 2 * math.pi / 360

    def reset(key: Array) -> tuple[Array, Array]:
        s = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return s, s

    def step(s: Array, action: Array, key: Array) -> tuple[Array, ...]:
        _, x_speed, angle, angle_speed = s
        force = jnp.where(action == 1, force_size, -force_size)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        push = (force + pole * half_length * angle_speed**2 * sin) / total
        angle_acc = (gravity * sin - cos * push) / (half_length * (4 / 3 - pole * cos**2 / total))
        x_acc = push - pole * half_length * angle_acc * cos / total
        s = s + tau * jnp.stack([x_speed, x_acc, angle_speed, angle_acc])
        failed = (jnp.abs(s[0]) > x_limit) | (jnp.abs(s[2]) > angle_limit)
        reward = jnp.where(failed, -1.0, 0.0) if sutton_barto_reward else jnp.ones(())
        return s, s, reward, failed, jnp.asarray(NOT_TRUNCATED)

    return DeviceEnv("CartPole", _vector(4), DiscreteSpec(2), limit, reset, step)


def acrobot(limit: int | None = 500) -> DeviceEnv:
    """Make ``Acrobot-v1``: the dynamics of Sutton and Barto's book, integrated by fourth-order
    Runge-Kutta; source: ``acrobot.py``.

    The state is ``[4]``: two angles in radians, wrapped to [-pi, pi], and their speeds.
    """
    dt = 0.2

    def derivatives(s: Array, torque: Array) -> Array:
        # Both links: mass, length and moment of inertia 1, centre of mass at 0.5.
        first, second, first_speed, second_speed = s
        cos = jnp.cos(second)
        d1 = 0.25 + (1.0 + 0.25 + cos) + 2.0
        d2 = 0.25 + 0.5 * cos + 1.0
        sin, g = jnp.sin(second), 9.8
        phi2 = 0.5 * g * jnp.sin(first + second)  # cos(x - pi / 2)
        phi1 = (
            -0.5 * second_speed**2 * sin - second_speed * first_speed * sin
            + 1.5 * g * jnp.sin(first) + phi2
        )  # fmt: skip
        second_acc = torque + d2 / d1 * phi1 - 0.5 * first_speed**2 * sin - phi2
        second_acc = second_acc / (1.25 - d2**2 / d1)
        return jnp.stack([first_speed, second_speed, -(d2 * second_acc + phi1) / d1, second_acc])

    def observe(s: Array) -> Array:
        cos, sin = jnp.cos(s[:2]), jnp.sin(s[:2])
        return jnp.stack([cos[0], sin[0], cos[1], sin[1], s[2], s[3]])

    def reset(key: Array) -> tuple[Array, Array]:
        s = jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)
        return s, observe(s)

    def step(s: Array, action: Array, key: Array) -> tuple[Array, ...]:
        torque = action.astype(jnp.float32) - 1.0
        k1 = derivatives(s, torque)
        k2 = derivatives(s + dt / 2 * k1, torque)
        k3 = derivatives(s + dt / 2 * k2, torque)
        k4 = derivatives(s + dt * k3, torque)
        s = s + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        fastest = jnp.array([4 * math.pi, 9 * math.pi])
        s = jnp.concatenate([_wrap(s[:2]), jnp.clip(s[2:], -fastest, fastest)])
        up = -jnp.cos(s[0]) - jnp.cos(s[1] + s[0]) > 1.0
        return s, observe(s), jnp.where(up, 0.0, -1.0), up, jnp.asarray(NOT_TRUNCATED)

    return DeviceEnv("Acrobot", _vector(6), DiscreteSpec(3), limit, reset, step)


def mountain_car(limit: int | None = 200, goal_velocity: float = 0.0) -> DeviceEnv:
    """Make ``MountainCar-v0``; source: ``mountain_car.py``. The state is ``[2]``: position, speed.

    Args:
        limit: steps after which an episode is truncated, or None.
        goal_velocity: least speed at the goal with which the episode terminates.
    """

    def step(s: Array, action: Array, key: Array) -> tuple[Array, ...]:
        s = _move_car(s, (action.astype(jnp.float32) - 1.0) * 0.001)
        there = (s[0] >= 0.5) & (s[1] >= goal_velocity)
        return s, s, jnp.full((), -1.0), there, jnp.asarray(NOT_TRUNCATED)

    return DeviceEnv("MountainCar", _vector(2), DiscreteSpec(3), limit, _reset_car, step)


def mountain_car_continuous(limit: int | None = 999, goal_velocity: float = 0.0) -> DeviceEnv:
    """Make ``MountainCarContinuous-v0``; state and arguments as `mountain_car`; source:
    ``continuous_mountain_car.py``."""

    def step(s: Array, action: Array, key: Array) -> tuple[Array, ...]:
        s = _move_car(s, jnp.clip(action[0], -1.0, 1.0) * 0.0015)
        there = (s[0] >= 0.45) & (s[1] >= goal_velocity)
        reward = jnp.where(there, 100.0, 0.0) - action[0] ** 2 * 0.1
        return s, s, reward, there, jnp.asarray(NOT_TRUNCATED)

    action = ContinuousSpec((1,), (-1.0,), (1.0,))
    return DeviceEnv("MountainCarContinuous", _vector(2), action, limit, _reset_car, step)


def _reset_car(key: Array) -> tuple[Array, Array]:
    s = jnp.stack([jax.random.uniform(key, minval=-0.6, maxval=-0.4), jnp.zeros(())])
    return s, s


def _move_car(s: Array, push: Array) -> Array:
    """Return position and speed after a step: the slope pulls the car, the left wall stops it."""
    speed = jnp.clip(s[1] + push - 0.0025 * jnp.cos(3 * s[0]), -0.07, 0.07)
    position = jnp.clip(s[0] + speed, -1.2, 0.6)
    stopped = (position == jnp.float32(-1.2)) & (speed < 0)
    return jnp.stack([position, jnp.where(stopped, 0.0, speed)])


def pendulum(limit: int | None = 200, g: float = 10.0) -> DeviceEnv:
    """Make ``Pendulum-v1``; source: ``pendulum.py``.

    The state is ``[2]``: the angle in radians and its speed. The angle is 0 when upright, and it is
    wrapped to [-pi, pi] so that float32 keeps its digits.

    Args:
        limit: steps after which an episode is truncated, or None.
        g: gravity in m/s2.
    """
    dt = 0.05

    def observe(s: Array) -> Array:
        return jnp.stack([jnp.cos(s[0]), jnp.sin(s[0]), s[1]])

    def reset(key: Array) -> tuple[Array, Array]:
        high = jnp.array([math.pi, 1.0])
        s = jax.random.uniform(key, (2,), minval=-high, maxval=high)
        return s, observe(s)

    def step(s: Array, action: Array, key: Array) -> tuple[Array, ...]:
        torque = jnp.clip(action[0], -2.0, 2.0)
        cost = _wrap(s[0]) ** 2 + 0.1 * s[1] ** 2 + 0.001 * torque**2
        speed = s[1] + (3 * g / 2 * jnp.sin(s[0]) + 3.0 * torque) * dt
        speed = jnp.clip(speed, -8.0, 8.0)
        s = jnp.stack([_wrap(s[0] + speed * dt), speed])
        return s, observe(s), -cost, jnp.asarray(NOT_TRUNCATED), jnp.asarray(NOT_TRUNCATED)

    action = ContinuousSpec((1,), (-2.0,), (2.0,))
    return DeviceEnv("Pendulum", _vector(3), action, limit, reset, step)


def _wrap(angle: Array) -> Array:
    """Return the same angle in [-pi, pi]."""
    return angle - 2 * math.pi * jnp.round(angle / (2 * math.pi))


def _vector(size: int) -> ObservationSpec:
    return ObservationSpec((size,), "float32")
