"""What launches kernels, with kernels that LLVM compiled and the model's lane engine runs."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from bounded import bounded
from gpu.drivers.am.kfd.port import ComputeKind
from gpu.hcq.conformance import CHECKS

pytest.importorskip("llvmlite", reason="compiles kernels")

PM4 = (
    *("launches", "submissions_in_order", "rings_wrap", "arguments_live_long_enough"),
    *("timelines_wrap", "profiles", "mapped_host_memory", "bound_queues", "graphs"),
    *("graphs_in_order", "graphs_pin_memory", "threads", "forks", "collections", "interrupts"),
)
AQL = ("launches", "submissions_in_order", "bound_queues", "graphs_in_order", "threads")


OTHERS = [("pm4", "gfx1030"), ("aql", "gfx1030"), ("aql", "gfx942"), ("aql", "gfx950")]


@pytest.mark.parametrize(
    ("name", "compute", "chip"),
    [
        *((name, "pm4", "gfx1100") for name in PM4),
        *((name, "aql", "gfx1100") for name in AQL),
        *(("launches", *other) for other in OTHERS),
    ],
)
def test_kfd(name: str, compute: ComputeKind, chip: str) -> None:
    from am.machine_code import MachineTarget

    gc.collect()
    target = MachineTarget(1, compute, chip)
    with bounded(30):
        CHECKS[name](target)
    assert target.complaints() == []
    target.close()


@pytest.mark.parametrize(("compute", "chip"), [("pm4", "gfx1100"), ("aql", "gfx1100"), *OTHERS])
def test_scratch_memory(compute: ComputeKind, chip: str) -> None:
    """Each work-item has its own; what a device has of it grows with the kernels it loads."""
    from am.machine_code import MachineTarget, code_object

    target = MachineTarget(2, compute, chip)
    with target.open_gpu(0) as device:
        device.scratch(16)  # less than the kernel needs: there is more of it then
        reverse = device.load(code_object("reverse", chip), "reverse", written=(0,))
        assert reverse.private_size >= 64
        out = device.allocator.alloc(4 * 16 * 64)
        reverse(out, grid=(1, 1, 1), block=(64, 1, 1))
        found = np.frombuffer(device.allocator.copy_out(out), np.int32).reshape(64, 16)
        np.testing.assert_array_equal(found[:, ::-1], np.arange(1024).reshape(64, 16))
    assert target.complaints() == []
    target.close()
