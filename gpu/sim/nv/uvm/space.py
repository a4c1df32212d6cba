"""The state of UVM: ranges of addresses, and what GPUs see of them.

From kernel-open/nvidia-uvm of open-gpu-kernel-modules 580.142: uvm_va_space.c, uvm_va_range.c. The
calls are in `gpu.sim.nv.uvm.calls`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu.sim.nv.chip.hardware import Hardware
from gpu.sim.nv.chip.memory import Physical
from gpu.sim.nv.rm.objects import ChannelObject, VaSpace
from gpu.sim.nv.rm.state import RmState
from gpu.sim.nv.rm.status import RmError, Status
from gpu.sim.translate import Mapping


@dataclass(eq=False)
class External:
    """What is mapped at a part of a range on one GPU; a duplicate keeps the memory."""

    gpu: Hardware
    start: int
    size: int
    physical: Physical
    mappings: list[Mapping]

    @property
    def owner(self) -> Hardware:
        """The GPU under whose device the memory was allocated, also that of the machine."""
        return self.physical.gpu

    @property
    def is_local(self) -> bool:
        """Whether it is video memory."""
        return self.physical.local


@dataclass(eq=False)
class Range:
    """Addresses that UVM reserved: external ranges, and those of channels' contexts."""

    start: int
    size: int
    channel: bool = False
    mapped: list[External] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.start + self.size


@dataclass(eq=False)
class GpuSpace:
    """A GPU's VA space as UVM registered it.

    Attributes:
        channels: registered ones, with the ranges of their contexts; channels of one group have
            one context, so they share the list.
    """

    gpu: Hardware
    vaspace: VaSpace
    channels: dict[ChannelObject, list[Range]] = field(default_factory=dict)


class UvmSpace:
    """What one open file of UVM holds.

    Attributes:
        pid: of the process that opened it.
        opened: what a descriptor of that process is of, if it is of UVM.
        flags: of UVM_INITIALIZE; None before it was called.
        keeps: the file whose memory this one keeps, after MM_INITIALIZE; `mm_alive` there.
        gpus: registered ones by uuid.
        spaces: registered VA spaces by their GPU's uuid.
        peers: pairs that ENABLE_PEER_ACCESS named.
        ranges: by start.
    """

    def __init__(self, rm: RmState, pid: int, opened: Callable[[int], UvmSpace | None]):
        self.rm = rm
        self.pid = pid
        self.opened = opened
        self.flags: int | None = None
        self.keeps: UvmSpace | None = None
        self.mm_alive = False
        self.gpus: dict[bytes, Hardware] = {}
        self.spaces: dict[bytes, GpuSpace] = {}
        self.peers: set[frozenset[Hardware]] = set()
        self.ranges: dict[int, Range] = {}
        self._starts: list[int] = []

    def end(self) -> None:
        """The VA space ends: all it holds goes."""
        for uuid in list(self.spaces):
            self.drop_space(uuid)
        for found in list(self.ranges.values()):
            self.drop_range(found)
        for pair in list(self.peers):
            self.drop_peers(pair)
        self.gpus.clear()

    def gpu(self, uuid: bytes) -> Hardware:
        """A registered GPU. Raises RmError(INVALID_DEVICE)."""
        found = self.gpus.get(uuid)
        if found is None:
            raise RmError(Status.INVALID_DEVICE, f"GPU {uuid.hex()} is not registered")
        return found

    def space(self, uuid: bytes) -> GpuSpace:
        """The VA space registered for a GPU. Raises RmError(INVALID_DEVICE)."""
        found = self.spaces.get(uuid)
        if found is None:
            raise RmError(Status.INVALID_DEVICE, f"no VA space of GPU {uuid.hex()} is registered")
        return found

    def overlapping(self, start: int, end: int) -> Range | None:
        """A range that has an address from `start` to before `end`."""
        at = bisect_left(self._starts, end)
        if at and self.ranges[self._starts[at - 1]].end > start:
            return self.ranges[self._starts[at - 1]]
        return None

    def add_range(self, new: Range) -> None:
        """Reserves addresses. Raises RmError(UVM_ADDRESS_IN_USE)."""
        taken = self.overlapping(new.start, new.end)
        if taken:
            raise RmError(
                Status.UVM_ADDRESS_IN_USE,
                f"{new.start:#x} to {new.end:#x} overlaps {taken.start:#x} to {taken.end:#x}",
            )
        self._starts.insert(bisect_left(self._starts, new.start), new.start)
        self.ranges[new.start] = new

    def drop_range(self, found: Range) -> None:
        """Gives addresses back."""
        for external in list(found.mapped):
            self.unmap(found, external)
        del self.ranges[found.start]
        self._starts.remove(found.start)

    def unmap(self, found: Range, external: External) -> None:
        """Takes memory out of a GPU's page tables, with its TLB, and lets it go."""
        space = self.spaces.get(external.gpu.uuid)
        if space:
            for mapping in external.mappings:
                space.vaspace.space.unmap(mapping.start)
            space.vaspace.space.flush_tlb()
        external.physical.drop()
        found.mapped.remove(external)

    def drop_space(self, uuid: bytes) -> None:
        """Unregisters a VA space: channels stop, mappings go."""
        space = self.spaces[uuid]
        for channel in list(space.channels):
            self.drop_channel(space, channel)
        self._unmap_where(lambda e: e.gpu is space.gpu)
        space.vaspace.uvm_owner = False
        del self.spaces[uuid]

    def drop_peers(self, pair: frozenset[Hardware]) -> None:
        """Ends peer access: what either has mapped of the other's video memory goes.

        uvm_va_range_disable_peer_external.
        """
        self._unmap_where(
            lambda e: e.gpu in pair and e.owner is not e.gpu and e.owner in pair and e.is_local
        )
        self.peers.remove(pair)
        self.rm.peers.release(*pair)

    def drop_gpu(self, gpu: Hardware) -> None:
        """Unregisters a GPU: its VA space, its peers, and what others have mapped of its memory."""
        if gpu.uuid in self.spaces:
            self.drop_space(gpu.uuid)
        for pair in [pair for pair in self.peers if gpu in pair]:
            self.drop_peers(pair)
        self._unmap_where(lambda e: e.owner is gpu)
        del self.gpus[gpu.uuid]

    def _unmap_where(self, matches: Callable[[External], bool]) -> None:
        for found in self.ranges.values():
            for external in [e for e in found.mapped if matches(e)]:
                self.unmap(found, external)

    def drop_channel(self, space: GpuSpace, channel: ChannelObject) -> None:
        """Unregisters a channel; it stops, and its context's addresses are free again."""
        ranges = space.channels.pop(channel)
        if not any(ranges is others for others in space.channels.values()):
            for found in ranges:
                self.drop_range(found)
        channel.channel.bound = False
        channel.channel.stopped = True
        channel.channel.stop()
