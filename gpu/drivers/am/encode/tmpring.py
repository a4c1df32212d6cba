"""Scratch memory: what lanes keep in memory of their own, for all waves that can run at once.

The rule is that of tinygrad's ops_amd.py and of ROCr's `amd_gpu_agent.cpp`: each wave has the bytes
of 64 lanes, also if it has 32.

From GFX11 on, and on gfx942, registers of a dispatch tell where it is. Kernels for gfx90a and GFX10
are told instead, in user SGPRs: by a resource descriptor, and by its address (LLVM's "User Guide
for AMDGPU Backend", "Private Segment Buffer" and "Flat Scratch Init"). AQL queues have a descriptor
on all of them. What it says is in `AqlQueue::FillBufRsrcWord0` to `3_Gfx12` of ROCr's
amd_aql_queue.cpp; where its bits are, in ROCr's registers.h, and in "Buffer Resource Descriptor" of
the ISA documents.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue
from gpu.core.regs import Register, field
from gpu.drivers.am.encode.pm4 import packets_of
from gpu.drivers.am.target import Target
from gpu.hcq.symbol import GpuVA

_LANES: Final = 64
_MOST: Final = 0xFFFF_FFFF  # bytes of one XCC, which a descriptor and offsets of waves count
_INDEX_STRIDE_32: Final = 2
_INDEX_STRIDE_64: Final = 3


class _Word1(Register):
    """Of a resource descriptor, up to GFX10."""

    BASE_ADDRESS_HI = field(15, 0)
    STRIDE = field(29, 16)
    CACHE_SWIZZLE = field(30)
    SWIZZLE_ENABLE = field(31)


class _Word1Gfx11(Register):
    """The same from GFX11 on."""

    BASE_ADDRESS_HI = field(15, 0)
    STRIDE = field(29, 16)
    SWIZZLE_ENABLE = field(31, 30)


class _Word3(Register):
    """How lanes find their words: what all generations have."""

    DST_SEL_X = field(2, 0)
    DST_SEL_Y = field(5, 3)
    DST_SEL_Z = field(8, 6)
    DST_SEL_W = field(11, 9)
    INDEX_STRIDE = field(22, 21)
    ADD_TID_ENABLE = field(23)


class _Word3Gfx9(_Word3):
    """The same on GFX9."""

    NUM_FORMAT = field(14, 12, doc="4: unsigned")
    DATA_FORMAT = field(18, 15, doc="4: 32 bits")
    ELEMENT_SIZE = field(20, 19, doc="1: 4 bytes; not read by all")


class _Word3Gfx10(_Word3):
    """The same on GFX10."""

    FORMAT = field(18, 12, doc="20: 32 bits unsigned")
    RESOURCE_LEVEL = field(24)
    OOB_SELECT = field(29, 28, doc="2: not checked")


class _Word3Gfx11(_Word3):
    """The same from GFX11 on; GFX12 has compression where GFX10 has RESOURCE_LEVEL."""

    FORMAT = field(17, 12)
    OOB_SELECT = field(29, 28)


_SELECTS: Final = {"DST_SEL_X": 4, "DST_SEL_Y": 5, "DST_SEL_Z": 6, "DST_SEL_W": 7}
_UNCHECKED: Final = {"FORMAT": 20, "OOB_SELECT": 2}
# By the generation's number: both words, the last one without its index stride.
_WORDS: Final[dict[int, tuple[type[Register], Register]]] = {
    9: (_Word1, _Word3Gfx9(**_SELECTS, NUM_FORMAT=4, DATA_FORMAT=4, ELEMENT_SIZE=1)),
    10: (_Word1, _Word3Gfx10(**_SELECTS, **_UNCHECKED, RESOURCE_LEVEL=1)),
    11: (_Word1Gfx11, _Word3Gfx11(**_SELECTS, **_UNCHECKED)),
    12: (_Word1Gfx11, _Word3Gfx11(**_SELECTS, **_UNCHECKED)),
}


class ScratchSize(NamedTuple):
    """Bytes of a wave, how many waves that is for, and bytes of all."""

    per_wave: int
    waves: int
    total: int


class Scratch(NamedTuple):
    """Scratch memory that kernels may use, at an address that is a multiple of 256."""

    address: GpuVA
    size: ScratchSize


def scratch_size(target: Target, bytes_per_lane: int) -> ScratchSize:
    """How much scratch memory a GPU needs so that each lane has ``bytes_per_lane``.

    Raises InvalidValue for more than the hardware can count.
    """
    granule = target.generation.scratch_granule
    per_wave = align_up(max(bytes_per_lane, 1) * _LANES, granule)
    waves = min(target.compute_units * target.scratch_waves, _MOST // per_wave * target.xccs)
    size = ScratchSize(per_wave, waves, per_wave * waves)
    tmpring_size(target, size)
    return size


def resource_descriptor(target: Target, scratch: Scratch, wave32: bool) -> tuple[int, ...]:
    """The four words of a buffer resource that is scratch memory.

    Lanes of a wave have their words side by side: the address is swizzled, and the lane's number
    added to the index, which counts as many as a wave has.
    """
    second, last = _WORDS[target.version[0]]
    high = second(BASE_ADDRESS_HI=scratch.address >> 32, SWIZZLE_ENABLE=1)
    index_stride = _INDEX_STRIDE_32 if wave32 else _INDEX_STRIDE_64
    last = last.replace(ADD_TID_ENABLE=1, INDEX_STRIDE=index_stride)
    size = scratch.size.total // target.xccs  # each XCC has a part
    return scratch.address & 0xFFFF_FFFF, high.value, size, last.value


def tmpring_size(target: Target, size: ScratchSize) -> int:
    """What COMPUTE_TMPRING_SIZE gets. Raises InvalidValue for more than it can hold."""
    generation = target.generation
    register = packets_of(generation).registers["COMPUTE_TMPRING_SIZE"]
    units = size.per_wave // generation.scratch_granule
    widest = register.field("WAVESIZE").largest
    if units > widest:
        most = widest * generation.scratch_granule // _LANES
        raise InvalidValue(
            f"{size.per_wave // _LANES} bytes of scratch memory for each lane: at most {most}"
        )
    engines = max(target.shader_engines // target.xccs, 1)
    each, largest = size.waves // target.xccs, register.field("WAVES").largest
    if generation.counts_waves_per_engine:
        waves = min(each // engines, largest)
    else:  # of all engines, which have as many each
        waves = min(each, largest) // engines * engines
    return register(WAVES=waves, WAVESIZE=units).value
