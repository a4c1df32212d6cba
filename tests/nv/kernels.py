"""Kernels of the conformance suite without machine code, and an executor that knows them.

What launches them is real: a descriptor, constant bank 0, arguments in it. Where code would be,
there is a name; the executor reads it by the path of instructions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gpu.drivers.nv.code.cubin import Cubin
from gpu.hcq.args import ArgumentLayout
from gpu.sim.executor import RunningKernel
from gpu.sim.nv.chip.launch import KernelMemory, Launch
from unit.nv.cubins import BASES, CubinWriter

LAYOUTS = {
    "add": ArgumentLayout(3, ["I"]),
    "fill": ArgumentLayout(1, ["i", "I"]),
    "copy": ArgumentLayout(2, ["Q"]),
}
_PARAMETERS = {
    "add": [(0, 8), (8, 8), (16, 8), (24, 4)],
    "fill": [(0, 8), (8, 4), (12, 4)],
    "copy": [(0, 8), (8, 8), (16, 8)],
}
WRITTEN = (0,)


def cubin(sm: int, name: str, *, stack: int = 0) -> Cubin:
    """A cubin with one kernel, and its name as code."""
    writer = CubinWriter(sm)
    shared = 0x400 if sm >= 90 else 0  # what the system takes, which ptxas counts from there on
    writer.kernel(
        name,
        code=name.encode().ljust(256, b"\0"),
        parameters=_PARAMETERS[name],
        shared=shared,
        stack=stack,
    )
    return Cubin(writer.data())


class PythonKernels:
    """The executor: runs a kernel in a few steps, all of it at the last one."""

    def __init__(self, steps: int = 3):
        self.steps = steps
        self.seen: list[Launch] = []

    def launch(self, launch: Launch, memory: KernelMemory) -> RunningKernel:
        """A grid of `add` or `fill`."""
        self.seen = [*self.seen[-9:], launch]
        name = bytes(memory.code.read(launch.program, 8)).partition(b"\0")[0].decode()
        assert name in KERNELS, f"{name!r} at {launch.program:#x} is no kernel"
        sm = 10 * (launch.sass_version >> 4) + (launch.sass_version & 0xF)
        assert sm in BASES, f"code for sm_{sm}, which is no architecture"
        return _Running(self.steps, name, sm, memory)


class _Running:
    def __init__(self, steps: int, name: str, sm: int, memory: KernelMemory):
        self._left = steps
        self._run: Callable[[KernelMemory, tuple[int, ...]], None] = KERNELS[name]
        self._layout = LAYOUTS[name]
        self._base = BASES[sm]
        self._memory = memory

    @property
    def instructions(self) -> int:
        return 0

    def why_stuck(self) -> str:
        return ""

    def step(self, budget: int) -> bool:
        self._left -= 1
        if self._left:
            return False
        data = bytes(self._memory.constant(0, self._base, self._layout.size))
        self._run(self._memory, self._layout.unpack(data))
        return True


def _ints(memory: KernelMemory, address: int, count: int) -> npt.NDArray[np.int32]:
    return np.frombuffer(bytes(memory.load(address, 4 * count)), np.int32)


def _add(memory: KernelMemory, arguments: tuple[int, ...]) -> None:
    out, a, b, count = arguments
    total = _ints(memory, a, count) + _ints(memory, b, count)
    memory.store(out, total.tobytes())


def _fill(memory: KernelMemory, arguments: tuple[int, ...]) -> None:
    out, value, count = arguments
    if count:
        memory.store(out, np.full(count, value, np.int32).tobytes())


def _copy(memory: KernelMemory, arguments: tuple[int, ...]) -> None:
    source, target, count = arguments
    memory.store(target, _ints(memory, source, count).tobytes())


KERNELS = {"add": _add, "fill": _fill, "copy": _copy}
