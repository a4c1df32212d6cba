"""Steps 1 to 3: KFD, memory, queues, without any work for the GPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

from gpu.backends.amd.chips import chip_name
from gpu.core import hostmem
from gpu.core.errors import Unsupported
from gpu.drivers.am.kfd.cwsr import context_save
from gpu.drivers.am.kfd.memory import KfdMemory
from gpu.drivers.am.kfd.port import KfdPort, QueueOptions, open_port
from gpu.drivers.am.kfd.process import session_of
from gpu.drivers.am.kfd.topology import target_of
from gpu.hcq.ports import MemoryKind
from tools.hw_acceptance.amd.target import COMPUTE
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.ladder.pattern import check_pattern

_PAUSE_NS: Final = 10_000_000
_LARGE: Final = 2 << 20
_KINDS: Final = (
    (MemoryKind.SYSTEM, 1 << 16),
    (MemoryKind.VISIBLE, 1 << 16),
    (MemoryKind.VISIBLE, 8 << 20),
    (MemoryKind.VRAM, 1 << 16),
    (MemoryKind.VRAM, 64 << 20),
)


def kfd(context: Context) -> None:
    """Step 1: KFD's interface, the GPUs it lists, the first of them with its address space."""
    session = session_of(context.world.os)
    major, minor = session.kfd.version
    context.log.fact("interface", f"{major}.{minor}")
    context.log.fact("gpus", [asdict(gpu) for gpu in session.gpus])
    link = session.link(0)
    target = target_of(context.world.os, link.node)
    chip = chip_name(target.version)
    context.log.fact("device", f"{chip}, {link.node}")
    context.log.fact("target", repr(target))
    context.log.fact("apertures", repr(link.apertures))
    context.log.fact("memory", {"all": link.node.vram, "hidden": link.node.hidden_vram})
    context.log.fact("save area", repr(context_save(link.node)))
    available = session.kfd.available_memory(link.node.gpu_id)
    right = 0 < available <= link.node.vram
    context.log.check("memory that is left", right, f"{available} of {link.node.vram} bytes")


def memory(context: Context) -> None:
    """Step 2: memory of each kind at one address; what the host writes it reads."""
    with _port(context) as port:
        before = port.memory.in_use
        for kind, size in _KINDS:
            name = f"{kind.value}, {size} bytes"
            try:
                found = port.memory.allocate(size, kind)
            except Unsupported as missing:  # a BAR that is smaller than the memory
                context.log.fact(name, missing.message)
                continue
            context.log.fact(name, f"{found.size:#x} bytes at {found.address:#x}")
            if size >= _LARGE and "large pages" not in context.force:
                place = f"{found.address:#x}"
                context.log.check(f"{name}: alignment", not found.address % _LARGE, place)
            if found.window is not None:
                check_pattern(context.log, found, name)
            port.memory.free(found)
        _pin(context, port.memory)
        left = port.memory.in_use
        context.log.check("nothing is left", left == before, f"{left} bytes, before {before}")


def queues(context: Context) -> None:
    """Step 3: queues of each kind, with their doorbells; the clock goes."""
    with _port(context) as port:
        for kind, count in port.queue_counts.items():
            for index in range(count):
                queue = port.open_queue(kind, index)
                context.log.fact(f"{kind} queue {index}", f"{queue.kind.name}, {queue.ring_size}")
        first, began = port.clock(), port.waiter.now_ns()
        while context.simulation is None and port.waiter.now_ns() - began < _PAUSE_NS:
            pass
        gone, wanted = port.clock() - first, port.waiter.now_ns() - began
        ticks = wanted * port.clock_hz / 1e9
        context.log.fact("clock", {"hz": port.clock_hz, "gone": gone, "wanted": round(ticks)})
        if context.simulation is None:  # a model's clock stands still while nothing runs
            context.log.check("the clock goes", 0.5 * ticks <= gone <= 2 * ticks)
        port.check()


@contextmanager
def _port(context: Context) -> Iterator[KfdPort]:
    """The GPU under its queues, of which there are none yet."""
    compute = context.options.get(COMPUTE)
    options = QueueOptions(compute="aql" if compute == "aql" else None)
    port = open_port(context.world, 0, options, force=context.force)
    try:
        yield port
    finally:
        port.close()


def _pin(context: Context, memory: KfdMemory) -> None:
    """Lets the GPU have pages of this process, and gives them back."""
    size = 1 << 16
    address = hostmem.map_anonymous(size)
    try:
        ctypes.memmove(address, os.urandom(size), size)
        pinned = memory.map_host(address, size)
        context.log.fact("pages of the process", f"{pinned.size:#x} bytes at {pinned.address:#x}")
        memory.free(pinned)
    finally:
        hostmem.unmap(address, size)
