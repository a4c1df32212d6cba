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
