"""The host device as a target of the conformance suite."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpu.hcq.args import ArgumentLayout
from gpu.hcq.device import HCQDevice
from gpu.hcq.hostdevice import HostMemory, HostPort
from gpu.hcq.program import HCQProgram

NEAR_WRAP = (1 << 32) - 10


def _ints(memory: HostMemory, address: int, count: int) -> npt.NDArray[np.int32]:
    return np.frombuffer(memory.view(address, 4 * count), np.int32)


def _add(memory: HostMemory, _: object, __: object, out: int, a: int, b: int, n: int) -> None:
    _ints(memory, out, n)[:] = _ints(memory, a, n) + _ints(memory, b, n)


def _fill(memory: HostMemory, _: object, __: object, out: int, value: int, n: int) -> None:
    if n:
        _ints(memory, out, n)[:] = value


PROGRAMS: dict[str, tuple[Callable[..., None], ArgumentLayout, tuple[int, ...]]] = {
    "add": (_add, ArgumentLayout(3, ["I"]), (0,)),
    "fill": (_fill, ArgumentLayout(1, ["i", "I"]), (0,)),
}


class HostTarget:
    """Host devices of one seed and width of signals."""

    def __init__(self, seed: int = 0, signal_bits: int = 64):
        self.seed = seed
        self.signal_bits = signal_bits

    def open(self, *, near_wrap: bool = False, small: bool = False) -> HCQDevice:
        ring, capacity = (1 << 12, 1 << 21) if small else (1 << 14, 1 << 26)
        port = HostPort(self.seed, signal_bits=self.signal_bits, ring_size=ring, capacity=capacity)
        return HCQDevice(
            port,
            timeline_start=NEAR_WRAP if near_wrap else 0,
            command_memory=1 << (13 if small else 16),
            staging=1 << (13 if small else 18),
        )

    def program(self, device: HCQDevice, name: str) -> HCQProgram:
        run, layout, written = PROGRAMS[name]
        assert isinstance(device.port, HostPort)
        kernel = device.port.kernel(run, layout)
        return HCQProgram(device, name, None, layout, written=written, info=kernel)

    def resources(self) -> tuple[int, ...]:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return len(os.listdir("/proc/self/fd")), pages
