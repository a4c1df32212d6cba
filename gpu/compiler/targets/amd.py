"""AMD GPUs as targets: what code for them may use.

Waves of 32 lanes from RDNA on, of 64 on CDNA (LLVM, "User Guide for AMDGPU Backend",
"Processors"). Every chip here has correctly rounded f32 and f64 division and square root (LLVM
expands them), fused multiply-add, and conversions between f16 and f32.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.compiler.ir.optable import OPS
from gpu.compiler.targets import DERIVED, Native, Target
from gpu.core.devspec import did_you_mean
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported

_STORAGE_ONLY: Final = frozenset({dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2})


_THREADS: Final = 256
# Waves of chips that have DPP with ROW_XMASK and V_PERMLANEX16: RDNA has, CDNA has not.
_DPP_XMASK_WAVE: Final = 32
# Of the widest loads and stores of a work-item ("RDNA3" ISA, GLOBAL_LOAD_B128).
_ACCESS_BYTES: Final = 16
# Of a work-item: half of what there are, so that twice as many waves fit a processor.
_REGISTERS: Final = 128


class Chip(NamedTuple):
    """What differs between chips.

    Attributes:
        wave: lanes of a wave.
        units: compute units of a large product, a rough number of blocks that run at once.
        private: bytes on the stack of a work-item, at most.
        shared: bytes of local memory of a workgroup, at most.
    """

    wave: int
    units: int
    private: int
    shared: int = 64 << 10


_PRIVATE: Final = 96 << 10
CHIPS: Final = {
    "gfx942": Chip(64, 304, _PRIVATE),
    "gfx1030": Chip(32, 80, _PRIVATE),
    "gfx1100": Chip(32, 96, _PRIVATE),
    "gfx1200": Chip(32, 32, _PRIVATE),
    "gfx1201": Chip(32, 64, _PRIVATE),
}
"""Chips by LLVM's name; units are those of MI300X, RX 6900 XT, RX 7900 XTX, RX 9060 XT and
RX 9070 XT (AMD's product pages).

COMPUTE_TMPRING_SIZE.WAVESIZE can say some 8 MiB for a wave: 13 bits of 1 KiB before gfx11, 15 bits
of 256 bytes in it (Linux, `gc_10_3_0_sh_mask.h` and `gc_11_0_0_sh_mask.h`); that is 128 KiB for
each of 64 lanes, of which a part is left to LLVM."""


def amd_target(chip: str) -> Target:
    """The target for a chip: `gfx1100`. Raises Unsupported for one that is not known."""
    found = check_chip(chip)
    native = Native(
        ops=frozenset(OPS) - DERIVED,
        storage_only=_STORAGE_ONLY,
        compute_as_float32=frozenset({dtypes.float16}),
    )
    return Target(
        name=chip,
        workers=found.units,
        native=native,
        parallel="grid",
        registers=_REGISTERS,
        access_bytes=_ACCESS_BYTES,
        threads=_THREADS,
        shared_bytes=found.shared,
        warp=found.wave,
        shuffle=found.wave if found.wave == _DPP_XMASK_WAVE else 0,
    )


def check_chip(name: str) -> Chip:
    """The chip of a name. Raises Unsupported for one that is not known."""
    if name not in CHIPS:
        raise Unsupported(f"{name!r} is no AMD chip known here{did_you_mean(name, CHIPS)}")
    return CHIPS[name]
