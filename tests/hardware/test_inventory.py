"""What this machine has, what a placement becomes on it, and what is said where it does not fit."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.placement import Placement, parse
from flatout.engine.memory import Expectation
from flatout.errors import FlatoutError, UsageError
from flatout.hardware.backend import CUDA_CONTEXT_MB
from flatout.hardware.inventory import (
    VIRTUAL,
    Gpu,
    Hardware,
    MiB,
    inventory,
    resolve_placement,
)
from flatout_explain.hardware.machine import within_groups
from flatout_explain.hardware.nvml import visible_indices
from tests.hardware.test_cores import V1, V2, cores, version_1, version_2, write

GPU_NAMES = ("NVIDIA H200", "NVIDIA A10")


def machine(gpus: int = 0, plugin: bool = True, cpu_devices: int = 1, note: str = "") -> Hardware:
    """A machine of 4 cores, 16 GiB and so many GPUs of 10 GiB, of which 8 are free."""
    cards = tuple(Gpu(i, GPU_NAMES[i], 10_240, 8_192, i) for i in range(gpus))
    return Hardware("a CPU", 4, 16_384, 16_384, cpu_devices, cards, plugin, note)


@pytest.mark.parametrize(
    ("hardware", "text", "missing", "there"),
    [
        (machine(), "gpu", "gpu:0", ["cpu (4 cores)"]),
        (machine(1), "act=gpu:1", "gpu:1", ["cpu", "gpu:0 (NVIDIA H200)"]),
        (machine(2), "act=cpu learn=gpu:2", "gpu:2", ["gpu:0 (NVIDIA H200)", "gpu:1 (NVIDIA A10)"]),
        (machine(), "act=cpu:1", "cpu:1", ["cpu (4 cores)"]),
        (machine(cpu_devices=8), "act=cpu:8", "cpu:8", ["cpu:0 to cpu:7"]),
        (machine(), "act=cpu replay=gpu", "gpu:0", ["cpu (4 cores)"]),
        (machine(1, plugin=False), "cpu+gpu", "gpu:0", ["[cuda12]", "has cpu (4 cores). N"]),
        (machine(note="the driver is asleep"), "gpu", "gpu:0", ["the driver is asleep"]),
    ],
)
def test_a_missing_device_is_refused_by_name(
    hardware: Hardware, text: str, missing: str, there: list[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        resolve_placement(text, hardware)
    message = str(refused.value)
    assert f"needs {missing}" in message
    assert "--soft-placement" in message
    for part in there:
        assert part in message


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("text", ["cpu", "gpu", "cpu+gpu", "act=cpu:7 learn=gpu:1 memory=0.5"])
def test_devices_that_are_there_are_used_without_a_word(text: str, soft: bool) -> None:
    there = machine(1 + ("gpu:1" in text), cpu_devices=8)
    assert resolve_placement(text, there, soft=soft) == (parse(text), [])


@pytest.mark.parametrize(
    ("hardware", "text", "runs", "missing"),
    [
        (machine(), "gpu", "cpu", "gpu:0"),
        (machine(1, plugin=False), "cpu+gpu", "cpu", "gpu:0"),
        (machine(1), "act=cpu learn=gpu:1", "cpu+gpu", "gpu:1"),
        (machine(1), "act=cpu:3 learn=gpu:0", "cpu+gpu", "cpu:3"),
        (machine(1), "learn=gpu:0,gpu:1", "learn=gpu:0", "gpu:1"),
        (machine(), "act=gpu:0,gpu:1 memory=0.5", "cpu", "gpu:0, gpu:1"),
        (machine(1), "act=gpu:1 memory=0.5", "act=gpu memory=0.5", "gpu:1"),
    ],
)
def test_soft_placement_runs_on_what_is_there_and_says_so(
    hardware: Hardware, text: str, runs: str, missing: str
) -> None:
    placement, notes = resolve_placement(text, hardware, soft=True)
    assert placement == parse(runs)
    (note,) = notes
    assert f"{missing} is not here" in note
    assert f"running on {placement} instead" in note


machines = st.builds(machine, st.integers(0, 2), st.booleans(), st.integers(1, 3))
devices = st.lists(
    st.sampled_from(["cpu", "cpu:1", "gpu:0", "gpu:1", "gpu:5"]), min_size=1, unique=True
)


@settings(deadline=None, max_examples=100)
@given(machines, devices, devices, st.sampled_from(["cpu", "gpu"]))
def test_soft_placement_always_ends_on_what_is_there(
    hardware: Hardware, act: list[str], learn: list[str], replay: str
) -> None:
    text = f"act={','.join(act)} learn={','.join(learn)} replay={replay}"
    placement, _ = resolve_placement(text, hardware, soft=True)
    assert resolve_placement(str(placement), hardware) == (placement, [])


@settings(deadline=None, max_examples=50)
@given(machines, st.booleans(), st.booleans())
def test_auto_takes_the_gpu_for_images_alone(hardware: Hardware, images: bool, soft: bool) -> None:
    placement, notes = resolve_placement(" auto ", hardware, images=images, soft=soft)
    word = "gpu" if images and hardware.gpus and hardware.cuda_plugin else "cpu"
    assert placement == parse(word)
    note, *others = notes
    assert note.startswith(f"placement auto: {word} (")
    assert len(others) == (word == "gpu" and len(hardware.gpus) > 1)  # which one


def test_a_gpu_that_jax_cannot_use_is_said_aloud() -> None:
    warning = machine(1, plugin=False).unused_gpu_warning
    for part in ("NVIDIA H200", "no CUDA plugin", "pip install ", "[cuda12]' (or cuda13)"):
        assert part in warning
    assert "1 more" in machine(2, plugin=False).unused_gpu_warning
    assert machine(0, plugin=False).unused_gpu_warning == ""
    assert machine(2, plugin=True).unused_gpu_warning == ""


UUIDS = ["GPU-aa11", "GPU-ab22", "GPU-cc33", "GPU-dd44"]


@settings(deadline=None, max_examples=100)
@given(st.permutations(range(4)), st.integers(0, 4), st.data())
def test_visible_gpus_are_those_named_in_that_order(
    order: list[int], count: int, data: st.DataObject
) -> None:
    chosen = order[:count]
    entries = [data.draw(st.sampled_from([str(i), UUIDS[i], UUIDS[i][:6]])) for i in chosen]
    pad = data.draw(st.sampled_from(["", " "]))
    assert visible_indices(",".join(pad + entry for entry in entries), UUIDS) == chosen
    wrong = data.draw(st.sampled_from(["-1", "4", "99", "GPU-a", "GPU-zz", "none", ""]))
    rest = [str(i) for i in order[count:]]
    assert visible_indices(",".join([*entries, wrong, *rest]), UUIDS) == chosen


def test_all_gpus_are_visible_unless_told_otherwise() -> None:
    assert visible_indices(None, UUIDS) == [0, 1, 2, 3]
    assert visible_indices("", UUIDS) == []


def test_digits_that_are_no_numbers_hide_the_gpu() -> None:
    assert visible_indices("\u00b2", UUIDS) == []


def test_a_gpu_named_twice_hides_all() -> None:
    assert visible_indices("0,0", UUIDS) == []


def test_this_machine_is_described_sanely() -> None:
    here = inventory()
    allowed = len(os.sched_getaffinity(0))
    limited = os.path.exists("/sys/fs/cgroup/cpu.max")  # by a container
    assert 1 <= here.cores <= allowed if limited else here.cores == allowed
    total = psutil.virtual_memory().total / MiB
    assert 0 < here.memory_available_mb <= here.memory_total_mb <= total
    assert here.cpu_name
    assert here.cpu_devices == 8  # the tests' own XLA_FLAGS
    assert f"{here.cores} cores" in here.describe()


@pytest.mark.parametrize(
    ("flags", "setting", "count"),
    [("", -1, 1), (f"{VIRTUAL}=2 {VIRTUAL}=4", -1, 4), (f"{VIRTUAL}=2", 4, 4), ("", 4, 4)],
)
def test_cpu_devices_are_those_that_jax_will_show(
    flags: str, setting: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SimpleNamespace(values={"jax_num_cpu_devices": setting})
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(config=settings))
    assert inventory().cpu_devices == count
    monkeypatch.delitem(sys.modules, "jax")
    if setting > 0:
        monkeypatch.setenv("JAX_NUM_CPU_DEVICES", str(setting))
    assert inventory().cpu_devices == count


def test_cores_are_those_that_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert inventory().cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("groups", "mount", "files", "total", "available"),
    [
        ("0::/a/b", version_2(), {"a/memory.max": "400", "a/memory.current": "150",
                                  "a/memory.stat": "anon 9\ninactive_file 50\n",
                                  "a/b/memory.max": "max", "a/b/memory.current": "10"}, 400, 300),
        ("0::/a", version_2(), {"a/memory.max": "400", "a/memory.current": "399"}, 400, 1),
        ("0::/a", version_2(), {"memory.max": "100", "memory.current": "10", "a/memory.max": "200",
                                "a/memory.current": "170"}, 100, 30),
        ("7:memory:/a", "/ {} rw - cgroup cgroup rw,memory",
         {"a/memory.limit_in_bytes": "400", "a/memory.usage_in_bytes": "150",
          "a/memory.stat": "inactive_file 1\ntotal_inactive_file 50\n",
          "memory.limit_in_bytes": str(2**63 - 4096), "memory.usage_in_bytes": "990"}, 400, 300),
        ("4:cpu:/a", version_1(), {"a/memory.limit_in_bytes": "400"}, 1000, 800),
        ("0::/a", version_2(), {"a/memory.max": "4000", "a/memory.current": "3999"}, 1000, 800),
    ],
)  # fmt: skip
def test_memory_is_that_of_the_control_groups(
    tmp_path: Path, groups: str, mount: str, files: dict[str, str], total: int, available: int
) -> None:
    """Of 1,000 bytes, 800 are available. Beyond a group's limit the kernel ends the process."""
    cores(tmp_path, f"{groups}\n", [mount.format(V2)], {})
    for name, text in files.items():
        write(tmp_path, f"{V1 if 'cpu' in groups else V2}/{name}", f"{text}\n")
    assert within_groups(1000, 800, str(tmp_path)) == (total, available)


def expectation(memory: str = "", **taken: float) -> tuple[Expectation, Placement]:
    sizes = {"model": 40.0, "optimiser": 60.0, "trajectory": 50.0, "workspace": 25.0} | taken
    return Expectation(**sizes), parse(f"act=cpu learn=gpu {memory}")


def test_expected_memory_counts_both_devices() -> None:
    expected, placement = expectation()
    on_cpu, on_gpu = expected.by_device(placement).values()
    assert on_cpu == 50.0
    assert on_gpu == 2 * 100.0 + 50.0 + 25.0 + CUDA_CONTEXT_MB
    assert expected.by_device(parse("cpu")) == {parse("cpu").act[0]: 2 * 100.0 + 2 * 50.0 + 25.0}
    said = expected.check(placement, machine(1))
    assert "about 50 of 16,384 MiB on cpu" in said
    assert "about 875 of 8,192 MiB on gpu:0" in said


@pytest.mark.parametrize(
    ("taken", "device", "numbers"),
    [
        ({"model": 3_940.0}, "gpu:0", ["8,675", "8,192", "8,000"]),
        ({"trajectory": 20_000.0}, "cpu", ["20,000", "16,384"]),
        ({"workspace": 9_000.0}, "gpu:0", ["9,850", "9,000", "8,192"]),
    ],
)
def test_what_cannot_fit_is_refused_with_the_numbers(
    taken: dict[str, float], device: str, numbers: list[str]
) -> None:
    expected, placement = expectation(**taken)
    with pytest.raises(FlatoutError) as refused:
        expected.check(placement, machine(1))
    assert f"MiB on {device}" in str(refused.value)
    for number in numbers:
        assert number in str(refused.value)


def test_a_memory_cap_counts_as_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, capped = expectation("memory=0.5", optimiser=2_460.0)  # 5,675 MiB; half is 5,120
    expected.check(parse("cpu+gpu"), machine(1))
    with pytest.raises(FlatoutError, match=r"5,675 MiB on gpu:0.*5,120 MiB"):
        expected.check(capped, machine(1))
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.25")  # as a sweep shares a card
    capped_by = r"2,560 MiB are .*capped by XLA_CLIENT_MEM_FRACTION; 2,"
    with pytest.raises(FlatoutError, match=capped_by):
        expected.check(parse("cpu+gpu"), machine(1))
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION")
    # The cap is of the total; where less is free, that counts.
    said = expected.check(parse("act=gpu memory=1"), machine(1))
    assert "of 8,192 MiB on gpu:0 (2,048 of its 10,240 are in use)" in said


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process has taken")
def test_a_limit_of_this_process_counts_as_what_is_available() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    taken = psutil.Process().memory_info().data
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (taken + 512 * MiB, before[1]))
        assert inventory().memory_available_mb <= 512
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


class NVMLError(Exception):
    """Stands in for pynvml's."""


def fake_nvml(broken: str) -> SimpleNamespace:
    """Two GPUs, with two processes and one; `broken` names the call that fails."""
    memory = SimpleNamespace(total=10_240 * MiB, free=8_192 * MiB, used=2_048 * MiB)
    mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=512 * MiB)
    hidden = SimpleNamespace(pid=2**22 + 1, usedGpuMemory=None)  # above any pid
    fake = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle],
        nvmlDeviceGetName=lambda handle: GPU_NAMES[handle],
        nvmlDeviceGetMemoryInfo=lambda handle: memory,
        nvmlDeviceGetMigMode=lambda handle: (0, 0),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=7 * handle, memory=0),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [mine, hidden][: 2 - handle],
    )

    def fail(*arguments: object) -> None:
        raise NVMLError("Driver Not Loaded")

    if broken:
        setattr(fake, broken, fail)
    return fake


def divide(patch: pytest.MonkeyPatch, visible: str) -> None:
    """Divide the second of the fake's cards into two MIG instances, with a hole between them."""
    install(patch, visible=visible)
    fake = sys.modules["pynvml"]
    fake.nvmlDeviceGetMaxMigDeviceCount = lambda handle: 3 * handle

    def instance(card: int, number: int) -> int:
        if number == 1:
            raise NVMLError("Not Found")
        return 10 * card + number

    fake.nvmlDeviceGetMigDeviceHandleByIndex = instance
    fake.nvmlDeviceGetUUID = lambda handle: f"MIG-{handle}" if handle > 1 else UUIDS[handle]
    fake.nvmlDeviceGetName = lambda handle: f"card {handle}"
    fake.nvmlDeviceGetComputeRunningProcesses = lambda handle: []


@pytest.mark.parametrize(("visible", "names"), [("MIG-12", ["card 12"]), ("MIG-11", [])])
def test_an_instance_of_a_divided_card_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, visible: str, names: list[str]
) -> None:
    divide(monkeypatch, visible)
    gpus = inventory().gpus
    assert [gpu.name for gpu in gpus] == names
    assert [(gpu.index, gpu.physical_index) for gpu in gpus] == [(0, 1) for _ in names]


def install(patch: pytest.MonkeyPatch, broken: str = "", visible: str | None = None) -> None:
    """Put the fake in NVML's place, with this ``CUDA_VISIBLE_DEVICES``."""
    patch.setitem(sys.modules, "pynvml", fake_nvml(broken))
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        patch.setenv("CUDA_VISIBLE_DEVICES", visible)


def test_gpus_are_listed_with_who_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    gpus = first, second = inventory().gpus
    assert [(gpu.index, gpu.name) for gpu in gpus] == list(enumerate(GPU_NAMES))
    assert (first.memory_total_mb, first.memory_free_mb) == (10_240, 8_192)
    mine, hidden = first.processes
    assert (mine.pid, mine.name) == (os.getpid(), psutil.Process().name())
    assert mine.memory_mb == 512
    assert (hidden.name, hidden.memory_mb) == ("?", None)
    assert len(second.processes) == 1
    assert (first.busy, second.busy) == (0, 7)


def test_a_gpu_that_does_not_report_its_use_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "nvmlDeviceGetUtilizationRates")
    assert [gpu.busy for gpu in inventory().gpus] == [None, None]


@pytest.mark.parametrize(
    ("visible", "physical"), [("1", [1]), ("1,0", [1, 0]), ("GPU-ab", [1]), ("", []), ("7", [])]
)
def test_only_visible_gpus_are_listed_and_numbered_from_0(
    monkeypatch: pytest.MonkeyPatch, visible: str, physical: list[int]
) -> None:
    install(monkeypatch, visible=visible)
    gpus = inventory().gpus
    assert [gpu.physical_index for gpu in gpus] == physical
    assert [gpu.index for gpu in gpus] == list(range(len(physical)))
    assert [gpu.name for gpu in gpus] == [GPU_NAMES[i] for i in physical]


@pytest.mark.parametrize("call", ["GetCount", "GetUUID", "GetName", "GetMemoryInfo"])
def test_a_driver_that_fails_becomes_a_note(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    install(monkeypatch, f"nvmlDevice{call}")
    here = inventory()
    assert here.gpus == ()
    assert "Driver Not Loaded" in here.gpu_note


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "nvmlInit")
    here = inventory()
    assert here.gpus == ()
    assert not here.gpu_note or os.path.exists("/proc/driver/nvidia/version")


def test_hidden_processes_do_not_hide_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "nvmlDeviceGetComputeRunningProcesses")
    assert [gpu.processes for gpu in inventory().gpus] == [(), ()]


def test_a_driver_that_fails_at_the_end_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "nvmlShutdown")
    assert len(inventory().gpus) == 2
