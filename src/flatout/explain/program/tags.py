"""Tags of single frames: environment, network, optimiser, replay, files, pipes.

First by the code itself (the library's file, its class's attributes, the compiled function), then
by the English words in its names.
"""

from __future__ import annotations

import re
from functools import lru_cache

from flatout.explain.program.evidence import Code, Leaf

# --- Where code comes from --------------------------------------------------------------------

CORE = {
    "torch", "jax", "jaxlib", "numpy", "tensorflow", "keras", "tf_keras", "optax", "equinox",
    "flax", "haiku", "gymnasium", "gym", "scipy", "torchvision", "PIL", "cv2", "numba",
    "functorch", "triton", "absl", "imageio", "matplotlib", "tensorboard", "tensorboardX",
    "wandb", "ray", "zmq", "cloudpickle", "pandas", "h5py", "ale_py", "joblib", "einops",
}  # fmt: skip
"""Packages that are a training program's tools; others count as the program."""


def installed(file: str) -> str:
    """The path of an installed package's file within the folder of packages; empty for others."""
    file = file.replace("\\", "/")
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in file:
            return file.rpartition(folder)[2]
    return ""


@lru_cache(maxsize=100_000)
def package(file: str, stdlib: str) -> str:
    """``program``, ``stdlib``, ``import``, or the name of a `CORE` package."""
    file = file.replace("\\", "/")
    if file.startswith("<frozen importlib"):
        return "import"
    if inner := installed(file):
        name = inner.split("/")[0].removesuffix(".py")
        return name if name in CORE else "program"
    if file.startswith((stdlib.replace("\\", "/") + "/", "<frozen ")):
        return "stdlib"
    return "program"


def is_program(code: Code, stdlib: str) -> bool:
    """Whether a function belongs to the program or to a library of algorithms."""
    return package(code.file, stdlib) == "program" and not code.file.startswith("<__array")


# --- Frames -----------------------------------------------------------------------------------

ENV_BASES = ("gymnasium.Env", "gym.Env", "gymnasium.Wrapper", "gym.Wrapper", "gymnasium.VectorEnv")
NOT_ENV = ("zero_grad", "learn", "forward", "parameters", "state_dict", "apply_gradients")
ENV_FUNCTION = re.compile(r"_*(env_)?(step|reset)(_env|_world|_game)?$|step_env|reset_env")
STORE = ("add", "push", "append", "store", "insert", "remember", "put")
IO_FILES = re.compile(
    r"/torch/serialization\.py|/torch/utils/tensorboard/|/tensorboardX/|/tensorboard/|/matplotlib/"
    r"|/imageio/|/wandb/|/numpy/lib/(_npyio_impl|npyio|format|_format_impl)\.py|/h5py/"
    r"|/logging/(__init__|handlers)\.py|/lib/python[\d.]+/(json|csv|shutil|tarfile|zipfile|gzip"
    r"|pathlib)(\.py|/)|/safetensors/|/joblib/numpy_pickle"
)
IPC_FILES = re.compile(
    r"/multiprocessing/(connection|queues|reduction|managers|synchronize|shared_memory|pool"
    r"|sharedctypes|heap)\.py|/torch/multiprocessing/|/zmq/|/ray/|/socket\.py|/socketserver\.py"
    r"|/concurrent/futures/|/xmlrpc/|/queue\.py"
)
INPUT_FILES = re.compile(
    r"/torch/utils/data/|/torchvision/(transforms|datasets|io)|/PIL/|/tensorflow/python/data/"
    r"|/keras/src/(trainers/data_adapters|utils/.*dataset)|/albumentations/|/skimage/"
)
LEARN_FILES = re.compile(
    r"/torch/optim/|/torch/autograd/(__init__|function|graph)\.py|/torch/amp/|/optax/"
    r"|/tensorflow/python/eager/(backprop|tape)|/keras/src/(optimizers|backend/[a-z]+/optimizer)"
    r"|/keras/(optimizers|src/trainers)/|/tensorflow/python/training/"
)
NOT_LEARNING = ("_wrapped_call_impl", "__init__", "add_param_group")
"""Functions in those files that apply no gradients."""

NETWORK_FILES = re.compile(
    r"/torch/nn/modules/|/tensorflow/python/client/session\.py|/keras/src/(layers|models)/|/flax/(linen|nnx)/|/equinox/nn/|/haiku/"
)
DISTRIBUTION_FILES = re.compile(
    r"/torch/distributions/|/tensorflow_probability/|/distrax/|/numpyro/distributions/"
)
"""Distributions made from a network's output: acting or learning, as the network's own calls."""

NETWORK_CALLS = {"forward", "__call__", "_call_impl", "_wrapped_call_impl", "call", "apply", "run"}
"""Functions that run a network; others of its class copy, count or name its parameters."""

DIST_FILES = re.compile(r"/torch/distributed/|/horovod/|/mpi4py/|/torch/nn/parallel/")
COLLECTIVES = {
    "all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter", "barrier", "gather",
    "scatter", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all", "send", "recv",
    "allreduce", "allgather", "synchronize", "monitored_barrier", "all_gather_object",
    "broadcast_object_list", "all_reduce_coalesced", "wait",
}  # fmt: skip

COMPILERS = re.compile(
    r"/jax/_src/(compiler|compilation_cache|cache_key|interpreters/(mlir|pxla))\.py"
    r"|/torch/_(dynamo|inductor)/|/tensorflow/python/eager/polymorphic_function/tracing"
)
"""Tracing and compiling, which are not learning's operations."""


WRAPPERS = {"wrapper", "reraise_with_filtered_traceback", "cache_miss"}
"""JAX's functions around its other functions."""


def is_jax(code: Code) -> bool:
    """Whether a function is JAX's own."""
    return "/jax/_src/" in code.file.replace("\\", "/")


def frame_tag(code: Code, stdlib: str) -> str | None:
    """A frame's tag, by the first rule that holds; None if none does, or if it is undecided."""
    file, name = code.file.replace("\\", "/"), code.plain
    where = package(code.file, stdlib)
    in_trainer = "/keras/" in file and "trainer" in file
    rules = (
        ("copy", is_jax(code) and name in ("device_get", "device_put", "asarray", "array")),
        ("draw", where == "stdlib" and file.endswith("/random.py") and name in DRAWS),
        ("import", where == "import"),
        ("predict", in_trainer and name.startswith("predict")),
        ("optimise", in_trainer and name in ("fit", "train_on_batch", "train_step")),
        ("io", IO_FILES.search(file) and name not in ("loads", "dumps", "decode", "encode")),
        ("ipc", IPC_FILES.search(file)),
        ("communicate" if name in COLLECTIVES else None, DIST_FILES.search(file)),
        ("env", is_env(code)),
        ("input", INPUT_FILES.search(file) or _is_dataset(code, where)),
        ("replay", is_replay(code)),
        ("optimise", file.endswith("/torch/_tensor.py") and name == "backward"),
        ("optimise", LEARN_FILES.search(file) and name not in NOT_LEARNING),
        ("optimise", code.has("zero_grad") and name == "step"),
        ("network", NETWORK_FILES.search(file) and name in NETWORK_CALLS),
        ("network", DISTRIBUTION_FILES.search(file)),
        ("env", code.owner is None and where == "program" and ENV_FUNCTION.match(name)),
    )
    return next((tag for tag, holds in rules if holds), None)


def steps(kinds: str) -> bool:
    """Whether a function returns elements of a step's kinds: an observation, a reward, ends."""
    if len(kinds) < 3:
        return False
    scalar = kinds[0] in "oNn" and kinds[1] == "n" and "b" in kinds[2:4]
    vector = kinds[0] in "oN" and kinds[1] == "N" and "B" in kinds[2:4]
    return scalar or vector


def is_env(code: Code) -> bool:
    """Whether a method's class steps and resets, and is no learner."""
    owner = code.owner
    if owner is None or code.plain.startswith("__"):
        return False
    if any(base in ENV_BASES for base in owner["bases"]):
        return not (code.has("zero_grad") or code.has("parameters"))
    stepping = code.has("step", "reset") and not any(map(code.has, NOT_ENV))
    return stepping and (code.plain in ("step", "reset", "render") or not code.has("act"))


def is_replay(code: Code) -> bool:
    """Whether a method's class stores and samples."""
    samples = code.has("sample") or code.has("sample_batch")
    stores = any(map(code.has, STORE)) and not code.has("step")
    return samples and stores and not code.plain.startswith("__init")


def _is_dataset(code: Code, where: str) -> bool:
    indexed = code.plain == "__getitem__" and code.has("__getitem__", "__len__")
    return indexed and where == "program" and not code.has("forward")


# --- Leaves -----------------------------------------------------------------------------------

WAITS = {
    "acquire", "wait", "select", "poll", "sleep", "join", "epoll", "waitpid", "wait_for",
    "lock", "sched_yield", "_recv_bytes", "recv_into", "accept", "sem_acquire",
}  # fmt: skip
TRANSFERS = {
    "item", "cpu", "cuda", "numpy", "tolist", "to", "device_put", "device_get", "from_numpy",
    "copy_to_host_async", "as_tensor", "FloatTensor", "LongTensor", "pin_memory",
}  # fmt: skip
COPIES = TRANSFERS | {
    "tensor", "copy", "copy_", "clone", "detach", "copyto", "block_until_ready", "deepcopy",
}  # fmt: skip
"""Calls in functions that only move parameters between host and device."""

DRAWS = {
    "permutation", "choice", "sample", "randint", "integers", "shuffle", "randrange", "choices",
}  # fmt: skip
GATHERS = {
    "stack", "array", "asarray", "concatenate", "vstack", "as_tensor", "tensor", "from_numpy",
    "FloatTensor", "LongTensor", "zip", "take", "stack_", "hstack",
}  # fmt: skip
WRITES = {
    "fsync", "flush", "write", "writelines", "savez", "save", "dump", "savefig", "print", "imwrite",
    "mimsave", "savetxt", "fdatasync", "tofile", "save_file", "replace", "rename",
}  # fmt: skip
PICKLES = {"dumps", "loads"}
MOVES = PICKLES | {"write", "send", "_send", "sendmsg", "sendall", "read", "recv", "dump"}


BLOCKS = {"block_until_ready", "batched_block_until_ready", "synchronize"}
"""Calls that do nothing but wait for a device."""

SYNCS = BLOCKS | {
    "item", "cpu", "tolist", "numpy", "nonzero", "float", "int", "bool", "print", "asarray", "to",
}  # fmt: skip
"""Calls that wait for a GPU's result, where the program uses one."""

FETCHING = {
    "_value", "__array__", "__float__", "__int__", "__bool__", "__index__", "__complex__",
    "__format__", "__repr__", "__str__", "__iter__", "item", "tolist", "block_until_ready",
    "device_get", "_device_get", "_single_device_array_to_np_array_did_copy",
}  # fmt: skip
"""JAX's functions in which a program waits for a result."""


def fetches(code: Code) -> bool:
    """Whether a function waits for a result of JAX's device."""
    file = code.file.replace("\\", "/")
    return code.plain in FETCHING and file.endswith(("/jax/_src/array.py", "/jax/_src/api.py"))


def is_draw(leaf: Leaf) -> bool:
    """Whether the innermost frame draws rows at random; a distribution's sample is no such draw."""
    return leaf.word in DRAWS and not (
        leaf.word == "sample" and leaf.call.rpartition(".")[0] not in ("random", "rng", "")
    )


def is_gather(leaf: Leaf, code: Code) -> bool:
    """Whether the innermost frame gathers rows: for the program itself, and not within an
    operation of a library of networks."""
    file = code.file.replace("\\", "/")
    return leaf.word in GATHERS and not re.search(r"/(torch|jax|optax|tensorflow)/", file)


GREEDY = {"argmax", "deterministic", "predict", "mode"}
RANDOM = {"log_prob", "sample", "random", "rand", "randint", "integers", "choice", "append"}


def is_evaluation(code: Code) -> bool:
    """Whether a function's code chooses greedily, and neither draws nor keeps anything; or, where
    that is open, whether it is called an evaluation."""
    if code.names & GREEDY and not code.names & RANDOM:
        return True
    called = re.search(r"(^|_)(eval|evaluate|evaluation|test|validate)(_|$)", _snake(code.plain))
    return called is not None


def is_wait(leaf: Leaf, code: Code) -> bool:
    """Whether the innermost frame waits."""
    word, file = leaf.word, code.file.replace("\\", "/")
    if "/multiprocessing/" in file:
        return word in WAITS or word in ("read", "recv", "get") or code.plain in (
            "wait", "_poll", "poll", "acquire",
        )  # fmt: skip
    if word == "join" and (".path" in leaf.call or leaf.text.startswith(('"', "'"))):
        return False
    if word == "wait" and "/torch/" in file:
        return False
    return word in WAITS or (word == "get" and "queue" in file)


def is_transfer(leaf: Leaf, code: Code) -> bool:
    """Whether the innermost frame copies or syncs between host and device."""
    jax = ("device_get", "device_put", "_device_put_jaxpr_impl")
    return leaf.word in TRANSFERS or ("/jax/" in code.file and code.plain in jax)


def is_write(leaf: Leaf) -> bool:
    """Whether the innermost frame writes to a file."""
    word = leaf.word
    if word in ("replace", "rename"):
        return leaf.call.startswith(("os.", "shutil."))
    if word in ("sync", "open"):  # windows record these names, too
        return leaf.call in ("os.sync", "sync", "open", "io.open", "os.open")
    if word in ("dump", "save"):
        return not leaf.kind.get("type", "").startswith("numba")
    if word == "write":
        return not leaf.call.startswith("sys.std")
    return word in WRITES


# --- Words, where nothing else is known -------------------------------------------------------

WORDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("io", re.compile(r"(^|_)(save|checkpoint|ckpt|log|dump|write|render_to|plot|snapshot|record)"
                      r"(_|s?$|ing|ger)")),
    ("replay", re.compile(r"replay|(^|_)(sample|buffer|memory|minibatch|get_batch|draw_batch)")),
    ("env", re.compile(r"(^|_)(env|environment|reset|simulate|simulation|physics|dynamics|world|"
                       r"game|preprocess|observe|observation|obs|frame|frames|emulator)(_|s?$)"
                       r"|^step$|_step_env|^step_")),
    ("learn", re.compile(r"(^|_)(train|learn|update|fit|backward|backprop|grad|grads|gradient|"
                         r"gradients|optimi[sz]e|sgd|adam|loss|losses|critic|td|target|targets|"
                         r"advantage|advantages|gae|returns)(_|s?$|er$)")),
    ("act", re.compile(r"(^|_)(act|action|actions|policy|choose|select|predict|infer|inference|"
                       r"explore|epsilon|greedy|q_values)(_|s?$)")),
    ("input", re.compile(r"(^|_)(load|loader|augment|transform|decode|dataset|batches|collate|"
                         r"crop|flip|image|images|next_batch|read)(_|s?$|er$|ation)")),
)  # fmt: skip


def by_words(code: Code) -> str | None:
    """The phase that a function's name suggests."""
    name = _snake(code.plain).strip("_")
    if code.plain.startswith("<") or (name == "step" and code.owner and not code.has("reset")):
        return None  # without a reset it may be an optimiser
    for phase, words in WORDS:
        if words.search(name):
            return phase
    owner = _snake(code.owner["name"]) if code.owner else ""
    for phase, words in WORDS:
        if phase in ("env", "replay", "input") and words.search(owner):
            return phase
    return None


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
