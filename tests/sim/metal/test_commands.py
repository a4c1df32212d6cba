"""Command buffers: their life, when they run, and events."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import numpy as np

from gpu.sim.metal.library import MetalLibrary
from sim.metal.raw_metal import P, RawMetal, compile_msl

Broken = Callable[[str], str]
NOT_ENQUEUED, ENQUEUED, COMMITTED, SCHEDULED, COMPLETED, FAILED = range(6)


def filled(metal: RawMetal, target: int, value: int, queue: int = 0) -> int:
    """A command buffer that copies a number, not committed."""
    source = metal.buffer(4)
    metal.floats(source, np.int32)[0] = value
    buffer = metal.command_buffer(queue)
    encoder = metal.send(buffer, "blitCommandEncoder")
    metal.copy(encoder, source, 0, target, 0, 4)
    metal.end(encoder)
    metal.release(source)
    return buffer


def test_the_life_of_a_command_buffer(metal: RawMetal) -> None:
    before = time.perf_counter()
    buffer = filled(metal, metal.buffer(4), 1)
    assert metal.send(buffer, "status") == NOT_ENQUEUED
    assert metal.send(buffer, "GPUEndTime", result=ctypes.c_double) == 0.0
    metal.send(buffer, "enqueue", result=None)
    assert metal.send(buffer, "status") == ENQUEUED
    metal.commit(buffer)
    metal.send(buffer, "waitUntilScheduled", result=None)
    assert metal.send(buffer, "status") in (COMMITTED, SCHEDULED, COMPLETED)
    assert metal.wait(buffer) == COMPLETED
    assert metal.send(buffer, "error") == 0
    names = ("GPUStartTime", "GPUEndTime")
    start, end = (metal.send(buffer, name, result=ctypes.c_double) for name in names)
    assert before < start <= end <= time.perf_counter()


def test_an_empty_command_buffer_completes(metal: RawMetal) -> None:
    buffer = metal.command_buffer()
    metal.commit(buffer)
    assert metal.wait(buffer) == COMPLETED


def test_work_runs_late_and_in_order(metal: RawMetal) -> None:
    target, late = metal.buffer(4), 0
    value = metal.floats(target, np.int32)
    for number in range(1, 30):
        buffer = filled(metal, target, number)
        metal.commit(buffer)
        late += value[0] != number
    assert late
    assert metal.wait(buffer) == COMPLETED
    assert value[0] == 29


def test_command_buffers_run_as_they_were_enqueued(metal: RawMetal) -> None:
    target = metal.buffer(4)
    first, second = filled(metal, target, 1), filled(metal, target, 2)
    metal.send(first, "enqueue", result=None)
    metal.commit(second)
    for _ in range(10):
        assert metal.send(second, "status") == COMMITTED
    metal.commit(first)
    assert metal.wait(second) == COMPLETED
    assert metal.floats(target, np.int32)[0] == 2


def test_queues_are_in_no_order(seed: int) -> None:
    seen = set()
    for number in range(8):
        library = MetalLibrary("apple7", 100 * seed + number, compile=compile_msl)
        metal = RawMetal(library.address)
        with metal.pool():
            metal.start()
            other, target = metal.send(metal.device, "newCommandQueue"), metal.buffer(4)
            buffers = [filled(metal, target, 1), filled(metal, target, 2, other)]
            for buffer in buffers:
                metal.commit(buffer)
            for buffer in buffers:
                metal.wait(buffer)
            seen.add(int(metal.floats(target, np.int32)[0]))
        assert [each.split(":")[0] for each in library.violations] == ["queue-race"]
    assert seen == {1, 2}


def test_polling_the_status_gets_on(metal: RawMetal) -> None:
    buffer = filled(metal, metal.buffer(4), 1)
    metal.commit(buffer)
    for _ in range(100):
        if metal.send(buffer, "status") == COMPLETED:
            return
    raise AssertionError("it never ends")


def test_bad_lives(raw: RawMetal, broken: Broken) -> None:
    buffer = filled(raw, raw.buffer(4), 1)
    raw.send(buffer, "waitUntilCompleted", result=None)
    broken("wait-before-commit")
    raw.send(buffer, "waitUntilScheduled", result=None)
    broken("wait-before-commit")
    raw.send(buffer, "enqueue", result=None)
    raw.send(buffer, "enqueue", result=None)
    broken("enqueued-twice")
    raw.commit(buffer)
    raw.commit(buffer)
    broken("committed-twice")
    assert raw.send(buffer, "blitCommandEncoder") == 0
    broken("encode-after-commit")
    raw.send(buffer, "addCompletedHandler:", 16, result=None)
    broken("handler-after-commit")
    raw.wait(buffer)


def test_passes_are_one_after_the_other(raw: RawMetal, broken: Broken) -> None:
    buffer = raw.command_buffer()
    encoder = raw.encoder(buffer)
    assert raw.send(buffer, "blitCommandEncoder") == 0
    broken("encoder-open")
    raw.commit(buffer)
    broken("encoder-open")
    raw.end(encoder)
    raw.end(encoder)
    broken("encoder-ended")
    raw.send(encoder, "memoryBarrierWithScope:", 1, result=None)
    broken("encoder-ended")
    assert raw.encoder(buffer, 2) == 0
    broken("dispatch-type")
    raw.commit(buffer)
    assert raw.wait(buffer) == COMPLETED


def test_a_pass_is_ended_before_its_encoder_goes(raw: RawMetal, broken: Broken) -> None:
    with raw.pool():
        raw.encoder(raw.command_buffer())
    broken("encoder-not-ended")


def test_groups_of_commands_are_popped(raw: RawMetal, broken: Broken) -> None:
    encoder = raw.encoder(raw.command_buffer())
    raw.send(encoder, "popDebugGroup", result=None)
    broken("debug-groups")
    raw.send(encoder, "pushDebugGroup:", raw.string("a"), result=None)
    raw.end(encoder)
    broken("debug-groups")
    raw.send(encoder, "popDebugGroup", result=None)
    raw.end(encoder)


def test_resources_are_kept_until_they_were_used(metal: RawMetal) -> None:
    with metal.pool():
        target = metal.buffer(4)
        buffer = filled(metal, target, 7)  # which releases its source
        metal.commit(buffer)
        assert metal.wait(buffer) == COMPLETED
    assert metal.floats(target, np.int32)[0] == 7
    assert metal.send(target, "retainCount") == 1
    metal.release(target)


def test_without_references_the_program_keeps_them(raw: RawMetal, broken: Broken) -> None:
    source, target = raw.buffer(4), raw.buffer(4)
    buffer = raw.send(raw.queue, "commandBufferWithUnretainedReferences")
    assert not raw.send(buffer, "retainedReferences")
    encoder = raw.send(buffer, "blitCommandEncoder")
    raw.copy(encoder, source, 0, target, 0, 4)
    raw.end(encoder)
    raw.release(source)
    raw.commit(buffer)
    assert raw.wait(buffer) == FAILED
    broken("resource-ended")
    assert raw.error(buffer)[:2] == ("MTLCommandBufferErrorDomain", 9)


def test_a_queue_has_room_for_so_many(raw: RawMetal, broken: Broken) -> None:
    queue = raw.send(raw.device, "newCommandQueueWithMaxCommandBufferCount:", 2)
    first = raw.send(raw.command_buffer(queue), "retain")
    raw.commit(first)
    raw.command_buffer(queue)
    raw.command_buffer(queue)  # waits for the first
    assert raw.send(first, "status") == COMPLETED
    assert raw.command_buffer(queue) == 0
    broken("too-many-command-buffers")


def test_handlers_run_at_the_end(metal: RawMetal) -> None:
    seen = []

    def completed(_: int, buffer: int) -> None:
        seen.append((buffer, metal.send(buffer, "status")))

    function = ctypes.CFUNCTYPE(None, P, P)(completed)
    block = (ctypes.c_uint64 * 5)(0, 0, ctypes.cast(function, ctypes.c_void_p).value or 0, 0, 0)
    buffer = metal.command_buffer()
    metal.send(buffer, "addCompletedHandler:", ctypes.addressof(block), result=None)
    assert not seen
    metal.commit(buffer)
    metal.wait(buffer)
    assert seen == [(buffer, COMPLETED)]


def signal(metal: RawMetal, buffer: int, event: int, value: int) -> None:
    metal.send(buffer, "encodeSignalEvent:value:", event, value, result=None)


def wait_for(metal: RawMetal, buffer: int, event: int, value: int) -> None:
    metal.send(buffer, "encodeWaitForEvent:value:", event, value, result=None)


def test_events_order_queues(metal: RawMetal) -> None:
    other, target = metal.send(metal.device, "newCommandQueue"), metal.buffer(4)
    event = metal.send(metal.device, "newEvent")
    for number in range(6):
        waiting = metal.command_buffer(other)
        wait_for(metal, waiting, event, number + 1)
        encoder = metal.send(waiting, "blitCommandEncoder")
        metal.copy(encoder, target, 0, metal.buffer(4), 0, 4)
        metal.end(encoder)
        metal.commit(waiting)
        first = filled(metal, target, number)
        signal(metal, first, event, number + 1)
        metal.commit(first)
        assert metal.wait(waiting) == COMPLETED


def test_shared_events_are_the_programs_too(metal: RawMetal) -> None:
    event, target = metal.send(metal.device, "newSharedEvent"), metal.buffer(4)
    buffer = metal.command_buffer()
    wait_for(metal, buffer, event, 3)
    signal(metal, buffer, event, 5)
    metal.commit(buffer)
    for _ in range(5):
        assert metal.send(buffer, "status") in (COMMITTED, SCHEDULED)
    assert metal.send(event, "signaledValue") == 0
    wait = "waitUntilSignaledValue:timeoutMS:"
    assert not metal.send(event, wait, 5, 1, result=ctypes.c_bool)
    metal.send(event, "setSignaledValue:", 4, result=None)
    assert metal.send(event, wait, 5, 1000, result=ctypes.c_bool)
    assert metal.wait(buffer) == COMPLETED
    assert metal.send(event, "signaledValue") == 5
    metal.release(target)


def test_events_do_not_go_back(raw: RawMetal, broken: Broken) -> None:
    event = raw.send(raw.device, "newSharedEvent")
    raw.send(event, "setSignaledValue:", 4, result=None)
    raw.send(event, "setSignaledValue:", 3, result=None)
    broken("event-backwards")


def test_a_wait_that_nothing_ends_is_told(raw: RawMetal, broken: Broken) -> None:
    event = raw.send(raw.device, "newEvent")
    buffer = raw.command_buffer()
    wait_for(raw, buffer, event, 1)
    raw.commit(buffer)
    assert raw.wait(buffer) == FAILED
    broken("endless-wait")
    domain, code, text = raw.error(buffer)
    assert (domain, code) == ("MTLCommandBufferErrorDomain", 2)
    assert "waits for 1 of an event" in text
