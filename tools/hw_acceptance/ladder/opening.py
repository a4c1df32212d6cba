"""Steps 1 to 6: from the control file to scheduled channels, without any work for the GPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

from gpu.autogen.nv import rm
from gpu.autogen.nv.classes import NAMES
from gpu.core import hostmem
from gpu.drivers.bringup import Trail
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.ce_select import choose_copy_engines
from gpu.drivers.nv.channel.channel import NOTIFICATION_SIZE, read_time
from gpu.drivers.nv.channel.ground import GpuMemory, GpuObjects
from gpu.drivers.nv.channel.probes import QUESTIONS
from gpu.drivers.nv.nvk.branch import branch_of
from gpu.drivers.nv.nvk.facts import list_classes, list_copy_engines
from gpu.drivers.nv.nvk.gpu import STEPS, explain_open, open_gpu
from gpu.drivers.nv.nvk.kernel import KernelPort, driver_version, open_node
from gpu.drivers.nv.nvk.objects import open_memory, open_objects
from gpu.drivers.nv.nvk.session import open_session
from gpu.drivers.nv.rm.gpu import NvDevice
from gpu.drivers.nv.rm.object import RmClient
from gpu.drivers.nv.rm.status import CallLog
from gpu.drivers.questions import Variants
from gpu.hcq.ports import MemoryKind
from gpu.transport import nvidia as nodes
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.ladder.pattern import check_pattern
from tools.hw_acceptance.steplog import StepFailed

_PAUSE_NS: Final = 10_000_000
_KINDS: Final = (
    (MemoryKind.SYSTEM, 1 << 16),
    (MemoryKind.VISIBLE, 1 << 16),
    (MemoryKind.VISIBLE, 8 << 20),
    (MemoryKind.VRAM, 1 << 16),
    (MemoryKind.VRAM, 64 << 20),
)


def control(context: Context) -> None:
    """Step 1: a client, the driver's version, the list of GPUs."""
    system = context.world.os
    with Undo() as undo:
        fd = open_node(system, nodes.CONTROL)
        undo.add(system.close, fd)
        kernel = KernelPort(system, fd)
        client = RmClient(kernel, CallLog())
        undo.add(client.free)
        version = driver_version(system, client)
        context.log.fact("driver", version)
        context.log.fact("branch", branch_of(version).number)
        cards = kernel.cards()
        context.log.fact("cards", [str(card) for card in cards])
        context.log.check("a GPU is listed", bool(cards))


def device(context: Context) -> None:
    """Step 2: device, subdevice, a known generation, its units."""
    _walk(context, "units")


def clock(context: Context) -> None:
    """Step 3: the doorbell page, by its clock: read twice, it has gone on as ours has."""
    with _opened(context) as (gpu, _):
        listed = list_classes(gpu.device)
        known = {number: NAMES[number] for number in listed if number in NAMES}
        context.log.fact("classes", [f"{number:#06x}" for number in listed])
        context.log.fact("known classes", {f"{each:#x}": name for each, name in known.items()})
        context.log.fact("generation", gpu.classes.name)
        context.log.fact("units", asdict(gpu.units) | {"sms": gpu.units.sms})
        waiter = context.world.waiter
        first, began = read_time(gpu.usermode), waiter.now_ns()
        while waiter.now_ns() - began < _PAUSE_NS:
            waiter.idle(_PAUSE_NS)
        second, ended = read_time(gpu.usermode), waiter.now_ns()
    gone, wanted = second - first, ended - began
    context.log.fact("clock", {"first": first, "gone": gone, "of the host": wanted})
    right = 0.5 * wanted <= gone <= 2 * wanted
    context.log.check("the clock goes", right, f"{gone} ns, {wanted} ns on the host")


def uvm(context: Context) -> None:
    """Step 4: UVM drives the GPU and owns an address space of it."""
    _walk(context, "register address space")


def memory(context: Context) -> None:
    """Step 5: memory of each kind at its address; what the host sees holds what it writes."""
    with _opened(context) as (_, open_space):
        space = open_space()
        for kind, size in _KINDS:
            found = space.port.allocate(size, kind, name=f"{size} bytes of {kind.value}")
            place = f"{found.size:#x} bytes at {found.address:#x}"
            context.log.fact(f"{kind.value}, {size} bytes", place)
            if found.window is not None:
                check_pattern(context.log, found, f"{kind.value}, {size} bytes")
        if context.options.get("memory") == "pinned":
            _pin(context, space)


def channels(context: Context) -> None:
    """Step 6: both queues, with their tokens, scheduled and without a fault."""
    with open_device(context) as gpu:
        engines = list_copy_engines(gpu.subdevice)
        context.log.fact("copy engines", [asdict(each) for each in engines])
        context.log.fact("copy engines in words", [str(each) for each in engines])
        context.log.fact("choice of copy engines", str(choose_copy_engines(engines)))
        for queue in gpu.channels:
            slot = NOTIFICATION_SIZE * rm.NV_CHANNELGPFIFO_NOTIFICATION_TYPE_WORK_SUBMIT_TOKEN
            facts = {
                "token": hex(queue.token),
                "class": hex(queue.class_id),
                "ring": hex(queue.ring_address),
                "entries": queue.entries,
                "with compute": queue.group is gpu.compute_queue.group,
                "notifier slot 1": queue.notifier.load(slot, NOTIFICATION_SIZE).hex(),
            }
            context.log.fact(queue.name, facts)
        faults = gpu.failed().values()
        context.log.check("no fault", not faults, "; ".join(str(each) for each in faults))


@contextmanager
def open_device(context: Context) -> Iterator[NvDevice]:
    """An open device; how the opening went is told, and it is closed at the end."""
    gpu = open_gpu(context.world, force=context.force)
    with gpu:
        context.log.dump("opening.txt", f"{gpu!r}\n{gpu.report}\n")
        context.log.fact("device", repr(gpu))
        context.log.fact("variants", [str(each) for each in gpu.report.outcomes])
        yield gpu


@contextmanager
def _opened(context: Context) -> Iterator[tuple[GpuObjects, Callable[[], GpuMemory]]]:
    """A device without queues, and what opens its memory."""
    trail, variants = Trail(STEPS, CallLog()), Variants(QUESTIONS, context.force)
    with Undo() as undo:
        session = open_session(context.world, trail)
        undo.add(session.close)
        card = session.card(0)
        gpu, port = open_objects(session, card, variants, trail, undo)
        yield gpu, lambda: open_memory(session, card, port, gpu, variants, trail, undo)[0]
        context.log.fact("variants", [str(each) for each in variants.outcomes])


def _walk(context: Context, last: str) -> None:
    """Opens up to a step, and closes. Raises StepFailed where a step on the way failed."""
    report = explain_open(context.world, stop_after=last, force=context.force)
    context.log.dump("opening.txt", f"{report}\n")
    for step in report.steps:
        if step.error is not None:
            raise StepFailed(f"{step.step.name}: {step.error}")
    context.log.check("closing", not report.closing, "; ".join(report.closing))


def _pin(context: Context, space: GpuMemory) -> None:
    """Pins pages of this process and lets the GPU have them."""
    size = 1 << 16
    address = hostmem.map_anonymous(size)
    try:
        ctypes.memmove(address, os.urandom(size), size)
        pinned = space.port.map_host(address, size)
        context.log.fact("pinned pages", f"{pinned.size:#x} bytes at {pinned.address:#x}")
        space.port.free(pinned)
    finally:
        hostmem.unmap(address, size)
