"""Qualcomm's Adreno 6xx GPUs as targets: what code for them may use.

Sizes of chips are those that Mesa knows (src/freedreno/common/freedreno_devices.py), limits of all
of them those of its compiler (src/freedreno/ir3/ir3_compiler.c).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.compiler.ir.optable import OPS
from gpu.compiler.targets import DERIVED, NARROW_FLOATS, Native, Target
from gpu.compiler.targets.edges import NIR
from gpu.core.devspec import did_you_mean
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported


class Chip(NamedTuple):
    """What differs between chips.

    Attributes:
        cores: shader processors: a rough number of blocks that run at once.
        vectors: registers of 4 x 32 bits that two threads, one of each of two waves, have together.
    """

    cores: int
    vectors: int


CHIPS: Final = {
    "a618": Chip(1, 96), "a619": Chip(1, 96), "a620": Chip(1, 96), "a630": Chip(2, 96),
    "a640": Chip(2, 96), "a650": Chip(3, 64), "a660": Chip(3, 64), "a680": Chip(4, 96),
    "a690": Chip(8, 64),
}  # fmt: skip
"""Chips by their number."""
WAVE: Final = 64
"""Threads of a wave, at least; ir3 may double it."""
SHARED_BYTES: Final = 32 << 10
"""Memory of a block."""
PRIVATE_BYTES: Final = 4 << 10
"""Memory of a thread that kernels use: of what hardware has (127 KiB), as much as a phone can spare
for the up to 16,384 threads that run at once."""
BUFFERS: Final = 256
"""Parameters of a kernel: their addresses are constants, of which there are 4 KiB."""

_THREADS: Final = 256
_ACCESS_BYTES: Final = 16
# Of a thread: those of two blocks are to fit.
_BLOCKS: Final = 2


def adreno_target(chip: str) -> Target:
    """The target for a chip: `a630`. Raises Unsupported for one that is not known.

    There is no float64. Integers of 64 bits are two of 32, which ir3 makes of NIR's by itself.
    Floats are computed with in 32 bits; subnormals become 0 in arithmetic and conversions, those of
    float16 too: hardware has no other way. `fma` is mad.f32, which rounds twice
    (`ir3_compiler_nir.c`).
    """
    found = check_chip(chip)
    waves = _BLOCKS * _THREADS // WAVE
    native = Native(
        ops=frozenset(OPS) - DERIVED,
        storage_only=NARROW_FLOATS - {dtypes.float16},
        compute_as_float32=frozenset({dtypes.float16}),
        compute_as_int32=frozenset({dtypes.int8, dtypes.int16, dtypes.uint8, dtypes.uint16}),
        lacking=frozenset({dtypes.float64}),
        flushes=True,
        edges=NIR,
    )
    return Target(
        name=chip,
        workers=found.cores,
        native=native,
        parallel="grid",
        registers=4 * 2 * found.vectors // waves,
        threads=_THREADS,
        shared_bytes=SHARED_BYTES,
        warp=WAVE,
        access_bytes=_ACCESS_BYTES,
        buffers=BUFFERS,
    )


def check_chip(name: str) -> Chip:
    """The chip of a name. Raises Unsupported for one that is not known."""
    if name not in CHIPS:
        raise Unsupported(
            f"{name!r} is no Adreno that code is made for{did_you_mean(name, CHIPS)}: it is for"
            f" {', '.join(CHIPS)}"
        )
    return CHIPS[name]
