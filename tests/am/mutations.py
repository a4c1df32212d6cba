"""Mistakes put into the driver, or into the machine below it, and the check that finds each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from am import checks, test_recovery
from gpu.core import hostmem
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.kfd import hdp, memory, port, queues
from gpu.drivers.am.kfd import process as session
from gpu.drivers.am.kfd.cwsr import ContextSave
from gpu.drivers.am.kfd.ioctls import Kfd
from gpu.drivers.am.kfd.memory import BufferObject, KfdMemory, Use
from gpu.drivers.am.kfd.port import KfdPort
from gpu.drivers.am.kfd.process import KfdSession
from gpu.drivers.am.kfd.queues import Doorbells
from gpu.drivers.am.queue import AmQueue, QueueKind
from gpu.drivers.cleanup import Undo
from gpu.hcq import conformance
from gpu.hcq.device import HCQDevice
from mutating import Apply, Mutations, Patcher

RECOVERY = {
    name[5:]: getattr(test_recovery, name) for name in dir(test_recovery) if "test_" in name
}
MUTATIONS = Mutations(conformance.CHECKS | checks.CHECKS | RECOVERY)


def mutation(found_by: str, compute: port.ComputeKind = "pm4") -> Callable[[Apply], Apply]:
    """`compute` is what compute queues read there."""
    return MUTATIONS.found_by(found_by, compute)


def _nothing(*_: object) -> None:
    """Does nothing."""


def _set(patch: Patcher, use: Use, add: int = 0, drop: int = 0) -> None:
    """Other flags for a use of memory."""
    patch.setattr(use, "flags", (use.flags | add) & ~drop)


# Memory


@mutation("writes_through_the_bar")
def no_flush_of_what_the_host_wrote(patch: Patcher) -> None:
    patch.setattr(hdp.HdpPage, "flush", _nothing)


@mutation("writes_through_the_bar")
def flush_with_the_wrong_register(patch: Patcher) -> None:
    patch.setattr(hdp.ids, "KFD_MMIO_REMAP_HDP_MEM_FLUSH_CNTL", 0x40)


@mutation("code_comes_and_goes")
def no_flush_of_code(patch: Patcher) -> None:
    patch.setattr(hdp.HdpPage, "flush", _nothing)


@mutation("writes_through_the_bar")
def flush_only_once(patch: Patcher) -> None:
    flush = hdp.HdpPage.flush

    def once(self: hdp.HdpPage) -> None:
        if self._window is None:
            flush(self)

    patch.setattr(hdp.HdpPage, "flush", once)


@mutation("code_is_read_only")
def writable_code(patch: Patcher) -> None:
    _set(patch, Use.CODE, add=memory._WRITABLE)


@mutation("system_memory_is_coherent")
def code_that_cannot_run(patch: Patcher) -> None:
    _set(patch, Use.CODE, drop=memory._EXECUTABLE)


@mutation("copies")
def data_is_read_only(patch: Patcher) -> None:
    _set(patch, Use.DATA, drop=memory._WRITABLE)


@mutation("copies")
def no_mapping_for_the_gpu(patch: Patcher) -> None:
    patch.setattr(Kfd, "map_memory", _nothing)


@mutation("allocations_leave_nothing")
def free_while_mapped(patch: Patcher) -> None:
    patch.setattr(KfdMemory, "_unmap", _nothing)


@mutation("allocations_leave_nothing")
def forget_to_free(patch: Patcher) -> None:
    patch.setattr(Kfd, "free_memory", _nothing)


@mutation("allocations_leave_nothing")
def forget_addresses(patch: Patcher) -> None:
    reserve = KfdMemory.reserve
    patch.setattr(KfdMemory, "reserve", lambda self, size, undo: reserve(self, size, Undo()))


@mutation("allocations_leave_nothing")
def give_back_the_aligned_part_alone(patch: Patcher) -> None:
    def reserve(self: KfdMemory, size: int, undo: Undo) -> int:
        os, align = self.kfd.os, 2 << 20
        start = os.mmap(-1, size + align, hostmem.PROT_NONE, memory._RESERVED)
        address = (start + align - 1) & -align
        undo.add(os.munmap, address, size)
        return address

    patch.setattr(KfdMemory, "reserve", reserve)


@mutation("unaligned_arrays")
def host_memory_from_the_start_of_its_page(patch: Patcher) -> None:
    map_host = KfdMemory.map_host

    def aligned(self: KfdMemory, address: int, size: int) -> Any:
        found = map_host(self, address, size)
        return replace(found, address=found.address & ~0xFFF)

    patch.setattr(KfdMemory, "map_host", aligned)


@mutation("unaligned_arrays")
def host_memory_of_its_first_page(patch: Patcher) -> None:
    hold = KfdMemory.hold

    def short(self: KfdMemory, size: int, use: Use, user_address: int = 0) -> BufferObject:
        return hold(self, min(size, 4096) if user_address else size, use, user_address)

    patch.setattr(KfdMemory, "hold", short)


@mutation("freed_memory_is_named")
def forget_what_was_freed(patch: Patcher) -> None:
    drop = KfdMemory.drop

    def forgetful(self: KfdMemory, bo: BufferObject) -> None:
        drop(self, bo)
        self._freed.clear()

    patch.setattr(KfdMemory, "drop", forgetful)


# Peers


@mutation("peers_end")
def peers_without_a_mapping(patch: Patcher) -> None:
    patch.setattr(KfdMemory, "_map_peer", _nothing)


@mutation("peers_end")
def peers_keep_their_mapping(patch: Patcher) -> None:
    patch.setattr(KfdMemory, "unmap_peer", _nothing)


@mutation("one_gpu_twice")
def peers_on_one_gpu_end_the_owners(patch: Patcher) -> None:
    def unmap(self: KfdMemory, found: Any) -> None:
        self.kfd.unmap_memory(self._guests.pop(found).handle, [self.gpu.gpu_id])

    patch.setattr(KfdMemory, "unmap_peer", unmap)


# Queues


def _change(kind: QueueKind, name: str, value: int) -> Apply:
    return lambda patch: patch.setattr(kind, name, value)


@mutation("launches", "aql")
def packet_pointers_in_words(patch: Patcher) -> None:
    _change(QueueKind.AQL, "unit", 4)(patch)


@mutation("copies")
def copy_pointers_in_words(patch: Patcher) -> None:
    _change(QueueKind.SDMA, "unit", 4)(patch)


@mutation("launches")
def compute_pointers_in_bytes(patch: Patcher) -> None:
    _change(QueueKind.PM4, "unit", 1)(patch)


@mutation("launches")
def doorbell_of_another_queue(patch: Patcher) -> None:
    address = Doorbells.address_of
    patch.setattr(Doorbells, "address_of", lambda self, at: address(self, at & ~0x1FFF))


@mutation("copies")
def control_stack_of_another_size(patch: Patcher) -> None:
    patch.setattr(queues, "context_save", lambda gpu: ContextSave(0x1000, 0x2000, 0x4000))


@mutation("copies")
def save_area_without_the_debuggers(patch: Patcher) -> None:
    right = queues.context_save
    patch.setattr(
        queues, "context_save", lambda gpu: replace(right(gpu), allocation=right(gpu).area)
    )


@mutation("second_queues_have_no_scratch")
def scratch_on_every_queue(patch: Patcher) -> None:
    patch.setattr(AmDevice, "link", HCQDevice.link)


@mutation("second_queues_have_no_scratch", "aql")
def aql_queues_are_not_told_of_scratch(patch: Patcher) -> None:
    patch.setattr(AmQueue, "set_scratch", _nothing)


# Waiting, events, faults


@mutation("queues_wake_the_host")
def queues_that_wake_nobody(patch: Patcher) -> None:
    patch.setattr(port, "Wake", lambda slot, event: None)


@mutation("queues_wake_the_host")
def events_in_the_wrong_slot(patch: Patcher) -> None:
    patch.setattr(session, "_SLOT", 16)


@mutation("faults")
def faults_are_not_looked_at(patch: Patcher) -> None:
    patch.setattr(KfdSession, "_note", _nothing)


@mutation("faults")
def faults_go_to_every_gpu(patch: Patcher) -> None:
    def note(self: KfdSession, told: Any) -> None:
        for link in self._links.values():
            link.lost = link.lost or told

    patch.setattr(KfdSession, "_note", note)


@mutation("faults_name_buffers")
def fault_address_in_pages(patch: Patcher) -> None:
    fault = session.memory_fault

    def shifted(data: Any) -> Any:
        found = fault(data)
        return found and replace(found, address=found.address >> 12)

    patch.setattr(session, "memory_fault", shifted)


@mutation("faults_name_buffers")
def a_lost_gpu_is_opened_again(patch: Patcher) -> None:
    patch.setattr(session, "check_not_lost", _nothing)


@mutation("resets_are_told")
def resets_are_not_looked_at(patch: Patcher) -> None:
    patch.setattr(session, "reset", lambda data: None)


@mutation("timestamps")
def the_systems_clock(patch: Patcher) -> None:
    patch.setattr(
        KfdPort,
        "clock",
        lambda self: self.link.session.kfd.clock(self.link.node.gpu_id) & 0xFFF,
    )


@mutation("clocks_agree")
def a_clock_in_kilohertz(patch: Patcher) -> None:
    patch.setattr(port, "clock_hz", lambda os, fd: 100_000.0)


@mutation("timelines_wrap")
def signals_of_64_bits(patch: Patcher) -> None:
    patch.setattr(KfdPort, "signal_bits", 64)


# Recovery


@mutation("a_wait_for_a_signal_that_never_comes")
def queues_are_torn_off_while_they_wait(patch: Patcher) -> None:
    patch.setattr(AmDevice, "_run_out", _nothing)


@mutation("going_on_after_faults")
def memory_stays_in_the_lost_context(patch: Patcher) -> None:
    def move(self: KfdMemory, kfd: Kfd, render_fd: int) -> None:
        self.kfd = kfd

    patch.setattr(KfdMemory, "move", move)


@mutation("going_on_after_faults")
def queues_in_the_lost_context(patch: Patcher) -> None:
    patch.setattr(KfdPort, "_move", _nothing)


@mutation("going_on_after_faults")
def contexts_stay_open(patch: Patcher) -> None:
    patch.setattr(KfdSession, "leave", _nothing)


@mutation("waking_after_a_fault")
def events_with_another_number(patch: Patcher) -> None:
    wake = KfdSession.wake_event
    patch.setattr(KfdSession, "wake_event", lambda self, number=0: wake(self))


# Closing


@mutation("closing")
def queues_outlive_their_device(patch: Patcher) -> None:
    patch.setattr(Kfd, "destroy_queue", _nothing)


@mutation("closing")
def doorbells_stay_mapped(patch: Patcher) -> None:
    patch.setattr(Doorbells, "close", _nothing)


@mutation("events_are_given_back")
def events_outlive_their_device(patch: Patcher) -> None:
    patch.setattr(Kfd, "destroy_event", _nothing)


@mutation("opening_again")
def the_session_ends_with_a_device(patch: Patcher) -> None:
    close = KfdPort.close

    def too_much(self: KfdPort) -> None:
        close(self)
        self.link.session._links.clear()

    patch.setattr(KfdPort, "close", too_much)


@mutation("stuck_queues_are_let_go")
def stuck_queues_are_torn_off(patch: Patcher) -> None:
    patch.setattr(AmDevice, "_ended", lambda self: None)


@mutation("resets_are_told")
def memory_goes_before_its_queues(patch: Patcher) -> None:
    patch.setattr(KfdPort, "stop", _nothing)
