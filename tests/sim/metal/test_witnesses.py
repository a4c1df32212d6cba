"""Kernels that others wrote for Metal give numpy's results on the model, and break no rule.

What they read is given: METAL_WITNESSES names a folder with the wheels mlx-metal
and pyobjc-framework-Metal, and with tinygrad in a folder of its own; none of it is in the tree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sim.metal.mlx_kernels import CASES, Kernels
from sim.metal.raw_metal import RawMetal
from sim.metal.shaders import SHADERS, THREADS
from tools.metal_names import compare

GIVEN = Path(os.environ.get("METAL_WITNESSES", "given/metal"))


def given(pattern: str) -> Path:
    """A file of what is given; skips where it is not there."""
    found = sorted(GIVEN.glob(pattern))
    if not found:
        pytest.skip(f"there is no {pattern} in {GIVEN}, which METAL_WITNESSES names")
    return found[0]


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_mlx(metal: RawMetal, seed: int, name: str) -> None:
    wheel = given("mlx_metal-*.whl")
    CASES[name](Kernels(metal, wheel), np.random.default_rng([seed, len(name)]))


@pytest.mark.parametrize("name", SHADERS)
def test_msl_of_spirv_cross(
    metal: RawMetal, seed: int, name: str, tmp_path: Path, need: Callable[[str], None]
) -> None:
    need("spirv-cross")
    shader = SHADERS[name]
    arrays = shader.given(np.random.default_rng([seed, len(name)]))
    pipeline = metal.pipeline(shader.msl(tmp_path), "main0")
    assert pipeline
    buffers = [metal.buffer(each.nbytes) for each in arrays]
    for buffer, each in zip(buffers, arrays, strict=True):
        metal.floats(buffer, each.dtype)[:] = each
    done = metal.run(pipeline, buffers, shader.groups, THREADS)
    assert metal.send(done, "status") == 4, metal.error(done)
    found = metal.floats(buffers[-1], arrays[-1].dtype)
    np.testing.assert_allclose(found, shader.wanted(*arrays[:-1]), rtol=2e-5, atol=2e-5)
    metal.release(pipeline, *buffers)


@pytest.mark.parametrize("seed", [1, 2])
def test_kernels_of_tinygrad(seed: int, need: Callable[[str], None]) -> None:
    need("simulated-mac")
    folder = given("tinygrad")
    path = os.pathsep.join([*filter(None, sys.path), str(folder)])
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("with_tinygrad.py"), str(seed)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["agreed"] >= 40 and told["kernels"] >= 30 and told["matrices"] >= 1
    assert not told["violations"] and not told["faults"]


def test_metal_cpp_and_pyobjc_have_the_same_names_types_and_numbers() -> None:
    found = compare(given("mlx_metal-*.whl").parent)
    assert {name: each.different for name, each in found.items() if each.different} == {}
    assert not found["messages of the backend, metal-cpp"].silent
    assert not found["numbers, metal-cpp"].silent and not found["numbers, PyObjC"].silent
    assert found["methods of the model, metal-cpp"].agreed > 100
    assert found["methods of the model, PyObjC"].agreed > 80
