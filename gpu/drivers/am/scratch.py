"""Scratch memory: what lanes keep in memory of their own, for all waves that can run at once.

The rule is that of tinygrad's ops_amd.py and of ROCr's `amd_gpu_agent.cpp`: each wave has the bytes
of 64 lanes, also if it has 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue
from gpu.drivers.am.pm4 import packets_of
from gpu.drivers.am.target import Target
from gpu.hcq.symbol import GpuVA

_LANES: Final = 64
SCRATCH_ALIGN: Final = 256
"""The dispatcher is told the address without its low 8 bits."""


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
    ring_size(target, size)
    return size


def ring_size(target: Target, size: ScratchSize) -> int:
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
    waves = min(size.waves // engines, register.field("WAVES").largest)
    return register(WAVES=waves, WAVESIZE=units).value
