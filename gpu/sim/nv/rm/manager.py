"""The resource manager: clients and their trees; allocate, free, duplicate, share, map.

Calls are of handles and bytes: what stands before it, device files or messages, copies parameters
from and to where they are. Order of checks and their statuses are those of open-gpu-kernel-modules
580.142: rmapi/alloc_free.c, resserv's rs_server.c and rs_client.c, mapping_cpu.c. A driver of that
branch is modelled on Linux, where a client belongs to the file that made it (strict handle
validation).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from gpu.core.bits import align_up
from gpu.sim.nv.chip.gpu import USERMODE_SIZE, NvGpu
from gpu.sim.nv.chip.memory import Physical
from gpu.sim.nv.rm import construct
from gpu.sim.nv.rm.branches import Branch
from gpu.sim.nv.rm.classes import (
    EVENT_CLASSES,
    NOT_MODELLED,
    OS_DESCRIPTOR,
    OS_EVENT,
    ROOT_CLASSES,
    RULES,
    ClassRule,
    Kind,
    has_class,
)
from gpu.sim.nv.rm.layout import Record
from gpu.sim.nv.rm.layouts import UNIX_EVENT
from gpu.sim.nv.rm.objects import Client, CpuMapping, Device, Memory, Resource, Subdevice, Usermode
from gpu.sim.nv.rm.peers import PeerPairs
from gpu.sim.nv.rm.request import Request
from gpu.sim.nv.rm.state import Caller, Place, RmState
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.nv.rm.virtual import VirtualMemory
from gpu.sim.physical import PAGE, Extent, Pool, UserPages
from gpu.sim.record import DebugChannel

_FIRST_CLIENT: Final = 0xC1D0_0001
_FIRST_OBJECT: Final = 0xCAF0_0000
_FIRMWARE_HANDLES: Final = range(0xC9F0_0000, 0xC9F8_0000)  # rmapi/client.c, rmclientConstruct
_LINEAR_BASE: Final = 0x7000_0000_0000  # addresses that RM_MAP_MEMORY answers with; never mapped
_SHARE_TYPES: Final = 8
_BAR1_GRANULE: Final = 64 << 10
_MAP_PERSISTENT: Final = 1 << 4
_MAP_SKIP_SIZE_CHECK: Final = 1 << 8
_COPYABLE: Final = ("memory", "os_memory", "vaspace", "group", "share", "usermode")
_WITHOUT_DATA: Final = 1 << 28  # NV01_EVENT_WITHOUT_EVENT_DATA


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a file may map after RM_MAP_MEMORY; a file takes one, for good.

    Attributes:
        gpu: whose BARs it goes through; None for the machine's memory.
        size: bytes that a mapping may have; of a BAR exactly these.
    """

    gpu: NvGpu | None
    pool: Pool
    extents: tuple[Extent, ...]
    size: int
    writable: bool


class ResourceManager(RmState):
    """RM of one machine.

    Args:
        pcie_peers: whether GPUs of one chip reach each other's memory over PCIe.
    """

    makers: Mapping[Kind, Callable[[Request], Resource]] = construct.MAKERS

    def __init__(
        self, gpus: list[NvGpu], debug: DebugChannel, pcie_peers: bool, branch: Branch
    ) -> None:
        super().__init__(gpus, debug, branch, PeerPairs(pcie_peers))
        self._next_client = _FIRST_CLIENT
        self._next_object = _FIRST_OBJECT
        self._next_linear = _LINEAR_BASE
        for gpu in gpus:
            gpu.interrupt = partial(self._deliver, gpu)

    def _deliver(self, gpu: NvGpu, index: int, info32: int) -> None:
        """Queues an interrupt's events where ALLOC_OS_EVENT said."""
        for event in self.events:
            queue = self.os_events.get((event.client.handle, event.fd))
            meant = event.index == index and event.source.gpu is gpu
            if queue is None or not meant or event.flags & _WITHOUT_DATA:
                continue
            entry = Record(UNIX_EVENT)
            entry["hObject"], entry["NotifyIndex"] = event.handle, event.index
            entry["info32"] = info32
            queue.append(entry)

    # Allocating.

    def rule(self, number: int) -> ClassRule:
        """What RM knows of a class. Raises RmError."""
        rule = RULES.get(number)
        if rule is None:
            known = number in NOT_MODELLED
            status = Status.NOT_SUPPORTED if known else Status.INVALID_CLASS
            raise RmError(status, f"{'not modelled' if known else 'unknown'}: class {number:#x}")
        return rule

    def allocate(
        self, caller: Caller, place: Place, number: int, data: bytes | None = None
    ) -> tuple[int, bytes | None]:
        """RM_ALLOC of a class, with its parameters: the handle, and parameters as they come back.

        Raises RmError.
        """
        rule = self.rule(number)
        params = self._parse(number, rule, data)
        if number in ROOT_CLASSES:
            return self._new_client(caller, place.wanted), data
        owner = self.client(caller, place.client)
        self._check_privilege(number)
        self._check_not_own(owner, place.wanted)
        above = owner.find(place.parent)
        if rule.parents and above.kind not in rule.parents:
            raise RmError(
                Status.INVALID_OBJECT_PARENT,
                f"class {number:#x} under {above}: its parent is a {' or '.join(rule.parents)}",
            )
        handle = self._new_handle(owner, place.wanted)
        self._check_class(number, above, params)
        request = Request(self, owner, above, handle, number, params)
        self._add(self.makers[rule.kind](request))
        return handle, bytes(params.data) if params else None

    def _add(self, made: Resource) -> None:
        assert made.parent
        made.parent.children.append(made)
        made.client.objects[made.handle] = made

    def _parse(self, number: int, rule: ClassRule, data: bytes | None) -> Record | None:
        if data is None:
            required = rule.required and rule.params is not None
            check(not required, Status.INVALID_ARGUMENT, f"class {number:#x} needs pAllocParms")
            return None
        if rule.params is None:
            raise RmError(Status.INVALID_ARGUMENT, f"class {number:#x} takes no parameters")
        return self.branch.layout(rule.params).parse(data)

    def _check_not_own(self, client: Client, wanted: int) -> None:
        """serverAllocResourceUnderLock: what has the client's handle has no parent."""
        check(wanted != client.handle, Status.INVALID_OBJECT_PARENT, "the client's own handle")

    def _check_privilege(self, number: int) -> None:
        if number in EVENT_CLASSES and number != OS_EVENT:
            raise RmError(Status.ILLEGAL_ACTION, f"event class {number:#x} is the kernel's own")

    def _check_class(self, number: int, parent: Resource, params: Record | None) -> None:
        """resservResourceFactory: the chip must have the class."""
        if parent.kind == "client":
            if number == 0x80:
                check(params is not None, Status.INVALID_ARGUMENT, "a device without parameters")
            return
        if not has_class(parent.gpu.chip, number):
            raise RmError(Status.NOT_SUPPORTED, f"{parent.gpu.chip.name} has no class {number:#x}")

    def _new_client(self, caller: Caller, wanted: int) -> int:
        handle = wanted
        if not handle:
            handle, self._next_client = self._next_client, self._next_client + 1
        check(handle not in self.clients, Status.INSERT_DUPLICATE_NAME, f"client {handle:#x}")
        self.clients[handle] = Client(0x41, handle, *caller)
        return handle

    def _new_handle(self, client: Client, wanted: int) -> int:
        """clientAssignResourceHandle. Raises RmError."""
        if not wanted:
            while self._next_object in client.objects:
                self._next_object += 1
            self._next_object += 1
            return self._next_object - 1
        own, firmware = wanted == client.handle, wanted in _FIRMWARE_HANDLES
        check(not own, Status.INVALID_OBJECT_HANDLE, "the client's own handle")
        check(not firmware, Status.INVALID_OBJECT_HANDLE, f"handle {wanted:#x} is the firmware's")
        taken = wanted in client.objects
        check(not taken, Status.INSERT_DUPLICATE_NAME, f"handle {wanted:#x} is taken")
        return wanted

    def describe(self, caller: Caller, place: Place, pages: UserPages, span: Extent) -> int:
        """Memory that a process has becomes an object (RmAllocOsDescriptor): its handle.

        Raises RmError.
        """
        owner = self.client(caller, place.client)
        device = owner.find(place.parent)
        check(device.kind == "device", Status.INVALID_OBJECT_PARENT, f"{device} is no device")
        self._check_not_own(owner, place.wanted)
        handle = self._new_handle(owner, place.wanted)
        memory = Memory("os_memory", OS_DESCRIPTOR, owner, handle, device)
        memory.physical = Physical(device.gpu, pages, (span,), span.size, PAGE, cpu=False)
        memory.length = span.size
        self._add(memory)
        return handle

    # Freeing.

    def free(self, caller: Caller, client: int, handle: int) -> None:
        """RM_FREE, with all below; an unknown handle is no error (RS_COMPATABILITY_MODE)."""
        found = self.client(caller, client).objects.get(handle)
        if found is None:
            self.debug.violation(f"RM_FREE of {handle:#x}, which is not there; the kernel says OK")
            return
        self.end(found)

    def end(self, found: Resource) -> None:
        """Ends an object: those that depend on it first, then its children, newest first."""
        for dependant in list(found.dependants):
            if dependant.client.objects.get(dependant.handle) is dependant:
                self.end(dependant)
        for child in reversed(list(found.children)):
            if child in found.children:
                self.end(child)
        for other in found.client.objects.values():
            if isinstance(other, VirtualMemory) and isinstance(found, Memory):
                other.forget(found)
        if found.cpu_mappings:
            self._forget_mappings(found, found.cpu_mappings)
        found.client.objects.pop(found.handle, None)
        if found.parent:
            found.parent.children.remove(found)
        if isinstance(found, Client):
            self.clients.pop(found.handle, None)
            self.os_events = {k: f for k, f in self.os_events.items() if k[0] != found.handle}
        found.released()

    # Duplicating and sharing.

    def duplicate(self, caller: Caller, place: Place, source: tuple[int, int]) -> int:
        """RM_DUP_OBJECT: the new handle. `source` is a client's, of the same process, and a handle.

        Raises RmError.
        """
        target = self.client(caller, place.client)
        source_client = self.any_client(source[0])
        found = source_client.find(source[1])
        above = target.find(place.parent)
        check(found.kind in _COPYABLE, Status.INVALID_ARGUMENT, f"{found} cannot be duplicated")
        same = source_client.pid == target.pid
        check(same, Status.INSUFFICIENT_PERMISSIONS, f"{found} was not shared")
        if not isinstance(found, Memory):
            raise RmError(Status.NOT_SUPPORTED, f"duplicating {found} is not modelled")
        check(above.kind in ("device", "subdevice"), Status.INVALID_OBJECT_PARENT, f"{above}")
        handle = self._new_handle(target, place.wanted)
        copy = Memory(found.kind, found.number, target, handle, above)
        copy.physical, copy.length = found.physical, found.length
        copy.read_only = found.read_only
        copy.physical.hold()
        self._add(copy)
        return handle

    def share(self, caller: Caller, client: int, handle: int, kind: int) -> None:
        """RM_SHARE; what it allows to other processes is not modelled. Raises RmError."""
        check(kind < _SHARE_TYPES, Status.INVALID_ARGUMENT, f"share type {kind}")
        self.client(caller, client).find(handle)

    # Mapping for the CPU.

    def map_memory(
        self, caller: Caller, client: int, device: int, memory: int, span: Extent, flags: int
    ) -> tuple[int, Mapped]:
        """RM_MAP_MEMORY: the address that RM calls it by, and what is mapped. Raises RmError."""
        owner = self.client(caller, client)
        found = owner.find(memory)
        check(not flags & _MAP_PERSISTENT, Status.INVALID_FLAGS, "a persistent mapping")
        via = owner.find(device)
        if not isinstance(via, Device | Subdevice):
            raise RmError(Status.INVALID_OBJECT_PARENT, f"{via} is no device")
        mapped, bar1 = self._mapped(found, via.gpu, span, flags)
        linear = self._next_linear
        self._next_linear += align_up(mapped.size, PAGE)
        via.gpu.bar1_used += bar1
        found.cpu_mappings.append(CpuMapping(linear, mapped.size, bar1))
        return linear, mapped

    def _mapped(self, found: Resource, gpu: NvGpu, span: Extent, flags: int) -> tuple[Mapped, int]:
        offset, length, access = span.offset, span.size, flags & 3
        if isinstance(found, Usermode):
            self._check_span(offset, length, USERMODE_SIZE)
            pages = (Extent(0, USERMODE_SIZE),)
            return Mapped(gpu, gpu.usermode, pages, align_up(length, PAGE), True), 0
        if not isinstance(found, Memory):
            raise RmError(Status.NOT_SUPPORTED, f"{found} cannot be mapped")
        physical = found.physical
        check(physical.cpu, Status.NOT_SUPPORTED, "memory of the process is mapped already")
        check(not found.read_only or access == 1, Status.INVALID_ARGUMENT, "read-only memory")
        skip = flags & _MAP_SKIP_SIZE_CHECK
        self._check_span(offset, length, found.length)
        check(not skip, Status.INSUFFICIENT_PERMISSIONS, "SKIP_SIZE_CHECK is the kernel's own")
        start = offset & ~(PAGE - 1)
        size = align_up(offset + length - start, PAGE)
        bar1 = align_up(size, _BAR1_GRANULE) if physical.local else 0
        if gpu.bar1_used + bar1 > gpu.chip.bar1_size:
            raise RmError(
                Status.NO_MEMORY,
                f"{size:#x} bytes of BAR1; {gpu.bar1_used:#x} of {gpu.chip.bar1_size:#x} are used",
            )
        assert isinstance(physical.region, Pool)
        pieces = tuple(physical.pieces(start, size))
        via = gpu if physical.local else None
        return Mapped(via, physical.region, pieces, size, access != 1), bar1

    def _check_span(self, offset: int, length: int, size: int) -> None:
        check(offset < size, Status.INVALID_BASE, f"offset {offset:#x} of {size:#x} bytes")
        fits = 0 < length <= size - offset
        check(fits, Status.INVALID_LIMIT, f"{length:#x} bytes from {offset:#x} of {size:#x}")

    def unmap_memory(
        self, caller: Caller, client: int, device: int, memory: int, linear: int
    ) -> None:
        """RM_UNMAP_MEMORY, by the address that mapping answered. Raises RmError."""
        owner = self.client(caller, client)
        found = owner.find(memory)
        owner.find(device)
        mappings = [m for m in found.cpu_mappings if m.linear == linear]
        check(bool(mappings), Status.OBJECT_NOT_FOUND, f"{found} is not mapped at {linear:#x}")
        self._forget_mappings(found, mappings)

    def _forget_mappings(self, found: Resource, mappings: list[CpuMapping]) -> None:
        for mapping in list(mappings):
            found.gpu.bar1_used -= mapping.bar1
            found.cpu_mappings.remove(mapping)

    # Events and sessions.

    def add_os_event(self, client: int, fd: int, queue: list[Record]) -> None:
        """ALLOC_OS_EVENT: where a descriptor's events are queued. Raises RmError."""
        new = (client, fd) not in self.os_events
        check(new, Status.INSUFFICIENT_RESOURCES, f"fd {fd} is known already")
        self.os_events[client, fd] = queue

    def drop_os_event(self, client: int, fd: int) -> None:
        """FREE_OS_EVENT. Raises RmError."""
        known = (client, fd) in self.os_events
        check(known, Status.INVALID_ARGUMENT, f"fd {fd} is not known")
        del self.os_events[client, fd]

    def end_session(self, session: object) -> None:
        """Ends its clients."""
        for client in [c for c in self.clients.values() if c.session is session]:
            self.end(client)
