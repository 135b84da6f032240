"""`--precision`: full float32 products on a GPU, or the card's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from flatout.hardware import backend
from tests import tiny
from tests.conftest import Result


def test_products_on_a_gpu_are_compiled_in_full_float32_unless_its_own_default_is_wanted() -> None:
    def product(platform: str, precision: str) -> str:
        x = jax.ShapeDtypeStruct((4, 4), np.float32)
        with backend.matmul_precision(SimpleNamespace(platform=platform), precision):
            return str(jax.make_jaxpr(lambda a, b: a @ b)(x, x))

    assert "HIGHEST" in product("gpu", "highest")
    for platform, precision in (("gpu", "default"), ("cpu", "highest"), ("cpu", "default")):
        assert "HIGHEST" not in product(platform, precision)


def test_every_program_of_a_run_has_its_precision(
    flatout: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    for module in ("learn", "act"):

        def note(on: object, precision: str, module: str = module) -> AbstractContextManager[None]:
            asked.append((module, precision))
            return nullcontext()

        monkeypatch.setattr(f"flatout.engine.{module}.matmul_precision", note)
    flags = (*tiny.flags("ppo"), "--steps", 128, "--quiet", "--precision", "default",
             "--eval-every", 128, "--eval-episodes", 1)  # fmt: skip
    result = flatout("train", "ppo", *flags, "--run-dir", tmp_path / "run")
    assert result.code == 0, result.err
    assert sorted(asked) == [*[("act", "default")] * 2, ("learn", "default")]
    result = flatout("train", "classify", "--steps", 6, "--batch-size", 64, "--log-every", 2,
                     "--precision", "default", "--quiet", "--no-tensorboard",
                     "--run-dir", tmp_path / "classify")  # fmt: skip
    assert result.code == 0, result.err
    assert asked.count(("learn", "default")) == 2
    assert {precision for _, precision in asked} == {"default"}
