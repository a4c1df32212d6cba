"""Grids as the command processor hands them over, and the seam to whoever runs kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from gpu.sim import executor
from gpu.sim.executor import RunningKernel, Size3
from gpu.sim.kgsl.chip.caches import Caches
from gpu.sim.kgsl.chip.errors import CpError
from gpu.sim.kgsl.chip.tables import PageTables, Port
from gpu.sim.kgsl.chips import Chip

NO_REGISTER: Final = 0xFC
"""r63.x: what a register's number is where there is none."""


class Buffer(NamedTuple):
    """Memory that a descriptor names: address and bytes."""

    address: int
    size: int


class PrivateMemory(NamedTuple):
    """Where threads have memory of their own.

    Attributes:
        address: of all of it.
        per_fiber, per_core: bytes of a thread, and of a shader processor.
    """

    address: int
    per_fiber: int
    per_core: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One grid.

    Attributes:
        chip: the name of the chip that runs it.
        code, code_size: address of the first instruction, and bytes from SP_CS_OBJ_START on.
        groups, block: workgroups of the grid, threads of one.
        lanes: threads of a wave, 64 or 128.
        constants: the constant file, from c0.x on.
        full, half: registers of 4 x 32 and 4 x 16 bits of a thread.
        merged: whether the halves lie in the full ones.
        branches: as the field BRANCHSTACK has it.
        group_at, thread_at: the registers, by component, that hold the ids of workgroup and thread.
        shared_bytes: memory of a workgroup.
        private: memory of its threads; None where they have none.
        ubos, uavs: by index.
        textures, samplers: descriptors, 64 and 16 bytes each.
    """

    chip: str
    code: int
    code_size: int
    groups: Size3
    block: Size3
    lanes: int
    constants: bytes
    full: int
    half: int
    merged: bool
    branches: int
    group_at: int | None
    thread_at: int | None
    shared_bytes: int
    private: PrivateMemory | None
    ubos: tuple[Buffer, ...]
    uavs: tuple[Buffer, ...]
    textures: tuple[bytes, ...]
    samplers: tuple[bytes, ...]


class KernelFault(CpError):
    """A kernel does what a shader processor cannot: it would hang.

    Attributes:
        pc: address of the instruction.
    """

    def __init__(self, what: str, pc: int = 0):
        super().__init__(what)
        self.pc = pc


class KernelMemory:
    """The memory that a kernel sees.

    Attributes:
        data, code: ports for loads and stores, and for instructions; they raise PageFault.
        space, caches: for an executor with fast paths of its own.
    """

    def __init__(self, space: PageTables, caches: Caches):
        self.space = space
        self.caches = caches
        self.data = Port(space, caches, "shader")
        self.code = Port(space, caches, "code")


class KernelExecutor(executor.KernelExecutor[Launch, KernelMemory], Protocol):
    """Runs kernels. A grid raises PageFault, and KernelFault for what would hang."""

    def check(self, chip: Chip) -> None:
        """Raises Unsupported for a chip whose machine code it cannot run."""
        ...


class NoExecutor:
    """The default: a machine without kernels."""

    def check(self, chip: Chip) -> None:
        """Any chip will do."""

    def launch(self, what: Launch, memory: KernelMemory) -> RunningKernel:
        """Refuses."""
        raise KernelFault(
            f"a kernel at {what.code:#x} is dispatched, and this machine has no executor: give it"
            " one, such as the lane engine",
            what.code,
        )
