"""Mistakes put into the driver, or into the model of the GPU and its kernel driver below it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpu.drivers.nv import device as hcqdevice
from gpu.drivers.nv import port
from gpu.drivers.nv.channel import channel as driver_channel
from gpu.drivers.nv.channel import create as queues
from gpu.drivers.nv.channel.all import GpuChannels
from gpu.drivers.nv.channel.create import QueueMaker
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.encode import ce as copyengine
from gpu.drivers.nv.encode import compute as encoder
from gpu.drivers.nv.encode import launch, qmd
from gpu.drivers.nv.encode.launch import Target
from gpu.drivers.nv.encode.methods.compute import PcasAction
from gpu.drivers.nv.encode.methods.host import SemOperation
from gpu.drivers.nv.fault import inflight
from gpu.drivers.nv.nvk import session, uvm, uvmfile
from gpu.drivers.nv.nvk.addresses import AddressSpace
from gpu.drivers.nv.nvk.ground import KernelGround
from gpu.drivers.nv.nvk.memory import NvMemoryPort
from gpu.drivers.nv.nvk.pagetables import PageTables
from gpu.drivers.nv.nvk.uvmfile import UvmFile
from gpu.drivers.nv.port import NvPort, NvQueue
from gpu.drivers.nv.rm.gpu import NvDevice
from gpu.drivers.nv.rm.object import RmObject
from gpu.sim.nv.chip import pbdma
from gpu.sim.nv.chip.caches import Caches
from gpu.sim.nv.chip.channel import Channel, MmuFault
from gpu.sim.nv.chip.compute import ComputeEngine
from gpu.sim.nv.chip.copyengine import CopyEngine
from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.chip.launch import KernelMemory
from gpu.sim.nv.chip.memory import Physical
from gpu.sim.nv.chip.qmd import Qmd
from gpu.sim.nv.rm.peers import PeerPairs, Support
from gpu.sim.nv.uvm.space import UvmSpace
from mutating import Mutations, Patcher
from nv.checks import CHECKS

MUTATIONS = Mutations(CHECKS)
mutation = MUTATIONS.found_by


def _nothing(*_: object, **__: object) -> None:
    """Does nothing."""


# Memory


@mutation("copies")
def memory_is_not_mapped_for_the_gpu(patch: Patcher) -> None:
    patch.setattr(PageTables, "map", _nothing)


@mutation("copies")
def memory_is_mapped_read_only(patch: Patcher) -> None:
    read_only = uvm.uvm.UVM_GPU_MAPPING_TYPE_READ_ONLY
    patch.setattr(uvm.uvm, "UVM_GPU_MAPPING_TYPE_READ_WRITE_ATOMIC", read_only)


@mutation("allocations_leave_nothing")
def ranges_are_not_given_back(patch: Patcher) -> None:
    patch.setattr(PageTables, "give_back", _nothing)


@mutation("allocations_leave_nothing")
def objects_are_not_freed(patch: Patcher) -> None:
    patch.setattr(RmObject, "free", _nothing)


@mutation("allocations_leave_nothing")
def addresses_are_not_given_back(patch: Patcher) -> None:
    patch.setattr(AddressSpace, "give", _nothing)


@mutation("freed_addresses_stay_reserved")
def addresses_are_not_reserved_again(patch: Patcher) -> None:
    patch.setattr(AddressSpace, "reserve_again", _nothing)


@mutation("launches")
def all_addresses_are_high(patch: Patcher) -> None:
    take = AddressSpace.take
    patch.setattr(
        AddressSpace,
        "take",
        lambda self, size, align=1 << 16, *, low: take(self, size, align, low=False),
    )


@mutation("mapped_host_memory")
def host_memory_from_the_start_of_its_page(patch: Patcher) -> None:
    map_host = NvMemoryPort.map_host

    def aligned(self: NvMemoryPort, address: int, size: int) -> Any:
        found = map_host(self, address, size)
        return replace(found, address=type(found.address)(found.address & ~0xFFF))

    patch.setattr(NvMemoryPort, "map_host", aligned)


@mutation("host_memory_that_both_have_mapped")
def ranges_of_the_host_are_of_one_gpu(patch: Patcher) -> None:
    def add(self: UvmFile, calls: uvm.Uvm, uuid: bytes, base: int, length: int) -> None:
        calls.create_range(base, length)
        self._ranges[base] = uvmfile._Range(length, {uuid})

    patch.setattr(UvmFile, "add_range", add)


@mutation("a_fault_in_freed_memory_says_so")
def what_was_freed_is_forgotten(patch: Patcher) -> None:
    free = NvMemoryPort.free

    def forgetful(self: NvMemoryPort, found: Any) -> None:
        free(self, found)
        self.extents._freed.clear()

    patch.setattr(NvMemoryPort, "free", forgetful)


# Peers


@mutation("peers")
def peers_without_a_mapping(patch: Patcher) -> None:
    patch.setattr(NvMemoryPort, "_map_guest", _nothing)


@mutation("what_is_not_mapped_any_more_faults")
def peers_keep_their_mapping(patch: Patcher) -> None:
    patch.setattr(NvMemoryPort, "unmap_peer", lambda self, found: self._guests.pop(found))


@mutation("peers")
def peers_are_not_enabled(patch: Patcher) -> None:
    patch.setattr(UvmFile, "enable_peers", _nothing)


@mutation("the_owner_may_close_first")
def peers_are_not_ended(patch: Patcher) -> None:
    patch.setattr(UvmFile, "end_peers", _nothing)


@mutation("peers_are_mapped_without_atomics")
def peers_are_mapped_as_their_own(patch: Patcher) -> None:
    def map_peer(self: PageTables, owner: PageTables, found: Any, base: int, size: int) -> None:
        owner.uvm.map_memory(self.branch, self.uuid, found, base, size)

    patch.setattr(PageTables, "map_peer", map_peer)


# Queues


@mutation("launches")
def pointers_at_the_start_of_the_ring(patch: Patcher) -> None:
    finished = QueueMaker.finished

    def wrong(self: QueueMaker, *args: Any) -> Any:
        found = finished(self, *args)
        return replace(found, userd=found.ring.sub(0, 512))

    patch.setattr(QueueMaker, "finished", wrong)


@mutation("launches")
def the_token_of_another_channel(patch: Patcher) -> None:
    token = KernelGround.token
    patch.setattr(KernelGround, "token", lambda self, found: token(self, found) + 1)


@mutation("launches")
def channels_are_not_registered(patch: Patcher) -> None:
    patch.setattr(KernelGround, "register", _nothing)


@mutation("launches")
def channels_are_not_scheduled(patch: Patcher) -> None:
    patch.setattr(KernelGround, "schedule", _nothing)


@mutation("launches")
def ring_pointers_in_bytes(patch: Patcher) -> None:
    right = port.HostRing
    patch.setattr(port, "HostRing", lambda **fields: right(**{**fields, "unit": 1}))


@mutation("launches")
def userd_where_the_ring_is(patch: Patcher) -> None:
    patch.setattr(queues, "align_up", lambda value, unit: 0)


# Commands


@mutation("signals_follow_kernels")
def signals_do_not_wait(patch: Patcher) -> None:
    release = encoder.release

    def early(*args: Any, **options: Any) -> Any:
        return release(*args, **{**options, "wait": False})

    patch.setattr(encoder, "release", early)


@mutation("signals_and_waits")
def waits_for_the_value_itself(patch: Patcher) -> None:
    acquire = encoder.acquire

    def equal(*args: Any, **options: Any) -> Any:
        return acquire(*args, **{**options, "operation": SemOperation.ACQUIRE})

    patch.setattr(encoder, "acquire", equal)


@mutation("signals_and_waits")
def waits_for_nothing(patch: Patcher) -> None:
    acquire = encoder.acquire
    patch.setattr(
        encoder, "acquire", lambda address, value, **options: acquire(address, 0, **options)
    )


@mutation("copies")
def copies_lack_their_last_byte(patch: Patcher) -> None:
    patch.setattr(copyengine, "_lines", lambda size: [(0, size - 1)])


@mutation("copies")
def copies_go_backwards(patch: Patcher) -> None:
    copy = copyengine.copy_linear
    patch.setattr(copyengine, "copy_linear", lambda dst, src, size: copy(src, dst, size))


@mutation("code_may_change_place")
def no_cache_is_invalidated(patch: Patcher) -> None:
    patch.setattr(qmd, "_INVALIDATED", ())
    patch.setattr(encoder, "invalidate_caches", list)


@mutation("code_may_change_place")
def caches_of_data_are_not_invalidated(patch: Patcher) -> None:
    method = launch.compute.INVALIDATE_SHADER_CACHES_NO_WFI
    patch.setattr(qmd, "_INVALIDATED", ())
    patch.setattr(encoder, "invalidate_caches", lambda: [method(INSTRUCTION=1)])


@mutation("launches_wait_for_each_other")
def launches_do_not_wait(patch: Patcher) -> None:
    patch.setattr(encoder._Writer, "settle", _nothing)
    chain = encoder._Writer.launch
    patch.setattr(
        encoder._Writer,
        "launch",
        lambda self, run: [chain(self, [each]) for each in run],
    )


@mutation("graphs")
def a_chain_ends_with_its_first_launch(patch: Patcher) -> None:
    right = encoder.kernel_qmd

    def alone(*args: Any, **options: Any) -> Any:
        return right(*args, **{**options, "dependents": ()})

    patch.setattr(encoder, "kernel_qmd", alone)


@mutation("graphs")
def chains_without_a_barrier(patch: Patcher) -> None:
    patch.setattr(qmd, "_L1_SYSMEMBAR", 0)


@mutation("rings_wrap")
def descriptors_are_sent_as_they_were(patch: Patcher) -> None:
    right = Target.of
    patch.setattr(
        port,
        "Target",
        type(
            "Stale",
            (),
            {"of": staticmethod(lambda *a: replace(right(*a), action=PcasAction.SCHEDULE))},
        ),
    )


@mutation("launches")
def code_begins_elsewhere(patch: Patcher) -> None:
    put = qmd._put_program
    patch.setattr(
        qmd,
        "_put_program",
        lambda writer, what: put(writer, replace(what, program=what.program + 128)),
    )


@mutation("launches")
def no_constant_bank(patch: Patcher) -> None:
    patch.setattr(qmd, "_put_bank", _nothing)


@mutation("launches")
def a_window_that_is_not_aligned(patch: Patcher) -> None:
    patch.setattr(launch, "SHARED_WINDOW", launch.SHARED_WINDOW + 0x1000)


@mutation("local_memory_only_grows")
def local_memory_of_one_warp(patch: Patcher) -> None:
    size = hcqdevice.size_local_memory

    def small(*args: Any) -> Any:
        found = size(*args)
        return replace(found, per_tpc=found.per_tpc // 2)

    patch.setattr(hcqdevice, "size_local_memory", small)


@mutation("local_memory_only_grows")
def local_memory_stays_as_it_was(patch: Patcher) -> None:
    need = RmDevice._need_local

    def once(self: RmDevice, per_thread: int) -> None:
        if self._local is None:
            need(self, per_thread)

    patch.setattr(RmDevice, "_need_local", once)


@mutation("polls_of_whole_words")
def polls_for_less(patch: Patcher) -> None:
    patch.setattr(
        encoder,
        "_POLLS",
        {"==": SemOperation.ACQ_STRICT_GEQ, ">=": SemOperation.ACQUIRE},
    )


@mutation("compute_queues_do_not_copy_unless_they_shall")
def compute_queues_copy_anyway(patch: Patcher) -> None:
    patch.setattr(port, "ComputeEncoder", port.MixedEncoder)


@mutation("graphs")
def arguments_in_the_wrong_place(patch: Patcher) -> None:
    right = encoder.kernel_bank0

    def shifted(*args: Any) -> Any:
        found = right(*args)
        return replace(found, parameters=found.parameters + 8)

    patch.setattr(encoder, "kernel_bank0", shifted)


@mutation("a_full_ring_of_compute")
def a_ring_longer_than_it_is(patch: Patcher) -> None:
    begin = NvQueue.__init__

    def whole(self: NvQueue, *args: Any) -> None:
        begin(self, *args)
        self.ring_size *= 4

    patch.setattr(NvQueue, "__init__", whole)


@mutation("a_full_ring_of_copy")
def a_ring_without_an_end(patch: Patcher) -> None:
    right = port.HostRing
    patch.setattr(port, "HostRing", lambda **fields: right(**{**fields, "wraps": False}))


@mutation("timelines_wrap")
def half_a_value_is_written(patch: Patcher) -> None:
    release = encoder.release

    def narrow(address: Any, value: Any, **options: Any) -> Any:
        low = value & 0xFFFF_FFFF if isinstance(value, int) else value
        return release(address, low, **{**options, "bits": 32})

    patch.setattr(encoder, "release", narrow)


@mutation("timestamps")
def no_time_beside_a_signal(patch: Patcher) -> None:
    release = encoder.release

    def timeless(*args: Any, **options: Any) -> Any:
        return release(*args, **{**options, "timestamp": False})

    patch.setattr(encoder, "release", timeless)


# Faults


@mutation("faults")
def faults_are_not_looked_at(patch: Patcher) -> None:
    patch.setattr(driver_channel.GpfifoChannel, "fault", _nothing)


@mutation("a_fault_of_each_queue")
def faults_of_the_first_queue_alone(patch: Patcher) -> None:
    def failed(self: NvDevice) -> Any:
        fault = self.compute_queue.fault()
        return {self.compute_queue: fault} if fault is not None else {}

    patch.setattr(NvDevice, "failed", failed)


@mutation("a_fault_names_kernel_buffer_and_argument")
def all_launches_count_as_done(patch: Patcher) -> None:
    patch.setattr(inflight, "_is_done", lambda methods, read: True)


@mutation("a_fault_names_kernel_buffer_and_argument")
def no_debugger(patch: Patcher) -> None:
    from gpu.drivers.nv.rm import gpu as device

    empty = device.FaultDetails((), ())
    patch.setattr(device, "read_details", lambda *_: empty)


@mutation("a_fault_within_a_chain_of_launches")
def chains_are_not_followed(patch: Patcher) -> None:
    chain = inflight._chain
    patch.setattr(inflight, "_chain", lambda *args: list(chain(*args))[:1])


@mutation("going_on_with_other_queues")
def queues_stay_after_a_fault(patch: Patcher) -> None:
    patch.setattr(GpuChannels, "close", _nothing)


@mutation("going_on_with_other_queues")
def no_local_memory_after_a_fault(patch: Patcher) -> None:
    restart = RmDevice.restart

    def without(self: RmDevice) -> None:
        self._local = None
        restart(self)

    patch.setattr(RmDevice, "restart", without)


@mutation("going_on_with_other_address_space")
def new_page_tables_are_empty(patch: Patcher) -> None:
    patch.setattr(NvMemoryPort, "map_all", _nothing)


@mutation("mappings_outlive_recovery")
def new_page_tables_without_peers(patch: Patcher) -> None:
    map_all = NvMemoryPort.map_all

    def own(self: NvMemoryPort) -> None:
        guests, self._guests = self._guests, {}
        map_all(self)
        self._guests = guests

    patch.setattr(NvMemoryPort, "map_all", own)


# Closing


@mutation("closing")
def the_session_stays_open(patch: Patcher) -> None:
    patch.setattr(session.NvSession, "close", _nothing)


@mutation("closing")
def the_file_of_uvm_stays_open(patch: Patcher) -> None:
    patch.setattr(session, "leave", _nothing)


@mutation("closing_a_queue_that_waits")
def closing_says_nothing_of_a_hang(patch: Patcher) -> None:
    patch.setattr(RmDevice, "_ended", _nothing)


@mutation("timestamps")
def the_clock_of_the_host(patch: Patcher) -> None:
    patch.setattr(NvPort, "clock", lambda self: self.gpu.clock() & 0xFFF)


# The model


@mutation("copies")
def engines_copy_half(patch: Patcher) -> None:
    line = CopyEngine._line
    patch.setattr(
        CopyEngine,
        "_line",
        lambda self, source, target, size: line(self, source, target, max(size // 2, 1)),
    )


@mutation("copies")
def semaphores_are_not_written(patch: Patcher) -> None:
    patch.setattr(CopyEngine, "_semaphore", _nothing)


@mutation("signals_and_waits")
def every_acquire_is_met(patch: Patcher) -> None:
    patch.setattr(pbdma, "_met", lambda *_: True)


@mutation("signals_follow_kernels")
def channels_are_always_idle(patch: Patcher) -> None:
    def at_once(self: Channel, what: str, then: Any = None) -> None:
        if then:
            then()

    patch.setattr(Channel, "wait_idle", at_once)


@mutation("what_is_not_mapped_any_more_faults")
def unmapped_memory_can_be_reached(patch: Patcher) -> None:
    patch.setattr(UvmSpace, "unmap", _nothing)


@mutation("code_may_change_place")
def caches_never_forget(patch: Patcher) -> None:
    patch.setattr(Caches, "invalidate", _nothing)
    patch.setattr(Caches, "invalidate_range", _nothing)


@mutation("timestamps")
def a_clock_that_stands(patch: Patcher) -> None:
    patch.setattr(NvGpu, "show_clock", _nothing)


@mutation("faults")
def nobody_is_told_of_faults(patch: Patcher) -> None:
    patch.setattr(Channel, "notify", _nothing)


@mutation("a_fault_names_kernel_buffer_and_argument")
def faults_at_another_page(patch: Patcher) -> None:
    of = MmuFault.of

    def shifted(fault: Any) -> MmuFault:
        found = of(fault)
        return replace(found, address=found.address + 4096)

    patch.setattr(MmuFault, "of", staticmethod(shifted))


@mutation("graphs")
def descriptors_start_nothing(patch: Patcher) -> None:
    patch.setattr(Qmd, "dependents", lambda self: [])


@mutation("launches")
def doorbells_are_not_heard(patch: Patcher) -> None:
    patch.setattr(NvGpu, "_ring", _nothing)


@mutation("launches")
def another_constant_bank(patch: Patcher) -> None:
    constant = KernelMemory.constant
    patch.setattr(
        KernelMemory,
        "constant",
        lambda self, bank, at, size: constant(self, bank, at + 8, size),
    )


@mutation("running_out")
def freed_memory_is_lost(patch: Patcher) -> None:
    patch.setattr(Physical, "drop", _nothing)


@mutation("peers")
def no_gpu_has_peers(patch: Patcher) -> None:
    patch.setattr(PeerPairs, "support", lambda self, gpus: Support.NOT_SUPPORTED)


@mutation("launches_wait_for_each_other")
def followers_start_at_once(patch: Patcher) -> None:
    launch = ComputeEngine.launch

    def eager(self: ComputeEngine, address: int, invalidate: bool) -> None:
        launch(self, address, invalidate)
        grid = self.grids[-1]
        for dependent in grid.dependents:
            self.launch(dependent.address, dependent.invalidate)
        grid.dependents = []

    patch.setattr(ComputeEngine, "launch", eager)


@mutation("submissions_in_order")
def entries_are_fetched_twice(patch: Patcher) -> None:
    fetch = Channel._fetch

    def again(self: Channel) -> None:
        at, entry = self.get, self._published[0]
        fetch(self)
        if self.gpu.rng.random() < 0.2:
            self.get = at
            self._published.appendleft(entry)

    patch.setattr(Channel, "_fetch", again)
