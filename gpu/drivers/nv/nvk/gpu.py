"""Opening an NVIDIA GPU through its kernel driver: memory, a compute queue and copy queues.

A first look::

    from gpu.drivers.nv.nvk.gpu import explain_open, open_gpu
    from gpu.transport.world import real_world

    print(explain_open(real_world()))          # each step with its calls, all closed again
    with open_gpu(real_world()) as gpu:
        print(gpu, gpu.units.sms, "SMs,", gpu.clock(), "ns")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gpu.core.errors import GpuError
from gpu.drivers.bringup import Stopped, Trail
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.all import QUEUE_STEPS, GpuChannels
from gpu.drivers.nv.channel.probes import QUESTIONS
from gpu.drivers.nv.nvk.ground import KernelGround
from gpu.drivers.nv.nvk.objects import DEVICE_STEPS, open_memory, open_objects
from gpu.drivers.nv.nvk.session import SESSION_STEPS, open_session
from gpu.drivers.nv.rm.gpu import NvDevice, OpenReport
from gpu.drivers.nv.rm.status import CallLog
from gpu.drivers.questions import Variants
from gpu.transport.world import World

STEPS: Final = (*SESSION_STEPS, *DEVICE_STEPS, *QUEUE_STEPS)
"""The whole opening, in order."""


def open_gpu(world: World, index: int = 0, *, force: Mapping[str, str] | None = None) -> NvDevice:
    """Opens the kernel driver and a GPU of it; on an error nothing stays open.

    Args:
        world: what it is opened through.
        index: the GPU's place in `NvSession.cards`.
        force: variants of open questions to take, by name (`probes.QUESTIONS`).

    Raises AccessDenied, DeviceError where there is no driver or GPU, InvalidIndex, Unsupported
    for a branch or generation that is not known, RmError, OutOfMemory, TransportError; each
    with a note of the step.
    """
    return _open(world, index, Trail(STEPS, CallLog()), Variants(QUESTIONS, force))


def explain_open(
    world: World,
    index: int = 0,
    *,
    stop_after: str | None = None,
    force: Mapping[str, str] | None = None,
) -> OpenReport:
    """Opens a GPU up to a step, closes all again, and tells how it went, failures included.

    ``stop_after`` is the name of one of `STEPS`, by default the last. Raises InvalidValue for
    another name.
    """
    trail, variants = Trail(STEPS, CallLog(), stop_after), Variants(QUESTIONS, force)
    closing: tuple[str, ...] = ()
    try:
        device = _open(world, index, trail, variants)
    except Stopped as stopped:
        closing = tuple(getattr(stopped, "__notes__", ()))
    except GpuError:
        if not trail.reports or trail.reports[-1].error is None:  # no step failed
            raise
    else:
        device.close()
    return replace(_report(trail, variants), closing=closing)


def _open(world: World, index: int, trail: Trail, variants: Variants) -> NvDevice:
    with Undo() as undo:
        session = open_session(world, trail, index)
        undo.add(session.close)
        card = session.card(index)
        gpu, card_port = open_objects(session, card, variants, trail, undo)
        memory, port = open_memory(session, card, card_port, gpu, variants, trail, undo)
        common = (session, gpu.device, gpu.subdevice, memory.uuid, port, variants)
        queues = GpuChannels(session.log, gpu, memory, KernelGround(*common), variants)
        undo.add(queues.close)
        opened = queues.open(trail)
        report = _report(trail, variants)
        return NvDevice(session, card, gpu, memory, queues, opened, variants, report, undo.take())


def _report(trail: Trail, variants: Variants) -> OpenReport:
    return OpenReport(tuple(trail.reports), tuple(variants.outcomes))
