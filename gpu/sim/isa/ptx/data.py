"""The variables of a module: global and constant memory that the program brings along."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.sim.isa.ptx.parse import parse
from gpu.sim.isa.ptx.syntax import Module, PtxError

FIRST_ADDRESS: Final = 0x00F0_0000_0000_0000
"""Variables lie where no page table of a GPU reaches (57 bits on the newest ones)."""
_STEP: Final = 1 << 32
_FUNCTIONS: Final = 1 << 52  # how far below variables functions are, whose code is nowhere


@dataclass
class LoadedModule:
    """A module, and memory for its variables.

    Attributes:
        base: GPU address of `data`.
        symbols: variable or function -> (space, GPU address).
    """

    module: Module
    base: int
    data: npt.NDArray[np.uint8] = field(init=False)
    symbols: dict[str, tuple[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        """Places the variables. Raises PtxError for addresses of what is no variable."""
        at = 0
        self.symbols = {}
        variables = [v for v in self.module.variables.values() if v.space in ("global", "const")]
        for variable in variables:
            at = -(-at // variable.align) * variable.align
            self.symbols[variable.name] = (variable.space, self.base + at)
            at += variable.size
        functions = [name for name, f in self.module.functions.items() if not f.is_kernel]
        for number, name in enumerate(functions, 1):
            self.symbols[name] = ("function", self.base - _FUNCTIONS + 16 * number)
        self.data = np.zeros(max(at, 16), np.uint8)
        for variable in variables:
            start = self.symbols[variable.name][1] - self.base
            self.data[start : start + len(variable.initial)] = list(variable.initial)
            for offset, symbol in variable.pointers:
                target = self.symbols.get(symbol.name)
                if target is None:
                    raise PtxError(f"the address of {symbol.name} is not known", 1, variable.name)
                held = self.module.variables.get(symbol.name)
                behind = symbol.offset + symbol.index * (held.element if held else 1)
                pointer = (target[1] + behind) % (1 << 64)
                place = start + offset
                self.data[place : place + 8] = list(pointer.to_bytes(8, "little"))


def place_module(text: str, number: int = 0) -> LoadedModule:
    """Parses a module and places its variables; `number` keeps those of modules apart.

    Raises PtxError.
    """
    return LoadedModule(parse(text), FIRST_ADDRESS + number * _STEP)
