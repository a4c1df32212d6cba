"""Dispatches as the packet processor hands them over, and the seam to whoever runs kernels.

That is a `KernelExecutor`, which a machine is given. Without one, a dispatch is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpu.autogen import amdhsa
from gpu.sim import executor
from gpu.sim.amd.chip.caches import Caches
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chip.port import Port
from gpu.sim.amd.chips import Chip
from gpu.sim.executor import RunningKernel, Size3
from gpu.sim.translate import PageFault, Translation

_MAX_THREADS: Final = 1024
_RSRC2: Final = amdhsa.FIELDS["COMPUTE_PGM_RSRC2"]
_WAVE32: Final = 1 << 15  # COMPUTE_DISPATCH_INITIATOR.CS_W32_EN
_SHADER_ENABLE: Final = 1
_IDS: Final = ("ID_X", "ID_Y", "ID_Z", "INFO")
_FILLED: Final = 16
UNSET: Final = 0xB1A5_B1A5
"""What a scalar register holds that nobody gave a value."""


class Dispatch(NamedTuple):
    """One grid of work-groups.

    Attributes:
        source: which kind of packet it came from.
        chip: the name of the chip that runs it.
        entry: address of the first instruction, a multiple of 256.
        groups: work-groups in each direction.
        threads: work-items of a group in each direction.
        wave_size: lanes of a wave, 32 or 64.
        user_sgprs: what the first scalar registers hold, as many as RSRC2 says.
        rsrc1, rsrc2, rsrc3: the kernel's resources as in the registers.
        lds_bytes: local memory of a group.
        tmpring, scratch_base: size and place of scratch memory.
        registers: all compute registers by name, for what is not listed.
        aql_packet, descriptor: addresses, where it came from an AQL packet; 0 otherwise.
        tally: what its waves count in, for performance counters; None where none count.
    """

    source: Literal["pm4", "aql"]
    chip: str
    entry: int
    groups: Size3
    threads: Size3
    wave_size: int
    user_sgprs: tuple[int, ...]
    rsrc1: int
    rsrc2: int
    rsrc3: int
    lds_bytes: int
    tmpring: int
    scratch_base: int
    registers: Mapping[str, int]
    aql_packet: int = 0
    descriptor: int = 0
    tally: npt.NDArray[np.uint64] | None = None


class KernelMemory:
    """The memory that a kernel sees, by the path that each access takes.

    Attributes:
        scalar, vector, code: ports for scalar loads, vector accesses and instruction fetches; all
            raise `PageFault`. They go through the caches of `gpu.sim.amd.chip.caches`.
        space, caches: for an executor with fast paths of its own.
    """

    def __init__(self, space: Translation, caches: Caches):
        self.space = space
        self.caches = caches
        self.scalar = Port(space, caches, "scalar")
        self.vector = Port(space, caches, "vector")
        self.code = Port(space, caches, "code")


class KernelExecutor(executor.KernelExecutor[Dispatch, KernelMemory], Protocol):
    """Runs kernels. A grid raises PageFault, and PacketError for what hardware would hang on."""

    def check(self, chip: Chip) -> None:
        """Raises Unsupported for a chip whose machine code it cannot run."""
        ...


class NoExecutor:
    """The default: a world without kernels."""

    def check(self, chip: Chip) -> None:
        """Any chip will do."""

    def launch(self, dispatch: Dispatch, memory: KernelMemory) -> RunningKernel:
        """Refuses."""
        raise PacketError(
            f"a kernel at {dispatch.entry:#x} is dispatched, and this machine has no executor: give"
            " it one, such as the lane engine"
        )


def from_registers(
    chip: Chip, registers: Mapping[str, int], groups: Size3, initiator: int
) -> Dispatch:
    """The dispatch that compute registers and a DISPATCH packet describe. Raises PacketError."""
    if not initiator & _SHADER_ENABLE:
        raise PacketError(f"dispatch initiator {initiator:#x} lacks COMPUTE_SHADER_EN")
    needed = ["PGM_LO", "PGM_HI", "PGM_RSRC1", "PGM_RSRC2"]
    needed += [f"NUM_THREAD_{axis}" for axis in "XYZ"]
    missing = [name for name in needed if f"COMPUTE_{name}" not in registers]
    if missing:
        raise PacketError(f"dispatch before {', '.join(missing)} were ever set")
    threads = Size3(*(registers[f"COMPUTE_NUM_THREAD_{axis}"] & 0xFFFF for axis in "XYZ"))
    check_sizes(groups, threads)
    rsrc2 = registers["COMPUTE_PGM_RSRC2"]
    count = user_count(rsrc2)
    names = [f"COMPUTE_USER_DATA_{i}" for i in range(count)]
    # Some may be left out: LLVM asks for more than is read, so that with the ids of the workgroup
    # there are 16 scalar registers on gfx11; of a kernel without arguments all.
    ids = sum(_field(rsrc2, f"ENABLE_SGPR_WORKGROUP_{each}") for each in _IDS)
    is_filled = count + ids == _FILLED
    if count and not is_filled and not any(name in registers for name in names):
        raise PacketError(f"RSRC2 wants {count} user registers; {names[0]} was never set")
    wave32 = bool(initiator & _WAVE32)
    if wave32 and chip.pm4 == "gfx9":
        raise PacketError("CS_W32_EN on a chip whose waves have 64 lanes")
    tmpring = registers.get("COMPUTE_TMPRING_SIZE", 0)
    if _field(rsrc2, "ENABLE_PRIVATE_SEGMENT") and not tmpring:
        raise PacketError("the kernel wants scratch memory, and TMPRING_SIZE is 0")
    return Dispatch(
        source="pm4",
        chip=chip.name,
        entry=_address(registers, "COMPUTE_PGM"),
        groups=groups,
        threads=threads,
        wave_size=32 if wave32 else 64,
        user_sgprs=tuple(registers.get(name, UNSET) for name in names),
        rsrc1=registers["COMPUTE_PGM_RSRC1"],
        rsrc2=rsrc2,
        rsrc3=registers.get("COMPUTE_PGM_RSRC3", 0),
        lds_bytes=_field(rsrc2, "GRANULATED_LDS_SIZE") * chip.lds_granule,
        tmpring=tmpring,
        scratch_base=_address(registers, "COMPUTE_DISPATCH_SCRATCH_BASE"),
        registers=dict(registers),
    )


def _address(registers: Mapping[str, int], name: str) -> int:
    """Two registers with an address in units of 256 bytes; 0 where they were never set."""
    high = registers.get(f"{name}_HI", 0) & 0xFF
    return high << 40 | registers.get(f"{name}_LO", 0) << 8


def user_count(rsrc2: int) -> int:
    """How many user registers a kernel wants; ids of the workgroup come behind all of them."""
    return _field(rsrc2, "USER_SGPR_COUNT")


def check_sizes(groups: Size3, threads: Size3) -> None:
    """Raises PacketError for groups that are too large and grids that are empty."""
    if 0 in threads or threads.volume > _MAX_THREADS:
        raise PacketError(f"groups of {tuple(threads)} work-items: 1 to {_MAX_THREADS} together")
    if 0 in groups:
        raise PacketError(f"a grid of {tuple(groups)} groups is empty: nothing would run")


def check_entry(dispatch: Dispatch, memory: KernelMemory) -> None:
    """The code must be mapped where it begins, and executable. Raises PacketError, PageFault."""
    mapping = memory.space.translate(dispatch.entry, write=False)
    if not mapping.executable:
        raise PageFault(dispatch.entry, write=False, present=True, execute=True)


def _field(value: int, name: str) -> int:
    low, width = _RSRC2[name]
    return value >> low & (1 << width) - 1
