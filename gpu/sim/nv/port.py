"""How an engine reads and writes a VA space: translation, then caches, then bytes."""

from __future__ import annotations

from gpu.sim.kernel import SysError
from gpu.sim.nv.caches import Agent, Caches
from gpu.sim.translate import AddressSpace, PageFault


class Port:
    """One agent's way into one address space. All of it raises `PageFault`."""

    def __init__(self, space: AddressSpace, caches: Caches, agent: Agent):
        self.space = space
        self.caches = caches
        self.agent = agent

    def as_agent(self, agent: Agent) -> Port:
        """The same memory, seen by another agent."""
        return Port(self.space, self.caches, agent)

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at any address."""
        parts = []
        for mapping, offset, count in self.space.spans(address, size, write=False):
            try:
                parts.append(self.caches.load(self.agent, mapping, offset, count))
            except SysError as error:  # memory of the process that it has unmapped since
                raise PageFault(address, False, present=False) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes at any address; nothing is written when a page of them faults."""
        view = memoryview(data)
        done = 0
        for mapping, offset, count in list(self.space.spans(address, len(view), write=True)):
            try:
                self.caches.store(self.agent, mapping, offset, view[done : done + count])
            except SysError as error:
                raise PageFault(address, True, present=False) from error
            done += count

    def words(self, address: int, count: int) -> list[int]:
        """`count` dwords at an address that is a multiple of 4."""
        return memoryview(self.read(address, 4 * count)).cast("I").tolist()

    def read_word(self, address: int, width: int) -> int:
        """One aligned word of 4 or 8 bytes."""
        return int.from_bytes(self.read(address, width), "little")

    def write_word(self, address: int, width: int, value: int) -> None:
        """Writes one aligned word of 4 or 8 bytes."""
        self.write(address, (value & (1 << 8 * width) - 1).to_bytes(width, "little"))

    def is_mapped(self, address: int, size: int) -> bool:
        """Whether all of a range is mapped."""
        try:
            for _ in self.space.spans(address, size, write=False):
                pass
        except PageFault:
            return False
        return True
