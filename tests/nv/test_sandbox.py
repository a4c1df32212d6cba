"""The driver in a container of gVisor: what is kept from it is not needed."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from gpu.core.errors import GpuFault
from gpu.drivers.nv.device import RmDevice
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.world import World
from nv.kernels import LAYOUTS, WRITTEN, PythonKernels, cubin

BEHIND = 1 << 20  # words behind a buffer, where nothing is
MACHINES = [
    ("gh100", 580),
    ("ga102", 580),
    ("ad102", 580),
    ("gb202", 580),
    ("gh100", 590),
    ("gh100", 595),
    *(("gh100", branch) for branch in (535, 550, 570, 575)),
]


@pytest.mark.parametrize(("chip", "branch"), MACHINES)
def test_launches_copies_and_a_fault(chip: str, branch: int) -> None:
    sim = NvSimWorld(3, chip, executor=PythonKernels(), branch=branch, sandboxed=True)
    with closing(sim), RmDevice.open(World(sim.os, sim.waiter)) as device:
        names = ("add", "fill")
        codes = (cubin(device.target.sm, name) for name in names)
        add, fill = (
            device.load(code, name, LAYOUTS[name], written=WRITTEN)
            for name, code in zip(names, codes, strict=True)
        )
        out, a, b = (upload(device, numbers(n)) for n in range(3))
        add(out, a, b, vals=(WORDS,))
        assert np.array_equal(download(device, out), numbers(1) + numbers(2))
        fill(out, vals=(7, BEHIND))
        with pytest.raises(GpuFault, match=r"Xid 31\b.*could not be read"):
            device.synchronize()
        device.recover()
        add(out, b, b, vals=(WORDS,))
        assert np.array_equal(download(device, out), 2 * numbers(2))
    assert not sim.debug.violations
