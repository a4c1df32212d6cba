"""Apple's GPUs as targets: what code for them may use.

A family is named as Metal's feature set tables name it ("Metal Feature Set Tables", Apple, the
table "GPU implementation limits by family"), which has the limits of all below. Registers are those
of Dougall Johnson's "Apple G13 GPU Architecture Reference".
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.optable import OPS
from gpu.compiler.targets import DERIVED, NARROW_FLOATS, Native, Target
from gpu.compiler.targets.edges import METAL
from gpu.core.devspec import did_you_mean
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported

FAMILIES: Final = {"apple7": 8, "apple8": 10, "apple9": 10, "mac2": 8}
"""Families of Apple silicon in Macs, with the cores of the GPU in the smallest chip of each: M1, M2
and M3 (Apple's product pages). A rough number of blocks that run at once is all that is needed.
The last is what GPUs of other vendors in Macs have in common, and those of virtual machines."""
MAC: Final = "mac2"
SIMD_WIDTH: Final = 32
"""Threads of a SIMD-group on Apple silicon. Of `MAC` none is known: kernels use it for nothing."""
SHARED_BYTES: Final = 32 << 10
"""Threadgroup memory of a threadgroup."""
BUFFERS: Final = 31
"""Entries of the table of buffers that a kernel is given, bytes that a launch sets among them."""
PRIVATE_BYTES: Final = 4 << 10
"""Memory of a thread that kernels keep arrays in."""

_THREADS: Final = 256  # of the 1,024 that a threadgroup may have
_REGISTERS: Final = 128
_ACCESS_BYTES: Final = 16
_OWN_BUFFERS: Final = 2  # the values of a launch, and the workspace


def metal_target(family: str) -> Target:
    """The target for a family: `apple7`. Raises Unsupported for one that is not known.

    float16 is converted and no more: sums and products of it are rounded once, from float32.
    bfloat16 is stored alone: MSL has it from 3.1 on, and its conversions are a few integer
    operations. There is no float64.
    """
    if family not in FAMILIES:
        raise Unsupported(
            f"{family!r} is no family of Apple's GPUs known here{did_you_mean(family, FAMILIES)}"
        )
    native = Native(
        ops=frozenset(OPS) - DERIVED,
        storage_only=NARROW_FLOATS - {dtypes.float16},
        compute_as_float32=frozenset({dtypes.float16}),
        lacking=frozenset({dtypes.float64}),
        edges=METAL,
    )
    return Target(
        name=family,
        workers=FAMILIES[family],
        native=native,
        parallel="grid",
        registers=_REGISTERS,
        threads=_THREADS,
        shared_bytes=SHARED_BYTES,
        warp=SIMD_WIDTH,
        shuffle=0 if family == MAC else SIMD_WIDTH,
        access_bytes=_ACCESS_BYTES,
        buffers=BUFFERS - _OWN_BUFFERS,
    )
