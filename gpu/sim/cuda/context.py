"""Devices, contexts and their memory: what is whose, and what ends with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from gpu.core.bits import align_up
from gpu.sim.cuda.attributes import attributes_of
from gpu.sim.cuda.work import Space
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.nv.chip.chips import Chip

MemoryKind = Literal["device", "host", "registered", "module", "imported", "mapped"]
SCHEDULES: Final = (0, 1, 2, 4)
"""Ways to wait: CU_CTX_SCHED_AUTO, SPIN, YIELD, BLOCKING_SYNC."""
_VECTOR: Final = 16
"""Bytes of the widest load. nvrtc makes one of narrower loads where it may reach beyond what the
program reads (seen of 12.9), as within so many aligned bytes memory does not end."""
FLAGS: Final = 0xFF  # CU_CTX_FLAGS_MASK
LIMITS: Final = {
    0: 1024,  # CU_LIMIT_STACK_SIZE
    1: 1 << 20,  # CU_LIMIT_PRINTF_FIFO_SIZE
    2: 8 << 20,  # CU_LIMIT_MALLOC_HEAP_SIZE
    5: 64,  # CU_LIMIT_MAX_L2_FETCH_GRANULARITY
    6: 0,  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
}
"""Limits as they are at first; the others are not supported."""


class Device:
    """A GPU.

    Attributes:
        index: its number.
        attributes: what it says of itself.
        used: bytes of its memory that were given out.
        primary: its primary context while there is one; retained: how often, flags: as it is made.
        lost: the error after which a new context is refused.
        pool: the handle of the default pool.
    """

    def __init__(self, chip: Chip, index: int):
        self.chip = chip
        self.index = index
        self.attributes = attributes_of(chip, index)
        self.used = 0
        self.primary: Context | None = None
        self.retained = 0
        self.flags = 0
        self.lost = 0
        self.pool = 0
        self.current_pool = 0

    @property
    def reserved(self) -> int:
        """Bytes of memory that the driver itself takes for each context: a guess."""
        return 512 << 20

    @property
    def uuid(self) -> bytes:
        """Sixteen bytes that no other device here has."""
        return bytes([0x51, self.index]) + self.chip.device_id.to_bytes(4, "big") + bytes(10)

    @property
    def bus_id(self) -> str:
        """Where it is on the bus, as cuDeviceGetPCIBusId writes it."""
        return f"0000:{self.attributes[33]:02X}:00.0"


class Context(Space):
    """A context: an address space, streams, modules, and the error that ended it.

    Attributes:
        handle: as callers name it.
        number: which context of the process it is.
        flags: as it was made.
        map: what its kernels may access.
        peers: contexts whose memory they may access too.
        watchers: contexts whose kernels may access the memory of this one.
        owned: handles of streams, events and modules that end with it.
        alive: False once it was destroyed.
        is_primary: of its device.
        imported: memory of other processes, by its handle, and how often that was opened.
    """

    def __init__(self, device: Device, number: int, flags: int, is_primary: bool):
        super().__init__(number)
        self.device = device
        self.number = number
        self.flags = flags
        self.is_primary = is_primary
        self.handle = 0
        self.map = MemoryMap()
        self.peers: set[Context] = set()
        self.watchers: set[Context] = set()
        self.owned: set[int] = set()
        self.allocations: set[Allocation] = set()
        self.imported: dict[bytes, tuple[Allocation, int]] = {}
        self.limits = dict(LIMITS)
        self.alive = True
        self.cache_config = 0

    def seen_by(self) -> Iterator[Context]:
        """The contexts whose kernels may access its memory."""
        yield self
        yield from self.watchers


class Held(Protocol):
    """What is there as long as someone holds it."""

    def let_go(self) -> None:
        """One who held it does not any more."""


@dataclass(eq=False)
class Allocation:
    """Memory that was given out.

    Attributes:
        start, size: in the address space, in bytes.
        host: where its bytes are in this process.
        context: whose it is.
        flags: of host memory, as it was asked for.
        number: for CU_POINTER_ATTRIBUTE_BUFFER_ID.
        written: how often work of a device has written it.
        ordered: whether it comes from a pool, and is freed in the order of a stream.
        ending: whether it is to be freed in the order of a stream.
        pool: the handle of its pool.
        file: what other processes open it by; -1 where none can.
        physical: what cuMemMap put there, which its end lets go.
    """

    kind: MemoryKind
    start: int
    size: int
    host: int
    context: Context
    number: int
    flags: int = 0
    written: int = 0
    ordered: bool = False
    ending: bool = False
    pool: int = 0
    file: int = -1
    physical: Held | None = None
    mapped: int = field(default=0, repr=False)  # bytes to unmap

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.start + self.size

    @property
    def reach(self) -> int:
        """How many bytes kernels may access: up to a multiple of those of a vector."""
        return align_up(self.size, _VECTOR) if self.kind == "device" else self.size

    @property
    def is_host(self) -> bool:
        """Whether it is memory of the host."""
        return self.kind in ("host", "registered")
