"""Kernels that others wrote for Metal give numpy's results on the model, and break no rule.

What they read is given: METAL_WITNESSES names a folder with the wheel mlx-metal.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sim.metal.mlx_kernels import CASES, Kernels
from sim.metal.raw_metal import RawMetal
from sim.metal.shaders import SHADERS, THREADS

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
