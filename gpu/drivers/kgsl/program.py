"""Kernels: what Mesa's compiler ir3 gave, and such a kernel in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu.core.bits import align_up, round_up_power_of_two
from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.kgsl.chips import Chip
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.symbol import GpuVA

CODE_UNIT: Final = 128
"""Bytes that code is a multiple of, and that its address is one of."""
VECTOR: Final = 16
"""Bytes of a constant."""
NO_REGISTER: Final = 63 << 2
"""r63.x, which stands for none."""
_FIBER: Final = 512  # bytes that memory of a thread is a multiple of
_CORE: Final = 4096  # the same of all threads of a core


class Ir3Code(NamedTuple):
    """A compiled kernel: its machine code, and beside it what launching needs.

    Attributes:
        chip: 630 for Adreno 630.
        full, half: registers of 4 x 32 and of 4 x 16 bits that a thread has; where both share
            their place `full` counts all.
        branches: how often threads of a wave part ways inside each other, as BRANCHSTACK counts it.
        constants: how many constants of 16 bytes it sees.
        immediates_at: the constant from which on `immediates` are; `parameters` begin at 0.
        block: threads of a group that it was compiled for, along x.
        shared: bytes of memory of a group.
        private: bytes of memory of a thread, a multiple of 512.
        group_at, thread_at: registers, counted in components, that the number of the group and that
            of the thread in it are wanted in, or `NO_REGISTER`.
        ubos, uavs, samplers: descriptors that it reads.
        double: whether waves have 128 threads.
        merged: whether halves and full registers share their place.
        early: whether its preamble may run early.
        per_wave: whether private memory is that of a wave as a whole.
        parameters: bytes of its parameters.
        name: of the kernel.
        code: its instructions.
        immediates: words that are constants of the code itself.
    """

    chip: int
    full: int
    half: int
    branches: int
    constants: int
    immediates_at: int
    block: int
    shared: int
    private: int
    group_at: int
    thread_at: int
    ubos: int
    uavs: int
    samplers: int
    double: int
    merged: int
    early: int
    per_wave: int
    parameters: int
    name: str
    code: bytes
    immediates: bytes


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

    kernel: Ir3Code
    address: GpuVA
    private: PrivateMemory = NO_PRIVATE


def check_kernel(chip: Chip, kernel: Ir3Code, layout: ArgumentLayout) -> None:
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
