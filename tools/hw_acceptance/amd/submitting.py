"""Steps 4 to 6: the copy engine, packets of a compute queue, and sleeping until they are done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

import numpy as np

from gpu.core.errors import Unsupported
from gpu.drivers.am.device import AmDevice
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.conformance.kit import numbers, peek, system, upload
from gpu.hcq.ports import MemoryKind
from gpu.hcq.queue import HWQueue
from tools.hw_acceptance.amd.target import AmTarget, port_of
from tools.hw_acceptance.child import Context

_ROUNDS: Final = 100
_CHAIN: Final = 64  # copies of a submission, each of what the one before wrote
_SIZES: Final = (4, 4096, 100_003, 1 << 20, 64 << 20)
_SIMULATED: Final = (4, 4096, 100_003, 1 << 20)
_BESIDE: Final = 64  # bytes that must stay as they were
_SLEEP_MS: Final = 1000
_SLEEPS: Final = 50


def sdma(context: Context) -> None:
    """Step 4: fences, timestamps and copies by each copy queue."""
    with _opened(context) as device:
        for index in range(port_of(device).queue_counts["copy"]):
            _signals(context, device, "copy", index)
            _writes(context, device, "copy", index)
        for size in _SIZES if context.simulation is None else _SIMULATED:
            _copies(context, device, size)
        _chain(context, device)


def pm4(context: Context) -> None:
    """Step 5: what a compute queue does without a kernel, also called from its ring."""
    with _opened(context) as device:
        for index in range(port_of(device).queue_counts["compute"]):
            _signals(context, device, "compute", index)
            _writes(context, device, "compute", index)
        _words(context, device)
        gate, done = device.signal(), device.signal()
        device.queue().wait(gate, 7).signal(done, 9).submit(device)
        context.log.check("a wait waits", done.value == 0, str(done.value))
        gate.set(7)
        device.wait_signal(done, 9)
        bound = device.queue().memory_barrier().signal(done, 11).bind(device)
        device.wait(bound.submit())
        context.log.check("a called buffer", done.value == 11, str(done.value))
        bound.close()


def events(context: Context) -> None:
    """Step 6: a process that sleeps in the kernel is woken by the queue's interrupt."""
    with _opened(context) as device:
        port = port_of(device)
        for kind in ("compute", "copy"):
            took, woken = [], 0
            for _ in range(_SLEEPS):
                point = device.queue(kind).memory_barrier().submit(device)
                began = time.perf_counter_ns()
                woken += port.link.session.sleep(port.waiter.event, _SLEEP_MS)
                took.append(time.perf_counter_ns() - began)
                device.wait(point)
            context.log.check(f"{kind}: interrupts", woken == _SLEEPS, f"{woken} of {_SLEEPS}")
            context.log.fact(f"{kind}: sleeping until an interrupt, ns", _points(took))
        began = time.perf_counter_ns()
        came = port.link.session.sleep(port.waiter.event, 1)
        took_ns = time.perf_counter_ns() - began
        context.log.fact("a sleep of 1 ms that nothing ends", {"woken": came, "ns": took_ns})


@contextmanager
def _opened(context: Context) -> Iterator[AmDevice]:
    device = AmTarget(context).open()
    with device:
        yield device
        port_of(device).check()


def _queue(device: AmDevice, kind: str, index: int) -> HWQueue:
    return device.queue(kind, index)


def _signals(context: Context, device: AmDevice, kind: str, index: int) -> None:
    """One by one, so that the first that does not come is told; their times rise."""
    signal, name = device.signal(), f"{kind} queue {index}"
    stamps = []
    for number in range(1, _ROUNDS + 1):
        _queue(device, kind, index).timestamp(signal).signal(signal, number).submit(device)
        device.wait_signal(signal, number)
        stamps.append(signal.timestamp)
    rising = all(before <= after for before, after in pairwise(stamps))
    context.log.check(f"{name}: timestamps", rising and stamps[0] > 0, f"{stamps[:3]} ...")
    device.release_signal(signal)


def _writes(context: Context, device: AmDevice, kind: str, index: int) -> None:
    words = numbers(index, 32)
    target = system(device, 0 * words)
    point = _queue(device, kind, index).write(target.address, words.tobytes()).submit(device)
    device.wait(point)
    same = bool((peek(target) == words).all())
    context.log.check(f"{kind} queue {index}: words", same, str(peek(target)[:4].tolist()))


def _words(context: Context, device: AmDevice) -> None:
    """COPY_DATA through L2: a few words between memory of host and device."""
    source, near, target = system(device, numbers(1)), upload(device, numbers(2)), _empty(device)
    queue = device.queue()
    queue.copy(near, source, source.size).copy(target, near, near.size)
    try:
        device.wait(queue.submit(device))
    except Unsupported as missing:
        context.log.fact("copies of words", missing.message)
        return
    same = bool((peek(target) == numbers(1)).all())
    context.log.check("copies of words", same, str(peek(target)[:4].tolist()))


def _empty(device: AmDevice) -> HCQBuffer:
    return system(device, 0 * numbers(0))


def _copies(context: Context, device: AmDevice, size: int) -> None:
    """Host to device, within it, and back: the bytes are the same, and none beside them changed."""
    room = size + _BESIDE
    source, target = (device.allocator.alloc(room, MemoryKind.SYSTEM) for _ in range(2))
    near, far = (device.allocator.alloc(room) for _ in range(2))
    pattern = np.random.default_rng(size).bytes(size)
    assert source.window is not None and target.window is not None
    source.window.store(0, pattern)
    target.window.store(0, b"\xee" * room)
    for to, of in ((near, source), (far, near), (target, far)):
        device.wait(device.queue("copy").copy(to, of, size).submit(device))
    found = target.window.load(0, room)
    context.log.check(f"{size} bytes through device memory", found[:size] == pattern)
    context.log.check(f"beside {size} bytes", found[size:] == b"\xee" * _BESIDE)
    for buffer in (source, target, near, far):
        buffer.free()


def _chain(context: Context, device: AmDevice) -> None:
    """Copies that overlap, of one submission: whether a fence keeps each behind the one before."""
    words = np.arange(_CHAIN + 1, dtype=np.int32)
    chain = upload(device, words)
    queue = device.queue("copy")
    for at in range(_CHAIN):  # the first word, carried on from place to place
        queue.copy(chain.address + 4 * (at + 1), chain.address + 4 * at, 4)
    device.wait(queue.submit(device))
    found = np.frombuffer(device.allocator.copy_out(chain), np.int32)
    context.log.check(f"{_CHAIN} copies, each of the one before", not found.any(), str(found[-4:]))


def _points(times: list[int]) -> dict[str, int]:
    points = np.percentile(times, (0, 50, 90, 99)).round().astype(int).tolist()
    return dict(zip(("least", "median", "p90", "p99"), points, strict=True))
