"""How an engine reads and writes an address space: translation, then caches, then bytes."""

from __future__ import annotations

from typing import Generic, Protocol, Self, TypeVar

from gpu.sim.kernel import SysError
from gpu.sim.translate import Mapping, PageFault, Translation

AgentT = TypeVar("AgentT")
_AgentT_contra = TypeVar("_AgentT_contra", contravariant=True)


class Caching(Protocol[_AgentT_contra]):
    """What stands between agents and regions of memory."""

    @property
    def mode(self) -> str:
        """What a read gives of a line that has changed; see `gpu.sim.linecaches`."""
        ...

    def load(self, agent: _AgentT_contra, mapping: Mapping, offset: int, size: int) -> bytes:
        """What an agent reads from a region. Raises SysError for memory that is gone."""
        ...

    def store(self, agent: _AgentT_contra, mapping: Mapping, offset: int, data: memoryview) -> None:
        """What an agent writes to a region. Raises SysError for memory that is gone."""
        ...

    def see(self, agent: _AgentT_contra, mapping: Mapping, offset: int, data: bytes) -> bytes:
        """What an agent reads of whole lines of which memory has `data`."""
        ...

    def written_in_place(self, mapping: Mapping, offset: int, size: int) -> None:
        """Tells of what a kernel wrote to memory itself."""
        ...


class AgentPort(Generic[AgentT]):
    """One agent's way into one address space. All of it raises `PageFault`."""

    def __init__(self, space: Translation, caches: Caching[AgentT], agent: AgentT):
        self.space = space
        self.caches = caches
        self.agent = agent

    def as_agent(self, agent: AgentT) -> Self:
        """The same memory, seen by another agent."""
        return type(self)(self.space, self.caches, agent)

    def fetch(self, address: int, size: int) -> bytes:
        """Bytes from an address on, fewer than `size` where its mapping ends."""
        mapping = self.space.translate(address, write=False)
        offset, count = mapping.offset + address - mapping.start, min(size, mapping.end - address)
        return self.caches.load(self.agent, mapping, offset, count)

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at any address."""
        parts = []
        for mapping, offset, count in self.space.spans(address, size, write=False):
            try:
                parts.append(self.caches.load(self.agent, mapping, offset, count))
            except SysError as error:  # user memory that the process has unmapped since
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
