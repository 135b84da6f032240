"""Tests of a placement's text form: its meaning, its round trip, and refusals of invalid texts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flatout.config.placement import (
    CPU,
    KEYS,
    DeviceName,
    Placement,
    cards_in,
    names_any_card,
    on_card,
    on_cards,
    parse,
)
from flatout.config.placement_checks import refuse_unavailable
from flatout.errors import UsageError

GPU = DeviceName("gpu")

names = st.builds(DeviceName, st.sampled_from(["cpu", "gpu"]), st.integers(0, 9999))
device_lists = st.lists(names, min_size=1, max_size=4, unique=True).map(tuple)
fractions = st.floats(0, 1, exclude_min=True, allow_subnormal=False)


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Draw any placement that the rules allow."""
    sampler = draw(st.sampled_from(["inline", "processes", "device"]))
    fused = ["fused"] if sampler == "device" else []
    schedule = draw(st.sampled_from(["serial", "overlapped", *fused]))
    act = draw(device_lists)
    count = st.integers(1, 999_999)
    workers = st.none() | st.tuples(count, count) if sampler == "processes" else st.none()
    return Placement(
        act=act,
        learn=act if schedule == "fused" else draw(device_lists),
        replay=draw(st.sampled_from(["gpu", "device", "cpu"][: 2 if schedule == "fused" else 3])),
        sampler=sampler,
        workers=draw(workers),
        inference=draw(st.sampled_from(["central", "local"])),
        schedule=schedule,
        lag=draw(st.integers(1, 999_999_999)) if schedule == "overlapped" else 0,
        memory=draw(st.none() | fractions),
        params=draw(st.sampled_from(["replicated", "sharded"])),
    )


def refusal(text: str) -> str:
    """Return the message that refuses a text, after checking that it is one readable line."""
    with pytest.raises(UsageError) as refused:
        parse(text)
    message = str(refused.value)
    assert refused.value.exit_code == 2
    assert message.startswith("--placement")
    assert len(message.splitlines()) == 1
    assert message.endswith((".", "?"))
    return message


@settings(deadline=None, max_examples=200)
@given(placements())
@example(Placement(schedule="overlapped", lag=1))  # the default lag of an overlapped schedule
@example(Placement(act=(GPU,), learn=(CPU,)))
def test_text_reads_back_as_the_same_placement(placement: Placement) -> None:
    assert parse(str(placement)) == placement


@settings(deadline=None, max_examples=50)
@given(placements(), st.randoms())
def test_order_of_pairs_and_spaces_do_not_matter(placement: Placement, random: Any) -> None:
    text = str(placement)
    if "=" in text:
        pairs = text.split()
        random.shuffle(pairs)
        text = "  ".join(pairs)
    assert parse(f" {text}\t") == placement


@settings(deadline=None, max_examples=50)
@given(placements())
def test_text_names_only_known_keys_and_leaves_out_defaults(placement: Placement) -> None:
    text = str(placement)
    if "=" not in text:
        assert text == "cpu"
        return
    given_keys = [pair.partition("=")[0] for pair in text.split()]
    assert set(given_keys) <= set(KEYS)
    assert len(given_keys) == len(set(given_keys))
    shorter = [" ".join(p for p in text.split() if p != drop) for drop in text.split()[1:]]
    assert all(_parsed(less) != placement for less in shorter)


def _parsed(text: str) -> Placement | None:
    try:
        return parse(text)
    except UsageError:
        return None


@pytest.mark.parametrize(
    ("text", "act", "learn"),
    [
        ("cpu", CPU, CPU),
        ("gpu", GPU, GPU),
        ("cpu+gpu", CPU, GPU),
        ("act=gpu", GPU, GPU),  # learns on the device that acts
        ("act=gpu:1", DeviceName("gpu", 1), DeviceName("gpu", 1)),
        ("learn=gpu", CPU, GPU),
        ("act=cpu:1 learn=gpu:1", DeviceName("cpu", 1), DeviceName("gpu", 1)),
    ],
)
def test_words_and_devices(text: str, act: DeviceName, learn: DeviceName) -> None:
    assert parse(text) == Placement(act=(act,), learn=(learn,))


@pytest.mark.parametrize(
    ("word", "text"), [("cpu", "cpu"), ("gpu", "act=gpu:0"), ("cpu+gpu", "act=cpu learn=gpu:0")]
)
def test_a_gpu_is_printed_with_its_number(word: str, text: str) -> None:
    assert str(parse(word)) == text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gpu", "act=gpu:3"),
        (" cpu+gpu ", "act=cpu learn=gpu:3"),
        ("act=gpu learn=gpu,gpu:1 replay=gpu", "act=gpu:3 learn=gpu:3,gpu:1 replay=gpu"),
        ("act=cpu learn=gpu:1 replay=gpu", ""),
        ("cpu", ""),
        ("gpu:2", ""),
    ],
)
def test_a_gpu_without_a_number_is_given_one(text: str, named: str) -> None:
    assert names_any_card(text) == bool(named)
    if named:
        assert on_card(text, 3) == named
        assert not names_any_card(named)


@settings(deadline=None, max_examples=50)
@given(placements(), st.permutations(range(3)))
def test_renumbered_gpus_change_nothing_else(placement: Placement, order: list[int]) -> None:
    text = str(placement)
    there = dict(enumerate(order))
    back = {new: old for old, new in there.items()}
    assert on_cards(on_cards(text, there), back) == text
    assert cards_in(text) == sorted(
        {device.index for device in (*placement.act, *placement.learn) if device.kind == "gpu"}
    )


def test_the_defaults_of_a_placement() -> None:
    default = parse("act=cpu")
    assert default.learn == default.act
    assert default.replay == "cpu"
    assert default.sampler == "inline"
    assert default.inference == "central"
    assert default.schedule == "serial"
    assert default.lag == 0
    assert default.params == "replicated"
    assert (default.workers, default.memory) == (None, None)
    assert default == parse("cpu") == Placement()


def test_a_text_with_every_key() -> None:
    text = (
        "act=cpu learn=gpu:0,gpu:1 replay=gpu sampler=processes workers=8x16 "
        "schedule=overlapped lag=2 memory=0.5 inference=local params=sharded"
    )
    assert parse(text) == Placement(
        act=(CPU,),
        learn=(GPU, DeviceName("gpu", 1)),
        replay="gpu",
        sampler="processes",
        workers=(8, 16),
        inference="local",
        schedule="overlapped",
        lag=2,
        memory=0.5,
        params="sharded",
    )


def test_an_overlapped_schedule_lags_one_version_by_default() -> None:
    assert parse("act=cpu schedule=overlapped").lag == 1
    assert parse("act=cpu schedule=overlapped lag=3").lag == 3
    assert parse("act=cpu schedule=serial lag=0").lag == 0


def test_devices_include_the_gpu_that_replay_needs() -> None:
    assert parse("act=cpu learn=gpu:1,cpu").devices == (CPU, DeviceName("gpu", 1))
    assert parse("act=cpu replay=gpu").devices == (CPU, GPU)
    assert parse("act=cpu learn=gpu:1 replay=gpu").devices == (CPU, DeviceName("gpu", 1))
    assert parse("act=cpu replay=device").devices == (CPU,)


@pytest.mark.parametrize(
    ("text", "on_device"),
    [
        ("cpu", False),
        ("gpu", False),
        ("act=cpu replay=cpu", False),
        ("act=cpu replay=device", True),
        ("act=cpu learn=gpu:1 replay=device", True),
        ("act=gpu replay=gpu", True),
    ],
)
def test_replay_is_on_the_learning_device_if_the_placement_says_so(
    text: str, on_device: bool
) -> None:
    placement = parse(text)
    assert placement.replay_on_device is on_device
    refuse_unavailable(placement)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["empty"]),
        ("   ", ["empty"]),
        ("cpus", ["'cpus'", "Did you mean", "'cpu'"]),
        ("cpu learn=gpu", ["'cpu'", "KEY=VALUE"]),
        ("act=tpu", ["act=tpu", "'tpu'", "gpu:1"]),
        ("act=gpu:x", ["act=gpu:x", "'gpu:x'"]),
        ("act=gpu:-1", ["'gpu:-1'"]),
        ("act=", ["act="]),
        ("learn=gpu:0,", ["learn=gpu:0,"]),
        ("act=gpu,gpu:0", ["act=gpu,gpu:0", "gpu:0", "twice"]),
        ("act=cpu act=gpu", ["'act'", "twice"]),
        ("lern=gpu", ["'lern'", "Did you mean 'learn'", *KEYS]),
        ("Act=cpu", ["'Act'", "Did you mean 'act'"]),
        ("act=cpu schedule=overlaped", ["schedule=overlaped", "Did you mean 'overlapped'"]),
        ("act=cpu sampler=process", ["sampler=process", "Did you mean 'processes'"]),
        ("act=cpu replay=disk", ["replay=disk", "cpu, gpu, device"]),
        ("act=cpu replay=devise", ["replay=devise", "Did you mean 'device'"]),
        ("act=cpu inference=centre", ["inference=centre", "central, local"]),
        ("act=cpu params=shard", ["params=shard", "Did you mean 'sharded'"]),
        ("act=cpu lag=1", ["lag=1", "schedule=overlapped"]),
        ("act=cpu schedule=fused lag=2", ["lag=2", "schedule=overlapped"]),
        ("act=cpu schedule=overlapped lag=0", ["lag", "schedule=overlapped", "at least 1"]),
        ("act=cpu schedule=overlapped lag=-1", ["lag=-1", "whole number"]),
        ("act=cpu schedule=overlapped lag=1.5", ["lag=1.5", "whole number"]),
        ("act=cpu workers=8x16", ["workers=8x16", "sampler=processes"]),
        ("act=cpu sampler=processes workers=8", ["workers=8", "workers=8x16"]),
        ("act=cpu sampler=processes workers=0x4", ["workers=0x4"]),
        ("act=cpu sampler=processes workers=4x0", ["workers=4x0"]),
        ("act=cpu memory=0", ["memory=0", "up to 1"]),
        ("act=cpu memory=1.01", ["memory=1.01"]),
        ("act=cpu memory=-0.5", ["memory=-0.5"]),
        ("act=cpu memory=nan", ["memory=nan"]),
        ("act=cpu memory=inf", ["memory=inf"]),
        ("act=cpu memory=half", ["memory=half"]),
    ],
)
def test_refusals_name_the_value_and_what_is_possible(text: str, said: list[str]) -> None:
    message = refusal(text)
    for part in said:
        assert part in message


pieces = st.sampled_from(
    [
        *KEYS,
        "cpu",
        "gpu",
        "auto",
        "=",
        ",",
        ":",
        "+",
        "x",
        " ",
        "0",
        "1",
        "-",
        ".",
        "nan",
        "\u0661",
        "\u00b2",
    ]
)


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=30) | st.lists(pieces, max_size=12).map("".join))
def test_garbage_is_read_or_refused_but_never_a_crash(text: str) -> None:
    message = ""
    try:
        placement = parse(text)
    except UsageError as refused:
        placement, message = None, str(refused)
    assert "\n" not in message
    assert placement is None or parse(str(placement)) == placement


@pytest.mark.parametrize(
    ("text", "key", "instead"),
    [
        ("act=cpu,cpu:1 learn=cpu", "act=cpu,cpu:1", "act=cpu"),
    ],
)
def test_placements_that_this_version_cannot_run_are_refused(
    text: str, key: str, instead: str
) -> None:
    placement = parse(text)  # the text itself is valid
    with pytest.raises(UsageError) as refused:
        refuse_unavailable(placement)
    message = str(refused.value)
    assert "this version" in message
    assert key in message
    assert re.search(rf"(use|write) {re.escape(instead)}( |\.|$)", message)


@settings(deadline=None, max_examples=50)
@given(names, names)
def test_replay_on_a_gpu_needs_one_that_learns(act: DeviceName, learn: DeviceName) -> None:
    placement = Placement(act=(act,), learn=(learn,), replay="gpu")
    if learn.kind == "gpu":
        refuse_unavailable(placement)
        return
    with pytest.raises(UsageError) as refused:
        refuse_unavailable(placement)
    message = str(refused.value)
    assert "\n" not in message
    for part in ("replay=gpu", "learn=gpu:0", f"learn={learn}", "replay=device", "replay=cpu"):
        assert part in message


@settings(deadline=None, max_examples=50)
@given(names, names, st.none() | fractions, st.sampled_from(["cpu", "device"]))
def test_placements_that_this_version_can_run_are_not_refused(
    act: DeviceName, learn: DeviceName, memory: float | None, replay: Any
) -> None:
    placement = Placement(act=(act,), learn=(learn,), memory=memory, replay=replay)
    refuse_unavailable(placement)
    with pytest.raises(UsageError):
        parse(str(replace(placement, schedule="fused")))  # without sampler=device
