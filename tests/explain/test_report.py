"""The report in a terminal: verdict first, one thing to try, and every user's text as it is."""

from __future__ import annotations

import io
import random
import re
from dataclasses import replace
from itertools import accumulate, cycle, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from flatout_explain import html
from flatout_explain.causes import CAUSES, HEALTHY
from flatout_explain.diagnosis import Diagnosis, Finding, Lane, MeasuredGain, lanes
from flatout_explain.hardware.gpus import GpuSample
from flatout_explain.hardware.monitor import MonitorSample
from flatout_explain.phases import PHASES
from flatout_explain.report import advice, clean, extent, meters, show

SECONDS = 60.0


def example() -> Diagnosis:
    """A run of PPO on one GPU whose four workers cannot keep it busy; 11 s of start-up."""
    draw = random.Random(7)

    def lane(name: str, start: float, pattern: dict[str, float]) -> Lane:
        lengths = [
            draw.uniform(0.6, 1.4) * length
            for _ in range(int((SECONDS - start) / sum(pattern.values())))
            for length in pattern.values()
        ]
        times = list(accumulate(lengths, initial=start))
        spans = zip(pairwise(times), cycle(pattern), strict=False)
        return Lane(name, tuple((start, stop, phase) for (start, stop), phase in spans))

    main = lane("main 4711", 11.3, {"wait": 0.62, "transfer": 0.05, "learn": 0.22, "publish": 0.02})
    main = replace(main, spans=((0.0, 8.1, "other"), (8.1, 11.3, "compile"), *main.spans))
    workers = tuple(
        lane(f"worker {number}", 9.0, {"env": 0.30, "ipc": 0.03, "act": 0.05, "wait": 0.04})
        for number in range(4)
    )
    gpu = lane("gpu:0", 11.3, {"learn": 0.19, "wait": 0.72})
    usage = tuple(
        MonitorSample(
            t=0.25 * tick,
            seconds=0.25,
            cores=8,
            cpu=(0.12 if tick < 36 else 0.52) + draw.uniform(-0.05, 0.05),
            cpu_all=(0.17 if tick < 36 else 0.58) + draw.uniform(-0.02, 0.05),
            gpus=(
                gpu_sample(
                    0.0 if tick < 45 else draw.choice((0.05, 0.22, 0.31, 0.4)),
                    0.0 if tick < 45 else draw.uniform(0.03, 0.09),
                    0.02 if tick < 33 else 0.74,
                ),
            ),
            rss_mb=900.0 + 2 * tick,
        )
        for tick in range(240)
    )
    return Diagnosis(
        subject="python train.py --env BreakoutNoFrameskip-v4 --logdir runs/[ppo] --seed 3",
        verdict="env-bound",
        headline=(
            "the learner is idle 71 % of the time; 64 % of the time goes into waiting for env.step"
        ),
        findings=(
            Finding(
                "env-bound", 0.64,
                ("`env.step` took 0.30 s of every 0.42 s in each of 4 workers, train.py:88.",
                 "The learner waited for trajectories 64 % of the time; the GPU was busy 21 %.",
                 "4 of 8 cores were in use."),
                "Step the environments in more processes: 8 workers of 16 environments each.",
                ("/home/me/train.py", 88), ("--placement", "sampler=processes workers=8x16"),
                gain=MeasuredGain(1.7, 1.5, 1.9, "planning measured both placements here"),
            ),
            Finding(
                "transfer-bound", 0.06,
                ("`.item()` was called 940 times/s, train.py:131; each waits for the GPU.",),
                "Read the losses once per iteration: replace `loss.item()` in the loop by one "
                "`torch.stack(losses).tolist()` after it.", ("C:\\me\\losses.py", 131),
            ),
            Finding("compute-bound", 0.24, ("Updates took 24 % of the time.",), ""),
        ),
        seconds=48.7,
        apart=(("imports", 8.1), ("first compilation", 3.2)),
        phases={"wait": 0.64, "learn": 0.242, "transfer": 0.06, "publish": 0.021, "act": 0.03,
                "io": 0.004, "other": 0.003},
        lanes=(main, *workers, gpu),
        explained=(11.3, 60.0),
        usage=usage,
        cores=8,
        machine="8 cores (AMD EPYC 7B13), 62 GiB, NVIDIA L4 (22 GiB), Python 3.11, torch 2.13",
        notes=("Worker 3 ended after 41 s: its last seconds are missing.",
               "GPM is not there on this card: how full it was comes from the driver's samples."),
    )  # fmt: skip


def gpu_sample(busy: float | None, full: float | None, memory: float = 0.0) -> GpuSample:
    return GpuSample(0, "L4", busy, full, round(22_000 * memory), 22_000)


def empty() -> Diagnosis:
    """As little as a diagnosis can hold."""
    return Diagnosis("x.py", HEALTHY, "", (), 0.0)


def texts() -> st.SearchStrategy[str]:
    """What users name things: markup of rich, HTML and templates, escape codes, any letter."""
    nasty = "[bold]", "[/]", "\x1b[31m", "<script>", "</style>", '"', "'", "&lt;", "$x", ":smile:"
    return st.lists(st.sampled_from(nasty) | st.text(max_size=8), max_size=5).map("".join)


def diagnoses() -> st.SearchStrategy[Diagnosis]:
    """Any diagnosis, as odd as the rules could make it, with few spans and samples."""
    share = st.floats(0.0, 1.0)
    ratio = st.floats(1.0, 50.0)
    findings = st.builds(
        Finding, st.sampled_from(list(CAUSES)) | texts(), share,
        st.lists(texts(), max_size=3).map(tuple), texts(),
        st.none() | st.tuples(texts(), st.integers(1, 999)),
        st.lists(texts(), max_size=2).map(tuple),
        gain=st.none() | st.builds(MeasuredGain, ratio, ratio, ratio, texts()),
    )  # fmt: skip
    phases = st.sampled_from([*PHASES, "unheard-of <b>"])
    time = st.floats(0.0, 1e4)
    lanes = st.builds(Lane, texts(), st.lists(st.tuples(time, time, phases), max_size=9).map(tuple))
    gpu = st.builds(gpu_sample, st.none() | share, st.none() | share, share)
    usage = st.builds(
        MonitorSample, time, st.just(1.0), st.just(8), share, st.none() | share, st.none() | time,
        gpus=st.lists(gpu, max_size=2).map(tuple),
    )  # fmt: skip
    return st.builds(
        Diagnosis, texts(), st.sampled_from([HEALTHY, *CAUSES]), texts(),
        st.lists(findings, max_size=3).map(tuple), time,
        st.lists(st.tuples(texts(), time), max_size=2).map(tuple),
        st.dictionaries(phases, share, max_size=4), st.lists(lanes, max_size=3).map(tuple),
        st.lists(usage, max_size=5).map(tuple), st.integers(1, 99), texts(),
        st.lists(texts(), max_size=2).map(tuple),
    )  # fmt: skip


def piped(diagnosis: Diagnosis, width: int = 80) -> str:
    """What the report writes where there is no terminal."""
    file = io.StringIO()
    show(diagnosis, Console(file=file, width=width, force_terminal=False))
    return file.getvalue()


def in_terminal(diagnosis: Diagnosis, width: int) -> str:
    """What a terminal of that many columns shows, without its colours."""
    file = io.StringIO()
    show(diagnosis, Console(file=file, width=width, force_terminal=True, color_system=None))
    return file.getvalue()


def test_the_verdict_comes_first_and_the_thing_to_try_second() -> None:
    lines = piped(example()).splitlines()
    assert lines[0] == (
        "VERDICT  env-bound: the learner is idle 71 % of the time; 64 % of the time goes into "
        "waiting for env.step"
    )
    assert lines[1] == (
        'TRY      --placement "sampler=processes workers=8x16" (train.py:88)   64 % of the time'
    )
    assert lines[2].strip() == example().findings[0].remedy
    assert lines[3].strip() == "measured 1.7x (1.5-1.9): planning measured both placements here"
    assert lines[4].startswith("EVIDENCE `env.step` took 0.30 s")


def test_everything_that_is_known_is_said() -> None:
    diagnosis = example()
    out = piped(diagnosis)
    said = [
        *diagnosis.findings[0].evidence, *diagnosis.notes, diagnosis.subject, diagnosis.machine,
        "imports 8.1 s, first compilation 3.2 s", "48.7 s",
    ]  # fmt: skip
    for words in said:
        assert words in out
    assert "ALSO     transfer-bound    6 %  losses.py:131\n" in out
    assert "         compute-bound    24 %\n" in out
    other = replace(diagnosis.findings[0], place=None)
    out = piped(replace(diagnosis, findings=(*diagnosis.findings, other)))
    (row,) = (line for line in out.splitlines() if line.strip().startswith("env-bound"))
    assert row.strip().startswith('env-bound        64 %  --placement "sampler=processes')
    assert row.endswith("measured 1.7x (1.5-1.9): planning measured both placements here")


def test_phases_above_one_per_cent_have_bars_of_their_length() -> None:
    rows = [line for line in piped(example()).splitlines() if "█" in line]
    lengths = {line.removeprefix("TIME").split()[0]: line.count("█") for line in rows}
    assert set(lengths) == {"wait", "learn", "transfer", "publish", "act"}
    assert lengths["wait"] > 2 * lengths["learn"] > 4 * lengths["transfer"]
    assert "waiting, nothing to do" in piped(example())


def test_busy_and_how_full_are_two_rows() -> None:
    rows = {line[9:19]: line for line in piped(example()).splitlines() if "GPU 0" in line[:16]}
    assert set(rows) == {"GPU 0 busy", "GPU 0 full"}
    assert rows["GPU 0 busy"].endswith("25 %  of the time with a kernel running")
    usage = tuple(replace(one, gpus=(replace(one.gpus[0], full=None),)) for one in example().usage)
    unknown = piped(replace(example(), usage=usage))
    assert "GPU 0 full      ?  of its multiprocessors in use meanwhile: unknown here" in unknown


def test_nothing_is_tried_of_a_healthy_program_or_of_a_part() -> None:
    finding = Finding("compute-bound", 0.9, ("The arithmetic is the time.",), "Buy a GPU.")
    other = Finding("replay-bound", 0.1, (), "Draw 64 random indices instead.")
    healthy = Diagnosis("x.py", HEALTHY, "the arithmetic is the time", (finding, other), 9.0)
    assert "TRY" not in piped(healthy)
    held_up = replace(
        healthy, verdict="replay-bound", findings=(replace(finding, remedy=""), other)
    )
    assert "TRY      Draw 64 random indices instead.   10 % of the time" in piped(held_up)
    assert "TRY" not in piped(replace(held_up, part="no learning yet"))


@given(diagnosis=diagnoses())
@settings(max_examples=60, deadline=None)
def test_no_gain_is_printed_that_was_not_measured(diagnosis: Diagnosis) -> None:
    plain = replace(
        diagnosis, findings=tuple(replace(one, gain=None) for one in diagnosis.findings)
    )
    gain = re.compile(r"measured [\d.]+x \([\d.]+-[\d.]+\)")
    assert not gain.search(piped(plain))
    assert not gain.search(html.page(plain))
    for shown in plain.as_json()["findings"]:
        assert not {"gain", "low", "high", "how", "kind"} & set(shown)
    if (tried := advice(diagnosis)) is not None and tried.gain is not None:
        assert gain.search(piped(diagnosis))
        assert gain.search(html.page(diagnosis))
        assert {"gain", "low", "high", "how"} <= set(tried.as_json())


def test_a_gain_that_an_older_version_predicted_is_not_shown_as_measured() -> None:
    display = pytest.importorskip("flatout.run.display", reason="of Flatout's runs")
    concern_words = display.concern_words
    old = {"id": "env-bound", "share": 0.6, "evidence": ["x"], "remedy": "y", "gain": 3.7,
           "low": 1.2, "high": 9.0, "setting": ["--envs", "8"], "kind": "modelled",
           "phases": ["env"]}  # fmt: skip
    assert concern_words(old) == "concerns 60 % of the time"
    new = old | {"how": "planning measured both placements here"}
    assert "measured 3.7x (1.2-9.0): planning measured both" in concern_words(new)


def test_neighbouring_spans_of_one_phase_are_one() -> None:
    drawn = lanes([
        ("main", [(0.0, 1.0, "wait"), (1.0, 2.0, "wait")]),
        ("worker", [(-0.1, 1.0, "env"), (1.0, 2.0, "env"), (2.5, 3.0, "env")]),
        ("idle", [(0.0, 3.0, "wait")]),
    ])  # fmt: skip
    assert drawn == (
        Lane("main", ((0.0, 2.0, "wait"),)),
        Lane("worker", ((0.0, 2.0, "env"), (2.5, 3.0, "env"))),
    )


def test_a_remedy_without_flags_is_told_in_words() -> None:
    first = replace(example().findings[0], setting=(), gain=None)
    lines = piped(replace(example(), findings=(first,))).splitlines()
    assert lines[1] == f"TRY      {first.remedy[:-1]} (train.py:88)   64 % of the time"
    assert "ALSO" not in "".join(lines)


@pytest.mark.parametrize("name", ["[bold]a[/bold].py", "[/]", "x[0].py", ":smile:.py", "a\\[b].py"])
def test_no_name_is_read_as_markup(name: str) -> None:
    finding = Finding("io-bound", 0.5, (f"{name}:3 writes.",), f"Write {name} less.")
    diagnosis = Diagnosis(
        f"python {name}", "io-bound", f"{name} writes", (finding,), 1.0, ((name, 1.0),),
        machine=name, notes=(name,),
    )  # fmt: skip
    for out in (piped(diagnosis), in_terminal(diagnosis, 200)):
        assert out.count(name) == 7


def test_a_short_diagnosis_is_a_short_report() -> None:
    assert piped(empty()).splitlines() == ["VERDICT  healthy", "OBSERVED 0.0 s of x.py"]


@given(diagnosis=diagnoses())
@settings(max_examples=60, deadline=None)
def test_a_pipe_gets_plain_lines(diagnosis: Diagnosis) -> None:
    """No escape codes, whatever the names hold, and no line is broken or cut."""
    out = piped(diagnosis, width=20)
    assert all(letter.isprintable() for letter in out.replace("\n", ""))
    assert clean(diagnosis.subject).rstrip() in out
    for finding in diagnosis.findings[:1]:
        for sentence in finding.evidence:
            assert clean(sentence).rstrip() in out


@given(diagnosis=diagnoses(), width=st.integers(60, 140))
@settings(max_examples=60, deadline=None)
def test_a_terminal_is_never_too_narrow(diagnosis: Diagnosis, width: int) -> None:
    for line in in_terminal(diagnosis, width).splitlines():
        assert cell_len(line) <= width


def test_a_narrow_terminal_loses_no_word() -> None:
    narrow = in_terminal(example(), 60).split()
    for finding in example().findings[:1]:
        for word in " ".join([*finding.evidence, finding.remedy]).split():
            assert word in narrow
    assert "64 % of the time" in in_terminal(example(), 60)
    assert "measured 1.7x (1.5-1.9)" in in_terminal(example(), 60)


def test_the_mean_use_is_that_of_the_explained_time() -> None:
    """Of a program that starts, trains from 5 to 20 s and evaluates until 30 s."""
    usage = tuple(
        MonitorSample(float(t), 2.0, 4, 0.75 if 5 < t <= 19 else 1.0 if t > 21 else 0.0)
        for t in range(2, 32, 2)
    )
    trained = replace(example(), usage=usage, lanes=(), explained=(5.0, 19.0), seconds=14.0)
    (cpu,) = meters(trained)
    assert cpu.mean == pytest.approx((0.75 * 13.0 + 0.0 * 1.0) / 14.0), "a sample is cut at an edge"
    assert extent(trained) == 30.0
    (whole,) = meters(replace(trained, explained=None))
    assert whole.mean == pytest.approx(sum(sample.cpu for sample in usage) / len(usage))


def test_letters_that_the_terminal_cannot_show_are_replaced() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    show(replace(example(), subject="größe.py"), Console(file=file))
    file.flush()
    out = raw.getvalue().decode("ascii")
    assert "gr??e.py" in out
    assert "####" in out


def test_rows_of_the_table_of_times_name_the_programs_lines() -> None:
    diagnosis = replace(
        example(), phases={"env": 0.7, "learn": 0.3},
        lines={"env": "train.py:88  obs = env.step(action)", "learn": "train.py:95  update(batch)"},
    )  # fmt: skip
    text = piped(diagnosis)
    assert "train.py:88  obs = env.step(action)" in text
    assert "train.py:95  update(batch)" in text
    wide = io.StringIO()
    show(diagnosis, Console(file=wide, width=70, force_terminal=True, color_system=None))
    (row,) = [line for line in wide.getvalue().splitlines() if line.startswith("TIME")]
    assert "train.py" in row, "its beginning is shown"
    assert cell_len(row) <= 70, "and it is not wrapped"
