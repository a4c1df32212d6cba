"""NVIDIA GPUs as targets: what code for them may use.

All that is known here have correctly rounded f32 and f64 division and square root, fused
multiply-add, and conversions between f16 and f32 (PTX ISA, "Floating Point Instructions" and
"cvt"). From f32 to bfloat16 there is one from sm_80 on, and a few integer instructions before;
those of fp8 are there in some only, and derived everywhere.
"""

from __future__ import annotations

import re
from typing import Final

from gpu.compiler.ir.matrix import PTX, names_for
from gpu.compiler.ir.optable import OPS
from gpu.compiler.targets import DERIVED, Native, Target
from gpu.compiler.targets.edges import LLVM
from gpu.core.devspec import did_you_mean
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported

ARCHITECTURES: Final = {
    "sm_70": 80, "sm_75": 40,
    "sm_80": 108, "sm_86": 84, "sm_89": 128, "sm_90": 132, "sm_100": 148, "sm_120": 170,
}  # fmt: skip
"""Multiprocessors of a large product of each architecture: V100, T4, A100, RTX 3090 Ti, RTX 4090,
H100, B200, RTX 5090 (their data sheets). A rough number of blocks that run at once is all that is
needed."""
AMPERE: Final = 80
"""The first architecture with asynchronous copies and products of 16 x 8 x 16 (PTX ISA, "cp.async",
"mma"): those before have smaller products, of float16 alone. It is also the first that NAK and our
own driver know."""
WARP: Final = 32
MOST_THREADS: Final = 1024
"""Threads of a block that hardware has, at most (CUDA C++ Programming Guide, "Compute
Capabilities", as are the numbers below)."""
MOST_BLOCKS: Final = (1 << 31) - 1
"""Blocks of a launch along x, at most."""
STATIC_SHARED_BYTES: Final = 48 << 10
"""Shared memory of a block that a kernel may declare; a launch has to ask for more."""
SHARED_KIB: Final = {
    "sm_70": 96, "sm_75": 64,
    "sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99,
}  # fmt: skip
"""Shared memory of a block that a launch can ask for."""
PRIVATE_BYTES: Final = 16 << 10
"""Local memory of a thread that kernels use: of what the hardware has (512 KiB), as much as a GPU
can spare for all threads it may run at once."""

_STORAGE_ONLY: Final = frozenset({dtypes.fp8e4m3, dtypes.fp8e5m2})
_THREADS: Final = 256
# Of the widest loads and stores of a thread (PTX ISA, "ld", .v4 of 32 bits).
_ACCESS_BYTES: Final = 16
# Of a thread: a multiprocessor has 65536, so that two blocks fit.
_REGISTERS: Final = 128


def nv_target(arch: str) -> Target:
    """The target for an architecture: `sm_90`. Raises Unsupported for one that is not known.

    Blocks have a quarter of the threads that the hardware would take: several of them hide each
    other's barriers, and leave each thread registers enough for tiles.
    """
    native = Native(
        ops=frozenset(OPS) - DERIVED,
        storage_only=_STORAGE_ONLY,
        compute_as_float32=frozenset({dtypes.float16, dtypes.bfloat16}),
        edges=LLVM,
    )
    return Target(
        name=check_architecture(arch),
        workers=ARCHITECTURES[arch],
        native=native,
        parallel="grid",
        registers=_REGISTERS,
        threads=_THREADS,
        shared_bytes=SHARED_KIB[arch] << 10,
        matrices=names_for(PTX) if number_of(arch) >= AMPERE else (),
        warp=WARP,
        shuffle=WARP,
        access_bytes=_ACCESS_BYTES,
        max_blocks=MOST_BLOCKS,
    )


def number_of(arch: str) -> int:
    """The number of an architecture: 90 of ``sm_90``. Raises Unsupported for what is none."""
    if not (found := re.fullmatch(r"sm_(\d{2,3})", arch)):
        raise Unsupported(f"{arch!r} is no architecture of NVIDIA's; write one like sm_90")
    return int(found[1])


def nearest_architecture(arch: str) -> str:
    """The newest known architecture that is no newer: PTX for it runs on `arch`.

    Raises Unsupported for one that is older than all known.
    """
    older = [known for known in ARCHITECTURES if number_of(known) <= number_of(arch)]
    if not older:
        oldest = min(ARCHITECTURES, key=number_of)
        raise Unsupported(f"{arch} is older than {oldest}, the oldest that code is made for here")
    return max(older, key=number_of)


def check_architecture(arch: str) -> str:
    """An architecture that is known. Raises Unsupported for another."""
    if arch not in ARCHITECTURES:
        known = did_you_mean(arch, ARCHITECTURES)
        raise Unsupported(f"{arch!r} is no architecture of NVIDIA's known here{known}")
    return arch
