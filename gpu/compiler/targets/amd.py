"""AMD GPUs as targets: what code for them may use.

Waves of 32 lanes from RDNA on, of 64 on CDNA (LLVM, "User Guide for AMDGPU Backend",
"Processors"). Every chip here has correctly rounded f32 and f64 division and square root (LLVM
expands them), fused multiply-add, and conversions between f16 and f32.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.compiler.ir.matrix import CDNA3, CDNA4, RDNA3, RDNA4, Layout, names_for
from gpu.compiler.ir.optable import OPS
from gpu.compiler.targets import DERIVED, Native, Target
from gpu.compiler.targets.edges import LLVM
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported

_STORAGE_ONLY: Final = frozenset({dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2})


_THREADS: Final = 256
# Of the widest loads and stores of a work-item ("RDNA3" ISA, GLOBAL_LOAD_B128).
_ACCESS_BYTES: Final = 16
# Of a work-item, at most: half of what an instruction can name.
_REGISTERS: Final = 128
# Workgroups that a compute unit should have room for, so that one waits while another computes.
_GROUPS: Final = 2


class Chip(NamedTuple):
    """What differs between chips.

    Attributes:
        machine: its number in the flags of ELF files, EF_AMDGPU_MACH.
        llvm: the oldest release of LLVM that knows it, of those that were tried: 15, 19 and on.
        wave: lanes of a wave.
        units: compute units of a large product, a rough number of blocks that run at once.
        vgprs: vector registers of one SIMD, for all its waves together.
        granule: a wave gets a multiple of so many.
        simds: of a compute unit.
        layout: how its waves hold matrices of WMMA or MFMA; None where it has neither.
        shared: bytes of local memory of a workgroup, at most.
        private: bytes on the stack of a work-item, at most.
    """

    machine: int
    llvm: int
    wave: int
    units: int
    vgprs: int
    granule: int
    simds: int
    layout: Layout | None = None
    shared: int = 64 << 10
    private: int = 96 << 10

    def registers(self, waves: int) -> int:
        """The most vector registers that each of so many waves of one SIMD can have."""
        return self.vgprs // waves // self.granule * self.granule


def _rdna(
    machine: int, llvm: int, units: int, layout: Layout | None = None, large: bool = False
) -> Chip:
    """Some chips have half as many registers again, in larger steps."""
    vgprs, granule = (1536, 24) if large else (1024, 16)
    return Chip(machine, llvm, 32, units, vgprs, granule, 2, layout)


def _cdna(machine: int, llvm: int, units: int, layout: Layout, shared: int) -> Chip:
    return Chip(machine, llvm, 64, units, 512, 8, simds=4, layout=layout, shared=shared << 10)


CHIPS: Final = {
    "gfx942": _cdna(0x4C, 19, 304, CDNA3, 64),  # MI300X
    "gfx950": _cdna(0x4F, 20, 256, CDNA4, 160),  # MI350X
    "gfx1030": _rdna(0x36, 15, 80),  # RX 6900 XT
    "gfx1031": _rdna(0x37, 15, 40),  # RX 6700 XT
    "gfx1032": _rdna(0x38, 15, 32),  # RX 6600 XT
    "gfx1033": _rdna(0x39, 15, 8),  # Van Gogh: Steam Deck
    "gfx1034": _rdna(0x3E, 15, 16),  # RX 6500 XT
    "gfx1035": _rdna(0x3D, 15, 12),  # Rembrandt: 680M
    "gfx1036": _rdna(0x45, 15, 2),  # Raphael
    "gfx1100": _rdna(0x41, 15, 96, RDNA3, large=True),  # RX 7900 XTX
    "gfx1101": _rdna(0x46, 15, 60, RDNA3, large=True),  # RX 7800 XT
    "gfx1102": _rdna(0x47, 15, 32, RDNA3),  # RX 7600
    "gfx1103": _rdna(0x44, 15, 12, RDNA3),  # Phoenix: 780M
    "gfx1150": _rdna(0x43, 19, 16, RDNA3),  # Strix Point: 890M
    "gfx1151": _rdna(0x4A, 19, 40, RDNA3, large=True),  # Strix Halo: 8060S
    "gfx1152": _rdna(0x55, 19, 8, RDNA3),  # Krackan Point: 860M
    "gfx1153": _rdna(0x58, 20, 4, RDNA3),  # Krackan Point 2: 840M
    "gfx1200": _rdna(0x48, 19, 32, RDNA4, large=True),  # RX 9060 XT
    "gfx1201": _rdna(0x4E, 19, 64, RDNA4, large=True),  # RX 9070 XT
}
"""Chips by LLVM's name, with the compute units of the largest product (AMD's product pages).

Machine numbers: LLVM's guide, "ELF Header e_flags". Vector registers: LLVM's
`getTotalNumVGPRs` and `getVGPRAllocGranule`, for waves of the size that is here.

COMPUTE_TMPRING_SIZE.WAVESIZE can say some 8 MiB for a wave: 13 bits of 1 KiB before gfx11, 15 bits
of 256 bytes in it (Linux, `gc_10_3_0_sh_mask.h` and `gc_11_0_0_sh_mask.h`); that is 128 KiB for
each of 64 lanes, of which a part is left to LLVM."""


def amd_target(chip: str) -> Target:
    """The target for a chip: `gfx1100`. Raises Unsupported for one that is not known."""
    found = check_chip(chip)
    waves = _GROUPS * _THREADS // found.wave // found.simds
    native = Native(
        ops=frozenset(OPS) - DERIVED,
        storage_only=_STORAGE_ONLY,
        compute_as_float32=frozenset({dtypes.float16}),
        edges=LLVM,
    )
    return Target(
        name=chip,
        workers=found.units,
        native=native,
        parallel="grid",
        registers=min(_REGISTERS, found.registers(waves)),
        access_bytes=_ACCESS_BYTES,
        threads=_THREADS,
        shared_bytes=found.shared,
        warp=found.wave,
        matrices=names_for(found.layout) if found.layout else (),
        shuffle=found.wave,
    )


def check_chip(name: str) -> Chip:
    """The chip of a name. Raises Unsupported for one that is not known."""
    if name not in CHIPS:
        raise Unsupported(f"{name!r} is no AMD chip that code is made for: {', '.join(CHIPS)}")
    return CHIPS[name]
