"""Facts about single frames and calls: which library's function runs, and of which class it is.

Names of libraries' functions are facts. The names that a program chooses say nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache

from flatout_explain.libraries import LIBRARIES
from flatout_explain.program.codes import Code, Leaf

# --- Where code comes from --------------------------------------------------------------------

GENERATED = "/torchinductor_"
"""In the paths of files that `torch.compile` writes."""


def installed(file: str) -> str:
    """Return an installed file's path within the folder of packages; empty for others."""
    file = file.replace("\\", "/")
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in file:
            return file.rpartition(folder)[2]
    return ""


@lru_cache(maxsize=100_000)
def package(file: str, stdlib: str) -> str:
    """Return ``program``, ``stdlib``, ``import``, or the name of one of the `LIBRARIES`."""
    file = file.replace("\\", "/")
    if file.startswith("<frozen importlib"):
        return "import"
    if GENERATED in file:
        return "torch"
    if inner := installed(file):
        name = inner.split("/")[0].removesuffix(".py")
        return name if name in LIBRARIES else "program"
    if file.startswith((stdlib.replace("\\", "/") + "/", "<frozen ")):
        return "stdlib"
    return "program"


def is_program(code: Code, stdlib: str) -> bool:
    """Return whether a function belongs to the program or to a library of algorithms."""
    return package(code.file, stdlib) == "program" and not code.file.startswith("<__array")


def is_own(code: Code, stdlib: str, folder: str) -> bool:
    """Return whether a function is the program's own: of its main module's folder or package,
    wherever that lies; all else is a library. Where the folder is unknown, what is not
    installed."""
    file = code.file.replace("\\", "/")
    if not folder or file.startswith("/") != folder.startswith("/"):
        return package(code.file, stdlib) == "program" and not installed(file)
    inside = file.startswith(folder + "/")
    return inside and installed(file[len(folder) :]) == ""


# --- Frames -----------------------------------------------------------------------------------

ENV_BASES = (
    "gymnasium.Env", "gym.Env", "gymnasium.Wrapper", "gym.Wrapper", "gymnasium.VectorEnv",
    "dm_env.Environment", "pettingzoo.AECEnv", "pettingzoo.ParallelEnv", "stable_baselines3.VecEnv",
    "gym3.Env", "brax.Env", "gymnax.Environment", "envpool.EnvPool", "procgen.ProcgenEnv",
)  # fmt: skip
"""Libraries' classes of environments, with their topmost packages."""

IO_FILES = re.compile(
    r"/torch/utils/tensorboard/|/tensorboardX/|/tensorboard/|/matplotlib/|/imageio/|/wandb/"
    r"|/h5py/|/logging/(__init__|handlers)\.py|/lib/python[\d.]+/(csv|shutil|tarfile|zipfile|gzip"
    r"|pathlib)(\.py|/)|/safetensors/|/joblib/numpy_pickle"
)
ARRAY_FILES = re.compile(
    r"/torch/serialization\.py|/numpy/lib/(_npyio_impl|npyio|format|_format_impl)\.py|/json/"
)
"""Libraries' files of functions that read and write arrays and documents."""

READS = {"load", "loads", "_load", "_legacy_load", "read_array", "loadtxt", "genfromtxt", "_read"}
IPC_FILES = re.compile(
    r"/multiprocessing/[a-z_]+\.py|/torch/multiprocessing/|/zmq/|/ray/|/socket\.py"
    r"|/socketserver\.py|/concurrent/futures/|/xmlrpc/|/queue\.py|/subprocess\.py"
)
INPUT_FILES = re.compile(
    r"/torch/utils/data/|/torchvision/(transforms|datasets|io)|/PIL/|/tensorflow/python/data/"
    r"|/keras/src/(trainers/data_adapters|utils/.*dataset)|/albumentations/|/skimage/"
)
DATASETS = ("torch.Dataset", "torch.IterableDataset", "torchvision.VisionDataset")
LEARN_FILES = re.compile(
    r"/torch/optim/(?!lr_scheduler)|/torch/autograd/(__init__|function|graph)\.py|/torch/amp/|/optax/"
    r"|/torch/nn/utils/(clip_grad|convert_parameters)\.py"
    r"|/tensorflow/python/eager/(backprop|tape)|/keras/src/(optimizers|backend/[a-z]+/optimizer)"
    r"|/keras/(optimizers|src/trainers)/|/tensorflow/python/training/"
)
NOT_LEARNING = ("_wrapped_call_impl", "__init__", "add_param_group")
"""Functions in those files that apply no gradients."""

TAKES_GRADIENTS = {"vjp", "value_and_grad_f", "grad_f", "linearize", "cotangent_f"}
"""JAX's functions that take gradients outside of compiled functions."""

NETWORK_FILES = re.compile(
    r"/torch/nn/modules/|/keras/src/(layers|models)/|/flax/(linen|nnx)/(?!transforms)|/equinox/nn/|/haiku/"
)
DISTRIBUTION_FILES = re.compile(
    r"/torch/distributions/|/tensorflow_probability/|/distrax/|/numpyro/distributions/"
)
"""Distributions made from a network's output: acting or learning, as the network's own calls."""

NETWORK_CALLS = {"forward", "__call__", "_call_impl", "_wrapped_call_impl", "call", "apply", "run"}
"""Functions that run a network; PyTorch's others copy, count or move its parameters."""

PARAMETER_CALLS = {
    "parameters", "named_parameters", "_named_members", "load_state_dict", "_load_from_state_dict",
}  # fmt: skip
"""PyTorch's functions that list a network's parameters, or set them: no sign of an update."""

DIST_FILES = re.compile(r"/torch/distributed/|/horovod/|/mpi4py/")
COLLECTIVES = {
    "all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter", "barrier", "gather",
    "scatter", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all", "send", "recv",
    "allreduce", "allgather", "synchronize", "monitored_barrier", "all_gather_object",
    "broadcast_object_list", "all_reduce_coalesced", "wait",
    "bcast", "alltoall", "allgatherv", "gatherv", "scatterv", "sendrecv", "waitall", "ssend",
}  # fmt: skip

COMPILERS = re.compile(
    r"/jax/_src/(compiler|compilation_cache|cache_key|interpreters/(mlir|pxla))\.py"
    r"|/tensorflow/python/eager/polymorphic_function/tracing"
)
"""Tracing and compiling, which are not learning's operations."""


WRAPPERS = {"wrapper", "reraise_with_filtered_traceback", "cache_miss"}
"""JAX's functions around its other functions."""


def is_jax(code: Code) -> bool:
    """Return whether a function is JAX's own."""
    return "/jax/_src/" in code.file.replace("\\", "/")


def frame_tag(code: Code, stdlib: str) -> str | None:
    """Return a frame's tag by the first rule that holds; None without one."""
    file, name = code.file.replace("\\", "/"), code.plain
    where = package(code.file, stdlib)
    in_trainer = "/keras/" in file and "trainer" in file
    arrays = ARRAY_FILES.search(file)
    rules = (
        ("copy", is_jax(code) and name in ("device_get", "device_put", "asarray", "array")),
        ("draw", is_random(code, where)),
        ("import", where == "import"),
        ("predict", in_trainer and name.startswith("predict")),
        ("evaluate", in_trainer and name in ("evaluate", "test_on_batch", "test_step")),
        ("optimise", in_trainer and name in ("fit", "train_on_batch", "train_step")),
        ("document", arrays and "/json/" in file),
        ("input", arrays and name in READS),
        ("io", arrays or IO_FILES.search(file)),
        ("communicate" if name in COLLECTIVES else None, DIST_FILES.search(file)),
        ("ipc", IPC_FILES.search(file)),
        ("io" if name == "render" else "env", is_env(code)),
        ("input", INPUT_FILES.search(file) or _is_dataset(code)),
        ("optimise", file.endswith("/torch/_tensor.py") and name == "backward"),
        ("optimise", is_jax(code) and name in TAKES_GRADIENTS),
        ("optimise", LEARN_FILES.search(file) and name not in NOT_LEARNING),
        ("optimise", "torch.Optimizer" in _bases(code) and name == "step"),
        ("network", NETWORK_FILES.search(file) and name in NETWORK_CALLS),
        ("network", file.endswith("/torch/_dynamo/eval_frame.py")),  # calls what it has compiled
        ("network", DISTRIBUTION_FILES.search(file)),
        ("optimise", "/torch/nn/modules/module.py" in file and name == "zero_grad"),
        ("parameters", "/torch/nn/modules/module.py" in file and name in PARAMETER_CALLS),
    )
    return next((tag for tag, holds in rules if holds), None)


def is_random(code: Code, where: str) -> bool:
    """Return whether a function of a library draws rows at random."""
    file = code.file.replace("\\", "/")
    ours = where == "stdlib" and file.endswith("/random.py")
    return code.plain in DRAWS | UNIFORM and (ours or file.endswith("/jax/_src/random.py"))


def steps(kinds: str) -> bool:
    """Return whether values are a step's: an observation, a reward, and whether it ended."""
    if len(kinds) < 3:
        return False
    scalar = kinds[0] in "oNBn" and kinds[1] == "n" and "b" in kinds[2:4]
    vector = kinds[0] in "oNB" and kinds[1] == "N" and "B" in kinds[2:4]
    return scalar or vector


def _bases(code: Code) -> tuple[str, ...]:
    """Return the classes that the class of a method is derived from, with itself."""
    owner = code.owner
    return () if owner is None else tuple(owner["bases"])


def is_env(code: Code) -> bool:
    """Return whether a method's class is derived from a library's environment."""
    inherits = any(base in ENV_BASES for base in _bases(code))
    return inherits and not code.plain.startswith("__")


def _is_dataset(code: Code) -> bool:
    return any(base in DATASETS for base in _bases(code)) and not code.plain.startswith("__init")


# --- Leaves -----------------------------------------------------------------------------------

WAITS = {
    "acquire", "wait", "select", "poll", "sleep", "join", "epoll", "waitpid", "wait_for",
    "lock", "sched_yield", "_recv_bytes", "recv_into", "accept", "sem_acquire", "get_objects",
    "run_task_loop",
}  # fmt: skip
TRANSFERS = {
    "item", "cpu", "cuda", "numpy", "tolist", "to", "device_put", "device_get", "from_numpy",
    "copy_to_host_async", "as_tensor", "FloatTensor", "LongTensor", "pin_memory",
}  # fmt: skip
DRAWS = {
    "permutation", "choice", "sample", "randint", "integers", "shuffle", "randrange", "choices",
    "randperm", "multinomial", "random_integers", "permuted", "categorical",
}  # fmt: skip
WRITES = {
    "fsync", "flush", "write", "writelines", "savez", "save", "dump", "savefig", "print", "imwrite",
    "mimsave", "savetxt", "fdatasync", "tofile", "save_file", "sync",
}  # fmt: skip
FILES = {"replace", "rename", "remove", "unlink", "mkdir", "rmdir"}
"""Functions of the operating system that change folders; lists have some of these names, too."""

CONVERSIONS = {
    "tensor", "as_tensor", "from_numpy", "FloatTensor", "LongTensor", "stack", "cat", "vstack",
    "array", "asarray", "concatenate", "hstack", "to", "cuda", "float", "long", "unsqueeze",
    "device_put",
}  # fmt: skip
"""Calls that make a network's input from other values."""

SAMPLES = {"sample", "multinomial", "categorical"}
"""Functions of libraries that draw from a distribution."""

UNIFORM = {"uniform", "random", "rand"}
"""Draws that choose rows only in a program that steps environments."""

PICKLES = {"dumps", "loads"}
MOVES = PICKLES | {"write", "send", "_send", "sendmsg", "sendall", "read", "recv", "dump"}

ENDS_THREAD = re.compile(r"\bjoin\(\s*(\)|timeout\b|[\d.]+\s*\))")
"""A call that waits for the end of a thread; the `join` of texts always gets what it joins."""

BLOCKS = {"block_until_ready", "batched_block_until_ready", "synchronize"}
"""Calls that do nothing but wait for a device."""

SYNCS = BLOCKS | {
    "item", "cpu", "tolist", "numpy", "nonzero", "float", "int", "bool", "print", "asarray", "to",
    "cuda",
}  # fmt: skip
"""Calls that wait for a GPU's result, where the program uses one."""

FETCHING = {
    "_value", "__array__", "__float__", "__int__", "__bool__", "__index__", "__complex__",
    "__format__", "__repr__", "__str__", "__iter__", "item", "tolist", "block_until_ready",
    "device_get", "_device_get", "_single_device_array_to_np_array_did_copy",
}  # fmt: skip
"""JAX's functions in which a program waits for a result."""


def fetches(code: Code) -> bool:
    """Return whether a function waits for a result of JAX's device."""
    file = code.file.replace("\\", "/")
    return code.plain in FETCHING and file.endswith(("/jax/_src/array.py", "/jax/_src/api.py"))


PYTHON = ("builtins.function", "builtins.method", "builtins.type")


def is_c(leaf: Leaf) -> bool:
    """Return whether what the innermost frame calls is written in C: a function of Python's would
    have a frame of its own."""
    return leaf.kind.get("type", "") not in PYTHON


def is_draw(leaf: Leaf) -> bool:
    """Return whether the innermost frame draws rows at random, by a library's function."""
    owner = leaf.kind.get("of", "")
    of_library = not owner or owner.split(".")[0] in ("numpy", "random", "torch", "_random", "jax")
    return leaf.word in DRAWS | UNIFORM and is_c(leaf) and of_library


def is_collective(leaf: Leaf) -> bool:
    """Return whether the innermost frame exchanges data by MPI, whose functions are no Python."""
    return leaf.kind.get("of", "").startswith("mpi4py.") and leaf.word.lower() in COLLECTIVES


def is_wait(leaf: Leaf, code: Code) -> bool:
    """Return whether the innermost frame waits."""
    word, file = leaf.word, code.file.replace("\\", "/")
    if "/multiprocessing/" in file:
        return word in WAITS or word in ("read", "recv", "get") or code.plain in (
            "wait", "_poll", "poll", "acquire",
        )  # fmt: skip
    if word == "join" and not file.endswith("/threading.py") and not ENDS_THREAD.search(leaf.text):
        return False
    if not is_c(leaf) or (word == "wait" and "/torch/" in file):
        return False
    return word in WAITS or (word == "get" and "queue" in file) or receives(leaf)


def receives(leaf: Leaf) -> bool:
    """Return whether the innermost frame waits for what a socket receives."""
    return leaf.word in ("recv", "recv_into", "accept", "recvfrom") and "socket" in leaf.kind.get(
        "of", ""
    )


def is_transfer(leaf: Leaf, code: Code) -> bool:
    """Return whether the innermost frame copies or syncs between host and device."""
    jax = ("device_get", "device_put", "_device_put_jaxpr_impl")
    return leaf.word in TRANSFERS or ("/jax/" in code.file and code.plain in jax)


def takes_out(leaf: Leaf) -> bool:
    """Return whether the innermost frame takes numbers out of a tensor of PyTorch's."""
    of = leaf.kind.get("of", "")
    word = ("item", "cpu", "tolist", "numpy") if of.startswith("torch") else ("item", "cpu")
    return leaf.word in word and is_c(leaf) and (not of or of.startswith("torch"))


def is_write(leaf: Leaf) -> bool:
    """Return whether the innermost frame writes to a file."""
    word = leaf.word
    if not is_c(leaf):
        return False
    if word in FILES:
        return leaf.kind.get("of") in ("posix", "nt") or leaf.call.startswith(("os.", "shutil."))
    if word == "sync":
        return leaf.call in ("os.sync", "sync")
    if word == "open":
        return leaf.call in ("open", "io.open", "os.open")
    if word in ("dump", "save"):
        return not leaf.kind.get("type", "").startswith("numba")
    if word == "write":
        return not leaf.call.startswith("sys.std")
    return word in WRITES


def is_read(leaf: Leaf) -> bool:
    """Return whether the innermost frame reads from a file."""
    reads = leaf.word in ("read", "readline", "readlines", "readinto", "fromfile", "frombuffer")
    return reads and leaf.kind.get("of", "").startswith(("_io.", "numpy"))
