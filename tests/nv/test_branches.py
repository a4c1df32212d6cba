"""The driver on every branch of the kernel driver that is modelled."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from gpu.drivers.nv.device import RmDevice
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.sim.nv.rm.branches import BRANCHES
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.world import World
from nv.kernels import LAYOUTS, WRITTEN, PythonKernels, cubin


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_launch(branch: int) -> None:
    sim = NvSimWorld(seed=2, chip="gh100", executor=PythonKernels(), branch=branch)
    with RmDevice.open(World(sim.os, sim.waiter)) as device:
        add = device.load(cubin(90, "add"), "add", LAYOUTS["add"], written=WRITTEN)
        out, a, b = (upload(device, numbers(n)) for n in range(3))
        add(out, a, b, vals=(WORDS,))
        device.synchronize()
        assert np.array_equal(download(device, out), numbers(1) + numbers(2))
        for buffer in (out, a, b):
            buffer.free()
    assert not sim.debug.violations
    assert set(asdict(sim.usage()).values()) == {0}
    sim.close()
