"""What belongs to a chip: how its machine code reads, what that does, in waves of which sizes.

Another chip is a row of `ENCODINGS` (gpu/sim/isa/rdna/encodings.py) and of the tables of opcodes
(gpu/sim/isa/rdna/table.py); what it does alike it shares with those that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import RLock
from typing import Final, NamedTuple

from gpu.core.errors import Unsupported
from gpu.sim.isa.engine import Engine
from gpu.sim.isa.layout import WaveLayout
from gpu.sim.isa.rdna import (
    buffers,
    matrix,
    sem_compare,
    sem_convert,
    sem_float,
    sem_fp8,
    sem_int,
    sem_packed,
    sem_scalar,
    sem_scalar_float,
    sem_sdwa,
)
from gpu.sim.isa.rdna.encodings import ENCODINGS, GFX10, GFX12
from gpu.sim.isa.rdna.matrix import translate_matrix
from gpu.sim.isa.rdna.translate import Context
from gpu.sim.isa.rdna.translate_memory import (
    translate_buffer,
    translate_cache_control,
    translate_memory,
)
from gpu.sim.isa.rdna.translate_packed import translate_packed
from gpu.sim.isa.rdna.translate_scalar import translate_scalar, translate_smem
from gpu.sim.isa.rdna.translate_vector import translate_dual, translate_vector

Translator = Callable[[Context], None]


class Chip(NamedTuple):
    """A chip whose kernels run.

    Attributes:
        name: as LLVM calls it.
        translators: from its instructions to records, by format.
        wave_sizes: lanes that its waves may have.
        ids_in_ttmp: whether workgroups find their ids in TTMP9 and TTMP7, not behind user SGPRs.
        scratch_in_sgprs: whether user SGPRs describe scratch memory, and another one says where a
            wave's begins.
        has_accumulators: whether some of a wave's vector registers are accumulators.
        clears_upper: whether results of 16 bits clear the upper half of their register, where no
            OP_SEL says which half they are (LLVM's `GCNSubtarget::zeroesHigh16BitsOfDest`).
        has_ieee_mode: whether MODE has IEEE and DX10_CLAMP; without, they are as if 0 and 1.
    """

    name: str
    translators: Mapping[str, Translator]
    wave_sizes: tuple[int, ...] = (32, 64)
    ids_in_ttmp: bool = False
    has_ieee_mode: bool = True
    scratch_in_sgprs: bool = False
    has_accumulators: bool = False
    clears_upper: bool = False

    def engine(self, lanes: int) -> Engine:
        """The engine that all machines of this process share, for waves of so many lanes."""
        with _MAKING:
            found = _ENGINES.get(lanes)
            if found is None:
                found = Engine("rdna", _SEMANTICS, _BUILDERS, WaveLayout(lanes))
                _ENGINES[lanes] = found
            return found


_ENGINES: Final[dict[int, Engine]] = {}
_MAKING: Final = RLock()
_SEMANTICS: Final = {
    "integer": sem_int.TABLE,
    "compare": sem_compare.TABLE,
    "float": sem_float.TABLE,
    "floats of 8 bits": sem_fp8.TABLE,
    "convert": sem_convert.TABLE,
    "packed": sem_packed.TABLE,
    "bytes and halves": sem_sdwa.TABLE,
    "scalar": sem_scalar.TABLE,
    "scalar float": sem_scalar_float.TABLE,
}
"""What operations compute, of all generations: what they share has one name."""
_BUILDERS: Final = {"matrix": matrix.BUILDERS, "buffers": buffers.BUILDERS}
_TRANSLATORS: Final[Mapping[str, Translator]] = {
    **dict.fromkeys(("sop1", "sop2", "sopc", "sopk", "sopp"), translate_scalar),
    "smem": translate_smem,
    **dict.fromkeys(("vop1", "vop2", "vopc", "vop3", "vop3sd"), translate_vector),
    "vop3p": translate_packed,
    "mai": translate_matrix,
    "vopdx": translate_dual,
    **dict.fromkeys(("ds", "flat", "global", "scratch"), translate_memory),
    "mubuf": translate_cache_control,
}
_RDNA2: Final = {**_TRANSLATORS, "mubuf": translate_buffer}
CHIPS: Final = {
    name: Chip(
        *(name, _RDNA2 if encoding is GFX10 else _TRANSLATORS),
        ids_in_ttmp=encoding is GFX12,
        has_ieee_mode=encoding is not GFX12,
        scratch_in_sgprs=encoding is GFX10,
        has_accumulators=encoding.mai is not None,
        clears_upper=encoding.mai is not None,
        wave_sizes=(64,) if encoding.mai is not None else (32, 64),
    )
    for name, encoding in ENCODINGS.items()
}


def chip_of(name: str) -> Chip:
    """A chip by its name. Raises Unsupported for one whose machine code is not simulated."""
    found = CHIPS.get(name)
    if found is None:
        known = ", ".join(CHIPS)
        raise Unsupported(f"machine code of {name} is not simulated; known are {known}")
    return found
