"""Calls to RM on the card: messages to its firmware, and their replies among events.

A call has two statuses: that of the message, and RM's own within it. Events that come first are
served in their order. Pointers cannot be followed from the card: what has some is refused by name.

Sources: rpc.c (rpcRmApiAlloc_GSP, rpcRmApiControl_GSP, rpcRmApiFree_GSP) of open-gpu-kernel-modules
at tag 570.144.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gpu.autogen.nv import alloc as structs
from gpu.autogen.nv import gsp, gspcalls
from gpu.autogen.nv.control import control_name
from gpu.core.errors import DeviceLost, FirmwareError, Unsupported
from gpu.core.interrupts import put_off
from gpu.drivers.boot import BootTimeout
from gpu.drivers.nv.pci import events
from gpu.drivers.nv.pci.boot import BootCard
from gpu.drivers.nv.rm.object import Allocated
from gpu.transport.os import Ref

_FIRST_CLIENT: Final = 0xC1D0_0001  # RM's own are from 0xc1e00000 on (rs_client.h)
_SECONDS: Final = 5.0
_QUEUE_SECONDS: Final = 1.0
_MOST_SILENT: Final = 3
_clients: Final = itertools.count(_FIRST_CLIENT)

H = TypeVar("H", bound=ctypes.Structure)


@dataclass(slots=True)
class _Reply:
    """What a call is waited for: so many bytes, and those that came."""

    function: int
    size: int
    data: bytearray = field(default_factory=bytearray)
    error: FirmwareError | None = None


class GspPort:
    """The `gpu.drivers.nv.rm.object.RmPort` of a card on which RM runs.

    Methods raise FirmwareError for what is no answer, BootTimeout, DeviceLost.
    """

    def __init__(self, card: BootCard):
        self._card = card
        self._owed: list[_Reply] = []
        self._silent = 0  # calls in a row that had no answer

    def alloc(
        self,
        client: int,
        parent: int,
        handle: int,
        class_id: int,
        params: ctypes.Structure | None,
    ) -> Allocated:
        """As `RmPort.alloc`; a root's handle is drawn here."""
        if not client:
            client = parent = handle = next(_clients)
            class_id = gspcalls.NV01_ROOT
            params = structs.NV0000_ALLOC_PARAMETERS(hClient=client, processID=os.getpid())
        size = 0 if params is None else ctypes.sizeof(params)
        head = gspcalls.rpc_gsp_rm_alloc_v03_00(
            hClient=client, hParent=parent, hObject=handle, hClass=class_id, paramsSize=size
        )
        back = self._with_params(gsp.NV_VGPU_MSG_FUNCTION_GSP_RM_ALLOC, head, params)
        return Allocated(back.status, handle)

    def free(self, client: int, parent: int, handle: int) -> int:
        """As `RmPort.free`."""
        call = gspcalls.NVOS00_PARAMETERS_v03_00(
            hRoot=client, hObjectParent=parent, hObjectOld=handle
        )
        back, _ = self.call(gsp.NV_VGPU_MSG_FUNCTION_FREE, call)
        return int(back.status)

    def control(
        self,
        client: int,
        handle: int,
        command: int,
        params: ctypes.Structure,
        refs: Sequence[Ref] = (),
    ) -> int:
        """As `RmPort.control`. Raises Unsupported for parameters with pointers."""
        if refs:
            raise Unsupported(
                f"control {control_name(command)} has pointers, which firmware does not follow"
            )
        head = gspcalls.rpc_gsp_rm_control_v03_00(
            hClient=client, hObject=handle, cmd=command, paramsSize=ctypes.sizeof(params)
        )
        back = self._with_params(gsp.NV_VGPU_MSG_FUNCTION_GSP_RM_CONTROL, head, params)
        return int(back.status)

    def _with_params(self, function: int, head: H, params: ctypes.Structure | None) -> H:
        back, data = self.call(function, head, b"" if params is None else bytes(params))
        if params is not None:
            ctypes.memmove(ctypes.addressof(params), data, ctypes.sizeof(params))
        return back

    def call(self, function: int, head: H, data: bytes = b"") -> tuple[H, bytes]:
        """Sends a structure with bytes behind it; both as they come back.

        Raises FirmwareError where firmware refuses the message.
        """
        size = ctypes.sizeof(head) + len(data)
        payload = self.exchange(function, bytes(head) + data, size)
        at = ctypes.sizeof(head)
        return type(head).from_buffer_copy(payload), payload[at:]

    def exchange(self, function: int, payload: bytes, size: int) -> bytes:
        """Sends a call; so many bytes of its reply, which may come in several messages.

        Replies come in the order of calls: those of calls that were broken off come first. After
        some calls without an answer nothing is asked any more. Raises DeviceLost then.
        """
        card, reply = self._card, _Reply(function, size)
        with card.lock:
            self.check()
            card.begin(f"call {function} of RM", card.waiter.now_ns() + round(_SECONDS * 1e9))
            try:
                with put_off():
                    card.queues.send(function, payload, _QUEUE_SECONDS)
                    self._owed.append(reply)
                while self._owed:
                    self._take(self._owed[0])
            except BootTimeout as late:
                self._silent += 1
                if self._silent < _MOST_SILENT:
                    raise
                card.lost = (
                    f"firmware left {self._silent} calls unanswered, the last {late.message};"
                    " close the device and open it anew, which resets the card"
                )
                self.check()
            self._silent = 0
        if reply.error is not None:
            raise reply.error
        return bytes(reply.data)

    def check(self) -> None:
        """Raises DeviceLost where firmware is not asked any more."""
        card = self._card
        if card.lost:
            raise DeviceLost(f"{card.name}: {card.lost}")

    def heard(self) -> list[str]:
        """Errors that firmware told of since this was last asked, in words."""
        told = self._card.told
        return [told.popleft() for _ in range(len(told))]

    def evidence(self) -> dict[str, bytes]:
        """What firmware has logged. See `BootCard.evidence`."""
        return self._card.evidence()

    def _take(self, reply: _Reply) -> None:
        """The next message of a reply. Raises as `events.take_next`."""
        first = reply.function if not reply.data else gsp.NV_VGPU_MSG_FUNCTION_CONTINUATION_RECORD
        card = self._card
        with put_off(at_once=False) as hold:
            message = events.take_next(card, card.queues, first, card.cores, hold)
            reply.data += message.payload
            if message.result:
                reply.error = events.refused(message)
            elif len(reply.data) > reply.size or not message.payload:
                reply.error = FirmwareError(
                    f"GSP: the reply to call {reply.function} has {len(reply.data)} bytes,"
                    f" {reply.size} are wanted"
                )
            if reply.error is not None or len(reply.data) == reply.size:
                self._owed.pop(0)

    def attend(self) -> None:
        """Serves events that have come, so that firmware has room for more.

        While another thread makes a call nothing is to be done: that serves them.
        """
        card = self._card
        self.check()
        if self._owed or not card.lock.acquire(blocking=False):
            return
        try:
            if card.queues.available():
                card.begin("events of RM", card.waiter.now_ns() + round(_SECONDS * 1e9))
                events.serve_all(card, card.queues, card.cores)
        finally:
            card.lock.release()
