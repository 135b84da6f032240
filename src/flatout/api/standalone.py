"""A trained agent in one file that needs only NumPy.

    import policy
    action, _ = policy.predict(observation, deterministic=True)  # of one observation, or of a batch

`predict` draws an action with `GENERATOR`, unless ``deterministic=True``. `outputs` returns the
network's outputs: logits or action values for discrete actions, and the greedy actions themselves
for continuous ones.
"""

import base64
import zlib  # noqa: F401 - for word_counts
from typing import Any

import numpy as np

from flatout.casts import cast_actions, stored, word_counts

SPEC: dict[str, Any] = {}


GENERATOR = np.random.default_rng()


def predict(
    observation: Any,
    state: Any = None,
    episode_start: Any = None,
    deterministic: Any = False,
    action_mask: Any = None,
) -> Any:
    """Return the action for one observation, or the actions for a batch, and the state.

    The arguments are those of an agent's `predict`. A recurrent policy takes the state that was
    returned for the step before, None where all episodes start, and `episode_start`, True for each
    observation with which an episode starts; others have the state None. If the environment masks
    its actions, `action_mask` has 1 for each allowed value of the action and 0 for the others,
    unless the observation holds it as ``action_mask``.
    """
    if isinstance(state, (bool, np.bool_)):
        raise ValueError(f"the second argument is the state: write deterministic={state}")
    if not isinstance(deterministic, (bool, np.bool_)):
        raise ValueError("deterministic is True or False")
    arrays, singles = [], set()
    observation, mask = without_mask(observation)
    mask = mask if action_mask is None else action_mask
    for path, shape, dtype, text, _ in SPEC["inputs"]:
        obs = array_of(entry(observation, path), shape, text)
        single = obs.shape == tuple(shape)
        if not single and obs.shape[1:] != tuple(shape):
            of = f" for {path!r}" if path else ""
            given = obs.shape or type(observation).__name__
            raise ValueError(f"observations have the shape {tuple(shape)}{of}, this is {given}")
        singles.add(single)
        arrays.append(stored(obs[None] if single else obs, dtype))
    if len(singles) > 1 or len({len(array) for array in arrays}) > 1:
        raise ValueError("the entries of the observation are batches of different sizes")
    carry = remembered(state, episode_start, len(arrays[0]))
    found = chosen_by(arrays, carry, None if deterministic else GENERATOR)
    actions, _ = acted(allowed(found, mask), SPEC["action"])
    return first(actions) if singles == {True} else actions, tuple(carry) or None


def remembered(state: Any, episode_start: Any, count: Any) -> Any:
    """Return the arrays ``[count, H]`` of a recurrent policy's memory before a step, a list; empty
    if the policy is not recurrent."""
    widths = SPEC["memory"]
    if state is None:
        return [np.zeros((count, width), np.float32) for width in widths]
    if not widths:
        raise ValueError("this policy is not recurrent and has no state: leave state out")
    shapes = [(count, width) for width in widths]
    if not isinstance(state, (tuple, list)) or [np.shape(one) for one in state] != shapes:
        raise ValueError(f"the state has to be the last one that predict returned, arrays {shapes}")
    fits = np.shape(episode_start) in ((count,), ())
    if not fits or not np.isin(episode_start, (0, 1)).all():
        raise ValueError(f"with a state, pass episode_start: {count} times True or False")
    lasts = 1.0 - np.broadcast_to(np.asarray(episode_start, np.float32), count)[:, None]
    return [np.asarray(one, np.float32) * lasts for one in state]


def without_mask(observation: Any) -> Any:
    """Return the observation without its mask, and the mask or None."""
    if SPEC["mask"] is None or not isinstance(observation, dict):
        return observation, None
    rest, masks = dict(observation), [None]
    for key in ("action_mask", "action_masks"):
        if key in rest:
            masks.insert(0, rest.pop(key))
    alone = len(rest) == 1 and SPEC["inputs"][0][0] == ""
    return next(iter(rest.values())) if alone else rest, masks[0]


def allowed(found: Any, mask: Any) -> Any:
    """Return the outputs ``[B, P]`` with -inf for actions that the mask ``[B, K]`` forbids."""
    if SPEC["mask"] is None:
        if mask is not None:
            raise ValueError("this agent was trained without masks: leave action_mask out")
        return found
    if mask is None:
        raise ValueError("the environment masks its actions: pass action_mask")
    columns, sizes = np.array(SPEC["mask"]), choices(SPEC["action"])
    parts, size = mask if isinstance(mask, tuple) and len(sizes) > 1 else (), sum(sizes)
    if parts and [np.atleast_1d(part).shape[-1] for part in parts] != sizes:
        raise ValueError(f"the parts of a mask have {sizes} entries, in this order")
    mask = np.concatenate(parts, -1) if parts else np.asarray(mask)
    if mask.shape != (len(found), size) and (len(found) > 1 or mask.size != size):
        raise ValueError(f"a mask has {size} entries for each observation, this is {mask.shape}")
    mask = mask.reshape(-1, size)
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError("the entries of a mask have to be 0 or 1")
    if not all(part.any(-1).all() for part in np.split(mask, np.cumsum(sizes)[:-1], -1)):
        raise ValueError("a mask allows no action")
    return np.where((columns < 0) | (mask[:, columns] > 0), found, -np.inf)


def choices(action: Any) -> Any:
    """Return the number of values of each component of an action, in the order of masks; boxes
    have none."""
    if action["kind"] == "parts":
        return [count for part in action["parts"] for count in choices(part)]
    if action["kind"] == "choice":
        return [action["count"]]
    return [] if action["kind"] == "box" else list(action["counts"])


def acted(found: Any, action: Any) -> Any:
    """Return the actions for the network's outputs ``[B, P]``, and the remaining outputs."""
    kind, size = action["kind"], len(found)
    if kind == "parts":
        parts = []
        for part in action["parts"]:
            taken, found = acted(found, part)
            parts.append(taken)
        keys = action["keys"]
        return (tuple(parts) if keys is None else dict(zip(keys, parts))), found  # noqa: B905
    if kind == "choice":
        count = action["count"]
        return found[:, :count].argmax(-1) + action["start"], found[:, count:]
    if kind == "box":
        count = int(np.prod(action["shape"]))
        cast = cast_actions(found[:, :count], action["dtype"])
        return cast.reshape(size, *action["shape"]), found[:, count:]
    chosen = []
    for count, start in zip(action["counts"], action["starts"]):  # noqa: B905
        chosen.append(found[:, :count].argmax(-1) + start)
        found = found[:, count:]
    array = np.stack(chosen, -1).astype(action["dtype"]).reshape(size, *action["shape"])
    return array, found


def first(actions: Any) -> Any:
    """Return the first of a batch of actions, which may be a dict or a tuple of arrays."""
    if isinstance(actions, dict):
        return {key: first(part) for key, part in actions.items()}
    return tuple(map(first, actions)) if isinstance(actions, tuple) else actions[0]


def outputs(obs: Any) -> Any:
    """Return the network's outputs ``[B, P]`` in float32 for raw observations ``[B, ...]``, those
    of a recurrent policy for the first observations of episodes."""
    obs, _ = without_mask(obs)
    arrays = [
        stored(array_of(entry(obs, path), shape, text), dtype)
        for path, shape, dtype, text, _ in SPEC["inputs"]
    ]
    return chosen_by(arrays, remembered(None, None, len(arrays[0])))


def array_of(value: Any, shape: Any, text: Any) -> Any:
    """Return an entry of an observation as an array; texts become counts of words."""
    if text and not isinstance(value, str):
        return np.stack([word_counts(one, *shape) for one in value])
    return word_counts(value, *shape) if text else np.asarray(value)


def entry(observation: Any, path: Any) -> Any:
    """Return the array at a path of a nested observation; a single array has an empty path."""
    for key in path.split("/") if path else ():
        if isinstance(observation, dict) and key not in observation:
            raise ValueError(f"the observation has no entry {path!r}")
        observation = observation[key if isinstance(observation, dict) else int(key)]
    return observation


def chosen_by(arrays: Any, carry: Any, draws: Any = None) -> Any:
    """Return the network's outputs for the arrays of an observation, in the order of ``inputs``.

    A recurrent policy's memory after the step replaces the arrays in the list `carry`. With a
    random generator `draws`, noise is added so that the action chosen by the outputs is a draw.
    """
    parts = [
        applied(array if exact(steps) else array.astype(np.float32), steps)
        for array, (*_, steps) in zip(arrays, SPEC["inputs"])  # noqa: B905
    ]
    x = parts[0] if len(parts) == 1 else np.concatenate(parts, -1)
    return applied(x, SPEC["layers"], draws, carry)


def exact(steps: Any) -> Any:
    """Return whether an array holds categories, which float32 would round from 2**24 on."""
    return bool(steps) and steps[0][0] == "categories"


def applied(x: Any, steps: Any, draws: Any = None, carry: Any = None) -> Any:
    for name, arrays, settings in steps:
        values = (*(ARRAYS[i] for i in arrays), *settings)
        if name in CELLS:
            carry[:] = CELLS[name](x, carry, *values)
            x = carry[0]
        elif name not in DRAWS:
            x = LAYERS[name](x, *values)
        elif draws is not None:
            x = DRAWS[name](draws, x, *values).astype(np.float32)
    return x


def sampled(draws: Any, x: Any, deviations: Any) -> Any:
    """Add normal noise to means, and Gumbel noise to logits, which have deviations of -1: the
    largest logit is then a draw."""
    noise = deviations * draws.standard_normal(x.shape)
    return x + np.where(deviations < 0, draws.gumbel(size=x.shape), noise)


def epsilon_greedy(draws: Any, x: Any, epsilon: Any) -> Any:
    """Replace the action values of each row by random ones with probability `epsilon`."""
    explores = draws.random((len(x), 1)) < epsilon
    return np.where(explores, draws.random(x.shape), x)


def squashed(draws: Any, x: Any, low: Any, high: Any) -> Any:
    """Return means with noise ``[B, A]`` for means and log deviations ``[B, 2A]``."""
    mean, log_std = np.split(x, 2, -1)
    return mean + np.exp(np.clip(log_std, low, high)) * draws.standard_normal(mean.shape)


def noisy(draws: Any, x: Any, deviations: Any) -> Any:
    """Add noise to actions, and clip them to -1..1."""
    return np.clip(x + deviations * draws.standard_normal(x.shape), -1, 1)


DRAWS: dict[str, Any] = {
    "sampled": sampled, "epsilon_greedy": epsilon_greedy, "squashed": squashed, "noisy": noisy,
}  # fmt: skip


def normalise(x: Any, mean: Any, var: Any) -> Any:
    return np.clip((x - mean) / np.sqrt(var + np.float32(1e-8)), -10, 10)


def linear(x: Any, weight: Any, bias: Any) -> Any:
    return x @ weight.T + bias


def gru(x: Any, carry: Any, *arrays: Any) -> Any:
    """Return the memory after a step of a gated recurrent unit."""
    (h,) = carry
    (reset, keep, new), (by_reset, by_keep, by_new) = gates(x, h, 3, *arrays)
    keep = sigmoid(keep + by_keep)
    new = np.tanh(new + sigmoid(reset + by_reset) * by_new)
    return ((1 - keep) * new + keep * h,)


def lstm(x: Any, carry: Any, *arrays: Any) -> Any:
    """Return the memory after a step of long short-term memory."""
    h, c = carry
    write, keep, new, show = (a + b for a, b in zip(*gates(x, h, 4, *arrays)))  # noqa: B905
    c = sigmoid(keep) * c + sigmoid(write) * np.tanh(new)
    return sigmoid(show) * np.tanh(c), c


def gates(x: Any, h: Any, count: Any, weight: Any, bias: Any, by: Any, by_bias: Any) -> Any:
    """Return the contributions of features and of the memory's output to each of `count` gates."""
    parts = linear(x, weight, bias), linear(h, by, by_bias)
    return [np.split(part, count, -1) for part in parts]


def sigmoid(x: Any) -> Any:
    return np.tanh(x / 2) / 2 + np.float32(0.5)


CELLS: dict[str, Any] = {"gru": gru, "lstm": lstm}


def dueling(x: Any, weight: Any, bias: Any, base_weight: Any, base_bias: Any) -> Any:
    q = linear(x, weight, bias)
    return linear(x, base_weight, base_bias) + q - q.mean(-1, keepdims=True)


def conv(x: Any, weight: Any, bias: Any, stride: Any, padding: Any) -> Any:
    """Convolve ``[B, H, W, in]`` with an HWIO kernel."""
    size = len(weight)
    if padding == "SAME":
        over = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[1:3]]
        x = np.pad(x, ((0, 0), *((n // 2, n - n // 2) for n in over), (0, 0)))
    patches = np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))
    patches = patches[:, ::stride, ::stride]  # [B, H', W', in, k, k]
    return np.tensordot(patches, weight, ((3, 4, 5), (2, 0, 1))) + bias


def one_hot(x: Any, values: Any) -> Any:
    """Return cells ``[B, H, W, c]`` as ``[B, H, W, c * values]`` of 0 and 1."""
    planes = x[..., None] == np.arange(values)
    return planes.reshape(*x.shape[:-1], x.shape[-1] * values).astype(np.float32)


def centred(x: Any, values: Any) -> Any:
    """Return the board shifted so that its head (value 1) is in the centre, one-hot over the values
    from 2 on and "outside"."""
    count, rows, columns, _ = x.shape
    cells = x.astype(int)[..., 0]
    seen = np.full((count, 2 * rows - 1, 2 * columns - 1), values)
    for board, cell in zip(seen, cells):  # noqa: B905 - as long as each other
        row, column = divmod(int((cell == 1).argmax()), columns)
        row, column = rows - 1 - row, columns - 1 - column
        board[row : row + rows, column : column + columns] = cell
    return (seen[..., None] == np.arange(2, values + 1)).astype(np.float32)


def compass(x: Any, values: Any) -> Any:
    """Return 1 / steps to the nearest cell of each value, in eight directions from the head."""
    rows, columns = x.shape[1:3]
    down, right = np.arange(1 - rows, rows), np.arange(1 - columns, columns)
    near = centred(x, values) / np.maximum(abs(down)[:, None] + abs(right), 1)[..., None]
    ways = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    at = (near[:, np.sign(down) == a][:, :, np.sign(right) == b] for a, b in ways)
    return np.stack([part.max((1, 2), initial=0) for part in at], 1).astype(np.float32)


def categories(x: Any, counts: Any, starts: Any) -> Any:
    """Return the one-hot vectors of categories ``[B, ...]``, concatenated."""
    cells = x.reshape(len(x), -1) - np.array(starts)
    parts = [cells[:, [i]] == np.arange(count) for i, count in enumerate(counts)]
    return np.concatenate(parts, -1).astype(np.float32)


def flatten(x: Any) -> Any:
    """Return images ``[B, H, W, c]`` as vectors, also for B = 0, where NumPy infers no size."""
    return x.reshape(len(x), int(np.prod(x.shape[1:])))


LAYERS: dict[str, Any] = {
    "normalise": normalise, "linear": linear, "dueling": dueling, "conv": conv, "one_hot": one_hot,
    "centred": centred, "compass": compass, "first": lambda x, n: x[:, :n],
    "scale": lambda x, high: x * np.float32(1.0 / high), "flatten": flatten,
    "channels_last": lambda x: np.moveaxis(x, 1, -1), "categories": categories,
    "clip": np.clip, "tanh": np.tanh,
    "to_box": lambda x, middle, half, low, high: np.clip(middle + half * x, low, high),
    "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x * sigmoid(x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.float32(0.7978845608) * (x + 0.044715 * x**3))),
}  # fmt: skip


def read(text: Any, shapes: Any) -> Any:
    """Return the parameters from base64 of little-endian float32, one array after another."""
    flat = np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32)
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    return [flat[a:b].reshape(s) for a, b, s in zip(ends, ends[1:], shapes)]  # noqa: B905


DATA = ""
ARRAYS = read(DATA, SPEC.get("shapes", []))
