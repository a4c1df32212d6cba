"""Kernels: what Mesa's compiler ir3 gave, and such a kernel in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.core.bits import align_up, round_up_power_of_two
from gpu.core.errors import InvalidValue, Unsupported
from gpu.core.ir3binary import Ir3Binary
from gpu.drivers.kgsl.chips import Chip
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.symbol import GpuVA

_FIBER: Final = 512  # bytes that memory of a thread is a multiple of
_CORE: Final = 4096  # the same of all threads of a core


@dataclass(frozen=True, slots=True)
class PrivateSize:
    """Bytes of private memory of a thread, and of all threads of a core and of the chip."""

    per_fiber: int
    per_core: int
    total: int


def private_size(chip: Chip, per_fiber: int) -> PrivateSize:
    """What threads need that have so many bytes each, as turnip sizes it (`tu_shader.cc`)."""
    fiber = round_up_power_of_two(align_up(per_fiber, _FIBER))
    core = align_up(fiber * chip.fibers, _CORE)
    return PrivateSize(fiber, core, core * chip.cores)


@dataclass(frozen=True, slots=True)
class PrivateMemory:
    """Private memory of all threads that can run at once."""

    address: GpuVA
    size: PrivateSize


NO_PRIVATE: Final = PrivateMemory(GpuVA(0), PrivateSize(0, 0, 0))


@dataclass(frozen=True, slots=True, eq=False)
class LoadedKernel:
    """A kernel in memory, at ``address``; ``private`` is what its threads keep their memory in."""

    kernel: Ir3Binary
    address: GpuVA
    private: PrivateMemory = NO_PRIVATE


def check_kernel(chip: Chip, kernel: Ir3Binary, layout: ArgumentLayout) -> None:
    """Raises Unsupported for code of another chip or with descriptors, InvalidValue for arguments
    that do not lie as its parameters do.
    """
    if f"a{kernel.chip}" != chip.name:
        raise Unsupported(f"{kernel.name} is code for a{kernel.chip}, and this GPU is {chip.name}")
    if kernel.ubos or kernel.uavs or kernel.samplers:
        raise Unsupported(
            f"{kernel.name} reads {kernel.ubos} uniform buffers, {kernel.uavs} images and"
            f" {kernel.samplers} textures by descriptors, which launches do not give it yet"
        )
    if layout.size != align_up(kernel.parameters, 8):
        raise InvalidValue(
            f"{kernel.name} has {kernel.parameters} bytes of parameters; a layout of"
            f" {layout.pointers} addresses and {len(layout.scalars)} values has {layout.size}"
        )
