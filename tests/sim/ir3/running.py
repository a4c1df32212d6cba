"""Runs linear programs on the engine: compiled by Mesa, with constants as a launch loads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from gpu.compiler.ir.linear import Program
from gpu.compiler.render.nir.ir3 import IR3Renderer
from gpu.compiler.toolchain.ir3 import Ir3Compiler
from gpu.core.ir3binary import NO_REGISTER, VECTOR, Ir3Binary
from gpu.sim.isa import layout
from gpu.sim.isa.ir3.dispatch import Dispatch
from gpu.sim.isa.ir3.run import Execution
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.waves import aligned_bytes
from sim.ir3.machine import Machine
from unit.linear_kernels import printed

Array = np.ndarray[Any, Any]
CODE = 0x10_0000
_FIRST, _APART = 0x7_0000_0000, 1 << 24
POISON = 0xA5


class Memory(MemoryMap):
    """Buffers and code at addresses of their own."""

    def __init__(self, code: bytes):
        super().__init__()
        self._code = aligned_bytes(len(code))
        self._code[:] = np.frombuffer(code, np.uint8)
        self.add(CODE, len(code), self._code.ctypes.data, layout.READ)
        self._kept: list[Array] = []

    def buffer(self, array: Array) -> int:
        """Maps an array; its address."""
        assert array.flags.c_contiguous and array.nbytes < _APART
        address = _FIRST + _APART * len(self._kept)
        self._kept.append(array)
        if array.nbytes:
            flags = layout.READ | layout.WRITE | layout.ATOMIC
            self.add(address, array.nbytes, array.ctypes.data, flags)
        return address


def constants_of(binary: Ir3Binary, parameters: bytes) -> bytes:
    """The constant file: parameters, immediates where they belong, and rubbish."""
    held = bytearray([POISON]) * (binary.constants * VECTOR)
    assert len(parameters) == binary.parameters
    held[: len(parameters)] = parameters[: len(held)]
    at = binary.immediates_at * VECTOR
    held[at : at + len(binary.immediates)] = binary.immediates
    return bytes(held[: binary.constants * VECTOR])


def start(
    binary: Ir3Binary, groups: int, parameters: bytes, memory: Memory, seed: int = 0
) -> Execution:
    """A kernel under way, as a launch of it would be."""

    def register(number: int) -> int | None:
        return None if number == NO_REGISTER else number

    dispatch = Dispatch(
        code=CODE,
        size=len(binary.code),
        groups=(groups, 1, 1),
        block=(binary.block, 1, 1),
        lanes=128 if binary.double else 64,
        constants=constants_of(binary, parameters),
        full=binary.full,
        half=binary.half,
        merged=bool(binary.merged),
        branches=binary.branches,
        group_at=register(binary.group_at),
        thread_at=register(binary.thread_at),
        shared_bytes=binary.shared,
        private_bytes=binary.private,
    )
    return Machine(memory, seed, chip=f"a{binary.chip}").start(dispatch)


@cache
def compiler(chip: str) -> Ir3Compiler:
    """The one of a chip."""
    return Ir3Compiler(chip)


def run_ir3(
    programs: Sequence[Program],
    arrays: Sequence[Sequence[Array]],
    vals: tuple[int, ...] = (),
    chip: str = "a630",
) -> list[Execution]:
    """Runs linear programs on arrays, one for each parameter; they keep to all hazards."""
    renderer, ran = IR3Renderer(chip), []
    for program, given in zip(programs, arrays, strict=True):
        lib = compiler(chip).compile_cached(printed(renderer, program))
        binary, data = Ir3Binary.unpack(lib), renderer.launch_data(program)
        memory = Memory(binary.code)
        buffers = [memory.buffer(array.reshape(-1).view(np.uint8)) for array in given]
        if data["workspace"]:
            buffers.append(memory.buffer(np.zeros(data["workspace"], np.uint8)))
        assert data["values"] == len(vals)
        words = np.array([*buffers, *(v % (1 << 64) for v in vals)], np.uint64)
        execution = start(binary, data["groups"], words.tobytes(), memory)
        found = execution.program
        assert not found.hazards, [(slot, found.text(slot), h) for slot, h in found.hazards.items()]
        execution.finish(program.name)
        ran.append(execution)
    return ran
