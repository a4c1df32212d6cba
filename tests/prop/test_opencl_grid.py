"""Random programs on OpenCL as a GPU would run them: a grid of work items, or of blocks of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gpu.backends.cl.device import CLDevice
from gpu.core.devspec import DeviceSpec
from gpu.runtime.device import Compiled
from gpu.runtime.execute import realize, storage
from prop.graphs import computed, on
from prop.judge import check, expect
from prop.programs import random_graph
from registered import registered
from unit.cl_kernels import cl_device, grid_target


def open_grid(name: str, spec: DeviceSpec) -> Compiled:
    target = replace(grid_target(), name="opencl grid")
    return CLDevice(name, cl_device().context, target)


def open_blocks(name: str, spec: DeviceSpec) -> Compiled:
    blocks = replace(grid_target(), threads=64, shared_bytes=1 << 13, warp=4, registers=64)
    return CLDevice(name, cl_device().context, replace(blocks, name="opencl blocks"))


KINDS = {"CLGRID": open_grid, "CLBLOCKS": open_blocks}


@pytest.mark.parametrize("batch", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_grids_keep_the_meaning(kind: str, batch: int, need: Callable[[str], None]) -> None:
    need("opencl")
    with registered(kind, KINDS[kind]) as device:
        for seed in range(3000 + batch * 5, 3000 + batch * 5 + 5):
            rng = np.random.default_rng(seed)
            roots, inputs = random_graph(rng, depth=int(rng.integers(3, 31)), max_size=2000)
            if wanted := computed(roots):
                done = realize(on(device.device, wanted, inputs))
                got = [storage(node).copy_out().reshape(node.shape) for node in done]
                check(got, expect(wanted, inputs, rng), wanted)
