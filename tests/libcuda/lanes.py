"""The stand-in for libcuda with kernels that run: the PTX of a module, on simulated lanes."""

from __future__ import annotations

import ctypes

import numpy as np

from gpu.sim.isa.ptx.bare import BareModule
from libcuda.stand_in import Launch, StandIn

_NO_BINARY_FOR_GPU = 209


class Lanes(StandIn):
    """It loads no cubin, so that it is given PTX."""

    def __init__(self) -> None:
        super().__init__()
        self.fails["cubin"] = _NO_BINARY_FOR_GPU
        self._code: dict[int, BareModule] = {}
        self._module_of: dict[int, int] = {}

    def cuModuleGetFunction(self, out: int, module: int, name: int) -> int:
        super().cuModuleGetFunction(out, module, name)
        self._module_of[ctypes.c_uint64.from_address(out).value] = module
        return 0

    def run(self, launch: Launch) -> None:
        module = self._module_of[launch.function]
        if module not in self._code:
            self._code[module] = BareModule(self.modules[module].decode())
        given = [
            np.frombuffer(self.memory[word], np.uint8) if word in self.memory else _signed(word)
            for word in launch.arguments
        ]
        self._code[module].run(
            self.names[launch.function],
            *((launch.grid, 1, 1), (launch.block, 1, 1)),
            *given,
            dynamic=launch.shared,
        )


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
