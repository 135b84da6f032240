"""What users, environments and files do wrong: one clear sentence, an exit code, nothing lost."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
from gymnasium import spaces

from flatout import PPO, FlatoutError
from flatout.envs.host import HostEnvs
from flatout.envs.make import specs
from flatout.errors import EnvironmentFailure
from flatout.storage import checkpoint
from flatout.storage.run_folder import RunFolder
from flatout.types import ObservationSpec
from tests import tiny
from tests.bad_envs import Good, NumpyValues, WrongValue
from tests.conftest import TINY, Result, share_programs

ROOT = Path(__file__).parents[2]
RUN = (*TINY, "--checkpoint-every", "64")
BAD = ("train", "ppo", *RUN, "--env")
Cli = Callable[..., Result]
case = pytest.param


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where `--env tests.bad_envs:Name` is found


@pytest.fixture
def _one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in environments of `tests.bad_envs` share their programs: all have the same spaces."""
    share_programs(monkeypatch, lambda config, code: tiny.programs("bad_envs"))


def sentence(result: Result, code: int, words: str) -> str:
    """The refusal's text, after checking that it is one tidy line and says what it should."""
    assert result.code == code, (result.code, result.err)
    message = result.message
    assert result.err.strip() == f"flatout: {message}", "not one line"
    assert result.out == ""
    assert not [word for word in words.split("|") if word not in message], message
    assert message.endswith((".", "?", ")")), message
    assert not [pair for pair in ("..", "?.", "  ", "None.") if pair in message], message
    return message


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, by name, with its digest; less what a refusal may write."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name not in (".lock", "error.log")
    }


NESTED, DIGITS = "[" * 99999, "9" * 400


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("trian", "'trian'|'train'"),
        ("train", "algorithm|ppo"),
        ("train pqo", "'pqo'|'ppo'"),
        ("train ppo --env=", "--env|--preset"),
        ("train --preset cartpol-ppo", "'cartpol-ppo'|'cartpole-ppo'"),
        ("train --preset", "--preset needs a value"),
        ("train --config no-such.toml", "no-such.toml|No such file"),
        ("train ppo --env CartPol-v1", "'CartPol-v1'|'CartPole-v1'"),
        ("train ppo --env CartPole", "'CartPole'|'CartPole-v1'"),
        ("train ppo --env no.such:Thing", "no.such:Thing|'no'"),
        ("train ppo --env tests.bad_envs:Goood", "'Goood'|'Good'"),
        ("train ppo --env tests/bad_envs.py", "--env tests.bad_envs:NAME|bad_envs.py"),
        ("train ppo --env tests/bad_envs", "--env tests.bad_envs:NAME|bad_envs.py"),
        ("train ppo --env tests/bad_envs.py:Good", "--env tests.bad_envs:Good, where"),
        ("train ppo --env no_such:Thing", f"'no_such' in {ROOT} or in Python's path"),
        ("train ppo --env :Good", ":Good"),
        ("train ppo --env tests.bad_envs:NOT_CALLABLE", "'NOT_CALLABLE'"),
        ("train ppo --env tests.bad_envs:NotAnEnv", "NotAnEnv|gymnasium.Env"),
        ("train ppo --env tests.bad_envs:NoSpaces", "NoSpaces|observation_space"),
        ("train ppo --learnin-rate 3", "--learnin-rate|--learning-rate"),
        ("train ppo --envs many", "--envs|many"),
        ("train ppo --envs 1.5", "--envs|1.5"),
        ("train ppo --envs", "--envs"),
        ("train ppo --network mpl", "--network|mpl|mlp"),
        ("train ppo stray", "stray"),
        ("train ppo --envs=0", "envs = 0"),
        ("train ppo --n-steps=-5", "n_steps = -5"),
        ("train ppo --batch-size=7", "64 transitions|batch_size 7"),
        ("train ppo --gamma=1.5", "gamma = 1.5|0 to 1"),
        ("train ppo --gamma=nan", "gamma = nan|finite"),
        ("train ppo --learning-rate=-1", "learning_rate = -1.0|above 0"),
        ("train ppo --learning-rate=fast", "'fast'|lin_"),
        ("train ppo --steps=2147483648", "steps = 2147483648"),
        ("train ppo --seed=-1", "seed = -1"),
        ("train ppo --threshold=nan", "threshold|nan|finite"),
        ("train ppo --n-epochs=100000000000", "n_epochs|100000000000"),
        ("train ppo --placement=tpu", "'tpu'|'gpu'"),
        ("train ppo --placement=act=cpu:99", "cpu:99|this machine has cpu"),
        ("train ppo --network=nature", "nature|[4]|mlp"),
        ("train ppo --grayscale", "--grayscale|CartPole-v1"),
        ("train ppo --env-kwargs length", "'length'|KEY=VALUE"),
        ("train ppo --env-kwargs 1st=3", "'1st=3'|KEY=VALUE"),
        ("train ppo --devices=999999999999", "devices = 999999999999|in 1 to 64"),
        ("train ppo --devices=0", "devices = 0|in 1 to 64"),
        (f"train ppo --envs={10**30}", f"envs = {10**30} is impossible|in 1 to 100000"),
        (f"train ppo --shards={10**30}", f"shards = {10**30} is impossible"),
        ("eval", "eval RUN_DIR"),
        ("eval no-such-run", "no-such-run"),
        ("train ppo --env Breakoutv4", "'Breakoutv4'|Did you mean 'Breakout-v4'"),
        ("train ppo --env spaceinvaders", "'spaceinvaders'|'ALE/SpaceInvaders-v5'"),
        ("train ppo --env snake", "'snake'|Did you mean 'flatout/Snake-v0'"),
        ("train ppo --hidden 64,a", "--hidden: 'a' is not a whole number|64,64"),
        ("train ppo --hidden 64,8.5", "--hidden: '8.5' is not a whole number|64,64"),
        ("train ppo --threshold=1,b", "--threshold: 'b' is not a number"),
        ("train ppo --gamma much", "--gamma: 'much' is not a number."),
        ("train ppo --grayscale maybe", "--grayscale is a flag|'maybe'"),
        ("train ppo --json out.json", "--json is a flag and takes no file|> out.json"),
        ("train ppo --json=out.json", "--json is a flag and takes no file|> out.json"),
        ("eval run --json out.json", "--json is a flag and takes no file|> out.json"),
        ("devices --json out.json", "--json is a flag and takes no file|> out.json"),
        ("devices --cores 4", "--cores is a flag and takes no value such as '4'"),
        ("plan ppo --json out.json --compare-devices 1", "--json is a flag and takes no file"),
        ("sweep ppo --env CartPole-v1 --json=out.json", "--json is a flag and takes no file"),
        ("plan --table --json out.json", "--json is a flag and takes no file"),
        ("runs --json out.json", "--json is a flag and takes no file"),
        ("runs --compare a b --json out.json", "--json is a flag and takes no file"),
        ("report a --json out.json", "--json is a flag and takes no file"),
        ("explain run --json", "--json needs a file: --json FILE"),
        ("explain run --html --stop", "--html needs a file: --html FILE"),
        ("explain --json run", "--json took run as its FILE|flatout explain PATH"),
        ("plan ppo --env CartPole-v1 --json out.json", "--json is a flag and takes no file"),
        ("plan ppo --env CartPole-v1 --machine", "--machine needs a file: --machine FILE"),
        ("export run --json", "export has no --json"),
        ("train ppo --episodes 3", "train has no --episodes; it is a flag of flatout eval."),
        ("eval run --gae-lambda 1", "eval has no --gae-lambda; it is a flag of flatout train"),
        ("train dqn --env CartPole-v1 --clip-range 0.1", "--clip-range is a setting of ppo; dqn"),
        ("train ppo --env CartPole-v1 --n-step 64", "ppo does not have it. It has --n-steps."),
        ("train ppo --env-kwargs a=1 b=2", "'b=2'|--env-kwargs a=1 --env-kwargs b=2"),
        ("train ppo --hidden 64 64", "'64'|--hidden 64,64"),
        ("explain train.py --lr 1", "flatout explain -- python train.py --lr 1"),
        ("explain --seconds 9 python3 a.py", "flatout explain --seconds 9 -- python3 a.py"),
        ("--completion fish", "bash or zsh"),
        ("report --curves run --json", "no --json|draws curves"),
        ("eval run --show --json", "--show and --json cannot be combined"),
        ("eval run --fps 3", "--fps is for --show"),
        ("eval run --show --seed=-1", "--seed = -1 is impossible"),
        ("eval run --video-episodes 3", "--video-episodes is for --out"),
        ("eval run --out no-such/a.gif", "--out no-such/a.gif is no file in an existing folder"),
        ("fleet sweep.toml", "'fleet'|flatout sweep"),
        ("watch run", "'watch'|flatout eval RUN_DIR --show"),
        ("compare a b", "'compare'|flatout runs --compare"),
        ("plot run", "'plot'|flatout report --curves RUN"),
        ("scale ppo --devices 1,2", "'scale'|flatout plan ALGORITHM --compare-devices"),
        ("bench placement", "'bench'|flatout plan --table"),
        ("runs --compare a", "--compare needs two run folders"),
        ("runs a b", "flatout runs --compare a b"),
        ("plan ppo --compare-devices 1,2 --search", "--search is for --run: give both"),
        ("plan ppo --compare-devices 1,2 --what-if cores=4", "--what-if and --compare-devices"),
        ("plan dqn --env ALE/Breakout-v5 --what-if spare-envs=all", "compare two runs"),
        ("plan ppo --env CartPole-v1 --what-if spare-envs=2", "spare-envs=all or spare-envs=0"),
        ("plan --table --preset cartpole-ppo", "leave out --preset"),
        ("plan ppo --share 0.5", "--share is for --table: give both"),
    ],
)
def test_usage(flatout: Cli, tmp_path: Path, argv: str, words: str) -> None:
    command = argv.split()
    if command[:2] == ["train", "ppo"]:
        command[2:2] = [*RUN, "--run-dir", str(tmp_path / "run")]
    sentence(flatout(*command), 2, words)


@pytest.mark.parametrize(
    "argv",
    ["eval run --out", "export run --out", "report --curves run --out",
     "plan classify --compare-devices 1 --run --out", "explain run --html", "train ppo --config",
     "train --resume", "train --from", "sweep --resume", "train classify --data",
     "train a2c --env CartPole-v1 --run-dir", "sweep ppo --env CartPole-v1 --run-dir"],
)  # fmt: skip
def test_an_empty_path_is_refused(flatout: Cli, argv: str) -> None:
    flag = argv.split()[-1]
    name = flag.strip("-").replace("-", "_") if flag in ("--data", "--run-dir") else flag
    sentence(flatout(*f"{argv}=".split()), 2, f"{name} is empty: give a path.")


@pytest.mark.parametrize("command", ["eval", "explain", "runs", "report"])
def test_a_run_whose_name_is_empty(flatout: Cli, command: str) -> None:
    sentence(flatout(command, ""), 2, "RUN_DIR is empty: give a path.")


def test_a_checked_name_is_no_style_of_the_terminal(flatout: Cli) -> None:
    shown = flatout("check", "[/x]")
    assert shown.code == 1
    assert shown.out.endswith("[/x]: 1 error, 0 warnings\n")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("train --from FILE", "--from FILE is a file|folder of a run"),
        ("train ppo --env CartPole-v1 --from FILE", "--from FILE is a file|folder of a run"),
        ("train --resume FILE", "--resume FILE is a file|folder of a run"),
        ("sweep --resume FILE", "--resume FILE is a file|folder of a sweep"),
        ("runs --compare FILE FILE", "--compare FILE is a file|folder of a run"),
        ("report --curves FILE", "FILE is a file|folder of a run"),
    ],
)
def test_a_file_in_the_place_of_a_folder(
    flatout: Cli, tmp_path: Path, argv: str, words: str
) -> None:
    file = tmp_path / "README.md"
    file.write_text("# A page\n")
    argv, words = (text.replace("FILE", str(file)) for text in (argv, words))
    sentence(flatout(*argv.split()), 2, words)


def test_names_with_line_breaks_are_shown_in_one_line(flatout: Cli, tmp_path: Path) -> None:
    name = "a\nb\x1b[2J"
    with pytest.raises(FlatoutError) as raised:
        PPO.load(tmp_path / name)
    assert str(raised.value).startswith(f"{tmp_path}/a\\nb\ufffd[2J ")
    for words in (("eval", name), ("train", "--resume", name), ("runs", "--compare", name, name)):
        sentence(flatout(*words), 2, "a\\nb\ufffd[2J does not exist")
    file = tmp_path / name
    file.write_text("")
    sentence(flatout("train", "ppo", *RUN, "--run-dir", file), 2, "a\\nb\ufffd[2J is a file")


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        ("train ppo --envs 2 --envs 3", "--envs"),
        ("train ppo --envs 2 --envs=3", "--envs"),
        ("train ppo --n-steps 2 --n_steps 3", "--n_steps"),
        ("train ppo --env A --env B", "--env"),
        ("train ppo --env CartPole-v1 --seeds 2 --seeds 3", "--seeds"),
        ("train --resume a --resume b", "--resume"),
        ("eval run --episodes 2 --episodes 3", "--episodes"),
        ("explain run --html a.html --html b.html", "--html"),
        ("report --curves a --smooth 2 --smooth 3", "--smooth"),
        ("plan --table --share 1 --share 0.5", "--share"),
        ("plan classify --machine a --machine b", "--machine"),
        ("sweep ppo --env CartPole-v1 --seeds 2 --seeds 3", "--seeds"),
    ],
)
def test_a_flag_with_one_value_is_given_once(flatout: Cli, argv: str, flag: str) -> None:
    sentence(flatout(*argv.split(), exact=True), 2, f"{flag} is given more than once")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = = 3", "not TOML|line 1"),
        ("\xff\xfe", "not TOML"),
        case(f"x = {NESTED}", "not TOML", id="nested"),
        case(f"n_steps = {DIGITS * 20}", "not TOML", id="digits"),
        case(f"gamma = {DIGITS}", "gamma|number", id="too large"),
        ("learning_rat = 3", "'learning_rat'|'learning_rate'"),
        ("[ppo]\ngamma = 0.9", "'ppo'"),
        ("gamma = true", "gamma = True|a number"),
        ("n_steps = 1.5", "n_steps = 1.5|whole number"),
        ("seed = 1979-05-27", "seed|whole number"),
        ("algorithm = 'dqn'", "dqn|ppo"),
    ],
)
def test_config_files(flatout: Cli, tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text, "latin-1")
    place = ["--run-dir", tmp_path / "run"]
    sentence(flatout("train", "ppo", *RUN, *place, "--config", file), 2, words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "its JSON is not an object"),
        ("3", "its JSON is not an object"),
        ("{}", "'answer' is missing"),
        ('{"answer": [], "settings": 3, "machine": 1}', "Expected object, got array"),
        ('{"answer": {}, "settings": {}, "machine": "a"}', "stages is missing"),
        ('{"answer": {"stages": {"env": 3}}}', "stages.env = 3"),
        ("not", "cannot be read as JSON"),
    ],
)
def test_other_files_in_place_of_a_machine(
    flatout: Cli, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "machine.json"
    file.write_text(text)
    result = flatout("plan", "ppo", "--env", "CartPole-v1", "--machine", file)
    message = sentence(result, 2, f"--machine {file}|{words}")
    python = ("indices", "subscriptable", "NoneType", "TypeError", "KeyError", "argument")
    assert not [word for word in python if word in message], message
    assert message.count("save-machine") == ("JSON:" not in message)


UNKNOWN = {
    "obs": ("Sequence", "Graph"),
    "act": ("Text", "Sequence"),
}


@pytest.mark.parametrize(
    ("space", "flags", "words"),
    [
        *((f"{side}={kind}", "", f"a {kind} space|Box") for side, kinds in UNKNOWN.items()
          for kind in kinds),
        ("obs=empty", "", "(0,)"),
        ("act=empty", "", "(0,)"),
        ("obs=wide", "--resize 9", "--resize|image"),
        *((f"{side}={kind}", "", words) for side in ("obs", "act") for kind, words in (
            ("nested", "a Sequence space|at 'inner/0'"),
            ("hollow", "without entries|at 'inner'"),
            ("numbered", "the key 3|texts"),
            ("slashed", "the key 'a/b'|without slashes"),
        )),
    ],
)  # fmt: skip
def test_unsupported_spaces(
    flatout: Cli, tmp_path: Path, space: str, flags: str, words: str
) -> None:
    place = ["--run-dir", tmp_path / "run", *flags.split()]
    result = flatout(*BAD, "tests.bad_envs:Spaces", *place, "--env-kwargs", space)
    sentence(result, 2, words)


def test_code_that_ends_the_command_is_a_failure(flatout: Cli, tmp_path: Path) -> None:
    result = flatout(*BAD, "tests.hostile_envs:EndsProgram", "--run-dir", tmp_path / "run")
    sentence(result, 1, "ended it: SystemExit: 0|hostile_envs.py:")


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("Raises", "", "ValueError|in step|the bridge is out|bad_envs.py:"),
        ("Raises", "what=lines", "ValueError|the bridge|out"),
        ("Raises", "what=exit", "SystemExit|in step|bad_envs.py:"),
        ("Raises", "what=mute", "Mute|in step|bad_envs.py:"),
        ("NaNs", "", "observation|NaN"),
        ("NaNs", "what=infinite", "observation|infin"),
        ("NaNs", "what=reward", "reward nan"),
        ("NaNs", "ends=truncated at=100", "observation|NaN"),  # seen by nothing but the bootstrap
        ("WrongValue", "what=reward=None", "returned reward None from step|one number"),
        ("WrongShape", "", "shape (5,)|(4,)"),
        ("WrongDtype", "what=object", "type object|float32"),
        ("WrongDtype", "what=text", "type <U|float32"),
        ("WrongDtype", "what=complex", "type complex|float32"),
        ("WrongTuple", "", "step|return|5"),
    ],
)
@pytest.mark.usefixtures("_one_program")
def test_environments_that_fail_midway(
    flatout: Cli, tmp_path: Path, name: str, settings: str, words: str
) -> None:
    # Both steps 100 and 110 are in the fourth trajectory; checkpoints after three must survive.
    kwargs = [f"--env-kwargs={word}" for word in ("at=110", *settings.split())]
    result = flatout(*BAD, f"tests.bad_envs:{name}", "--run-dir", tmp_path, *kwargs)
    message = sentence(result, 1, f"environment 0|tests.bad_envs:{name}|{words}")
    assert "flatout/envs/host.py" not in message, "not the place to look at"
    step, snapshot = checkpoint.load(checkpoint.latest(tmp_path))
    assert step == snapshot.data["progress"]["steps"] == 192
    assert len(checkpoint.checkpoints(tmp_path / "checkpoints")) == 3


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("broken", "", "no licence for the simulator"),
        ("Good", "nope=3", "'nope'"),
        case("Good", f"nope={NESTED}", "'nope'", id="nested kwargs"),
        ("Raises", "at=0", "in reset|the bridge is out"),
        ("NaNs", "at=0", "observation|NaN|reset"),
        ("WrongShape", "at=0", "reset|(5,)"),
        ("WrongDtype", "at=0", "reset|object"),
        ("WrongTuple", "at=0", "reset|return"),
        ("HugeReward", "", "diverged|reward"),
        ("HugeReward", "size=1e39", "environment 0|returned reward"),
    ],
)
@pytest.mark.usefixtures("_one_program")
def test_environments_that_fail_at_once(
    flatout: Cli, tmp_path: Path, name: str, settings: str, words: str
) -> None:
    kwargs = [f"--env-kwargs={word}" for word in settings.split()]
    result = flatout(*BAD, f"tests.bad_envs:{name}", "--run-dir", tmp_path / "run", *kwargs)
    sentence(result, 1, words)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("reward=text", "reward 'plenty'|one number"),
        ("reward=digits", "reward '3'|one number"),
        ("reward=array", "reward array([0., 0., 0.])|one number"),
        ("reward=row", "reward array([1.])|one number"),
        ("reward=complex", "reward 1j|one number"),
        ("reward=vast", "reward 1000|one number"),
        ("terminated=None", "terminated None|True or False"),
        ("terminated=empty", "terminated ''|True or False"),
        ("terminated=two", "terminated 2|True or False"),
        ("terminated=flags", "terminated array([ True])|True or False"),
        ("truncated=None", "truncated None|True or False"),
        ("truncated=nan", "truncated nan|True or False"),
        ("truncated=list", "truncated []|True or False"),
        ("truncated=array", "truncated array([0., 0., 0.])|True or False"),
        ("info=None", "info None|a dict"),
    ],
)
def test_what_no_step_may_return_is_refused_by_name(what: str, words: str) -> None:
    env = WrongValue(at=3, what=what)
    envs = HostEnvs([Good(), env], "mine", *specs(env, "mine"), seed=0)
    obs, rewards = np.zeros((2, 4), np.float32), np.zeros(2, np.float32)
    envs.reset_all(obs)
    for _ in range(2):
        envs.step(np.zeros(2, np.int32), obs, rewards, pytest.fail)
    with pytest.raises(EnvironmentFailure) as caught:
        envs.step(np.zeros(2, np.int32), obs, rewards, pytest.fail)
    message = str(caught.value)
    assert message.startswith("environment 1 (mine) returned "), message
    assert not [word for word in words.split("|") if word not in message], message

    envs = HostEnvs([WrongValue(at=2, what=what)], "mine", *specs(env, "mine"), seed=0)
    with pytest.raises(EnvironmentFailure, match="mine"):  # nor when an episode is reproduced
        envs.replay(0, 0, np.zeros(2, np.int32), obs[:1])


def test_numbers_and_flags_may_be_of_numpy() -> None:
    kinds = (Good, NumpyValues)
    envs = HostEnvs([kind(length=3) for kind in kinds], "n", *specs(Good(), "n"), seed=0)
    obs, rewards, ends = np.zeros((2, 4), np.float32), np.zeros(2, np.float32), []
    for env in range(2):
        envs.reset(env, obs)
    for _ in range(3):
        envs.step(np.zeros(2, np.int32), obs, rewards, lambda *end: ends.append(end[:3]))
    assert ends == [(0, True, False), (1, True, False)]
    assert all(type(flag) is bool for _, *flags in ends for flag in flags)


def test_environments_that_do_not_close(flatout: Cli, tmp_path: Path) -> None:
    command = [*BAD, "tests.bad_envs:BadClose", "--run-dir"]
    result = flatout(*command, tmp_path / "refused", "--env-kwargs", "obs=Graph")
    sentence(result, 2, "a Graph space")
    result = flatout(*command, tmp_path / "run")
    assert result.code == 0
    assert "Traceback" not in result.err
    assert (tmp_path / "run" / "params.safetensors").is_file()


def test_missing_gpu(flatout: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    command = ["train", "ppo", *RUN, "--placement", "gpu", "--run-dir"]
    sentence(
        flatout(*command, tmp_path / "hard"), 2, "'gpu'|gpu:0|machine has cpu|--soft-placement"
    )
    result = flatout(*command, tmp_path / "soft", "--soft-placement", "--json")
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert summary["placement"] == "cpu"
    assert any("gpu:0 is not here" in note and "cpu" in note for note in summary["notes"])


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ("--n-steps 2000000000 --envs 8", 1, "MiB|available|--n-steps|trajectory"),
        ("--envs 400000000", 2, "envs|400000000|100000"),
    ],
)
def test_gigantic_rollouts(flatout: Cli, tmp_path: Path, flags: str, code: int, words: str) -> None:
    before = psutil.Process().memory_info().rss
    result = flatout("train", "ppo", *RUN, *flags.split(), "--run-dir", tmp_path / "run")
    sentence(result, code, words)
    assert psutil.Process().memory_info().rss - before < 2**28


@pytest.mark.parametrize("kind", ["file", "below a file", "no right", "proc", "long", "a run"])
def test_run_folders(flatout: Cli, tmp_path: Path, kind: str) -> None:
    file, locked, run = tmp_path / "file", tmp_path / "locked", tmp_path / "run"
    file.write_text("mine")
    run.mkdir()
    (run / "config.json").write_text("{}")
    locked.mkdir(mode=0o555)
    if kind == "no right" and os.access(locked, os.W_OK):
        pytest.skip("this user may write everywhere")
    path, code, words = {
        "file": (file, 2, "is a file|--run-dir"),
        "below a file": (file / "run", 1, "Not a directory"),
        "no right": (locked / "run", 1, "Permission denied"),
        "proc": (Path("/proc/flatout-run"), 1, "cannot write"),
        "long": (tmp_path / DIGITS, 1, "name too long"),
        "a run": (run, 2, "already holds a run|--resume|--run-dir"),
    }[kind]
    before = contents(tmp_path)
    sentence(flatout("train", "ppo", *RUN, "--run-dir", path), code, f"{path}|{words}")
    assert contents(tmp_path) == before


def test_run_folder_in_use(flatout: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert flatout("train", "ppo", *RUN, "--run-dir", run).code == 0
    with closing(RunFolder(run, resume=True)):
        sentence(flatout("train", "--resume", run), 1, f"{run}|in use")


@pytest.mark.slow
def test_run_folder_in_use_by_another_process(flatout: Cli, tmp_path: Path) -> None:
    argv = [*BAD, "tests.bad_envs:NeverEnds", "--steps", "1000000", "--run-dir", str(tmp_path)]
    settings = ["--env-kwargs", "delay=0.001"]
    process = subprocess.Popen([sys.executable, "-m", "flatout", *tiny.latest([*argv, *settings])])
    try:
        until = time.monotonic() + 300
        while not checkpoint.checkpoints(tmp_path / "checkpoints"):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        sentence(flatout("train", "--resume", tmp_path), 1, f"{tmp_path}|in use")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    step, _ = checkpoint.load(checkpoint.latest(tmp_path))
    assert step % 64 == 0


@pytest.mark.parametrize(
    "flags",
    [("--sticky-actions", "0.5"), ("--frame-skip", "2"), ("--terminal-on-life-loss",)],
)
def test_flags_for_atari_alone(flatout: Cli, flags: tuple[str, ...]) -> None:
    result = flatout("train", "dqn", "--env", "CartPole-v1", *flags)
    sentence(result, 2, f"{flags[0]}|ALE/|CartPole-v1|--env-kwargs")


@pytest.mark.parametrize(
    "flags", [(), ("--prioritized",), ("--placement", "act=cpu replay=device")]
)
def test_a_replay_larger_than_memory_is_refused_with_numbers(
    flatout: Cli, flags: tuple[str, ...], tmp_path: Path
) -> None:
    result = flatout(
        "train", "dqn", "--env", "CartPole-v1", "--buffer-size", "2e9", "--quiet", "--run-dir",
        tmp_path / "run", *flags,
    )  # fmt: skip
    sentence(result, 1, "MiB|replay|--buffer-size")


def test_numbers_that_do_not_fit_are_kept_as_floats() -> None:
    class Far(Good):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Box(-(10**12), 10**12, (2,), np.int64)

    assert specs(Far(), "far")[0].dtype == "float32"


def test_images_with_the_channels_first_are_recognised() -> None:
    class Planes(Good):
        def __init__(self, *shape: int) -> None:
            super().__init__()
            self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    for shape, first in (((3, 60, 80), True), ((60, 80, 3), False), ((3, 15, 80), False)):
        spec, _ = specs(Planes(*shape), "planes")
        assert isinstance(spec, ObservationSpec)
        assert spec.channels_first == first
        assert spec.image_shape == ((60, 80, 3) if first else shape)


def test_a_command_in_a_message_can_be_pasted_where_the_folder_has_a_space(
    flatout: Cli, tmp_path: Path
) -> None:
    run = tmp_path / "my run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    assert flatout("eval", run).message.endswith(f"flatout train --resume '{run}'.")
