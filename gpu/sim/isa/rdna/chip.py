"""What belongs to a chip: how its machine code reads, what that does, in waves of which sizes.

Another chip is a row of `CHIPS`, with a table of opcodes (gpu/sim/isa/rdna/table.py) and formats
(gpu/sim/isa/rdna/formats.py) of its own; what it does alike it shares with those that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Final

from gpu.core.errors import Unsupported
from gpu.sim.isa.engine import Builders, Engine
from gpu.sim.isa.frames import Operation
from gpu.sim.isa.layout import WaveLayout
from gpu.sim.isa.rdna import (
    matrix,
    sem_compare,
    sem_convert,
    sem_float,
    sem_int,
    sem_packed,
    sem_scalar,
)
from gpu.sim.isa.rdna.translate import Context
from gpu.sim.isa.rdna.translate_memory import translate_buffer, translate_memory
from gpu.sim.isa.rdna.translate_packed import translate_packed
from gpu.sim.isa.rdna.translate_scalar import translate_scalar, translate_smem
from gpu.sim.isa.rdna.translate_vector import translate_dual, translate_vector

Translator = Callable[[Context], None]


@dataclass(frozen=True, eq=False)
class Chip:
    """A chip whose kernels run.

    Attributes:
        name: as LLVM calls it.
        wave_sizes: lanes that its waves may have.
        semantics: what its operations compute, in groups by name.
        builders: operations on rows that are written by hand, in groups by name.
        translators: from instructions to records, by format.
    """

    name: str
    wave_sizes: tuple[int, ...]
    semantics: Mapping[str, Mapping[str, Operation]]
    builders: Mapping[str, Builders]
    translators: Mapping[str, Translator]
    _engines: dict[int, Engine] = field(default_factory=dict, init=False)
    _making: RLock = field(default_factory=RLock, init=False)

    def engine(self, lanes: int) -> Engine:
        """The engine that all machines of this process share, for waves of so many lanes."""
        with self._making:
            found = self._engines.get(lanes)
            if found is None:
                wave = WaveLayout(lanes)
                found = Engine(self.name, self.semantics, self.builders, wave)
                self._engines[lanes] = found
            return found


_RDNA3: Final = Chip(
    "gfx1100",
    wave_sizes=(32, 64),
    semantics={
        "integer": sem_int.TABLE,
        "compare": sem_compare.TABLE,
        "float": sem_float.TABLE,
        "convert": sem_convert.TABLE,
        "packed": sem_packed.TABLE,
        "scalar": sem_scalar.TABLE,
    },
    builders={"matrix": matrix.BUILDERS},
    translators={
        **dict.fromkeys(("sop1", "sop2", "sopc", "sopk", "sopp"), translate_scalar),
        "smem": translate_smem,
        **dict.fromkeys(("vop1", "vop2", "vopc", "vop3", "vop3sd"), translate_vector),
        "vop3p": translate_packed,
        "vopdx": translate_dual,
        **dict.fromkeys(("ds", "flat", "global", "scratch"), translate_memory),
        "mubuf": translate_buffer,
    },
)
CHIPS: Final = {chip.name: chip for chip in (_RDNA3,)}


def chip_of(name: str) -> Chip:
    """A chip by its name. Raises Unsupported for one whose machine code is not simulated."""
    found = CHIPS.get(name)
    if found is None:
        known = ", ".join(CHIPS)
        raise Unsupported(f"machine code of {name} is not simulated; known are {known}")
    return found
