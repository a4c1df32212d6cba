"""Scratch memory: what lanes keep in memory of their own, for all waves that can run at once.

The rule is that of tinygrad's ops_amd.py and of ROCr's `amd_gpu_agent.cpp`: each wave has the bytes
of 64 lanes, also if it has 32.

From GFX11 on, and on gfx942, registers of a dispatch tell where it is. Kernels for gfx90a and GFX10
are told instead, in user SGPRs: by a resource descriptor, and by its address (LLVM's "User Guide
for AMDGPU Backend", "Private Segment Buffer" and "Flat Scratch Init"). What the descriptor says is
in `AqlQueue::FillBufRsrcWord0` to `3_Gfx10` of ROCr's amd_aql_queue.cpp; where its bits are, in
"Buffer Resource Descriptor" of the ISA documents of CDNA 2 and RDNA 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue
from gpu.drivers.am.encode.pm4 import packets_of
from gpu.drivers.am.target import Target
from gpu.hcq.symbol import GpuVA

_LANES: Final = 64
# Of a resource descriptor's words 1 and 3.
_SWIZZLE: Final = 1 << 31
_ADD_TID: Final = 1 << 23
_RESOURCE_LEVEL: Final = 1 << 24
_SELECT_X: Final = 4
_INDEX_STRIDE_32: Final = 2
_INDEX_STRIDE_64: Final = 3
_FORMAT_32_UINT_GFX10: Final = 20
_UNCHECKED: Final = 2
_NUM_FORMAT_UINT: Final = 4
_DATA_FORMAT_32: Final = 4


@dataclass(frozen=True, slots=True)
class ScratchSize:
    """Bytes of a wave, how many waves that is for, and bytes of all."""

    per_wave: int
    waves: int
    total: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch memory that kernels may use, at an address that is a multiple of 256."""

    address: GpuVA
    size: ScratchSize


def scratch_size(target: Target, bytes_per_lane: int) -> ScratchSize:
    """How much scratch memory a GPU needs so that each lane has ``bytes_per_lane``.

    Raises InvalidValue for more than the hardware can count.
    """
    granule = target.generation.scratch_granule
    per_wave = align_up(max(bytes_per_lane, 1) * _LANES, granule)
    waves = target.compute_units * target.scratch_waves
    size = ScratchSize(per_wave, waves, per_wave * waves)
    tmpring_size(target, size)
    return size


def resource_descriptor(target: Target, scratch: Scratch, wave32: bool) -> tuple[int, ...]:
    """The four words by which a kernel for gfx90a or GFX10 finds its scratch memory.

    Lanes of a wave have their words side by side: the address is swizzled, and the lane's number
    added to the index, which counts as many as a wave has.
    """
    selects = sum(_SELECT_X + axis << 3 * axis for axis in range(4))
    index_stride = _INDEX_STRIDE_32 if wave32 else _INDEX_STRIDE_64
    last = selects | index_stride << 21 | _ADD_TID
    if target.generation.has_gcr:
        last |= _FORMAT_32_UINT_GFX10 << 12 | _RESOURCE_LEVEL | _UNCHECKED << 28
    else:
        last |= _NUM_FORMAT_UINT << 12 | _DATA_FORMAT_32 << 15
    address = scratch.address
    size = scratch.size.total // target.xccs  # each XCC has a part
    return address & 0xFFFF_FFFF, address >> 32 | _SWIZZLE, size, last


def tmpring_size(target: Target, size: ScratchSize) -> int:
    """What COMPUTE_TMPRING_SIZE gets. Raises InvalidValue for more than it can hold."""
    generation = target.generation
    engines = target.shader_engines if generation.counts_waves_per_engine else 1
    register = packets_of(generation).registers["COMPUTE_TMPRING_SIZE"]
    units = size.per_wave // generation.scratch_granule
    largest = register.field("WAVESIZE").largest
    if units > largest:
        most = largest * generation.scratch_granule // _LANES
        raise InvalidValue(
            f"{size.per_wave // _LANES} bytes of scratch memory for each lane: at most {most}"
        )
    waves = min(size.waves // engines // target.xccs, register.field("WAVES").largest)
    return register(WAVES=waves, WAVESIZE=units).value
