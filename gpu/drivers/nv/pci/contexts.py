"""Room for contexts of the graphics engine: what each channel has, and what all have in common.

The first channel's is made whole by firmware (the "golden context"), from which it makes the
others. Whether that first one may be one that goes on being used is not known: nouveau makes one
for it alone.

Sources: kgrctxPrepareInitializeCtxBuffer_IMPL, kgrctxPreparePromoteCtxBuffer_IMPL of
open-gpu-kernel-modules at tag 570.144; nouveau, gsp/rm/r535/gr.c (which buffers, and how large).
"""

from __future__ import annotations

from typing import Final

from gpu.autogen.nv import alloc, gspcalls
from gpu.core.bits import align_up
from gpu.core.errors import FirmwareError
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.pci.memory import CardMemory, Held
from gpu.drivers.nv.rm.object import RmObject

_OWN: Final = (0, 2)  # MAIN, PATCH
_COMMON: Final = (3, 4, 5, 6)  # mapped; where they are, mappings tell
_INITIALIZED: Final = (9, 10, 11)  # FECS_EVENT and maps of what may be accessed
_UNMAPPED: Final = 10
_MAIN_MORE: Final = 0x40000  # what nouveau adds for subcontexts
_MOST: Final = 1 << 30


class Contexts:
    """The contexts of one card's graphics engine. Raises as `RmObject.control` does."""

    def __init__(self, subdevice: RmObject, memory: CardMemory):
        self._subdevice = subdevice
        self._memory = memory
        self._sizes: dict[int, tuple[int, int]] = {}
        self._common: dict[int, Held] = {}

    def promote(self, channel: RmObject, undo: Undo) -> None:
        """Gives a channel room for its context; what it has alone ``undo`` gives back."""
        is_first = not self._common
        buffers = {number: self._hold(number, undo) for number in _OWN}
        if is_first:
            with Undo() as partly:
                common = {n: self._hold(n, partly) for n in (*_COMMON, *_INITIALIZED)}
                partly.take()
            self._common = common
        params = gspcalls.NV2080_CTRL_GPU_PROMOTE_CTX_PARAMS(
            engineType=alloc.NV2080_ENGINE_TYPE_GRAPHICS,
            hChanClient=channel.client.handle,
            hObject=channel.handle,
        )
        for number, held in (*buffers.items(), *self._common.items()):
            fresh = number in _OWN or (is_first and number in _INITIALIZED)
            if number == _UNMAPPED and not fresh:
                continue
            params.promoteEntry[params.entryCount] = _entry(number, held, fresh)
            params.entryCount += 1
        self._subdevice.control(gspcalls.NV2080_CTRL_CMD_GPU_PROMOTE_CTX, params)

    def close(self) -> None:
        """Gives back what all had in common; again does nothing."""
        common, self._common = self._common, {}
        with Undo() as undo:
            for held in common.values():
                undo.add(held.undo.close)

    def _hold(self, number: int, undo: Undo) -> Held:
        size, align = self._size(number)
        held = self._memory.hold_video(size, align)
        undo.add(held.undo.close)
        return held

    def _size(self, number: int) -> tuple[int, int]:
        """Bytes and alignment of a buffer. Raises FirmwareError for absurd ones."""
        if not self._sizes:
            infos = self._subdevice.control(
                gspcalls.NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO,
                gspcalls.NV2080_CTRL_INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO_PARAMS(),
            )
            for each, engine in gspcalls.CONTEXT_BUFFERS.items():
                found = infos.engine[engine]
                align = max(found.alignment, 1)
                if not 0 < found.size <= _MOST or align & (align - 1):
                    raise FirmwareError(
                        f"GSP: context buffer {each} has {found.size:#x} bytes, aligned to"
                        f" {found.alignment:#x}"
                    )
                more = _MAIN_MORE if not each else 0
                self._sizes[each] = align_up(found.size + more, align), align
        return self._sizes[number]


def _entry(
    number: int, held: Held, fresh: bool
) -> gspcalls.NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ENTRY:
    entry = gspcalls.NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ENTRY(bufferId=number)
    if number == _UNMAPPED:
        entry.bNonmapped = 1
    else:
        entry.gpuVirtAddr = held.address
    if fresh:
        entry.bInitialize, entry.gpuPhysAddr, entry.size = 1, held.place, held.size
        entry.physAttr = gspcalls.NV2080_CTRL_GPU_INITIALIZE_CTX_GPU_CACHEABLE_NO
    return entry
