"""The two queues between driver and GSP: elements of 4 KiB in the machine's memory.

    pages' addresses | command queue: header, elements | status queue: header, elements

A queue's header is written by the side that fills it: its layout, and how far it has written. How
far the other side has read is in *that* side's own queue, as both swap (MSGQ_FLAGS_SWAP_RX). One
element stays free, so that full and empty differ. A message takes 1 to 16 elements that follow
each other, and wrap; a longer one goes on in continuation records.

What GSP wrote is not believed: each field is checked against the queue before it is used, and what
was read once is not read again.

Sources: message_queue_cpu.c, message_queue_priv.h, src/common/shared/msgq/msgq.c,
_issueRpcLarge (rpc.c) of open-gpu-kernel-modules at tag 570.144.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gpu.autogen.nv import gsp
from gpu.autogen.nv.layout import offset_of
from gpu.core.bits import align_up
from gpu.core.errors import FirmwareError, HwTimeout, InvalidValue
from gpu.core.window import Window

ELEMENT: Final = gsp.GSP_MSG_QUEUE_ELEMENT_SIZE_MIN
HEAD: Final = gsp.GSP_MSG_QUEUE_ELEMENT_HDR_SIZE
RPC: Final = ctypes.sizeof(gsp.rpc_message_header_v03_00)
MOST: Final = gsp.GSP_MSG_QUEUE_ELEMENT_SIZE_MAX - HEAD
"""Bytes of the longest message, with RPC's header."""
_QUEUE: Final = gsp.GSP_MSG_QUEUE_SIZE
_TX: Final = ctypes.sizeof(gsp.msgqTxHeader)
_WRITE_POINTER: Final = offset_of(gsp.msgqTxHeader, "writePtr")
_PAGE: Final = 4096
_PAGES: Final = 2 * _QUEUE // _PAGE
TABLE_ENTRIES: Final = _PAGES + -(-_PAGES * 8 // _PAGE)
"""Pages of all: of both queues, and of the table of their addresses."""
TABLE_SIZE: Final = align_up(TABLE_ENTRIES * 8, _PAGE)
SIZE: Final = TABLE_SIZE + 2 * _QUEUE
"""Bytes of the memory that both sides share."""
_RX_OFFSET: Final = align_up(_TX, 1 << gsp.GSP_MSG_QUEUE_HEADER_ALIGN)
_ENTRIES: Final = align_up(_RX_OFFSET + ctypes.sizeof(gsp.msgqRxHeader), ELEMENT)
COUNT: Final = (_QUEUE - _ENTRIES) // ELEMENT
"""Elements of a queue."""
_OFFSETS: Final = {
    "checkSum": offset_of(gsp.GSP_MSG_QUEUE_ELEMENT, "checkSum"),
    "seqNum": offset_of(gsp.GSP_MSG_QUEUE_ELEMENT, "seqNum"),
    "elemCount": offset_of(gsp.GSP_MSG_QUEUE_ELEMENT, "elemCount"),
    "rpc.signature": HEAD + offset_of(gsp.rpc_message_header_v03_00, "signature"),
    "rpc.length": HEAD + offset_of(gsp.rpc_message_header_v03_00, "length"),
}


class Waiting(Protocol):
    """How to wait, with a bound; as `gpu.drivers.card.PciCard.wait_value`."""

    def __call__(
        self,
        read: Callable[[], int],
        accepts: Callable[[int], bool],
        title: str,
        wanted: str,
        most: float,
    ) -> int:
        """Re-reads until a value is accepted; it."""
        ...


@dataclass(frozen=True, slots=True)
class Message:
    """What GSP said: ``result`` is the status of the call, whose own may be in ``payload``."""

    function: int
    sequence: int
    result: int
    payload: bytes


def checksum(data: bytes) -> int:
    """All 64-bit words of some bytes XORed, folded to 32 bits; missing bytes are zeros."""
    folded = 0
    for (word,) in struct.iter_unpack("<Q", data.ljust(align_up(len(data), 8), b"\0")):
        folded ^= word
    return folded >> 32 ^ folded & 0xFFFF_FFFF


def make_elements(function: int, payload: bytes, sequence: int, number: int) -> bytes:
    """A message as whole elements: ``sequence`` counts messages of the queue, ``number`` calls."""
    length = RPC + len(payload)
    element = gsp.GSP_MSG_QUEUE_ELEMENT(
        seqNum=sequence,
        elemCount=-(-(HEAD + length) // ELEMENT),
        rpc=gsp.rpc_message_header_v03_00(
            header_version=gsp.NV_VGPU_MSG_HEADER_VERSION,
            signature=gsp.NV_VGPU_MSG_SIGNATURE_VALID,
            length=length,
            function=function,
            rpc_result=gsp.NV_VGPU_MSG_RESULT_RPC_PENDING,
            rpc_result_private=gsp.NV_VGPU_MSG_RESULT_RPC_PENDING,
            sequence=number,
        ),
    )
    element.checkSum = checksum(bytes(element) + payload)
    return (bytes(element) + payload).ljust(element.elemCount * ELEMENT, b"\0")


class Queues:
    """Both queues, from the driver's side."""

    def __init__(
        self, memory: Window, pages: Sequence[int], wait: Waiting, ring: Callable[[], None]
    ):
        """``memory`` has `SIZE` bytes, whose pages GSP finds at ``pages``; ``ring`` wakes it."""
        if memory.size < SIZE or len(pages) < TABLE_ENTRIES:
            raise InvalidValue(f"{memory.size:#x} bytes in {len(pages)} pages, not {SIZE:#x}")
        self._wait = wait
        self._ring = ring
        self._command = memory.sub(TABLE_SIZE, _QUEUE)
        self._status = memory.sub(TABLE_SIZE + _QUEUE, _QUEUE)
        self._written = 0
        self._read = 0
        self._sent = 0
        self._received = 0
        self._calls = 0
        self._theirs: gsp.msgqTxHeader | None = None
        self.arguments = gsp.MESSAGE_QUEUE_INIT_ARGUMENTS(
            sharedMemPhysAddr=pages[0],
            pageTableEntryCount=TABLE_ENTRIES,
            cmdQueueOffset=TABLE_SIZE,
            statQueueOffset=TABLE_SIZE + _QUEUE,
        )
        memory.store(0, struct.pack(f"<{TABLE_ENTRIES}Q", *pages[:TABLE_ENTRIES]))
        head = gsp.msgqTxHeader(
            version=gsp.MSGQ_VERSION,
            size=_QUEUE,
            msgSize=ELEMENT,
            msgCount=COUNT,
            flags=gsp.MSGQ_FLAGS_SWAP_RX,
            rxHdrOff=_RX_OFFSET,
            entryOff=_ENTRIES,
        )
        self._command.store(0, bytes(head))

    # Sending

    def send(self, function: int, payload: bytes, seconds: float) -> int:
        """Sends a call, in several messages where it is long; its number.

        A full queue is waited for, each time at most so many seconds. Raises BootTimeout.
        """
        number, self._calls = self._calls, self._calls + 1
        most = MOST - RPC
        for start in range(0, max(len(payload), 1), most):
            kind = gsp.NV_VGPU_MSG_FUNCTION_CONTINUATION_RECORD if start else function
            self._send_one(kind, payload[start : start + most], number, seconds)
        return number

    def _send_one(self, function: int, payload: bytes, number: int, seconds: float) -> None:
        elements = make_elements(function, payload, self._sent, number)
        count = len(elements) // ELEMENT
        self._wait(
            self._free,
            lambda free: free >= count,
            *("free elements of the command queue", f"at least {count}", seconds),
        )
        for index in range(count):
            at = (self._written + index) % COUNT
            part = elements[index * ELEMENT : (index + 1) * ELEMENT]
            self._command.store(_ENTRIES + at * ELEMENT, part)
        self._written = (self._written + count) % COUNT
        self._sent += 1
        # Read back, so that the elements are there before what says that they are.
        self._command.read(_WRITE_POINTER, 4)
        self._command.write(_WRITE_POINTER, 4, self._written)
        self._ring()

    def _free(self) -> int:
        """Elements that may be written."""
        # Until it has started nobody reads, and both places hold 0.
        swaps = self._theirs is None or self._theirs.flags & gsp.MSGQ_FLAGS_SWAP_RX
        read = (self._status if swaps else self._command).read(_RX_OFFSET, 4)
        if read >= COUNT:
            raise FirmwareError(f"command queue: GSP says readPtr {read:#x} of {COUNT} elements")
        return (read - self._written - 1) % COUNT

    # Receiving

    def link(self, seconds: float) -> None:
        """Waits until GSP has made the status queue, and checks what it made.

        Raises BootTimeout where it makes none, FirmwareError naming the field that stays wrong.
        """
        try:
            self._wait(
                lambda: int(not self._wrong_field()),
                lambda good: good == 1,
                *("whether the status queue is made", "1: GSP fills in its head", seconds),
            )
        except HwTimeout:
            if any(self._status.load(0, _TX)):
                raise FirmwareError(f"status queue: {self._wrong_field()}") from None
            raise
        self._theirs = self._their_header()
        self._read = 0
        self._tell_read()

    def _their_header(self) -> gsp.msgqTxHeader:
        return gsp.msgqTxHeader.from_buffer_copy(self._status.load(0, _TX))

    def _wrong_field(self) -> str:
        """What in the head of the status queue is not right, in words; empty where all is."""
        theirs = self._their_header()
        wanted = {
            "version": gsp.MSGQ_VERSION,
            "size": _QUEUE,
            "msgSize": ELEMENT,
            "rxHdrOff": _RX_OFFSET,
            "entryOff": _ENTRIES,
            "msgCount": COUNT,
        }
        for name, value in wanted.items():
            if (found := getattr(theirs, name)) != value:
                at = offset_of(gsp.msgqTxHeader, name)
                return f"{name} at offset {at:#x} is {found:#x}, wanted {value:#x}"
        return ""

    def _tell_read(self) -> None:
        """Says how far the status queue is read: in our own queue, if GSP swaps too."""
        assert self._theirs is not None
        swapped = self._theirs.flags & gsp.MSGQ_FLAGS_SWAP_RX
        (self._command if swapped else self._status).write(_RX_OFFSET, 4, self._read)

    def available(self) -> int:
        """Elements that can be read. Raises FirmwareError for a pointer outside the queue."""
        written = self._status.read(_WRITE_POINTER, 4)
        if written >= COUNT:
            raise FirmwareError(f"status queue: writePtr is {written:#x} of {COUNT} elements")
        return (written - self._read) % COUNT

    def receive(self) -> Message | None:
        """The next message, None while there is none. Raises FirmwareError with offset and field.

        What is refused stays in the queue.
        """
        available = self.available()
        if not available:
            return None
        first = self._element(0)
        head = gsp.GSP_MSG_QUEUE_ELEMENT.from_buffer_copy(first)
        count = head.elemCount
        self._check(
            1 <= count <= min(available, gsp.GSP_MSG_QUEUE_ELEMENT_SIZE_MAX // ELEMENT),
            "elemCount",
            count,
            f"1 to 16, of {available} that are there",
        )
        length = head.rpc.length
        self._check(
            RPC <= length <= MOST and -(-(HEAD + length) // ELEMENT) == count,
            "rpc.length",
            length,
            f"what takes {count} elements",
        )
        data = first + b"".join(self._element(index) for index in range(1, count))
        found = checksum(data[: HEAD + length])
        self._check(found == 0, "checkSum", head.checkSum, f"{head.checkSum ^ found:#x}")
        self._check(head.seqNum == self._received, "seqNum", head.seqNum, f"{self._received:#x}")
        self._check(
            head.rpc.signature == gsp.NV_VGPU_MSG_SIGNATURE_VALID,
            "rpc.signature",
            head.rpc.signature,
            f"{gsp.NV_VGPU_MSG_SIGNATURE_VALID:#x}",
        )
        self._received += 1
        self._read = (self._read + count) % COUNT
        self._tell_read()
        payload = data[HEAD + RPC : HEAD + length]
        return Message(head.rpc.function, head.rpc.sequence, head.rpc.rpc_result, payload)

    def _element(self, index: int) -> bytes:
        """A copy of an element, counted from the next that is to be read; the queue wraps."""
        return self._status.load(_ENTRIES + (self._read + index) % COUNT * ELEMENT, ELEMENT)

    def _check(self, good: bool, field: str, value: int, wanted: str) -> None:
        if good:
            return
        at = _ENTRIES + self._read * ELEMENT + _OFFSETS[field]
        raise FirmwareError(
            f"status queue: {field} at offset {at:#x} (element {self._read}) is {value:#x},"
            f" wanted {wanted}"
        )
