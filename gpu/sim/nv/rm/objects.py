"""RM's objects: a tree for each client, and what keeps what alive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpu.sim.nv.chip.channel import Channel, Group, Unit
from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.chip.memory import Physical
from gpu.sim.nv.rm.classes import Kind
from gpu.sim.nv.rm.status import RmError, Status
from gpu.sim.translate import AddressSpace, GpuSpace


@dataclass(eq=False)
class CpuMapping:
    """What RM_MAP_MEMORY made: the address that RM calls it by, and BAR1 space it takes."""

    linear: int
    size: int
    bar1: int


@dataclass(eq=False)
class Resource:
    """An object with a handle.

    Attributes:
        number: its class.
        parent: None for clients.
        dependants: objects elsewhere in the tree that end before this one does.
        cpu_mappings: by RM_MAP_MEMORY.
    """

    kind: Kind
    number: int
    client: Client
    handle: int
    parent: Resource | None
    children: list[Resource] = field(default_factory=list)
    dependants: list[Resource] = field(default_factory=list)
    cpu_mappings: list[CpuMapping] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kind} {self.handle:#x} of class {self.number:#x}"

    def released(self) -> None:
        """The object ends; its children have ended before."""

    def ancestors(self) -> Iterator[Resource]:
        """Itself, its parent, and so on."""
        at: Resource | None = self
        while at:
            yield at
            at = at.parent

    @property
    def gpu(self) -> NvGpu:
        """The GPU whose device it is under; clients are under none."""
        devices = [each for each in self.ancestors() if isinstance(each, Device)]
        assert devices, f"{self} belongs to no GPU"
        return devices[0].device_gpu


class Client(Resource):
    """The root of a tree. It dies with the session that made it.

    Attributes:
        session: that one; no other may use the client (client.c, rmclientValidate, strict mode).
        pid: the process that made it.
        objects: all of the tree by handle, the client itself too.
    """

    def __init__(self, number: int, handle: int, session: object, pid: int):
        super().__init__("client", number, self, handle, None)
        self.session = session
        self.pid = pid
        self.objects: dict[int, Resource] = {handle: self}

    def find(self, handle: int, missing: Status = Status.OBJECT_NOT_FOUND) -> Resource:
        """An object by its handle. Raises RmError."""
        found = self.objects.get(handle)
        if found is None:
            raise RmError(missing, f"client {self.handle:#x} has no object {handle:#x}")
        return found


class Device(Resource):
    """A GPU as a client opened it."""

    device_gpu: NvGpu
    default_vaspace: VaSpace | None = None


class Subdevice(Resource):
    """One GPU of a device."""


class Usermode(Resource):
    """The right to map the page of doorbell and clock; over BAR1 or BAR0."""

    bar1 = False


class VaSpace(Resource):
    """Addresses of a GPU.

    Attributes:
        external: whether UVM may own its page tables.
        uvm_owner: whether UVM has registered it.
        space: the page tables.
    """

    def __init__(self, *args: Any, external: bool, faulting: bool):
        super().__init__(*args)
        self.external = external
        self.faulting = faulting
        self.uvm_owner = False
        self.space = AddressSpace()

    @property
    def seen(self) -> GpuSpace:
        """As engines see it."""
        return self.space


class ContextShare(Resource):
    """Ties channels of a group to a VA space."""

    vaspace: VaSpace
    subcontext = 0


class GroupObject(Resource):
    """A group of channels.

    Attributes:
        group: that of the chip.
        uses_shares: whether its channels name a context share; None before the first channel.
        error_handle: memory for the errors of channels that name none themselves.
    """

    group: Group
    uses_shares: bool | None = None
    vaspace: VaSpace | None = None
    error_handle = 0

    def released(self) -> None:
        """Forgotten by the scheduler."""
        self.gpu.groups.remove(self.group)


class ChannelObject(Resource):
    """A channel.

    Attributes:
        channel: that of the chip.
        held: memory that it keeps.
    """

    channel: Channel
    vaspace: VaSpace
    held: list[Physical]

    def released(self) -> None:
        """Off the hardware, and the group that RM made around it with it."""
        self.gpu.remove(self.channel)
        for physical in self.held:
            physical.drop()
        if not isinstance(self.parent, GroupObject):
            self.gpu.groups.remove(self.channel.group)


class EngineObject(Resource):
    """An object of the compute or copy engine on a channel."""

    channel: ChannelObject
    unit: Unit

    def released(self) -> None:
        """SET_OBJECT cannot name it any more."""
        self.channel.channel.units.remove(self.unit)


class Memory(Resource):
    """Memory of the device or of the machine."""

    physical: Physical
    read_only = False
    length = 0

    def released(self) -> None:
        """One holder less; duplicates keep the pages."""
        self.physical.drop()


class Debugger(Resource):
    """Reads error states of SMs after a fault."""

    target: EngineObject


class Event(Resource):
    """Tells a descriptor of interrupts and errors.

    Attributes:
        source: the object whose notifications are meant.
        index: which of them; NV01_EVENT_* flags taken off.
        flags: those flags.
        fd: the descriptor that is told.
        hub: where RM keeps its events.
    """

    source: Resource
    index = 0
    flags = 0
    fd = -1
    hub: list[Event]

    def released(self) -> None:
        """Told no more."""
        self.hub.remove(self)


R = TypeVar("R", bound=Resource)


def expect(found: Resource, kind: type[R], status: Status) -> R:
    """The object as one of a kind. Raises RmError."""
    if not isinstance(found, kind):
        raise RmError(status, f"{found} where a {kind.__name__} belongs")
    return found
