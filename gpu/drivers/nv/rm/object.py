"""The resource manager's object tree: objects with parents, that live until they are freed.

Everything a client has is an object in a tree below its root. What carries the calls is an
`RmPort`: the kernel driver's ioctls (`gpu.drivers.nv.nvk.kernel`), or RPC to the card's own
firmware where there is no kernel driver.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from gpu.autogen.nv import classes as ids
from gpu.autogen.nv.control import control_name
from gpu.core.errors import DeviceLost, InvalidValue
from gpu.core.window import Window
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.rm.status import CallLog
from gpu.transport.os import Ref

# RM draws its own handles from 0xcaf00000 up (rs_client.h); ours are told apart at a glance.
FIRST_HANDLE: Final = 0x6770_0001
MAX_HANDLE: Final = 0xFFFF_FFFF

P = TypeVar("P", bound=ctypes.Structure)


class Allocated(NamedTuple):
    """The answer to an alloc: its status, and the handle, which RM chooses for a root."""

    status: int
    handle: int


class RmPort(Protocol):
    """Carries calls to a resource manager. Answers are NV_STATUS; parameters change in place."""

    def alloc(
        self,
        client: int,
        parent: int,
        handle: int,
        class_id: int,
        params: ctypes.Structure | None,
    ) -> Allocated:
        """Makes an object. For a root, ``client``, ``parent`` and ``handle`` are 0."""

    def free(self, client: int, parent: int, handle: int) -> int:
        """Frees an object, and what is below it."""

    def control(
        self,
        client: int,
        handle: int,
        command: int,
        params: ctypes.Structure,
        refs: Sequence[Ref] = (),
    ) -> int:
        """Asks an object. The size of ``params`` must be the command's; ``refs`` its pointers."""


@dataclass(frozen=True, slots=True, eq=False)
class Mapping:
    """Memory or registers of the device in this process; ``handle`` is the port's own."""

    memory: RmObject
    address: int
    size: int
    window: Window
    handle: object


class RmObject:
    """A node of the tree. Freeing it frees what is below it first, the youngest first.

    As a context manager it is freed at the end of the block.
    """

    def __init__(
        self, client: RmClient, parent: RmObject | None, handle: int, class_id: int, name: str
    ):
        self.client = client
        self.parent = parent
        self.handle = handle
        self.class_id = class_id
        self.name = name
        self.alive = True
        self._children: list[RmObject] = []

    @property
    def children(self) -> tuple[RmObject, ...]:
        """Those alive, the oldest first."""
        return tuple(self._children)

    def __str__(self) -> str:
        path, node = self.name, self.parent
        while node is not None:
            path, node = f"{node.name}/{path}", node.parent
        return f"{path} [{ids.class_name(self.class_id)}, handle {self.handle:#x}]"

    def alloc(
        self, class_id: int, params: ctypes.Structure | None = None, *, name: str, handle: int = 0
    ) -> RmObject:
        """Makes a child; fields that RM answers in are filled in ``params``.

        ``handle`` is chosen where it is 0. Raises as `CallLog.check` does, and InvalidValue for a
        handle that is no 32-bit number.
        """
        client, handle = self._usable(), self.client.new_handle(handle)
        child = RmObject(client, self, handle, class_id, name)
        answer = client.port.alloc(client.handle, self.handle, handle, class_id, params)
        client.log.check(f"alloc {ids.class_name(class_id)}", str(child), answer.status)
        child.handle = answer.handle
        self._children.append(child)
        return child

    def adopt(self, class_id: int, handle: int, *, name: str) -> RmObject:
        """Takes a child that another call than alloc has made."""
        child = RmObject(self._usable(), self, handle, class_id, name)
        self._children.append(child)
        return child

    def control(self, command: int, params: P, refs: Sequence[Ref] = ()) -> P:
        """Asks this object; returns ``params``, filled in. Raises as `CallLog.check` does."""
        client = self._usable()
        status = client.port.control(client.handle, self.handle, command, params, refs)
        client.log.check(f"control {control_name(command)}", str(self), status)
        return params

    def free(self) -> None:
        """Frees the object and all below; again does nothing, as does a forked child.

        All of it is tried before an error is raised. Raises as `CallLog.check` does.
        """
        if not self.alive:
            return
        with Undo() as order:
            order.add(self._free_self)
            for child in self._children:
                order.add(child.free)

    def _free_self(self) -> None:
        self.alive = False
        self._children.clear()
        if self.parent is not None and self in self.parent._children:
            self.parent._children.remove(self)
        if self.client.is_forked:  # the objects are the parent process's
            return
        above = self.parent.handle if self.parent is not None else 0
        status = self.client.port.free(self.client.handle, above, self.handle)
        self.client.log.check("free", str(self), status)

    def _usable(self) -> RmClient:
        if self.client.is_forked:
            raise DeviceLost(
                f"{self.name} belongs to the process that forked this one: open the device anew"
            )
        if not self.alive:
            raise InvalidValue(f"{self} was freed and is used again")
        return self.client

    def __enter__(self) -> RmObject:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


class RmClient(RmObject):
    """The root of a tree, and the identity that all calls carry.

    Raises what the port raises, and RmError where RM gives no client.
    """

    def __init__(self, port: RmPort, log: CallLog):
        self.port = port
        self.log = log
        self._process = os.getpid()
        self._handles = itertools.count(FIRST_HANDLE)
        super().__init__(self, None, 0, ids.NV01_ROOT_CLIENT, "client")
        answer = port.alloc(0, 0, 0, ids.NV01_ROOT_CLIENT, None)
        log.check(f"alloc {ids.class_name(self.class_id)}", str(self), answer.status)
        self.handle = answer.handle

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that made the client."""
        return os.getpid() != self._process

    def new_handle(self, wanted: int = 0) -> int:
        """A handle nothing has had, or the wanted one. Raises InvalidValue for one too large."""
        if not 0 <= wanted <= MAX_HANDLE:
            raise InvalidValue(f"handle {wanted:#x} for an object: it must be a 32-bit number")
        return wanted or next(self._handles)
