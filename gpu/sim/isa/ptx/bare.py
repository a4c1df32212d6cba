"""Runs PTX on memory of the process, without any device."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.core.errors import InvalidValue
from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.ptx.data import LoadedModule, place_module
from gpu.sim.isa.ptx.engine import shared_engine
from gpu.sim.isa.ptx.program import Program
from gpu.sim.isa.ptx.run import Grid
from gpu.sim.isa.ptx.syntax import PtxError
from gpu.sim.isa.ptx.warps import GridShape

Argument = npt.NDArray[Any] | int | float
_BASE = 0x1000_0000
_GAP = 0x1_0000


class BareModule:
    """A module whose kernels take arrays of numpy by reference, and numbers."""

    def __init__(self, text: str):
        """Raises PtxError."""
        self.loaded: LoadedModule = place_module(text)
        self._programs: dict[str, Program] = {}

    def program(self, kernel: str) -> Program:
        """A kernel, translated. Raises PtxError."""
        found = self._programs.get(kernel)
        if found is None:
            found = self._programs[kernel] = Program(shared_engine(), self.loaded, kernel)
        return found

    def run(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        *arguments: Argument,
        dynamic: int = 0,
        seed: int = 0,
        budget: int | None = None,
    ) -> bool:
        """Runs a kernel; arrays are changed in place. Raises PtxError, WarpFault, InvalidValue.

        Args:
            kernel: its name.
            grid, block: blocks of the grid, threads of a block.
            arguments: for its parameters; of less than 8 bytes only numbers.
            dynamic: what is added to the shared memory of a block.
            seed: decides how warps interleave.
            budget: branches that warps take before this gives up, by default for ever.

        Returns whether it has ended.
        """
        program = self.program(kernel)
        memory = MemoryMap()
        flags = layout.READ | layout.WRITE | layout.ATOMIC
        data = self.loaded.data
        memory.add(self.loaded.base, len(data), data.ctypes.data, flags)
        parameters = self._pack(kernel, arguments, memory)
        shared = program.shared_bytes + dynamic
        shape = GridShape(grid, block, parameters, shared)
        running = Grid(shared_engine(), program, shape, memory, seed=seed)
        if budget is not None:
            return running.step(budget)
        running.run()
        return True

    def _pack(self, kernel: str, arguments: tuple[Argument, ...], memory: MemoryMap) -> bytes:
        function = self.loaded.module.functions[kernel]
        if len(arguments) != len(function.parameters):
            raise InvalidValue(
                f"{kernel} takes {len(function.parameters)} arguments, not {len(arguments)}"
            )
        at, packed = _BASE, bytearray(function.parameter_bytes())
        offsets = function.parameter_offsets()
        for parameter, argument in zip(function.parameters, arguments, strict=True):
            if isinstance(argument, np.ndarray):
                flags = layout.READ | layout.WRITE | layout.ATOMIC
                memory.add(at, max(1, argument.nbytes), argument.ctypes.data, flags)
                value = struct.pack("<Q", at)
                at += -(-(argument.nbytes + _GAP) // _GAP) * _GAP
            elif isinstance(argument, float):
                value = struct.pack("<f" if parameter.size == 4 else "<d", argument)
            else:
                value = (argument % (1 << 8 * parameter.size)).to_bytes(parameter.size, "little")
            packed[offsets[parameter.name] : offsets[parameter.name] + len(value)] = value
        return bytes(packed)


__all__ = ["BareModule", "PtxError"]
