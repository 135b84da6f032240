"""A user's network, on one device and on several; the Python interface; resumed runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flatout import PPO, CheckpointError, Classifier, UsageError, evaluate_policy
from flatout.randomness import DATA, INIT, raw_key, wrap_key
from flatout.spans import Spans
from flatout.supervised.datasets import load_dataset
from flatout.supervised.sampler import DatasetSampler
from tests import own_networks
from tests.conftest import Result, furthest, last_saved
from tests.kills import assert_same, final_state, finish, run_script, spawn, wait_for
from tests.own_networks import Dense, make

Cli = Callable[..., Result]
MINE = ("--data", "tests.own_networks:make", "--network", "tests.own_networks:Dense")
TINY = ("--steps", 6, "--batch-size", 32, "--quiet", "--no-tensorboard", "--log-every", 2)
SMALL: dict[str, Any] = {"batch_size": 32, "steps": 20, "log_every": 10, "learning_rate": 1e-2}


def trained(flatout: Cli, run: Path, *flags: Any) -> Path:
    result = flatout("train", "classify", *MINE, *TINY, *flags, "--run-dir", run)
    assert result.code == 0, result.err
    return run


def losses(run: Path) -> list[float]:
    rows = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row)["train/loss"] for row in rows]


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny run with four shards on one device."""
    from flatout.__main__ import main
    from tests import tiny

    run = tmp_path_factory.mktemp("own") / "run"
    words = ("train", "classify", *MINE, *TINY, "--shards", 4, "--run-dir", run)
    assert main(tiny.latest([str(word) for word in words])) == 0
    return run


# --- Several devices ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(("--devices", 2), marks=pytest.mark.slow),
        pytest.param(("--devices", 4), marks=pytest.mark.slow),
        ("--placement", "act=cpu learn=cpu:0,cpu:1,cpu:2,cpu:3 params=sharded"),
    ],
    ids=["two", "four", "sharded"],
)
def test_the_loss_is_the_same_on_several_devices(
    where: Any, one_device: Path, flatout: Cli, tmp_path: Path
) -> None:
    several = trained(flatout, tmp_path / "run", "--shards", 4, *where)
    np.testing.assert_allclose(losses(several), losses(one_device), atol=1e-5)
    assert furthest(last_saved(one_device), last_saved(several)) < 2e-5


def test_sharded_parameters_are_divided(flatout: Cli, tmp_path: Path) -> None:
    placement = "act=cpu learn=cpu:0,cpu:1,cpu:2,cpu:3 params=sharded"
    run = trained(flatout, tmp_path / "run", "--shards", 4, "--placement", placement)
    memory = json.loads((run / "summary.json").read_text())["memory_mb"]
    whole = trained(flatout, tmp_path / "w", "--shards", 4, "--devices", 4)
    all_of_it = json.loads((whole / "summary.json").read_text())["memory_mb"]
    live = [sum(memory[f"cpu:{n}"]["live"].values()) for n in (1, 2, 3)]
    copies = [sum(all_of_it[f"cpu:{n}"]["live"].values()) for n in (1, 2, 3)]
    assert max(live) < 0.7 * min(copies)


@pytest.mark.slow
def test_local_gradient_descent_is_the_same_on_two_devices(flatout: Cli, tmp_path: Path) -> None:
    local = ("--shards", 4, "--sync", "every:2")
    one = trained(flatout, tmp_path / "one", *local)
    two = trained(flatout, tmp_path / "two", *local, "--devices", 2)
    np.testing.assert_allclose(losses(one), losses(two), atol=1e-5)
    assert furthest(last_saved(one), last_saved(two)) < 2e-5


def test_the_update_is_adam_on_the_cross_entropy(one_device: Path) -> None:
    """Against the definition, written with optax on the whole batch."""
    network = Dense(wrap_key(jnp.asarray(raw_key(0, INIT))), (own_networks.INPUTS,))
    adam = optax.adam(1e-3)
    state = adam.init(network)  # type: ignore[arg-type]  # a pytree
    data = DatasetSampler(load_dataset(MINE[1]), 6, 32, raw_key(0, DATA), Spans()).gathered(0)

    def loss(network: Any, x: Any, y: Any) -> Any:
        error = optax.softmax_cross_entropy_with_integer_labels(jax.vmap(network)(x), y).mean()
        squares = jnp.sum(network.hidden.weight**2) + jnp.sum(network.head.weight**2)
        return error + 0.5 * 5e-4 * squares, error

    @jax.jit
    def step(network: Any, state: Any, x: Any, y: Any) -> Any:
        (_, error), grads = jax.value_and_grad(loss, has_aux=True)(network, x, y)
        change, state = adam.update(grads, state)
        return optax.apply_updates(network, change), state, error

    found = []
    for x, y in zip(data.obs, data.actions, strict=True):
        network, state, error = step(network, state, x, y)
        found.append(float(error))
    np.testing.assert_allclose(losses(one_device), np.reshape(found, (3, 2)).mean(1), atol=1e-5)


@pytest.mark.slow
def test_a_plan_compares_devices(flatout: Cli) -> None:
    result = flatout("plan", "classify", *MINE, "--steps", 20, "--batch-size", 32,
                     "--compare-devices", "1,2", "--run", "--json")  # fmt: skip
    assert result.code == 0, result.err
    assert [row["devices"] for row in json.loads(result.out)["rows"]] == [1, 2]


# --- Runs ---------------------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.slow
def test_a_killed_run_is_resumed_with_the_same_bits(flatout: Cli, tmp_path: Path) -> None:
    more = ("--steps", "600", "--checkpoint-every", "30", "--log-every", "10")
    flags = (*MINE, *TINY, *more)
    whole = tmp_path / "whole"
    assert flatout("train", "classify", *flags, "--run-dir", whole).code == 0
    parts = tmp_path / "parts"
    process = spawn("train", "classify", *map(str, flags), "--run-dir", str(parts))
    wait_for(lambda: len([*parts.glob("checkpoints/step_*")]) > 1)
    process.kill()
    assert finish(process).code == -9
    again = flatout("train", "--resume", parts, "--quiet")
    assert again.code == 0, again.err
    assert_same(final_state(parts), final_state(whole))


def test_a_run_folder_names_its_code_and_other_settings_are_refused(
    one_device: Path, flatout: Cli
) -> None:
    settings = json.loads((one_device / "config.json").read_text())
    assert {"data": MINE[1], "network": MINE[3]}.items() <= settings["settings"].items()
    refused = flatout("train", "--resume", one_device, "--network", "auto")
    assert "--resume cannot change network" in refused.message
    assert "test_accuracy" in flatout("eval", one_device).message
    assert MINE[3] in (one_device / "README.md").read_text()
    assert flatout("report", one_device.parent, "--json").code == 0
    (row,) = json.loads(flatout("runs", one_device.parent, "--json").out)
    assert (row["env"], row["state"]) == (MINE[1], "done")


def test_foreign_folders_run_no_code(one_device: Path, flatout: Cli, tmp_path: Path) -> None:
    config = (one_device / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace("own_networks:Dense", "own_networks:wide"))
    refused = flatout("train", "--resume", tmp_path)
    assert "names the network tests.own_networks:wide" in refused.message
    file = tmp_path / "settings.toml"
    file.write_text('algorithm = "classify"\ndata = "tests.own_networks:make"\n')
    refused = flatout("train", "--config", file)
    assert "names the data tests.own_networks:make, whose code is not run" in refused.message
    assert "say --data tests.own_networks:make" in refused.message


def test_a_batch_larger_than_the_data_is_noted(flatout: Cli, tmp_path: Path) -> None:
    run = trained(flatout, tmp_path / "run", "--batch-size", 144, "--steps", 2)
    (note,) = json.loads((run / "summary.json").read_text())["notes"][-1:]
    assert note.startswith("each batch of 144 has the 72 examples 2.0 times")


# --- Networks that cannot be used ---------------------------------------------------------------

FAULTS = {
    "wide": "returns 4 logits, but the data has 3 classes: give its last layer 3 outputs",
    "Matrix": r"returns float32\[1, 3\] for one example; it must return a vector of 3",
    "Pair": "returns tuple for one example; it must return an array of 3 logits alone",
    "Label": r"returns int32\[1\] for one example; it must return a vector of 3 float",
    "Misfit": r"does not accept one example of shape \[16\].*own_networks.py:\d+",
    "Dropping": "does not accept one example.*Dropout",
    "Normalised": "has state, as eqx.nn.BatchNorm has.*eqx.nn.LayerNorm",
    "stateful": "has state, as eqx.nn.BatchNorm has",
    "unbuilt": r"building the network .*own_networks.py:\d+\); the function is called with a key",
    "make": r"building the network .* 2 were given; the function is called with a key",
    "nothing": "returned NoneType; it must return a module",
    "constant": "has no float arrays to learn",
    "NO_FUNCTION": "has no function 'NO_FUNCTION'",
    "Dens": "has no function 'Dens'. Did you mean 'Dense'",
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_one_sentence(name: str, flatout: Cli, tmp_path: Path) -> None:
    words = ("train", "classify", *MINE[:2], "--network", f"tests.own_networks:{name}", *TINY)
    refused = flatout(*words, "--run-dir", tmp_path / "run")
    assert refused.code == 2
    assert re.search(FAULTS[name], refused.message), refused.message


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--network", "mlp"), "network = mlp is impossible: auto, or module:function"),
        ((*MINE, "--size", "large"), "size = large is impossible: it is of the built-in network"),
        (MINE[:2], r"reads images .* not examples of shape \[16\]"),
    ],
)
def test_impossible_settings_are_refused(flags: Any, words: str, flatout: Cli) -> None:
    refused = flatout("train", "classify", *flags, "--dry-run")
    assert refused.code == 2
    assert re.search(words, refused.message), refused.message


def test_weights_of_float64_are_learned_in_float32(tmp_path: Path) -> None:
    saved = Classifier(own_networks.Double, make(), **SMALL).learn(2).save(tmp_path / "agent")
    loaded = Classifier.load(saved, network=own_networks.Double)
    assert loaded.evaluate(*make()) > 0


# --- Python -------------------------------------------------------------------------------------


def test_a_classifier_learns_predicts_and_is_loaded(tmp_path: Path) -> None:
    x, y = make()
    agent = Classifier(Dense, (x, y), seed=1, **SMALL)
    with pytest.raises(UsageError, match="learned nothing yet"):
        agent.predict(x)
    agent.learn()
    assert agent.summary["steps"] == 20
    assert agent.evaluate() == agent.summary["test_accuracy"] >= 0.9
    for shown in (str(agent.plot()), agent._repr_html_()):
        assert "accuracy on the batches" in shown
        assert "return" not in shown
    labels = agent.predict(x)
    assert labels.shape == y.shape
    assert agent.predict(x[0]) == labels[0]
    assert agent.evaluate(x, y) == (labels == y).mean()
    for call, words in (
        (lambda: agent.evaluate(x[:0], y[:0]), "y is empty"),
        (lambda: agent.evaluate(x, y + 0.5), r"y\[0\] is .*5; labels are the whole"),
        (lambda: agent.evaluate(x, y[:9]), "rows, but y has 9 labels"),
        (lambda: agent.evaluate(x[0], 3), r"y\[0\] is 3, but .* labels are 0 to 2"),
        (lambda: agent.evaluate(x), "y is NoneType"),
    ):
        with pytest.raises(UsageError, match=words):
            call()
    agent.save(tmp_path / "agent")
    with pytest.raises(CheckpointError, match="does not fit its settings"):
        Classifier.load(tmp_path / "agent", network=own_networks.shallow)
    loaded = Classifier.load(tmp_path / "agent", network=Dense)
    np.testing.assert_array_equal(loaded.predict(x), labels)
    other = Classifier.load(tmp_path / "agent", network=Dense, lr=1e-4, total_timesteps=30)
    assert (other.config.hyper.learning_rate, other.config.run.steps) == (1e-4, 30)
    with pytest.raises(UsageError, match=r"passed in Python and not saved: pass it again"):
        loaded.learn(10)
    again = Classifier.load(tmp_path / "agent", (x, y), network=Dense).learn(20)
    assert repr(again) == (
        "<Classifier on float32[16] in 3 classes (...): 20 steps after 20 loaded>"
    )
    assert agent.learn(20).summary["steps"] == 40


def test_a_run_that_goes_on_has_its_rows_and_its_end_where_it_should(
    flatout: Cli, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    agent = Classifier(MINE[3], make, **SMALL).learn(5, run_dir=run)
    agent.learn(7, run_dir=run)
    assert agent.summary["steps"] == 12
    result = flatout("train", "--resume", run, "--steps", 24, "--quiet")
    assert result.code == 0, result.err
    rows = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [5, 10, 12, 20, 24]
    loaded = Classifier.load(run)
    assert loaded.learn(3, reset_num_timesteps=False).summary["steps"] == 27


def test_a_run_that_goes_on_makes_whole_dispatches_after_its_first(tmp_path: Path) -> None:
    steps = list[int]()
    agent = Classifier(MINE[3], make, **SMALL).learn(7)
    agent.learn(13, lambda progress, metrics: steps.append(progress.steps))
    assert steps == [10, 20]
    assert agent.summary["compile_later_s"] == 0.0


def test_a_classifiers_run_folder_is_loaded_by_names(tmp_path: Path) -> None:
    run = tmp_path / "run"
    agent = Classifier(MINE[3], make, **SMALL).learn(run_dir=run)
    loaded = Classifier.load(run)
    assert loaded.config.hyper.data == MINE[1]
    assert loaded.evaluate() == agent.evaluate()
    np.savez(tmp_path / "d.npz", x=make()[0], y=make()[1])
    moved = Classifier(MINE[3], tmp_path / "d.npz", **SMALL).learn().save(tmp_path / "agent")
    (tmp_path / "d.npz").unlink()
    with pytest.raises(UsageError, match=r"learned from: pass data=\. --data .*no such file"):
        Classifier.load(moved)
    assert Classifier.load(moved, make).predict(make()[0]).shape == make()[1].shape
    with pytest.raises(CheckpointError, match="holds an agent of classify"):
        PPO.load(run)


def test_the_built_in_network_reads_images_without_channels() -> None:
    data = load_dataset(None)
    images = data.train_x[:100, ..., 0]
    agent = Classifier(None, (images, data.train_y[:100]), **SMALL).learn(2)
    labels = agent.predict(images)
    assert labels.shape == (100,)
    assert agent.predict(images.astype(float)).tolist() == labels.tolist()
    with pytest.raises(UsageError, match=r"learned from uint8, which it divides by 255"):
        agent.predict(images / 255)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Classifier(Dense, make(), envs=2), "unknown setting 'envs'"),
        (lambda: Classifier(Dense, make(), env="CartPole-v1"), "no environment: pass data"),
        (lambda: Classifier(Dense, make(), batch=2), "Did you mean 'batch_size'"),
        (lambda: Classifier(make()), r"not tuple: Classifier\(network, \(x, y\)\)"),  # type: ignore[arg-type]
        (lambda: Classifier(Dense, make).export("x.py"), "cannot be exported"),
        (lambda: Classifier(Dense, make).record("x.gif"), "learned nothing yet|no environment"),
        (lambda: evaluate_policy(Classifier(Dense, make)), "is not an agent such as PPO"),
    ],
)
def test_mistakes_in_python_are_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call()


def test_several_devices_from_python() -> None:
    agent = Classifier(Dense, make(), shards=4, devices=2, **SMALL).learn()
    assert agent.summary["placement"].endswith("learn=cpu,cpu:1")
    assert agent.evaluate() == agent.summary["test_accuracy"]


# --- Documentation ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled as users do: cheap programs take ten times as long for 200 updates."""
    page = (Path(__file__).parents[2] / "docs" / "devices.md").read_text()
    example, use = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(
        r"^flatout (train classify --data .*?)(?:\n[^ ]|```)", page, re.M | re.S
    )
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.chdir(tmp_path)
    Path("mynet.py").write_text(example)
    use = use.replace("steps=200", "steps=10")
    Path("use.py").write_text(f"from mynet import *\n\nx, y = quadrants()\n{use}")
    for file in ("mynet.py", "use.py"):
        done = run_script(Path(file), tmp_path)
        assert done.code == 0, done.err
    words = command.replace("\\", "").replace("--steps 200", "--steps 60").split()
    done = finish(spawn(*words, "--quiet", cwd=tmp_path), 300)
    assert done.code == 0, done.err
    assert json.loads(Path("runs/four/summary.json").read_text())["test_accuracy"] > 0.95
