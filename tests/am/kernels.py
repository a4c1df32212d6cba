"""Kernels of the conformance suite without machine code, and an executor that knows them.

What launches them is real: a descriptor, user registers, arguments in memory. Where code would be,
there is a name; the executor reads it by the path of instructions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from gpu.drivers.am.code.descriptor import parse_descriptor
from gpu.drivers.am.code.metadata import KernelArgument, KernelMetadata
from gpu.drivers.am.code.object import CodeObject, Kernel
from gpu.drivers.am.target import Version
from gpu.hcq.args import ArgumentLayout
from gpu.sim.amd.chip.dispatch import Dispatch, KernelMemory
from gpu.sim.amd.chips import Chip
from gpu.sim.executor import RunningKernel

ENTRY = 256
SIZE = 4096
LAYOUTS = {
    "add": ArgumentLayout(3, ["I"]),
    "fill": ArgumentLayout(1, ["i", "I"]),
    "spin": ArgumentLayout(1, ["i", "I"]),
}
WRITTEN = (0,)


def code_object(name: str, version: Version, private_size: int = 0) -> CodeObject:
    """A code object with one kernel, a descriptor, and its name as code."""
    layout = LAYOUTS[name]
    descriptor = _descriptor(layout.size, private_size)
    image = descriptor.ljust(ENTRY, b"\0") + name.encode().ljust(SIZE - ENTRY, b"\0")
    arguments = [KernelArgument(f"p{n}", 8 * n, 8, "global_buffer") for n in range(layout.pointers)]
    for number, place in enumerate(layout.arguments[layout.pointers :]):
        arguments.append(KernelArgument(f"s{number}", place.offset, 4, "by_value"))
    metadata = KernelMetadata(
        name=name,
        symbol=f"{name}.kd",
        arguments=tuple(arguments),
        kernarg_size=layout.size,
        kernarg_align=8,
        group_size=0,
        private_size=private_size,
        wavefront_size=32,
        max_workgroup=1024,
        required_workgroup=None,
        uses_dynamic_stack=False,
    )
    kernel = Kernel(metadata, parse_descriptor(descriptor, version), 0, ENTRY)
    return CodeObject("test", version, {name: kernel}, SIZE, image, ())


def _descriptor(kernarg_size: int, private_size: int) -> bytes:
    """Two user registers, for the address of the arguments; waves of 32 lanes."""
    properties = 1 << 3 | 1 << 10
    words = struct.pack(
        "<III4xq20xIIIH", 0, private_size, kernarg_size, ENTRY, 0, 0, 2 << 1, properties
    )
    return words.ljust(64, b"\0")


class PythonKernels:
    """The executor: runs a kernel in a few steps, all of it at the last one."""

    def __init__(self, steps: int = 3):
        self.steps = steps
        self.seen: list[Dispatch] = []
        self.pause: Callable[[], None] = lambda: None
        """Called by a kernel that goes on: so it takes its time."""

    def check(self, chip: Chip) -> None:
        pass

    def launch(self, dispatch: Dispatch, memory: KernelMemory) -> RunningKernel:
        """A grid of `add` or `fill`."""
        self.seen = [*self.seen[-9:], dispatch]
        name = bytes(memory.code.read(dispatch.entry, 8)).partition(b"\0")[0].decode()
        assert name in KERNELS, f"{name!r} at {dispatch.entry:#x} is no kernel"
        return _Running(self.steps, KERNELS[name], dispatch, memory, self.pause)


class _NotYet(Exception):
    """A kernel that goes on."""


class _Running:
    instructions = 0

    def __init__(
        self,
        steps: int,
        run: Callable[[KernelMemory, int], None],
        dispatch: Dispatch,
        memory: KernelMemory,
        pause: Callable[[], None],
    ):
        self._pause = pause
        self._left = steps
        self._run = run
        self._arguments = dispatch.user_sgprs[0] | dispatch.user_sgprs[1] << 32
        self._memory = memory

    def why_stuck(self) -> str:
        return ""

    def step(self, budget: int) -> bool:
        self._left -= 1
        if self._left > 0:
            return False
        try:
            self._run(self._memory, self._arguments)
        except _NotYet:
            self._pause()
            return False
        return True


def _load(memory: KernelMemory, address: int, layout: ArgumentLayout) -> tuple[int, ...]:
    words = [memory.scalar.read_word(address + at, 4) for at in range(0, layout.size, 4)]
    return layout.unpack(struct.pack(f"<{len(words)}I", *words))


def _ints(
    memory: KernelMemory, address: int, count: int
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(bytes(memory.vector.read(address, 4 * count)), np.int32)


def _add(memory: KernelMemory, arguments: int) -> None:
    out, a, b, count = _load(memory, arguments, LAYOUTS["add"])
    total = _ints(memory, a, count) + _ints(memory, b, count)
    memory.vector.write(out, total.tobytes())


def _spin(memory: KernelMemory, arguments: int) -> None:
    """Never done: the grid goes on for as long as the word that it is given stays."""
    word, value, _ = _load(memory, arguments, LAYOUTS["spin"])
    if memory.vector.read_word(word, 4) == value & 0xFFFF_FFFF:
        raise _NotYet


def _fill(memory: KernelMemory, arguments: int) -> None:
    out, value, count = _load(memory, arguments, LAYOUTS["fill"])
    if count:
        memory.vector.write(out, np.full(count, value, np.int32).tobytes())


KERNELS = {"add": _add, "fill": _fill, "spin": _spin}
