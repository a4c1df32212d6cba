"""Kernels that LLVM compiled for a chip of each generation, executed, against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from sim.isa.amdgpu import Launcher, compile_ir
from sim.isa.kernels import BLOCK, ELEMENTWISE, Case, N
from sim.isa.kernels_whole import WHOLE

_SIZES = '"amdgpu-flat-work-group-size"="1,64"'
_WAVE64 = f'{_SIZES} "target-features"="+wavefrontsize64,-real-true16"'


CHIPS = ("gfx1100", "gfx1151", "gfx1201")


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("case", ELEMENTWISE, ids=lambda case: case.name)
def test_kernel_in_waves_of_64(case: Case, chip: str) -> None:
    assert _SIZES in case.ir
    test_kernel_agrees_with_numpy(replace(case, ir=case.ir.replace(_SIZES, _WAVE64)), chip)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("case", [*ELEMENTWISE, *WHOLE], ids=lambda case: case.name)
def test_kernel_agrees_with_numpy(case: Case, chip: str) -> None:
    output = case.output.copy()
    inputs = [np.ascontiguousarray(each) for each in case.inputs]
    with np.errstate(all="ignore"):
        expected = case.expect(*inputs)
    launcher = Launcher(compile_ir(case.ir, chip), chip=chip)
    launcher.run("k", (N // BLOCK, 1, 1), (BLOCK, 1, 1), *inputs, output)
    if case.ulps:
        assert _ulps(output, expected) <= case.ulps
    else:
        np.testing.assert_array_equal(output, expected)


def _ulps(x: npt.NDArray[np.float32], y: npt.NDArray[np.float32]) -> int:
    """The largest distance of two arrays of floats of one sign, in units in the last place."""
    distance = np.abs(x.view(np.int32).astype(np.int64) - y.view(np.int32))
    return int(distance.max())
