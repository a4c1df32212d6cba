"""What a process has from KFD once and for all: its file, render nodes, the page of events.

The kernel keeps a process's address spaces, its page of events and its losses until the process
ends, not until files are closed (`kfd_process_device_init_vm`, `kfd_kmap_event_page`,
`kfd_dqm_evict_pasid` of Linux 6.12): the second file of a render node is refused with EBUSY for
ever. So a session is opened with the first device and kept; devices come and go.

What a process has lost so is lost to a *context* of it, and newer kernels give a process as many as
it wants: a GPU that was lost goes on in a session of its own, with another file of each kind.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from dataclasses import dataclass, field
from typing import Final

from gpu.autogen import kfd as ids
from gpu.core.errors import DeviceError, DeviceLost, FormatError, GpuError, TransportError
from gpu.core.log import get_logger
from gpu.drivers.am.kfd.events import MemoryFault, Reset, memory_fault, reset
from gpu.drivers.am.kfd.ioctls import HAS_CONTEXTS, Apertures, Event, Kfd
from gpu.drivers.am.kfd.memory import BufferObject, KfdMemory, Use, take_over
from gpu.drivers.am.kfd.topology import GpuNode, choose, read_gpus
from gpu.drivers.cleanup import Undo
from gpu.transport import amd as nodes
from gpu.transport.os import Os, RealOs

_log = get_logger(__name__)
_SLOT: Final = 8
_PAGE_OF_EVENTS: Final = _SLOT * ids.KFD_SIGNAL_EVENT_LIMIT
"""Bytes of all slots. A slot that is not set holds ones only."""


@dataclass(eq=False)
class GpuLink:
    """A GPU that a session has acquired: its render node's file, which stays open.

    ``lost`` is what ended its use in this session, for good. ``users`` counts open devices.
    """

    node: GpuNode
    render_fd: int
    apertures: Apertures
    session: KfdSession
    users: int = 0
    lost: MemoryFault | Reset | None = None


@dataclass(eq=False)
class KfdSession:
    """An opened KFD; there is one for each `Os` of a process, see `session_of`.

    And one more for each GPU that was lost and is used again, whose ``first`` is that one.
    """

    system: Os
    kfd: Kfd
    gpus: tuple[GpuNode, ...]
    pid: int = field(default_factory=os.getpid)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _has_runtime: bool = False
    _links: dict[int, GpuLink] = field(default_factory=dict)
    _page: BufferObject | None = None
    _memory_event: Event | None = None
    _reset_event: Event | None = None
    _first: KfdSession | None = None
    _others: dict[int, KfdSession] = field(default_factory=dict)

    @property
    def first(self) -> KfdSession:
        """The session of the process's first context, which knows the others."""
        return self._first or self

    def enable_runtime(self) -> None:
        """As `Kfd.enable_runtime`, for the whole process: again does nothing."""
        with self.lock:
            if not self._has_runtime:
                self.kfd.enable_runtime()
                self._has_runtime = True

    def link(self, index: int) -> GpuLink:
        """A GPU by its place in KFD's list, acquired; the first also brings the page of events.

        One that was lost comes in a context of its own. Raises InvalidIndex, DeviceError, also for
        a GPU that somebody else in this process has, DeviceLost for one that was lost where the
        kernel has no other contexts, AccessDenied, TransportError, OutOfMemory.
        """
        node = choose(self.gpus, index)
        with self.lock:
            found = self._links.get(node.gpu_id)
            if found is None:
                found = self._links[node.gpu_id] = self._acquire(node)
            self._share_events(found)
            return found if found.lost is None else self.other(found)

    def other(self, lost: GpuLink) -> GpuLink:
        """A GPU that this context lost in another one. Errors are those of `link`."""
        check_not_lost(lost, self.kfd.version)
        gpu_id = lost.node.gpu_id
        with self.first.lock:
            others = self.first._others
            found = others.get(gpu_id)
            if found is None or found._links[gpu_id].lost is not None:
                found = others[gpu_id] = _open_other(self.first, lost)
            return found._links[gpu_id]

    def enter(self, link: GpuLink) -> None:
        """A device uses the link."""
        with self.first.lock:
            link.users += 1

    def leave(self, link: GpuLink) -> None:
        """A device uses the link no more; a session ends with its only GPU, when that is lost."""
        with self.first.lock:
            link.users -= 1
            if link.users or link.lost is None or self is self.first:
                return
            if self.first._others.get(link.node.gpu_id) is self:
                del self.first._others[link.node.gpu_id]
            self.close()

    def _acquire(self, node: GpuNode) -> GpuLink:
        """Opens the render node, and takes its address space.

        What happens after that never gives it back, as the kernel would not take another.
        """
        apertures = self.kfd.apertures().get(node.gpu_id)
        if apertures is None:
            raise FormatError(f"KFD tells no apertures for {node}, which its topology lists")
        path = nodes.render_node(node.drm_render_minor)
        with Undo() as undo:
            fd = self.system.open(path, os.O_RDWR)
            undo.add(self.system.close, fd)
            try:
                self.kfd.acquire_vm(fd, node.gpu_id)
            except TransportError as error:
                if error.errno != errno.EBUSY:
                    raise
                raise DeviceError(
                    f"{node}: other code in this process, such as ROCm, has it through {path};"
                    " use it in a process of its own"
                ) from error
            undo.take()
        return GpuLink(node, fd, apertures, self)

    def inherit(self, before: GpuLink) -> None:
        """Has the page of events of a session that lost its GPU, where it was.

        What was encoded there still writes to it. Raises as `link`.
        """
        page = before.session._page
        assert page is not None, "a GPU is linked with the page of events"
        link = self._links[before.node.gpu_id] = self._acquire(before.node)
        with Undo() as undo:
            handle = take_over(page, before.session.kfd, self.kfd, link.node, undo)
            self._memory_event = self.kfd.create_event(ids.KFD_IOC_EVENT_MEMORY, handle)
            self._reset_event = self.kfd.create_event(ids.KFD_IOC_EVENT_HW_EXCEPTION)
            undo.take()
        self._page = BufferObject(page.address, page.size, handle, page.use, {link.node.gpu_id: 1})

    def _share_events(self, link: GpuLink) -> None:
        """Sees to it that the page of events is there, and that a GPU can write to it."""
        if self._page is None:
            memory = KfdMemory(self.kfd, link.node, link.render_fd, link.apertures.memory)
            page = memory.hold(_PAGE_OF_EVENTS, Use.EVENTS)
            try:
                # The first event of a process gives the kernel the page, for good.
                self._memory_event = self.kfd.create_event(ids.KFD_IOC_EVENT_MEMORY, page.handle)
            except BaseException:
                page.undo.close()
                raise
            page.undo.take()
            self._page = page
        elif link.node.gpu_id not in self._page.gpus:
            self.kfd.map_memory(self._page.handle, [link.node.gpu_id])
            self._page.gpus[link.node.gpu_id] = 1
        if self._reset_event is None:
            self._reset_event = self.kfd.create_event(ids.KFD_IOC_EVENT_HW_EXCEPTION)

    def wake_event(self, number: int = 0) -> tuple[Event, int]:
        """A new event that a GPU can set, and the address of its slot. Raises TransportError.

        It gets the ``number``, or the next that is free.
        """
        assert self._page is not None, "a GPU is linked before it gets events"
        with Undo() as lower:
            while True:  # the kernel gives the lowest number that is free
                event = self.kfd.create_event(ids.KFD_IOC_EVENT_SIGNAL)
                if event.number >= number:
                    return event, self._page.address + _SLOT * event.slot
                lower.add(self.kfd.destroy_event, event.number)

    def sleep(self, event: Event, timeout_ms: int) -> bool:
        """Sleeps in the kernel until an event, a fault or a reset; False when the time is over.

        What is told of faults and resets goes to the GPUs it is about. Raises TransportError.
        """
        faults, resets = self._memory_event, self._reset_event
        assert faults is not None and resets is not None, "a GPU is linked before it is waited for"
        came, data = self.kfd.wait_events((event.number, faults.number, resets.number), timeout_ms)
        if came:
            self._note(reset(data[2]))  # which may come with a memory event that says less
            self._note(memory_fault(data[1]))
        return came

    def _note(self, told: MemoryFault | Reset | None) -> None:
        link = self._links.get(told.gpu_id) if told is not None else None
        if link is not None and link.lost is None:
            _log.info("%s: %s", link.node, told)
            link.lost = told

    def close(self) -> None:
        """Closes the files, also those of other contexts.

        The GPUs of a first context cannot be opened again in this process.
        """
        with Undo() as undo:
            for other in self._others.values():
                undo.add(other.close)
            self._others = {}
            undo.add(self.kfd.close)
            for link in self._links.values():
                undo.add(self.system.close, link.render_fd)
            self._links = {}


def check_not_lost(link: GpuLink, version: tuple[int, int]) -> None:
    """Raises DeviceLost for a GPU that was lost where the kernel does not give it back."""
    if version < HAS_CONTEXTS:
        raise DeviceLost(
            f"{link.node} was lost to this process ({link.lost}): the kernel gives it to new"
            " processes only"
        )


# By the system they were opened in; all `RealOs` are one and the same. A session holds a model only
# weakly, or the model, which is the key, would never go.
_sessions: Final[weakref.WeakKeyDictionary[object, KfdSession]] = weakref.WeakKeyDictionary()
_sessions_lock: Final = threading.Lock()


def session_of(system: Os) -> KfdSession:
    """The session of this process in a system, opened if it is the first.

    Raises DeviceError where there is no KFD, Unsupported for an old one, AccessDenied with what to
    do, FormatError, TransportError; nothing stays open then.
    """
    is_real = isinstance(system, RealOs)
    key: object = RealOs if is_real else system
    with _sessions_lock:
        found = _sessions.get(key)
        if found is not None and found.pid != os.getpid():  # of the parent of a forked child
            _forget(found)
            found = None
        if found is None:
            found = _sessions[key] = _open(system if is_real else weakref.proxy(system))
        return found


def _open(system: Os) -> KfdSession:
    """``system`` may be a proxy."""
    with Undo() as undo:
        kfd = Kfd(system)
        undo.add(kfd.close)
        kfd.check_version()
        gpus = read_gpus(system)
        undo.take()
        return KfdSession(system, kfd, gpus)


def _open_other(first: KfdSession, lost: GpuLink) -> KfdSession:
    """A session in a new context, with the GPU that another one lost. Raises as `link`."""
    with Undo() as undo:
        kfd = Kfd(first.system)
        session = KfdSession(first.system, kfd, first.gpus, _first=first)
        undo.add(session.close)
        kfd.version = first.kfd.version
        kfd.create_context()
        session.inherit(lost)
        undo.take()
    _log.info("%s goes on in another context of KFD", lost.node)
    return session


def _forget(session: KfdSession) -> None:
    """Closes a child's copies of its parent's files, which are of no use to it."""
    try:
        session.close()
    except GpuError as error:
        _log.info("closing what was inherited: %s", error)
