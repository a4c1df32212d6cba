"""From a loaded kernel to what one launch of it writes: constant bank 0, descriptor, methods.

All functions are pure: they give bytes and methods for addresses that the caller chose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import classes as ids
from gpu.core.bits import align_up, hi32, lo32
from gpu.core.errors import InvalidValue
from gpu.drivers.nv.code.cubin import Kernel
from gpu.drivers.nv.encode.cbank0 import LOCAL_WINDOW, SHARED_WINDOW, Bank0, build_bank0
from gpu.drivers.nv.encode.methods import compute
from gpu.drivers.nv.encode.methods.compute import PcasAction
from gpu.drivers.nv.encode.methods.method import Engine
from gpu.drivers.nv.encode.pushbuf import Item, Pushbuffer, check_address, part
from gpu.drivers.nv.encode.qmd import (
    CONSTANT_UNIT,
    QMD_ALIGN,
    SHARED_UNIT,
    ConstantBuffer,
    Dependent,
    DependentAction,
    Launch,
    Qmd,
    Release,
    build_qmd,
)
from gpu.drivers.nv.encode.semaphore import wait_for_idle
from gpu.drivers.nv.encode.sm_limits import WARP
from gpu.drivers.nv.rm.chip import GraphicsInfo
from gpu.drivers.nv.rm.classes import Generation
from gpu.hcq.symbol import Value

LOCAL_ALIGN: Final = 1 << 17
_CHAINED: Final[dict[str, DependentAction | None]] = {
    "copied": DependentAction.INVALIDATE_COPY_SCHEDULE,
    "scheduled": DependentAction.SCHEDULE,  # tinygrad's ops_nv.py
    "none": None,
}
_LOCAL_PER_THREAD: Final = 32
_LOCAL_PER_WARP: Final = 0x200
_LOCAL_PER_TPC: Final = 0x8000


@dataclass(frozen=True, slots=True)
class Target:
    """What launches depend on of a GPU.

    Attributes:
        generation: its classes.
        sm: architecture number, 90 for sm_90.
        sass_version: the same as descriptors have it, 0x90.
        action: how a descriptor is sent.
        chained: how a launch starts the next one of a submission; None where the front end does.
    """

    generation: Generation
    sm: int
    sass_version: int
    action: PcasAction
    chained: DependentAction | None = DependentAction.INVALIDATE_COPY_SCHEDULE

    @classmethod
    def of(cls, generation: Generation, units: GraphicsInfo, chaining: str = "copied") -> Target:
        """The target that an open device is; ``chaining`` is a variant of `probes.CHAINING`.

        On Hopper libcuda sends with INVALIDATE_PREFETCH_COPY_SCHEDULE; Mesa sends all others with
        INVALIDATE_COPY_SCHEDULE.
        """
        major, minor = units.sm_version >> 8, units.sm_version & 0xF
        hopper = generation.compute == ids.HOPPER_COMPUTE_A
        prefetch = PcasAction.INVALIDATE_PREFETCH_COPY_SCHEDULE
        action = prefetch if hopper else PcasAction.INVALIDATE_COPY_SCHEDULE
        version = major << 4 | minor
        return cls(generation, units.sm(generation), version, action, _CHAINED[chaining])

    @property
    def signal_bits(self) -> int:
        """How many bits of a signal all of its engines write: GA100's copy engines know 32."""
        return 32 if self.generation.dma == ids.AMPERE_DMA_COPY_A else 64


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel in memory.

    Attributes:
        kernel: as its cubin has it.
        image: where the cubin's image is.
        dynamic_shared: bytes of shared memory of a block beside what it declares.
        stack: bytes of a thread for recursion and indirect calls.
    """

    kernel: Kernel
    image: int
    dynamic_shared: int = 0
    stack: int = 0

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block, the reserved ones included."""
        declared = align_up(self.kernel.shared, SHARED_UNIT)
        return declared + align_up(self.dynamic_shared, SHARED_UNIT)

    @property
    def local(self) -> int:
        """Bytes of local memory of a thread."""
        return self.kernel.local_size(self.stack)


def kernel_bank0(
    target: Target,
    loaded: LoadedKernel,
    parameters: bytes,
    grid: tuple[Value, Value, Value],
    block: tuple[int, int, int],
) -> Bank0:
    """Bank 0 of a launch. ``parameters`` may be padded.

    Raises InvalidValue for fewer bytes than the kernel takes, or many more, and as `build_bank0`.
    """
    kernel = loaded.kernel
    if not kernel.parameter_size <= len(parameters) <= align_up(kernel.parameter_size, 8):
        raise InvalidValue(
            f"{len(parameters)} bytes of parameters for {kernel.name}, which takes"
            f" {kernel.parameter_size}"
        )
    if kernel.bare:
        return Bank0(parameters.ljust(CONSTANT_UNIT, b"\0"), 0)
    return build_bank0(
        target.sm,
        parameters,
        grid,
        block,
        shared=loaded.shared,
        dynamic_shared=loaded.dynamic_shared,
        cluster=kernel.cluster,
    )


def kernel_qmd(
    target: Target,
    loaded: LoadedKernel,
    bank0: ConstantBuffer,
    grid: tuple[Value, Value, Value],
    block: tuple[int, int, int],
    *,
    releases: tuple[Release, ...] = (),
    dependents: tuple[Dependent, ...] = (),
) -> Qmd:
    """The descriptor of a launch.

    Raises InvalidValue for a block that the kernel was not compiled for, and as `build_qmd`.
    """
    kernel = loaded.kernel
    _check_block(kernel, block)
    banks = (
        ConstantBuffer(bank.number, loaded.image + bank.offset, bank.size) for bank in kernel.banks
    )
    launch = Launch(
        program=loaded.image + kernel.offset,
        program_size=kernel.size,
        grid=grid,
        block=block,
        registers=kernel.registers,
        sass_version=target.sass_version,
        barriers=kernel.barriers,
        shared=loaded.shared,
        local=0 if kernel.bare else loaded.local,
        local_low=loaded.local if kernel.bare else 0,
        constants=(bank0, *banks),
        releases=releases,
        dependents=dependents,
        cluster=kernel.cluster,
    )
    return build_qmd(target.generation.qmd_major, target.sm, launch)


def _check_block(kernel: Kernel, block: tuple[int, int, int]) -> None:
    if kernel.required_block is not None and block != kernel.required_block:
        raise InvalidValue(
            f"{kernel.name} with blocks of {block}: it was compiled for {kernel.required_block}"
        )
    threads = block[0] * block[1] * block[2]
    if kernel.max_threads is not None and threads > kernel.max_threads:
        raise InvalidValue(
            f"{kernel.name} with {threads} threads a block: it was compiled for at most"
            f" {kernel.max_threads}"
        )


def send(target: Target, qmd: Value) -> list[Item]:
    """Launches the descriptor at an address, a multiple of 256 below 1 << 40."""
    check_address("launch descriptor", qmd, QMD_ALIGN)
    return [
        part(compute.SEND_PCAS_A, "QMD_ADDRESS_SHIFTED8", qmd, 8),
        compute.SEND_SIGNALING_PCAS2_B(PCAS_ACTION=target.action),
    ]


def invalidate_caches() -> list[Item]:
    """What starts after it sees code, data and constants as they are in memory now."""
    return [compute.INVALIDATE_SHADER_CACHES_NO_WFI(INSTRUCTION=1, GLOBAL_DATA=1, CONSTANT=1)]


@dataclass(frozen=True, slots=True)
class LocalMemory:
    """Local memory of all threads that can run at once: bytes of a thread, of a TPC, of all.

    ``units`` is for how many TPCs it is.
    """

    per_thread: int
    per_tpc: int
    total: int
    units: int


def size_local_memory(per_thread: int, units: GraphicsInfo) -> LocalMemory:
    """How much local memory a GPU needs so that each thread has ``per_thread`` bytes.

    The rule is that of tinygrad's ops_nv.py. It counts the units of the chip as designed: whether
    hardware numbers only those that are enabled is not documented.
    """
    thread = align_up(per_thread, _LOCAL_PER_THREAD)
    warp = align_up(thread * WARP, _LOCAL_PER_WARP)
    tpc = align_up(warp * units.max_warps_per_sm * units.sms_per_tpc, _LOCAL_PER_TPC)
    count = units.max_gpcs * units.max_tpcs_per_gpc
    return LocalMemory(thread, tpc, align_up(tpc * count, LOCAL_ALIGN), count)


def set_up_compute(target: Target) -> Pushbuffer:
    """What a compute channel gets first: its class, no stale caches, the windows."""
    push = Pushbuffer(compute=target.generation.compute).bind(Engine.COMPUTE)
    if push.has(compute.INVALIDATE_SKED_CACHES):
        push.write(compute.INVALIDATE_SKED_CACHES())
    push.write(
        compute.INVALIDATE_SAMPLER_CACHE_NO_WFI(),
        compute.INVALIDATE_TEXTURE_HEADER_CACHE_NO_WFI(),
        compute.SET_SHADER_SHARED_MEMORY_WINDOW_A(BASE_ADDRESS_UPPER=hi32(SHARED_WINDOW)),
        compute.SET_SHADER_SHARED_MEMORY_WINDOW_B(BASE_ADDRESS=lo32(SHARED_WINDOW)),
        compute.SET_SHADER_LOCAL_MEMORY_WINDOW_A(BASE_ADDRESS_UPPER=hi32(LOCAL_WINDOW)),
        compute.SET_SHADER_LOCAL_MEMORY_WINDOW_B(BASE_ADDRESS=lo32(LOCAL_WINDOW)),
    )
    return push.write(*invalidate_caches())


def set_local_memory(target: Target, local: LocalMemory, address: int) -> Pushbuffer:
    """Gives kernels local memory at an address, once all that runs is done.

    Before the first kernel that needs any, and before one that needs more. Raises InvalidValue for
    an address that is no multiple of `LOCAL_ALIGN`.
    """
    check_address("local memory", address, LOCAL_ALIGN, limit=1 << 49)
    return Pushbuffer(compute=target.generation.compute).write(
        *wait_for_idle(),
        compute.SET_SHADER_LOCAL_MEMORY_A(ADDRESS_UPPER=hi32(address)),
        compute.SET_SHADER_LOCAL_MEMORY_B(ADDRESS_LOWER=lo32(address)),
        compute.SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A(SIZE_UPPER=hi32(local.per_tpc)),
        compute.SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_B(SIZE_LOWER=lo32(local.per_tpc)),
        compute.SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C(MAX_SM_COUNT=local.units),
    )
