"""The resource manager: clients and their trees; allocate, free, duplicate, share, map.

Order of checks and their statuses are those of open-gpu-kernel-modules 580.142: rmapi/alloc_free.c,
resserv's rs_server.c and rs_client.c, mapping_cpu.c. A driver of that branch is modelled on Linux,
where a client belongs to the file that made it (strict handle validation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpu.core.bits import align_up
from gpu.sim.kernel import CallerMemory, SysError
from gpu.sim.nv.chip.gpu import USERMODE_SIZE, NvGpu
from gpu.sim.nv.rm import construct
from gpu.sim.nv.rm.branches import Branch
from gpu.sim.nv.rm.classes import (
    EVENT_CLASSES,
    NOT_MODELLED,
    OS_EVENT,
    ROOT_CLASSES,
    RULES,
    ClassRule,
    has_class,
)
from gpu.sim.nv.rm.layout import Record
from gpu.sim.nv.rm.objects import (
    Client,
    CpuMapping,
    Device,
    Memory,
    Resource,
    Subdevice,
    Usermode,
    VaSpace,
)
from gpu.sim.nv.rm.peers import PeerPairs
from gpu.sim.nv.rm.request import Request
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.physical import PAGE, Extent, Pool
from gpu.sim.record import DebugChannel

if TYPE_CHECKING:
    from gpu.sim.nv.files.rm import RmFile
    from gpu.sim.process import SimProcess

_FIRST_CLIENT: Final = 0xC1D0_0001
_FIRST_OBJECT: Final = 0xCAF0_0000
_FIRMWARE_HANDLES: Final = range(0xC9F0_0000, 0xC9F8_0000)  # rmapi/client.c, rmclientConstruct
_LINEAR_BASE: Final = 0x7000_0000_0000  # addresses that RM_MAP_MEMORY answers with; never mapped
_SHARE_TYPES: Final = 8
_BAR1_GRANULE: Final = 64 << 10
_MAP_PERSISTENT: Final = 1 << 4
_MAP_SKIP_SIZE_CHECK: Final = 1 << 8
_COPYABLE: Final = ("memory", "os_memory", "vaspace", "group", "share", "usermode")


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


class ResourceManager:
    """RM of one machine.

    Attributes:
        clients: of all processes, by handle.
        gpus: in the order of their device instances.
        branch: of the driver.
        sandboxed: whether calls come through gVisor; see `gpu.sim.nv.files.sandbox`.
        os_events: files that ALLOC_OS_EVENT told of, by client and descriptor.
        peers: pairs of GPUs that reach each other's memory.
    """

    def __init__(
        self,
        gpus: list[NvGpu],
        debug: DebugChannel,
        pcie_peers: bool,
        branch: Branch,
        sandboxed: bool,
    ):
        self.gpus = gpus
        self.branch = branch
        self.sandboxed = sandboxed
        self.debug = debug
        self.peers = PeerPairs(pcie_peers)
        self.clients: dict[int, Client] = {}
        self.os_events: dict[tuple[int, int], RmFile] = {}
        self._next_client = _FIRST_CLIENT
        self._next_object = _FIRST_OBJECT
        self._next_linear = _LINEAR_BASE

    def client(
        self, file: RmFile, handle: int, missing: Status = Status.INVALID_OBJECT_HANDLE
    ) -> Client:
        """A client that a file may use. Raises RmError."""
        found = self.clients.get(handle)
        if found is None:
            raise RmError(missing, f"there is no client {handle:#x}")
        owner = file.control_file
        check(found.file is owner, Status.INVALID_CLIENT, f"client {handle:#x} is another file's")
        return found

    def find(self, client: int, handle: int) -> Resource:
        """An object of any client, as other modules of the kernel look it up. Raises RmError."""
        owner = self.clients.get(client)
        if owner is None:
            raise RmError(Status.INVALID_OBJECT_HANDLE, f"there is no client {client:#x}")
        return owner.find(handle)

    # Allocating.

    def allocate(self, file: RmFile, process: SimProcess, args: Record) -> None:
        """RM_ALLOC; sets hObjectNew."""
        number = args["hClass"]
        rule = RULES.get(number)
        if rule is None:
            known = number in NOT_MODELLED
            status = Status.NOT_SUPPORTED if known else Status.INVALID_CLASS
            raise RmError(status, f"{'not modelled' if known else 'unknown'}: class {number:#x}")
        params = self._read_params(process.user, number, rule, args["pAllocParms"])
        if number in ROOT_CLASSES:
            args["hObjectNew"] = self._new_client(file, process, args["hObjectNew"]).handle
            return
        client = self.client(file, args["hRoot"])
        self._check_privilege(number)
        wanted = args["hObjectNew"]
        self._check_not_own(client, wanted)
        parent = client.find(args["hObjectParent"])
        if rule.parents and parent.kind not in rule.parents:
            raise RmError(
                Status.INVALID_OBJECT_PARENT,
                f"class {number:#x} under {parent}: its parent is a {' or '.join(rule.parents)}",
            )
        handle = self._new_handle(client, wanted)
        self._check_class(number, parent, params)
        request = Request(self, file, client, parent, handle, number, params)
        made = construct.MAKERS[rule.kind](request)
        parent.children.append(made)
        client.objects[handle] = made
        args["hObjectNew"] = handle
        if params is not None:
            process.user.write(args["pAllocParms"], params.data)

    def _read_params(
        self, user: CallerMemory, number: int, rule: ClassRule, address: int
    ) -> Record | None:
        if not address:
            required = rule.required and rule.params is not None
            check(not required, Status.INVALID_ARGUMENT, f"class {number:#x} needs pAllocParms")
            return None
        if rule.params is None:
            raise RmError(Status.INVALID_ARGUMENT, f"class {number:#x} takes no parameters")
        layout = self.branch.layout(rule.params)
        try:
            return layout.parse(user.read(address, layout.size))
        except SysError as error:
            raise RmError(Status.INVALID_ADDRESS, str(error)) from error

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

    def _new_client(self, file: RmFile, process: SimProcess, wanted: int) -> Client:
        handle = wanted
        if not handle:
            handle, self._next_client = self._next_client, self._next_client + 1
        check(handle not in self.clients, Status.INSERT_DUPLICATE_NAME, f"client {handle:#x}")
        client = Client(0x41, handle, file, process.pid)
        self.clients[handle] = client
        return client

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

    def adopt(self, client: Client, parent: Resource, wanted: int) -> int:
        """A handle for an object that is not made by RM_ALLOC. Raises RmError."""
        assert parent.client is client
        self._check_not_own(client, wanted)
        return self._new_handle(client, wanted)

    # Freeing.

    def free(self, file: RmFile, client_handle: int, handle: int) -> None:
        """RM_FREE, with all below; an unknown handle is no error (RS_COMPATABILITY_MODE)."""
        client = self.client(file, client_handle)
        found = client.objects.get(handle)
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

    def duplicate(self, file: RmFile, args: Record) -> None:
        """RM_DUP_OBJECT; sets hObject. The source must be of a client of the same process."""
        target = self.client(file, args["hClient"])
        source_client = self.clients.get(args["hClientSrc"])
        if source_client is None:
            raise RmError(Status.INVALID_OBJECT_HANDLE, "there is no such source client")
        source = source_client.find(args["hObjectSrc"])
        parent = target.find(args["hParent"])
        check(source.kind in _COPYABLE, Status.INVALID_ARGUMENT, f"{source} cannot be duplicated")
        same = source_client.pid == target.pid
        check(same, Status.INSUFFICIENT_PERMISSIONS, f"{source} was not shared")
        if not isinstance(source, Memory):
            raise RmError(Status.NOT_SUPPORTED, f"duplicating {source} is not modelled")
        check(parent.kind in ("device", "subdevice"), Status.INVALID_OBJECT_PARENT, f"{parent}")
        handle = self._new_handle(target, args["hObject"])
        copy = Memory(source.kind, source.number, target, handle, parent)
        copy.physical, copy.length = source.physical, source.length
        copy.read_only = source.read_only
        copy.physical.hold()
        parent.children.append(copy)
        target.objects[handle] = copy
        args["hObject"] = handle

    def share(self, file: RmFile, args: Record) -> None:
        """RM_SHARE; what it allows to other processes is not modelled."""
        kind = args["type"]
        check(kind < _SHARE_TYPES, Status.INVALID_ARGUMENT, f"share type {kind}")
        self.client(file, args["hClient"]).find(args["hObject"])

    # Mapping for the CPU.

    def map_memory(self, file: RmFile, args: Record) -> Mapped:
        """RM_MAP_MEMORY up to the file; sets pLinearAddress."""
        client = self.client(file, args["hClient"])
        found = client.find(args["hMemory"])
        flags = args["flags"]
        check(not flags & _MAP_PERSISTENT, Status.INVALID_FLAGS, "a persistent mapping")
        device = client.find(args["hDevice"])
        if not isinstance(device, Device | Subdevice):
            raise RmError(Status.INVALID_OBJECT_PARENT, f"{device} is no device")
        mapped, bar1 = self._mapped(found, device.gpu, args)
        linear, self._next_linear = (
            self._next_linear,
            self._next_linear + align_up(mapped.size, PAGE),
        )
        device.gpu.bar1_used += bar1
        found.cpu_mappings.append(CpuMapping(linear, mapped.size, bar1))
        args["pLinearAddress"] = linear
        return mapped

    def _mapped(self, found: Resource, gpu: NvGpu, args: Record) -> tuple[Mapped, int]:
        offset, length, access = args["offset"], args["length"], args["flags"] & 3
        if isinstance(found, Usermode):
            self._check_span(offset, length, USERMODE_SIZE)
            pages = (Extent(0, USERMODE_SIZE),)
            return Mapped(gpu, gpu.usermode, pages, align_up(length, PAGE), True), 0
        if not isinstance(found, Memory):
            raise RmError(Status.NOT_SUPPORTED, f"{found} cannot be mapped")
        physical = found.physical
        check(physical.cpu, Status.NOT_SUPPORTED, "memory of the process is mapped already")
        check(not found.read_only or access == 1, Status.INVALID_ARGUMENT, "read-only memory")
        skip = args["flags"] & _MAP_SKIP_SIZE_CHECK
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

    def unmap_memory(self, file: RmFile, args: Record) -> None:
        """RM_UNMAP_MEMORY, by the address that mapping answered."""
        client = self.client(file, args["hClient"])
        found = client.find(args["hMemory"])
        client.find(args["hDevice"])
        linear = args["pLinearAddress"]
        mappings = [m for m in found.cpu_mappings if m.linear == linear]
        check(bool(mappings), Status.OBJECT_NOT_FOUND, f"{found} is not mapped at {linear:#x}")
        self._forget_mappings(found, mappings)

    def _forget_mappings(self, found: Resource, mappings: list[CpuMapping]) -> None:
        for mapping in list(mappings):
            found.gpu.bar1_used -= mapping.bar1
            found.cpu_mappings.remove(mapping)

    # Processes.

    def close_file(self, file: RmFile) -> None:
        """A control file was closed: its clients end."""
        for client in [c for c in self.clients.values() if c.file is file]:
            self.end(client)

    def vaspaces(self) -> list[VaSpace]:
        """All VA spaces, for tests."""
        objects = [o for client in self.clients.values() for o in client.objects.values()]
        return [found for found in objects if isinstance(found, VaSpace)]
