"""Mistakes put into command queues or into the host device, and the check that finds each."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from gpu.core.errors import DeviceHang
from gpu.core.ring import FencedRing
from gpu.hcq import (
    allocation,
    allocator,
    buffer,
    channel,
    deps,
    device,
    graph,
    hostcode,
    hostdevice,
    owner,
    peers,
    signal,
)
from gpu.hcq.bound import BoundPart, Instances
from gpu.hcq.conformance import CHECKS
from gpu.hcq.hostcode import HostEncoder, Op, Record
from gpu.hcq.hostdevice import HostPort
from mutating import Mutations, Patcher

MUTATIONS = Mutations(CHECKS)
mutation = MUTATIONS.found_by


def _skip(patch: Patcher, op: Op) -> None:
    """Records of one kind do nothing."""
    execute = HostPort.execute

    def skipping(self: HostPort, record: Record) -> bool:
        return record.op is op or execute(self, record)

    patch.setattr(HostPort, "execute", skipping)


# The device


@mutation("signals_and_waits")
def drop_a_wait(patch: Patcher) -> None:
    _skip(patch, Op.WAIT)


@mutation("memory_commands")
def drop_a_poll(patch: Patcher) -> None:
    _skip(patch, Op.POLL)


@mutation("memory_commands")
def poll_without_mask(patch: Patcher) -> None:
    compares = hostcode.compares
    patch.setattr(hostdevice, "compares", lambda op, left, right: compares(op, left | 7, right))


@mutation("copies")
def drop_a_copy(patch: Patcher) -> None:
    _skip(patch, Op.COPY)


@mutation("memory_commands")
def drop_a_write(patch: Patcher) -> None:
    _skip(patch, Op.WRITE)


@mutation("timestamps")
def drop_a_timestamp(patch: Patcher) -> None:
    _skip(patch, Op.TIMESTAMP)


@mutation("signals_come_last")
def signal_early(patch: Patcher) -> None:
    encode = HostEncoder.encode

    def early(self: HostEncoder, commands: Any) -> Any:
        return encode(self, sorted(commands, key=lambda c: type(c).__name__ != "Signal"))

    patch.setattr(HostEncoder, "encode", early)


@mutation("signals_and_waits")
def wait_for_equality(patch: Patcher) -> None:
    execute = HostPort.execute

    def equal(self: HostPort, record: Record) -> bool:
        if record.op is Op.WAIT:
            return self.memory.word(record.operands[0], 4) == record.operands[1] & 0xFFFF_FFFF
        return execute(self, record)

    patch.setattr(HostPort, "execute", equal)


@mutation("timelines_wrap")
def signal_32_of_64_bits(patch: Patcher) -> None:
    execute = HostPort.execute

    def narrow(self: HostPort, record: Record) -> bool:
        if record.op is Op.SIGNAL:
            address, value = record.operands
            record = Record(Op.SIGNAL, (address, value & 0xFFFF_FFFF))
        return execute(self, record)

    patch.setattr(HostPort, "execute", narrow)


@mutation("copies")
def copy_one_byte_less(patch: Patcher) -> None:
    execute = HostPort.execute

    def shorter(self: HostPort, record: Record) -> bool:
        if record.op is Op.COPY:
            dst, src, size = record.operands
            record = Record(Op.COPY, (dst, src, size - 1))
        return execute(self, record)

    patch.setattr(HostPort, "execute", shorter)


@mutation("queues_wait_for_each_other")
def forget_the_end_of_a_call(patch: Patcher) -> None:
    decode = hostcode.decode
    patch.setattr(hostdevice, "decode", lambda data: decode(data)[:40])


@mutation("faults")
def swallow_faults(patch: Patcher) -> None:
    patch.setattr(HostPort, "check", lambda self: None)


# Rings and timelines


@mutation("rings_wrap")
def reuse_a_ring_before_its_fence(patch: Patcher) -> None:
    patch.setattr(channel.Channel, "must_pass", lambda self, value: None)


@mutation("arguments_live_long_enough")
def reuse_arguments_before_their_fence(patch: Patcher) -> None:
    take = channel.Chunks.take
    patch.setattr(
        channel.Chunks, "take", lambda self, n: 0 if "memory" in self._what else take(self, n)
    )


@mutation("rings_wrap")
def no_filler_at_the_end_of_a_ring(patch: Patcher) -> None:
    patch.setattr(channel.Channel, "_fill", lambda self, position, size: None)


@mutation("rings_wrap")
def put_pointer_stays(patch: Patcher) -> None:
    def reserve(self: channel.Channel, size: int, value: int) -> int:
        return self._ring.take(size)

    patch.setattr(channel.Channel, "reserve", reserve)


@mutation("timelines_wrap")
def no_new_epoch(patch: Patcher) -> None:
    patch.setattr(channel.Channel, "next_value", lambda self, n=1: self.timeline.submitted + n)


@mutation("timelines_wrap")
def new_epoch_without_waiting(patch: Patcher) -> None:
    patch.setattr(channel.Channel, "must_pass", lambda self, value: None)
    patch.setattr(signal.Timeline, "passed", lambda self, value: True)


@mutation("timelines_wrap")
def new_epoch_on_the_same_signal(patch: Patcher) -> None:
    def swap(self: signal.Timeline) -> None:
        _, old, new = self._now
        self._now = (self.submitted, old, new)
        self.epoch = self.submitted

    patch.setattr(signal.Timeline, "swap", swap)


@mutation("timelines_wrap")
def payload_without_epoch(patch: Patcher) -> None:
    patch.setattr(signal.Timeline, "payload", lambda self, value: value)


@mutation("submissions_in_order")
def no_order_between_queues(patch: Patcher) -> None:
    template = device.HCQDevice.template
    patch.setattr(
        device.HCQDevice,
        "template",
        lambda self, ch, commands, after: template(self, ch, commands, False),
    )


@mutation("submissions_in_order")
def wait_for_the_value_before(patch: Patcher) -> None:
    send = channel.Channel.send

    def early(self: Any, template: Any, value: int, after: Any, *rest: Any) -> None:
        send(self, template, value, after and (after[0], after[1] - 1), *rest)

    patch.setattr(channel.Channel, "send", early)


# What is bound


@mutation("bound_queues")
def patch_while_it_runs(patch: Patcher) -> None:
    patch.setattr(BoundPart, "must_be_idle", lambda self: None)


@mutation("bound_queues")
def patch_the_wrong_instance(patch: Patcher) -> None:
    claim = Instances.claim

    def wrong(self: Instances) -> list[BoundPart]:
        claim(self)
        return self._instances[0]

    patch.setattr(Instances, "claim", wrong)


@mutation("bound_queues")
def patch_only_the_first_time(patch: Patcher) -> None:
    put = BoundPart.put
    first: dict[int, Any] = {}

    def once(self: BoundPart, own: Any, given: Any) -> None:
        put(self, own, first.setdefault(id(self), given))

    patch.setattr(BoundPart, "put", once)


@mutation("graphs")
def readers_are_not_waited_for(patch: Patcher) -> None:
    access = deps.DependencyTracker.access
    patch.setattr(
        deps.DependencyTracker,
        "access",
        lambda self, q, v, reads, writes: access(self, q, v, [], writes),
    )


@mutation("graphs")
def writers_are_not_waited_for(patch: Patcher) -> None:
    access = deps.DependencyTracker.access
    patch.setattr(
        deps.DependencyTracker,
        "access",
        lambda self, q, v, reads, writes: access(self, q, v, [*reads, *writes], []),
    )


@mutation("graphs")
def all_waits_are_pruned(patch: Patcher) -> None:
    prune = graph._Clocks.prune

    def nothing(self: graph._Clocks, *args: Any) -> dict[Any, int]:
        prune(self, *args)
        return {}

    patch.setattr(graph._Clocks, "prune", nothing)


@mutation("graphs_in_order")
def a_graph_waits_for_nothing(patch: Patcher) -> None:
    link = device.HCQDevice.link

    def unordered(
        self: Any, channel: Any, commands: Any, *, after: bool, bound: bool = False
    ) -> Any:
        return link(self, channel, commands, after=after and not bound, bound=bound)

    patch.setattr(device.HCQDevice, "link", unordered)


@mutation("graphs")
def a_queue_of_a_graph_is_not_published(patch: Patcher) -> None:
    publish_all = device.HCQDevice.publish_all
    patch.setattr(device.HCQDevice, "publish_all", lambda self, ps: publish_all(self, ps[:1]))


@mutation("graphs_pin_memory")
def a_graph_pins_nothing(patch: Patcher) -> None:
    patch.setattr(graph, "Pins", lambda device, allocations: allocation.Pins(device, []))


@mutation("inputs_are_checked")
def inputs_may_overlap(patch: Patcher) -> None:
    patch.setattr(graph, "_check_apart", lambda inputs: None)


# Memory


@mutation("freed_memory_waits")
def reuse_memory_before_its_fence(patch: Patcher) -> None:
    patch.setattr(allocator._Freed, "blocked", lambda self: None)


@mutation("freed_memory_waits")
def never_reuse_memory(patch: Patcher) -> None:
    patch.setattr(allocator.HCQAllocator, "_retire", lambda self, allocation: None)


@mutation("collected_memory_waits")
def collected_memory_is_free_at_once(patch: Patcher) -> None:
    def free_now(self: allocation.Allocation) -> None:
        if self.device is not None:
            home, self.device = self.device, None
            home.release(self.memory)

    patch.setattr(allocation.Allocation, "__del__", free_now)


@mutation("the_host_may_go_on")
def staging_without_fence(patch: Patcher) -> None:
    patch.setattr(
        allocator, "FencedRing", lambda size, wait, align: FencedRing(size, lambda v: None, align)
    )


@mutation("staging_goes_round")
def copy_out_without_waiting(patch: Patcher) -> None:
    finish = allocator.HCQAllocator._finish

    def hasty(self: Any, data: bytearray, point: Any, *rest: Any) -> None:
        finish(self, data, point._replace(value=0), *rest)

    patch.setattr(allocator.HCQAllocator, "_finish", hasty)


@mutation("running_out")
def freed_memory_is_never_given_back(patch: Patcher) -> None:
    patch.setattr(allocator.HCQAllocator, "_give_back", lambda self: None)


@mutation("views")
def views_outlive_what_is_freed(patch: Patcher) -> None:
    patch.setattr(buffer.HCQBuffer, "check_reachable", lambda self, device: None)


@mutation("peers")
def peers_reach_everything(patch: Patcher) -> None:
    patch.setattr(buffer.HCQBuffer, "check_reachable", lambda self, device: None)


@mutation("peers")
def mappings_are_not_counted(patch: Patcher) -> None:
    def unmap(self: buffer.HCQBuffer, peer: Any) -> None:
        del self.allocation.peers[peer]
        peer.port.memory.unmap_peer(self.allocation.memory)

    patch.setattr(buffer.HCQBuffer, "unmap_from", unmap)


def _settles(patch: Patcher, settle: Any) -> None:
    patch.setattr(device.peers, "settle", settle)


@mutation("peers_wait_on_the_device")
def launches_do_not_wait_for_copies_of_peers(patch: Patcher) -> None:
    _settles(patch, lambda *_: None)


@mutation("peers_wait_on_the_device")
def launches_wait_for_all_copies_of_peers(patch: Patcher) -> None:
    patch.setattr(owner.Access, "conflicts", lambda self, where, writes: True)


@mutation("peers_wait_on_the_device")
def readers_overwrite_what_peers_read(patch: Patcher) -> None:
    conflicts = owner.Access.conflicts
    patch.setattr(owner.Access, "conflicts", lambda self, where, _: conflicts(self, where, False))


@mutation("peers_wait_on_the_device")
def copies_do_not_wait_for_peers(patch: Patcher) -> None:
    patch.setattr(peers, "_last", lambda other: (other.channels()[0], 0))


@mutation("graphs_wait_for_peers")
def replays_do_not_wait_for_copies_of_peers(patch: Patcher) -> None:
    patch.setattr(graph.HCQGraph, "_settle", lambda *_: None)


@mutation("peers_go_back_and_forth")
def peers_wait_for_the_other_signal(patch: Patcher) -> None:
    def awaited(self: signal.Timeline, value: int) -> tuple[signal.Signal, int]:
        return self._now[1], max(value - self.limit, 0)

    patch.setattr(signal.Timeline, "awaited", awaited)


@mutation("shared_memory_is_used_again")
def shared_memory_is_used_too_early(patch: Patcher) -> None:
    retire = allocator.HCQAllocator._retire

    def alone(self: allocator.HCQAllocator, one: allocation.Allocation) -> None:
        lent, self._device.lent = self._device.lent, {}
        retire(self, one)
        self._device.lent = lent

    patch.setattr(allocator.HCQAllocator, "_retire", alone)


@mutation("shared_memory_is_used_again")
def lending_outlives_what_is_freed(patch: Patcher) -> None:
    check = buffer.HCQBuffer.check_reachable

    def lenient(self: buffer.HCQBuffer, device: Any) -> None:
        if device not in self.allocation.peers:
            check(self, device)

    patch.setattr(buffer.HCQBuffer, "check_reachable", lenient)


# Life


@mutation("forks")
def forks_go_unnoticed(patch: Patcher) -> None:
    patch.setattr(device.HCQDevice, "forked", lambda self: None)


@mutation("timeouts")
def timeouts_are_swallowed(patch: Patcher) -> None:
    wait = device.HCQDevice._wait

    def patient(self: Any, *args: Any) -> None:
        with contextlib.suppress(DeviceHang):
            wait(self, *args)

    patch.setattr(device.HCQDevice, "_wait", patient)


@mutation("faults")
def a_fault_is_forgotten(patch: Patcher) -> None:
    patch.setattr(device.HCQDevice, "check_usable", lambda self: None)


@mutation("interrupts")
def ring_position_moves_before_publishing(patch: Patcher) -> None:
    def reserve(self: channel.Channel, size: int, value: int) -> int:
        offset = self._ring.take(size)
        position: int = self._plan[2]
        self._plan = (0, position, position + (offset - position) % self._ring_size + size)
        gap = (offset - position) % self._ring_size
        if gap:
            self._fill(position, gap)
        return position + gap

    patch.setattr(channel.Channel, "reserve", reserve)
    publish = channel.Channel.send

    def interrupted(self: Any, template: Any, value: int, *rest: Any) -> None:
        if value % 50 == 49 and not getattr(self, "struck", False):
            self.struck = True
            self.reserve(template.ring_size, value)
            raise KeyboardInterrupt
        publish(self, template, value, *rest)

    patch.setattr(channel.Channel, "send", interrupted)


@mutation("closing")
def memory_is_not_freed(patch: Patcher) -> None:
    patch.setattr(device.HCQDevice, "release", lambda self, memory: None)


@mutation("closing")
def files_stay_open(patch: Patcher) -> None:
    close = HostPort.close

    def leaking(self: HostPort) -> None:
        close(self)
        os.dup(0)

    patch.setattr(HostPort, "close", leaking)
