"""Grids as the compute engine hands them over, and the seam to whoever runs kernels.

That is a `KernelExecutor`, which `NvSimWorld` is given. Without one, a launch is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpu.sim import executor
from gpu.sim.executor import RunningKernel, Size3
from gpu.sim.nv.chip.caches import Caches
from gpu.sim.nv.chip.errors import graphics
from gpu.sim.nv.chip.port import Port
from gpu.sim.translate import GpuSpace


class Bank(NamedTuple):
    """A constant bank: its address, and its size in bytes as the QMD claims it."""

    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One grid.

    Attributes:
        qmd_address, qmd: where its QMD lies, and the bytes of it.
        program: address of the first instruction.
        grid, block, cluster: blocks of the grid, threads of a block, blocks of a cluster.
        registers, barriers: of a thread, of a block.
        shared_bytes: shared memory of a block, with what the system takes of it.
        local_low, local_high: bytes of local memory of a thread, by the two ways to count.
        banks: constant banks 0 to 7; None where the QMD has none.
        shared_window, local_window: generic addresses that lead to those memories.
        local_memory, local_per_tpc: where local memory lies, and its bytes for each TPC.
        sass_version: of the code, major in bits 7:4; 0 where the QMD does not say.
    """

    qmd_address: int
    qmd: bytes
    program: int
    grid: Size3
    block: Size3
    cluster: Size3
    registers: int
    barriers: int
    shared_bytes: int
    local_low: int
    local_high: int
    banks: tuple[Bank | None, ...]
    shared_window: int
    local_window: int
    local_memory: int
    local_per_tpc: int
    sass_version: int


class KernelFault(Exception):
    """A kernel does what an SM stops at: an illegal address space, instruction or access.

    Attributes:
        pc: address of the instruction, as the debugger's error state shows it.
        warp_error: HWW_WARP_ESR's error code; 0x10 is an invalid address space.
        address: what was accessed, 0 when nothing was.
    """

    def __init__(self, what: str, pc: int = 0, warp_error: int = 0x10, address: int = 0):
        self.pc = pc
        self.warp_error = warp_error
        self.address = address
        super().__init__(what)


class KernelMemory:
    """The memory that a kernel sees, by the path that each access takes.

    Attributes:
        data, code: ports for loads, stores and instruction fetches; they raise `PageFault`.
        space, caches: for an executor with fast paths of its own.
        window_size: bytes of the window to shared memory.
    """

    def __init__(self, space: GpuSpace, caches: Caches, launch: Launch, window_bits: int):
        self.space = space
        self.caches = caches
        self.data = Port(space, caches, "data")
        self.code = Port(space, caches, "code")
        self._constant = Port(space, caches, "constant")
        self._launch = launch
        self.window_size = 1 << window_bits

    def constant(self, bank: int, offset: int, size: int) -> bytes:
        """Bytes of a constant bank. Raises KernelFault beyond its size, PageFault."""
        found = self._launch.banks[bank]
        if found is None or offset + size > found.size:
            have = f"{found.size:#x} bytes" if found else "not valid"
            raise KernelFault(f"c[{bank}][{offset:#x}] of {size} bytes; the bank is {have}")
        return self._constant.read(found.address + offset, size)

    def load(self, address: int, size: int) -> bytes:
        """A global load. Raises KernelFault inside a window, PageFault."""
        self._check_window(address)
        return self.data.read(address, size)

    def store(self, address: int, data: bytes) -> None:
        """A global store. Raises KernelFault inside a window, PageFault."""
        self._check_window(address)
        self.data.write(address, data)

    def _check_window(self, address: int) -> None:
        windows = (
            (self._launch.shared_window, self.window_size),
            (self._launch.local_window, 1 << 24),
        )
        for start, size in windows:
            if start <= address < start + size:
                raise KernelFault(
                    f"a global access at {address:#x}, inside the window at {start:#x}",
                    address=address,
                )


KernelExecutor = executor.KernelExecutor[Launch, KernelMemory]
"""Runs kernels. A grid raises PageFault and KernelFault."""


class NoExecutor:
    """The default: a world without kernels."""

    def launch(self, launch: Launch, memory: KernelMemory) -> RunningKernel:
        """Refuses."""
        raise graphics(
            f"a kernel at {launch.program:#x} is launched, and this world has no executor: give"
            " NvSimWorld one"
        )
