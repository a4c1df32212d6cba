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
from typing import Final, TypeVar

from gpu.autogen.nv import alloc as structs
from gpu.autogen.nv import gsp, gspcalls
from gpu.autogen.nv.control import control_name
from gpu.core.errors import FirmwareError, Unsupported
from gpu.drivers.nv.pci import events
from gpu.drivers.nv.pci.boot import BootCard
from gpu.drivers.nv.rm.object import Allocated
from gpu.transport.os import Ref

_FIRST_CLIENT: Final = 0xC1D0_0001  # RM's own are from 0xc1e00000 on (rs_client.h)
_SECONDS: Final = 5.0
_QUEUE_SECONDS: Final = 1.0
_clients: Final = itertools.count(_FIRST_CLIENT)

H = TypeVar("H", bound=ctypes.Structure)


class GspPort:
    """The `gpu.drivers.nv.rm.object.RmPort` of a card on which RM runs.

    Methods raise FirmwareError for what is no answer, BootTimeout, DeviceLost.
    """

    def __init__(self, card: BootCard):
        self._card = card

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
        """Sends a call; so many bytes of its reply, which may come in several messages."""
        card = self._card
        card.begin(f"call {function} of RM", card.waiter.now_ns() + round(_SECONDS * 1e9))
        card.queues.send(function, payload, _QUEUE_SECONDS)
        back = self._next(function)
        while len(back) < size:
            back += self._next(gsp.NV_VGPU_MSG_FUNCTION_CONTINUATION_RECORD)
        if len(back) != size:
            raise FirmwareError(
                f"GSP: the reply to call {function} has {len(back)} bytes, {size} are wanted"
            )
        return back

    def _next(self, function: int) -> bytes:
        return events.wait_for(self._card, self._card.queues, function, self._card.cores).payload
