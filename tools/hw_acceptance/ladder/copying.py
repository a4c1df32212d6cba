"""Step 12: copies between host and device, by the copy engine or, where there is none, a kernel."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import numpy as np

from gpu.drivers.nv.channel.channel import GpfifoChannel
from gpu.drivers.nv.encode import ce as copyengine
from gpu.drivers.nv.encode.pushbuf import Pushbuffer
from gpu.hcq.ports import MemoryKind
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.ladder.launching import Launcher
from tools.hw_acceptance.ladder.queues import PAYLOAD, SLACK_NS, release_often, release_once
from tools.hw_acceptance.ladder.submit import Bench, Semaphore, opened
from tools.hw_acceptance.steplog import StepFailed

_SIZES: Final = (4, 4096, 100_003, 1 << 20, 64 << 20)
_BESIDE: Final = 64  # bytes that must stay as they were
_COPY_BLOCKS: Final = 128
_COPY_THREADS: Final = 256

Copy = Callable[[int, int, int], Semaphore]
"""Copies (destination, source, bytes), waits, and returns the semaphore with its timestamp."""


def copies(context: Context) -> None:
    """Step 12: both ways and within device memory; the option ``copies`` may say ``kernel``."""
    with opened(context) as work:
        if context.options.get("copies") == "kernel":
            _by_kernel(context, work)
        else:
            _by_engine(context, work)


def _by_engine(context: Context, work: Bench) -> None:
    if not work.gpu.copy_queues:
        raise StepFailed("there is no copy queue")
    for channel in work.gpu.copy_queues:
        _on_channel(context, work, channel)


def _on_channel(context: Context, work: Bench, channel: GpfifoChannel) -> None:
    context.log.fact("class", f"{channel.class_id:#x}")
    context.log.fact("with compute", channel.group is work.gpu.compute_queue.group)
    work.submit(channel, copyengine.set_up_copy(work.gpu.classes.dma))
    release_once(context, work, channel)
    release_often(context, work, channel)

    def copy(target: int, source: int, size: int) -> Semaphore:
        push = Pushbuffer(copy=work.gpu.classes.dma)
        push.write(*copyengine.copy_linear(target, source, size))
        return _finish(work, channel, push, f"a copy of {size} bytes to {target:#x}")

    for size in _SIZES:
        _check(context, work, size, copy)
    _fill(context, work, channel)


def _by_kernel(context: Context, work: Bench) -> None:
    launches = Launcher(context, work)
    loaded = launches.load("copy")
    grid, block = (_COPY_BLOCKS, 1, 1), (_COPY_THREADS, 1, 1)

    def copy(target: int, source: int, size: int) -> Semaphore:
        return launches.launch(loaded, (source, target, size // 4), grid, block)

    for size in _SIZES:
        if size % 4 == 0:
            _check(context, work, size, copy)


def _check(context: Context, work: Bench, size: int, copy: Copy) -> None:
    """Host to device, within it, and back: the bytes are the same, and none beside them changed."""
    room = size + _BESIDE
    source, target = (
        work.gpu.alloc(room, MemoryKind.SYSTEM, name=name) for name in ("source", "target")
    )
    near, far = (work.gpu.alloc(room, MemoryKind.VRAM, name=name) for name in ("near", "far"))
    assert source.window is not None and target.window is not None
    pattern = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    source.window.store(0, pattern)
    target.window.store(0, b"\xee" * room)
    times = [work.gpu.clock()]
    for there, here in ((near, source), (far, near), (target, far)):
        times.append(copy(there.address, here.address, size).timestamp)
    found = target.window.load(0, room)
    context.log.check(f"{size} bytes through device memory", found[:size] == pattern)
    context.log.check(f"beside {size} bytes", found[size:] == b"\xee" * _BESIDE)
    rising = all(before <= after + SLACK_NS for before, after in pairwise(times))
    context.log.check(f"timestamps of {size} bytes", rising, str(times))
    for memory in (source, target, near, far):
        work.gpu.free(memory)


def _fill(context: Context, work: Bench, channel: GpfifoChannel) -> None:
    address, window = work.arena.take(4096)
    push = Pushbuffer(copy=work.gpu.classes.dma)
    push.write(*copyengine.fill(address, 0x89AB_CDEF, 4, 4096))
    _finish(work, channel, push, "a fill of 4096 bytes")
    right = window.load(0, 4096) == (0x89AB_CDEF).to_bytes(4, "little") * 1024
    context.log.check("4096 bytes filled", right)


def _finish(work: Bench, channel: GpfifoChannel, push: Pushbuffer, what: str) -> Semaphore:
    done = work.semaphore()
    push.write(*copyengine.semaphore(done.address, PAYLOAD, timestamp=True))
    work.submit(channel, push)
    work.wait(done, PAYLOAD, what)
    return done
