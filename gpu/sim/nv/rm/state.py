"""What RM knows of its machine, as all of its calls see it, and who makes a call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.rm.branches import Branch
from gpu.sim.nv.rm.layout import Record
from gpu.sim.nv.rm.objects import Client, Event, Resource
from gpu.sim.nv.rm.peers import PeerPairs
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.record import DebugChannel


class Caller(NamedTuple):
    """Who makes a call.

    Attributes:
        session: what clients belong to and end with: an open file, or what stands in its place.
        pid: the process.
    """

    session: object
    pid: int


class Place(NamedTuple):
    """Where a new object belongs, by handles; `wanted` is its own, or 0 to leave that to RM."""

    client: int
    parent: int
    wanted: int


@dataclass(eq=False)
class RmState:
    """RM of one machine.

    Attributes:
        gpus: in the order of their device instances.
        branch: of the driver.
        peers: pairs of GPUs that reach each other's memory.
        clients: of all sessions, by handle.
        os_events: where `NvUnixEvent`s are queued, by client and descriptor.
        events: those that wait to be told of something.
    """

    gpus: list[NvGpu]
    debug: DebugChannel
    branch: Branch
    peers: PeerPairs
    clients: dict[int, Client] = field(default_factory=dict)
    os_events: dict[tuple[int, int], list[Record]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def client(self, caller: Caller, handle: int) -> Client:
        """A client that a caller may use. Raises RmError."""
        found = self.any_client(handle)
        own = found.session is caller.session
        check(own, Status.INVALID_CLIENT, f"client {handle:#x} is another file's")
        return found

    def any_client(self, handle: int) -> Client:
        """A client, whoever made it. Raises RmError."""
        found = self.clients.get(handle)
        if found is None:
            raise RmError(Status.INVALID_OBJECT_HANDLE, f"there is no client {handle:#x}")
        return found

    def find(self, client: int, handle: int) -> Resource:
        """An object of any client, as other modules of the kernel look it up. Raises RmError."""
        return self.any_client(client).find(handle)
