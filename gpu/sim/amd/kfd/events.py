"""KFD's events: creation, waiting, interrupts.

Linux 6.12 kfd_events.c, rule by rule: ids, the slots of the event page, when a wait resets an
event, what it copies out, and that time-outs are one jiffy too long.
"""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass, field
from typing import Final

from gpu.autogen import kfd
from gpu.sim.amd.kfd.gpu import Bo, KfdGpu
from gpu.sim.ids import IdTable
from gpu.sim.kernel import SysError
from gpu.sim.machine import Machine
from gpu.sim.physical import Extent, Pool
from gpu.sim.process import SimProcess
from gpu.sim.translate import PageFault

UNSIGNALED: Final = (1 << 64) - 1
MMAP_EVENTS: Final = 2 << 62
_PAGE_BYTES: Final = 8 * kfd.KFD_SIGNAL_EVENT_LIMIT
_OLD_PAGE_BYTES: Final = 256 * 8  # a page that the kernel allocates itself serves so many
_FIRST_OTHER: Final = (0x7FFFFFFF >> 1) + 1
_JIFFY_NS: Final = 4_000_000  # 250 Hz, as Debian configures it
_MAX_MS: Final = 0x7FFFFFFF
_WITH_SLOT: Final = (kfd.KFD_IOC_EVENT_SIGNAL, kfd.KFD_IOC_EVENT_DEBUG_EVENT)
_DATA_SIZE: Final = ctypes.sizeof(kfd.kfd_event_data)


@dataclass(eq=False)
class Event:
    """One event; `waiters` are the waits under way on it."""

    kind: int
    auto_reset: bool
    number: int = -1
    signaled: bool = False
    age: int = 1
    data: bytes = b""
    waiters: list[_Waiter] = field(default_factory=list)


@dataclass(eq=False)
class _Waiter:
    event: Event | None
    activated: bool
    age_enabled: bool


class Events:
    """The events of one process.

    Attributes:
        page_handle: the allocation that serves as event page, as the process named it.
    """

    def __init__(self, world: Machine, process: SimProcess, gpu: KfdGpu) -> None:
        self._world = world
        self._gpu = gpu  # that has the page which the kernel allocates
        self._user = process.user
        self._events: IdTable[Event | None] = IdTable()
        self._events.add(None)  # id 0 is taken, for interrupts that name none
        self._count = 1
        self._page: Bo | None = None
        self._own_page: Pool | None = None
        self._page_bytes = 0
        self.page_handle: int | None = None

    @property
    def has_page(self) -> bool:
        """Whether events have slots already."""
        return self._page is not None

    def __len__(self) -> int:
        return len(self._events) - 1

    def close(self) -> None:
        """Gives back a page that the kernel allocated."""
        if self._own_page is not None:
            self._own_page.close()

    def set_page(self, bo: Bo, handle: int) -> None:
        """Makes a buffer the event page; the first CREATE_EVENT that names one does."""
        if bo.domain == kfd.KFD_IOC_ALLOC_MEM_FLAGS_USERPTR:
            raise SysError(errno.EINVAL, "user memory cannot be the event page")
        if bo.size < _PAGE_BYTES:
            raise SysError(errno.EINVAL, f"the event page needs {_PAGE_BYTES:#x} bytes")
        if bo.domain != kfd.KFD_IOC_ALLOC_MEM_FLAGS_GTT:
            self._world.debug.violation("the event page should be system memory (GTT)")
        self._use_page(bo)
        self.page_handle = handle
        self._page_bytes = bo.size

    def mmap(self, process: SimProcess, size: int, prot: int, flags: int, address: int) -> int:
        """Maps the page that the kernel allocated itself. Raises SysError(EINVAL)."""
        if self._own_page is None or size > _PAGE_BYTES:
            raise SysError(errno.EINVAL, f"no event page of {size:#x} bytes")
        self._page_bytes = size
        whole = (Extent(0, size),)
        return self._own_page.map_for_cpu(whole, size, prot, flags, address, process.mapper)

    def create(self, kind: int, auto_reset: bool) -> Event:
        """A new event. Raises SysError(ENOSPC) when all slots are taken."""
        event = Event(kind, auto_reset)
        if kind not in _WITH_SLOT:
            event.number = self._events.add(event, _FIRST_OTHER)
            return event
        if self._page_bytes and self._count == self._page_bytes // 8:
            raise SysError(errno.ENOSPC, f"{self._count} signal events exist")
        if self._page is None:
            self._own_page = Pool("event page", _PAGE_BYTES)
            self._use_page(Bo(self._own_page, _PAGE_BYTES, 0, self._gpu))
            self._page_bytes = _OLD_PAGE_BYTES
        event.number = self._events.add(event, 0, self._page_bytes // 8)
        self._count += 1
        self._store_slot(event.number, UNSIGNALED)
        return event

    def destroy(self, number: int) -> None:
        """Ends an event and fails the waits on it. Raises SysError(EINVAL)."""
        event = self._find(number)
        for waiter in event.waiters:
            waiter.event = None
        if event.kind in _WITH_SLOT:
            self._count -= 1
        self._events.remove(number)

    def set(self, number: int) -> None:
        """Signals an event from the CPU. Raises SysError(EINVAL)."""
        self._set(self._signal_event(number))

    def reset(self, number: int) -> None:
        """Takes a signal back. Raises SysError(EINVAL)."""
        self._signal_event(number).signaled = False

    def interrupt(self, number: int, valid_bits: int) -> None:
        """An engine's interrupt: the event it names, or all whose slots were written.

        A number that cannot be told, or whose slot nobody wrote, costs a search of all slots.
        """
        if self._page is None:
            return
        if 0 <= number < kfd.KFD_SIGNAL_EVENT_LIMIT and valid_bits and self._slot(number):
            event = self._events.get(number)
            if event:
                self._set_from_interrupt(event)
                return
        for candidate in [event for _, event in self._events if event]:
            if candidate.kind in _WITH_SLOT and self._slot(candidate.number):
                self._set_from_interrupt(candidate)

    def memory_violation(self, gpu_id: int, fault: PageFault) -> None:
        """Signals all MEMORY events with a fault's page."""
        data = kfd.kfd_hsa_memory_exception_data(va=fault.address & ~0xFFF, gpu_id=gpu_id)
        data.failure.NotPresent = not fault.present
        data.failure.ReadOnly = fault.present and fault.write
        data.failure.NoExecute = fault.present and fault.execute
        self._signal_kind(kfd.KFD_IOC_EVENT_MEMORY, bytes(data))

    def gpu_reset(self, gpu_id: int) -> None:
        """Signals all HW_EXCEPTION events: a hang made the kernel reset the GPU."""
        data = kfd.kfd_hsa_hw_exception_data(memory_lost=1, gpu_id=gpu_id)
        data.reset_type = kfd.KFD_HW_EXCEPTION_WHOLE_GPU_RESET
        data.reset_cause = kfd.KFD_HW_EXCEPTION_GPU_HANG
        self._signal_kind(kfd.KFD_IOC_EVENT_HW_EXCEPTION, bytes(data))

    def poison_consumed(self, gpu_id: int) -> None:
        """Signals MEMORY and HW_EXCEPTION events (`kfd_signal_poison_consumed_event`)."""
        lost = kfd.kfd_hsa_hw_exception_data(memory_lost=1, gpu_id=gpu_id)
        lost.reset_cause = kfd.KFD_HW_EXCEPTION_ECC
        self._signal_kind(kfd.KFD_IOC_EVENT_HW_EXCEPTION, bytes(lost))
        told = kfd.kfd_hsa_memory_exception_data(gpu_id=gpu_id)
        told.ErrorType, told.failure.imprecise = kfd.KFD_MEM_ERR_POISON_CONSUMED, 1
        self._signal_kind(kfd.KFD_IOC_EVENT_MEMORY, bytes(told))

    def wait(self, args: kfd.kfd_ioctl_wait_events_args) -> None:
        """WAIT_EVENTS in virtual time.

        A wait without end raises HwTimeout when no engine can do anything: it would never return.
        """
        waiters: list[_Waiter] = []
        try:
            self._begin(args, waiters)
            if self._result(args, waiters) == kfd.KFD_IOC_WAIT_RESULT_TIMEOUT:
                self._sleep(args, waiters)
            args.wait_result = self._result(args, waiters)
            if args.wait_result == kfd.KFD_IOC_WAIT_RESULT_COMPLETE:
                self._copy_out(args, waiters)
        except SysError:
            args.wait_result = kfd.KFD_IOC_WAIT_RESULT_FAIL
            raise
        finally:
            for waiter in waiters:
                if waiter.event and waiter in waiter.event.waiters:
                    waiter.event.waiters.remove(waiter)
        if args.wait_result == kfd.KFD_IOC_WAIT_RESULT_FAIL:
            raise SysError(errno.EIO, "an event was destroyed while it was waited for")

    def _begin(self, args: kfd.kfd_ioctl_wait_events_args, waiters: list[_Waiter]) -> None:
        for i in range(args.num_events):
            data = self._read_data(args, i)
            event = self._find(data.event_id)
            waiter = _Waiter(event, event.signaled, False)
            event.signaled = event.signaled and not event.auto_reset
            age = data.signal_event_data.last_event_age
            if event.kind == kfd.KFD_IOC_EVENT_SIGNAL and age:
                waiter.age_enabled = True
                waiter.activated = waiter.activated or event.age != age
            if not waiter.activated:
                event.waiters.append(waiter)
            waiters.append(waiter)

    def _sleep(self, args: kfd.kfd_ioctl_wait_events_args, waiters: list[_Waiter]) -> None:
        if args.timeout == 0:
            return
        clock = self._world.clock
        deadline = None
        if args.timeout != 0xFFFFFFFF:
            milliseconds = min(args.timeout, _MAX_MS)
            jiffies = -(-milliseconds * 1_000_000 // _JIFFY_NS) + 1
            deadline = clock.now_ns + jiffies * _JIFFY_NS
        while self._result(args, waiters) == kfd.KFD_IOC_WAIT_RESULT_TIMEOUT:
            if deadline is not None and clock.now_ns >= deadline:
                return
            self._world.undisturbed.let_through()
            if not self._world.work(deadline) and not self._world.let_others(deadline):
                if deadline is None:
                    raise self._world.stuck("WAIT_EVENTS without a timeout")
                clock.advance(deadline - clock.now_ns)

    def _result(self, args: kfd.kfd_ioctl_wait_events_args, waiters: list[_Waiter]) -> int:
        active = 0
        for waiter in waiters:
            if waiter.event is None:
                return kfd.KFD_IOC_WAIT_RESULT_FAIL
            active += waiter.activated
            if waiter.activated and not args.wait_for_all:
                return kfd.KFD_IOC_WAIT_RESULT_COMPLETE
        complete = active == args.num_events
        if complete:
            return kfd.KFD_IOC_WAIT_RESULT_COMPLETE
        return kfd.KFD_IOC_WAIT_RESULT_TIMEOUT

    def _copy_out(self, args: kfd.kfd_ioctl_wait_events_args, waiters: list[_Waiter]) -> None:
        user = self._user
        for i, waiter in enumerate(waiters):
            event = waiter.event
            assert event is not None, "a wait that completed has all its events"
            if not waiter.activated:
                continue
            if event.data:
                user.write(args.events_ptr + i * _DATA_SIZE, event.data)
            elif waiter.age_enabled:
                user.write(args.events_ptr + i * _DATA_SIZE, event.age.to_bytes(8, "little"))

    def _read_data(self, args: kfd.kfd_ioctl_wait_events_args, i: int) -> kfd.kfd_event_data:
        return self._user.read_struct(args.events_ptr + i * _DATA_SIZE, kfd.kfd_event_data)

    def _find(self, number: int) -> Event:
        event = self._events.get(number)
        if event is None:
            raise SysError(errno.EINVAL, f"there is no event {number:#x}")
        return event

    def _signal_event(self, number: int) -> Event:
        event = self._find(number)
        if event.kind != kfd.KFD_IOC_EVENT_SIGNAL:
            raise SysError(errno.EINVAL, f"event {number:#x} is not for the CPU to signal")
        return event

    def _set(self, event: Event) -> None:
        event.signaled = not event.auto_reset or not event.waiters
        event.age += 1
        for waiter in event.waiters:
            waiter.activated = True

    def _set_from_interrupt(self, event: Event) -> None:
        if event.kind in _WITH_SLOT:
            self._store_slot(event.number, UNSIGNALED)
            self._set(event)

    def _signal_kind(self, kind: int, data: bytes) -> None:
        for _, event in self._events:
            if event and event.kind == kind:
                event.data = data
                self._set(event)

    def _use_page(self, bo: Bo) -> None:
        self._page = bo
        bo.store(0, b"\xff" * _PAGE_BYTES)

    def _slot(self, number: int) -> bool:
        """Whether an event's slot was written."""
        assert self._page is not None
        return self._page.load(8 * number, 8) != b"\xff" * 8

    def _store_slot(self, number: int, value: int) -> None:
        assert self._page is not None
        self._page.store(8 * number, value.to_bytes(8, "little"))
