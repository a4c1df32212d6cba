"""What GSP says by itself, until it says what is waited for.

Events come in order, between replies. Those that ask something of the driver are served, those
that tell an error are logged, all others of this branch are noted; what is no event of this branch
is an error.

Source: rpc_global_enums.h, _kgspProcessRpcEvent, kgspWaitForRmInitDone of open-gpu-kernel-modules
at tag 570.144.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from gpu.autogen.nv import gsp, gspcalls
from gpu.autogen.nv.rm import ROBUST_CHANNEL_ERRORS
from gpu.autogen.nv.status import status_name
from gpu.core.errors import FirmwareError
from gpu.core.log import get_logger
from gpu.drivers.nv.pci import sequencer
from gpu.drivers.nv.pci.chip import NvCard
from gpu.drivers.nv.pci.msgq import Message, Queues

_FAILURE: Final = ctypes.sizeof(gspcalls.rpc_rc_triggered_v17_02)
_OS_ERROR: Final = ctypes.sizeof(gsp.rpc_os_error_log_v17_00)
_NAMES: Final = {
    value: name.removeprefix("NV_VGPU_MSG_EVENT_")
    for name, value in vars(gsp).items()
    if name.startswith("NV_VGPU_MSG_EVENT_")
}
_log = get_logger(__name__)


def wait_for(card: NvCard, queues: Queues, function: int, cores: sequencer.Cores) -> Message:
    """The next message of a kind, with all before it served; within the step's time.

    Raises FirmwareError for a call that GSP refuses, and for what it may not say; BootTimeout.
    """
    message = take_next(card, queues, function, cores, lambda: None)
    if message.result:
        raise refused(message)
    return message


def take_next(
    card: NvCard,
    queues: Queues,
    function: int,
    cores: sequencer.Cores,
    hold: Callable[[], None],
) -> Message:
    """The same, whether GSP refuses it or not; ``hold`` is called before a message is taken."""
    title = _NAMES.get(function, f"the reply to function {function:#x}")
    while True:
        card.wait_value(
            queues.available,
            lambda elements: elements > 0,
            *("elements of the status queue", f"more than 0: {title} is waited for"),
        )
        hold()
        message = queues.receive()
        if message is None:
            continue
        if message.function == function:
            return message
        serve(card, message, cores)


def refused(message: Message) -> FirmwareError:
    """The error of a message that GSP does not take."""
    title = _NAMES.get(message.function, f"the reply to function {message.function:#x}")
    return FirmwareError(f"GSP: {title} says {message.result:#x} ({status_name(message.result)})")


def serve_all(card: NvCard, queues: Queues, cores: sequencer.Cores) -> None:
    """Serves what has come, while nothing is waited for. Raises as `serve`."""
    while (message := queues.receive()) is not None:
        serve(card, message, cores)


def serve(card: NvCard, message: Message, cores: sequencer.Cores) -> None:
    """Does what an event asks for. Raises FirmwareError for one that this branch does not have."""
    match message.function:
        case gsp.NV_VGPU_MSG_EVENT_GSP_RUN_CPU_SEQUENCER:
            sequencer.run(card, message.payload, cores)
        case gsp.NV_VGPU_MSG_EVENT_OS_ERROR_LOG:
            _tell(card, describe_error(message.payload))
        case gsp.NV_VGPU_MSG_EVENT_RC_TRIGGERED:
            _tell(card, describe_failure(message.payload))
        case number if (
            gsp.NV_VGPU_MSG_EVENT_FIRST_EVENT < number < gsp.NV_VGPU_MSG_EVENT_NUM_EVENTS
        ):
            name = _NAMES.get(number, f"event {number:#x}")
            _log.debug("%s: GSP: %s, %d bytes", card.name, name, len(message.payload))
        case number:
            raise FirmwareError(
                f"GSP: a message of function {number:#x} came, which nobody waits for and which is"
                f" no event of {gsp.VERSION}"
            )


def _tell(card: NvCard, text: str) -> None:
    _log.error("%s: GSP: %s", card.name, text)
    card.told.append(text)


def describe_failure(payload: bytes) -> str:
    """A channel that failed, in words. Raises FirmwareError for a message that is cut off."""
    if len(payload) < _FAILURE:
        raise FirmwareError(f"GSP: RC_TRIGGERED has {len(payload)} bytes, {_FAILURE} are wanted")
    rc = gspcalls.rpc_rc_triggered_v17_02.from_buffer_copy(payload)
    name = ROBUST_CHANNEL_ERRORS.get(rc.exceptType, "unknown")
    told = f"channel {rc.chid} of engine {rc.nv2080EngineType} failed with {name}"
    told += f" (Xid {rc.exceptType})"
    address = rc.mmuFaultAddrHi << 32 | rc.mmuFaultAddrLo
    if address:
        told += f", access to {address:#x} refused (fault type {rc.mmuFaultType})"
    return told


def describe_error(payload: bytes) -> str:
    """An error of GSP's (Xid) in words. Raises FirmwareError for one that is cut off."""
    if len(payload) < _OS_ERROR:
        raise FirmwareError(f"GSP: OS_ERROR_LOG has {len(payload)} bytes, {_OS_ERROR} are wanted")
    log = gsp.rpc_os_error_log_v17_00.from_buffer_copy(payload)
    text = bytes(log.errString).split(b"\0", 1)[0].decode("ascii", "backslashreplace")
    return f"Xid {log.exceptType}, runlist {log.runlistId}, channel {log.chid}: {text}"
