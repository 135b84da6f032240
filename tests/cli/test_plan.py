"""`flatout plan`: measured, chosen, kept, and asked about other machines."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flatout.cli.plan import show
from flatout.config.placement import Placement, parse
from flatout.errors import FlatoutError
from flatout.hardware.inventory import inventory
from flatout.planning.answer import Answer, Question
from flatout.planning.found import Found
from flatout.planning.predict import Prediction
from flatout.planning.stages import Stages
from flatout.run import auto, probe_process
from flatout.run.device_probe import in_time
from flatout.run.planned import answer
from flatout.run.planner import ask
from flatout.run.probe import Probe
from flatout.run.probe_parts import ProbeParts
from flatout.run.probe_process import MeasuringError
from flatout.types import NAMED, UserCode
from tests.tiny import train_config

SMALL = ("ppo", "--env", "CartPole-v1", "--envs", "4", "--n-steps", "16", "--batch-size", "32")
STAGES = Stages(
    envs=4, horizon=16, cores=2, env=(1e-5, 3e-5), act={"cpu": ((2, 1e-5), (4, 2e-5))},
    learn={"cpu cpu": 0.01}, local=((2, 1e-5),),
)  # fmt: skip
KNOWN = Answer(
    STAGES, ("inline",), [Prediction(Placement(), 5000.0, 4000.0, 6000.0, {"main": 0.0}, 5100.0)],
    [Prediction(Placement(schedule="overlapped", lag=1), 9000.0, 8000.0, 1e4)], 3.0, ("a note",),
)  # fmt: skip


OVERLAPPED = "act=cpu schedule=overlapped"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No plan of another test is found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def asked(*words: str, seconds: float = 1.0, **more: Any) -> Question:
    config, _ = train_config(list(words))
    return Question(config, Placement(), seconds, **more)


def test_texts_of_files_are_no_styles() -> None:
    file = io.StringIO()
    show(KNOWN, "a [/x] machine", Console(file=file, width=200))
    assert "measured on a [/x] machine in 3.0 s" in file.getvalue()


def test_the_choice_is_measured_named_and_kept(flatout: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    words = (*SMALL, "--seconds", "1")
    first = flatout(
        "plan", *words, "--out", file, "--what-if", "env-speed=10x", "--what-if", "cores=16"
    )
    assert first.code == 0, first.err
    values = json.loads(file.read_text())
    placements = [row["placement"] for row in values["predictions"]]
    assert values["chosen"] in placements
    assert len(placements) == len(set(placements)) >= 3
    assert any("inference=local" in p for p in placements)
    assert all("overlapped" not in p for p in placements), "lag was not allowed"
    assert values["lagged"], "but is predicted"
    assert {o["change"] for o in values["what_if"]} == {"env-speed=10x", "cores=16"}
    assert all(o["low"] <= o["gain"] <= o["high"] for o in values["what_if"])
    assert values["chosen"] in first.out, "in one line, where there is no terminal"
    # The same command has the same answer, from the cache; so does a run that takes it.
    assert flatout("plan", *words, "--json").code == 0
    config, _ = train_config(list(SMALL))
    found, note = auto.recall(config, inventory(), NAMED)
    assert "measured here before" in note
    assert found is not None
    assert str(found.chosen.placement) == values["chosen"]


def test_an_answer_survives_json() -> None:
    again = Answer.from_json(json.loads(json.dumps(KNOWN.as_json())))
    assert again == KNOWN
    assert "--allow-lag" in again.words()


@pytest.mark.parametrize("damage", ["truncated", "edited", "other", "link"])
def test_a_damaged_plan_is_not_believed(damage: str, tmp_path: Path) -> None:
    config, _ = train_config(list(SMALL))
    hardware = inventory()
    auto.remember(config, hardware, NAMED, KNOWN)
    (file,) = (path for path in auto.plans().glob("*.json") if path.name != "numbers.json")
    text = file.read_text()
    if damage == "truncated":
        file.write_text(text[: len(text) // 2])
    elif damage == "edited":
        file.write_text(text.replace('"placement": "cpu"', '"placement": "act=cpu groups=3"'))
    elif damage == "other":
        file.write_text(json.dumps({"stages": {"env": [float("inf")]}}))
    else:
        (tmp_path / "elsewhere").write_text(text)
        file.unlink()
        file.symlink_to(tmp_path / "elsewhere")
    found, note = auto.recall(config, hardware, NAMED)
    assert found is None
    assert str(file) in note
    assert "rule" in note


def test_other_settings_have_other_plans() -> None:
    hardware = inventory()
    config, _ = train_config(list(SMALL))
    auto.remember(config, hardware, NAMED, KNOWN)
    for more, same in (("--seed", "3"), True), (("--hidden", "8"), False), (("--steps", "9"), True):
        other, _ = train_config([*SMALL, *more])
        assert (auto.recall(other, hardware, NAMED)[0] is not None) is same
    assert auto.recall(config, hardware, UserCode(env=lambda: None)) == (None, "")


def test_a_plan_is_kept_under_the_devices_that_the_settings_name() -> None:
    """`flatout plan --placement "... memory=0.5"` answered with the plan of another placement."""
    hardware = inventory()
    config, _ = train_config(list(SMALL))
    named, _ = train_config([*SMALL, "--placement", "act=cpu memory=0.5"])
    auto.remember(config, hardware, NAMED, KNOWN)
    assert auto.recall(named, hardware, NAMED) == (None, "")
    auto.remember(named, hardware, NAMED, replace(KNOWN, base=parse("act=cpu memory=0.5")))
    for one in (config, named):
        found, _ = auto.recall(one, hardware, NAMED)
        assert found is not None
        assert found.base.memory == (None if one is config else 0.5)


def test_what_if_is_asked_within_the_limits_of_the_run(flatout: Callable[..., Any]) -> None:
    for words in ((), ("--allow-lag",)):
        flags = [*SMALL, *words, "--placement", "act=cpu memory=0.5"]
        config, _ = train_config(flags)
        auto.remember(config, inventory(), NAMED, replace(KNOWN, base=parse("act=cpu memory=0.5")))
        result = flatout("plan", *flags, "--what-if", "env-speed=2x", "--json")
        assert result.code == 0, result.err
        (outcome,) = json.loads(result.out)["what_if"]
        assert "memory=0.5" in outcome["then"]
        assert ("overlapped" in outcome["then"]) is bool(words)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        pytest.param("raise", "physics exploded", marks=pytest.mark.slow),
        ("sleep", "within 4 s"), ("segfault", "killed"),
    ],
)  # fmt: skip
def test_what_goes_wrong_in_a_probe_stays_there(fault: str, words: str) -> None:
    env = ("--env", "tests.fault_envs:faulty", f'--env-kwargs=fault="{fault}"', "--env-kwargs=at=5")
    with pytest.raises(FlatoutError, match=words):
        ask(asked("ppo", *env), NAMED, 4.0 if fault == "sleep" else 60.0)


@pytest.mark.slow
def test_what_was_measured_before_a_stage_that_hangs_is_used() -> None:
    env = ("--env", "tests.fault_envs:HangsElsewhere", "--env-kwargs", f"parent={os.getpid()}")
    config, _ = train_config(["ppo", *env, *SMALL[3:]])
    question = auto.question(config, Placement(), inventory(), 2.0)
    found = ask(question, NAMED, 10.0)  # its environments hang in actor processes
    assert found.chosen.placement == Placement()
    assert found.known == ("inline",)
    assert "inference=local did not end within 10 s" in found.notes[-1]
    assert not found.complete
    auto.remember(config, inventory(), NAMED, found)
    assert auto.recall(config, inventory(), NAMED) == (None, ""), "it is measured again"


def stopped(monkeypatch: pytest.MonkeyPatch, found: Found | None) -> Question:
    """A measurement that ends too early, and what had been found by then."""

    def call(*given: Any) -> Any:
        so_far = None if found is None else json.loads(json.dumps(asdict(found)))
        raise MeasuringError("running cpu did not end within 60 s", True, so_far)

    monkeypatch.setattr(probe_process, "call", call)
    return asked(*SMALL)


def test_an_answer_follows_from_what_was_found_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    slower = "act=cpu sampler=processes workers=2x2 inference=local groups=2"
    memory = {"cpu": {"cpu": 0.1}, slower: {"cpu": 0.1}, OVERLAPPED: {"cpu": 0.1}}
    found = Found(STAGES, ("inline", "local"), memory, {slower: (9e9, 0.01)}, ("a note",), 2.0)
    answer = ask(stopped(monkeypatch, found), NAMED, 60.0)
    assert str(answer.chosen.placement) == slower, "the one that was run"
    assert answer.chosen.measured == 9e9
    assert [str(p.placement) for p in answer.lagged] == [OVERLAPPED]
    assert answer.notes[0] == "a note"
    assert "running cpu did not end within 60 s: what was measured before" in answer.notes[1]
    assert not answer.complete
    with pytest.raises(MeasuringError, match="did not end"):
        ask(stopped(monkeypatch, None), NAMED, 60.0)
    with pytest.raises(FlatoutError, match="a note"):
        ask(stopped(monkeypatch, replace(found, memory={})), NAMED, 60.0)


def test_a_part_that_fails_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def calibrate_processes(self: Probe, *given: Any) -> None:
        raise FlatoutError("no more processes")

    monkeypatch.setattr(Probe, "_calibrate_processes", calibrate_processes)
    stages: list[tuple[str, Any]] = []
    found = answer(asked(*SMALL), NAMED, lambda stage, so_far=None: stages.append((stage, so_far)))
    notes = "; ".join(found.notes)
    for inference in ("local", "central"):
        assert f"inference={inference} could not be measured: no more processes" in notes
    assert found.known == ("inline",)
    assert found.chosen.placement == Placement()
    names = [name for name, _ in stages]
    assert len(names) >= 7
    assert names[0].startswith("making")
    with_findings = [name for name, so_far in stages if so_far is not None]
    assert with_findings == names[names.index("collecting in this process") :]

    def started(self: ProbeParts, placement: Placement, stack: Any) -> Any:
        raise FlatoutError(f"{placement} has no room")

    monkeypatch.setattr(ProbeParts, "started", started)
    verify = Probe.verify  # however long the stages have taken
    monkeypatch.setattr(Probe, "verify", lambda self, finalists, _: verify(self, finalists, 60.0))
    with pytest.raises(FlatoutError, match="running cpu failed: cpu has no room"):
        answer(asked(*SMALL), NAMED)


def test_one_environment_object_is_not_stepped_by_a_probe() -> None:
    import gymnasium as gym

    env = gym.make("CartPole-v1")
    try:
        with pytest.raises(FlatoutError, match="object"):
            answer(asked(*SMALL), UserCode(env=env))
    finally:
        env.close()


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--what-if", "cores=0"), "cores"),
        (("--what-if", "cores=many"), "cores"),
        (("--what-if", "core=4"), "cores"),
        (("--what-if", "env-speed=fast"), "10x"),
        (("--what-if", "gpu=unknown"), "gpu"),
        (("--seconds", "0"), "seconds"),
        (("--seconds", "soon"), "seconds"),
        (("--machine", "/nowhere.json"), "nowhere"),
        (("--out", "plan.txt"), "--out plan.txt"),
        (("--devices", "9"), "cpu:8"),
        (("--devices", "2"), "--shards"),
    ],
)
def test_bad_input_is_one_sentence(
    flatout: Callable[..., Any], words: tuple[str, ...], match: str
) -> None:
    config, _ = train_config(list(SMALL))
    auto.remember(config, inventory(), NAMED, KNOWN)  # nothing has to be measured
    result = flatout("plan", *SMALL, *words)
    assert result.code == 2
    assert match in result.message


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("plan", "--seconds", 1), ("plan", "--compare-devices", "1", "--run")]
)
def test_an_environment_in_the_working_folder_is_found(
    flatout: Callable[..., Any], words: tuple[Any, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    text = "import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
    (tmp_path / "lies_here.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    command, *flags = words
    flags += ["--env", "lies_here:make", "--steps", 256]
    result = flatout(command, *SMALL[:1], *SMALL[3:], *flags)
    assert result.code == 0, result.err


# --- Environments on a device ---------------------------------------------------------------------

FUSED = "act=cpu sampler=device schedule=fused"
ON_DEVICE = ("--env-backend", "device", "--envs", "2", "--n-steps", "16", "--batch-size", "32")
TWIN = replace(
    STAGES, rollout={"cpu": 1e-3}, stepping={"cpu": 2e-4}, inside={"cpu": 9e-3},
    apart={"cpu": 1e-4},
)  # fmt: skip


def device_plan(*placements: str, stages: Stages = TWIN) -> Answer:
    """A kept plan; the first placement is the fastest."""
    rows = [Prediction(parse(p), 9e3 / (n + 1), 1e3, 1e4) for n, p in enumerate(placements)]
    return Answer(stages, ("device",), rows, [], 3.0)


@pytest.mark.slow
def test_a_twin_is_measured_beside_the_host(flatout: Callable[..., Any], tmp_path: Path) -> None:
    words = (*SMALL, "--env-backend", "auto")
    rows, values, late = dict[str, Any](), dict[str, Any](), "had not compiled within"
    for attempt in range(4):  # where programs compile for too long, the next command measures again
        result = flatout("plan", *words, "--seconds", "8", "--out", tmp_path / f"{attempt}.json")
        assert result.code == 0, result.err
        values = json.loads((tmp_path / f"{attempt}.json").read_text())
        rows = {row["placement"]: row for row in values["predictions"]}
        if not any(late in note for note in values["notes"]):
            break
    assert {FUSED, "act=cpu sampler=device", "cpu"} <= rows.keys()
    # Which of the twin's placements is the fastest depends on how programs are compiled.
    chosen = values["chosen"]
    assert chosen in (FUSED, "act=cpu sampler=device")
    assert rows[chosen]["measured"] > 0
    assert min(values["stages"][name]["cpu"] for name in ("stepping", "rollout")) > 0
    # A run takes it, and says that it is a twin's.
    run = ("train", *words, "--steps", 256, "--run-dir", tmp_path / "run")
    taken = flatout(*run)
    assert taken.code == 0, taken.err
    assert "measured here before" in taken.out
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert (settings["placement"], settings["env_backend"]) == (chosen, "device")


@pytest.mark.slow
def test_an_environment_of_ones_own_has_only_programs(
    flatout: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    env = ("--env", "tests.device_envs:corridor", "--envs", "4", "--n-steps", "16", "--batch-size",
           "32")  # fmt: skip
    result = flatout("plan", "ppo", *env, "--seconds", "2", "--out", file)
    assert result.code == 0, result.err
    values = json.loads(file.read_text())
    assert {row["placement"] for row in values["predictions"]} == {FUSED, "act=cpu sampler=device"}
    assert any(row["measured"] for row in values["predictions"])
    assert "sampler=device" in result.out


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("tests.device_envs:raising", "no board"),
        pytest.param("tests.device_envs:broken", "NaN or infinite", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_step_on_a_device_is_one_sentence(
    env: str, said: str, flatout: Callable[..., Any]
) -> None:
    result = flatout("plan", "ppo", "--env", env, *ON_DEVICE, "--seconds", 1)
    assert result.code == 1
    *measuring, message = result.err.splitlines()
    assert said in message
    assert all("measuring takes about" in line for line in measuring)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("tests.tiny_envs:Bandit", "flatout.DeviceEnv"), ("Hopper-v5", "no device environment"),
    ],
)  # fmt: skip
def test_what_has_no_device_environment_is_not_measured(env: str, said: str) -> None:
    with pytest.raises(FlatoutError, match=said):
        answer(asked("ppo", "--env", env, *ON_DEVICE), NAMED)


def test_a_plan_that_could_not_measure_all_is_not_kept() -> None:
    config, _ = train_config([*SMALL, "--env-backend", "auto"])
    note = "environments on cpu are left out: its program had not compiled within 10 s"
    auto.remember(config, inventory(), NAMED, replace(KNOWN, notes=(note,)))
    assert auto.recall(config, inventory(), NAMED) == (None, "")
    auto.remember(config, inventory(), NAMED, KNOWN)
    assert auto.recall(config, inventory(), NAMED)[0] is not None


def test_a_program_that_compiles_too_long_is_left_alone() -> None:
    going = threading.Event()
    assert in_time([lambda: 1, lambda: 2], 60.0) == [1, 2]
    with pytest.raises(TimeoutError):
        in_time([lambda: 1, going.wait], 0.05)
    going.set()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--what-if", "cores=8"), "--save-machine"),
        (("--what-if", "gpus=2"), "no GPU"),
    ],
)
def test_what_nobody_knows_of_programs_is_not_guessed(
    words: tuple[str, ...], said: str, flatout: Callable[..., Any]
) -> None:
    flags = (*SMALL, "--env-backend", "device")
    config, _ = train_config(list(flags))
    plan = device_plan(FUSED, stages=replace(TWIN, act={}, local=(), env=(0.0,)))
    auto.remember(config, inventory(), NAMED, plan)
    result = flatout("plan", *flags, *words)
    assert result.code == 2
    assert said in result.message
    faster = flatout("plan", *flags, "--what-if", "env-speed=10x", "--json")
    assert faster.code == 0
    (outcome,) = json.loads(faster.out)["what_if"]
    assert 1.0 <= outcome["gain"] < 1.1, "a fiftieth of the time is environments"
    assert "learning" in outcome["bottleneck"]
    assert "learning is the largest part" in faster.err.replace("\n", " ")


def test_a_machine_is_a_file(flatout: Callable[..., Any], tmp_path: Path) -> None:
    config, _ = train_config(list(SMALL))
    auto.remember(config, inventory(), NAMED, KNOWN)
    machine = tmp_path / "m.json"
    assert flatout("plan", *SMALL, "--save-machine", machine).code == 0
    other = flatout("plan", *SMALL, "--machine", machine, "--what-if", "cores=8", "--json")
    assert other.code == 0
    assert json.loads(other.out)["what_if"][0]["gain"] >= 1.0
    wrong = flatout("plan", *SMALL, "--hidden", "8", "--machine", machine)
    assert wrong.code == 2
    assert "hidden" in wrong.message
    machine.write_text(machine.read_text()[:100])
    assert flatout("plan", *SMALL, "--machine", machine).code == 2
