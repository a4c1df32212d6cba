"""Message queues between a driver and RM: pages that both see, in the manner of msgq.c.

A table of pages comes first, its own among them, then the driver's queue, then RM's. A queue has a
page with its header, in which the other side's progress is not: each writes how far it has read
into its own queue (MSGQ_FLAGS_SWAP_RX). Elements have 4 KiB; a message takes up to 16 of them, the
first with a header whose sum makes the message's XOR zero (message_queue_cpu.c).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpu.sim.nv.pci.silicon import Halt, Silicon

PAGE: Final = 4096
HEADER, RPC_HEADER = 0x30, 0x20
MOST_ELEMENTS: Final = 16
VERSION, SIGNATURE, PENDING = 3 << 24, 0x43505256, 0xFFFFFFFF
_TX: Final = struct.Struct("<8I")  # msgqTxHeader
_SWAP_RX: Final = 1
_RX_AT: Final = 0x20
_WRITE_AT: Final = 0x10
_LEAST: Final = PAGE * (1 + MOST_ELEMENTS)


class Message(NamedTuple):
    """A message without the headers of its element.

    Attributes:
        function: what is called.
        sequence: of the call; comes back in the answer.
        payload: its parameters.
        is_full: whether it has all the bytes that a message can have, so that more may follow.
    """

    function: int
    sequence: int
    payload: bytes
    is_full: bool


def fold(data: bytes) -> int:
    """The XOR of 64-bit words, folded to 32 bits."""
    total = 0
    for word in memoryview(data).cast("Q"):
        total ^= word
    return total >> 32 ^ total & 0xFFFFFFFF


class Queues:
    """Both queues, from RM's side."""

    def __init__(self, chip: Silicon, table: int, pages: int, command: int, status: int):
        """From RMARGS: where the table is, its entries, where the queues are behind it.

        Raises Halt.
        """
        self._chip = chip
        self._pages = self._read_table(table, pages, command)
        end = PAGE * pages
        if command % PAGE or status % PAGE or not 0 < command < status < end:
            raise Halt(f"queues at {command:#x} and {status:#x} of {end:#x} bytes")
        if min(status - command, end - status) < _LEAST:
            raise Halt("a queue has a header and room for the longest message")
        self._command, self._status = command, status
        self._count = self._check_header(status - command)
        self._own_count = (end - status) // PAGE - 1
        self._read = self._write = 0
        self._received = self._sent = 0
        self._waiting: deque[bytes] = deque()
        own = (0, end - status, PAGE, self._own_count, 0, _SWAP_RX, _RX_AT, PAGE)
        self._put(status + _RX_AT, bytes(4))
        self._put(status, _TX.pack(*own))

    @property
    def is_blocked(self) -> bool:
        """Whether answers wait for the driver to read."""
        return self.waiting > 0

    @property
    def waiting(self) -> int:
        """How many messages there was no room for."""
        return len(self._waiting)

    def receive(self) -> Iterator[Message]:
        """What the driver has put there since. Raises Halt."""
        end = self._word(self._command + _WRITE_AT)
        if end >= self._count:
            raise Halt(f"the write pointer is {end}, of {self._count} elements")
        while self._read != end:
            message, elements = self._message(end)
            self._read = (self._read + elements) % self._count
            self._received += 1
            self._put(self._status + _RX_AT, struct.pack("<I", self._read))
            yield message

    def send(self, function: int, payload: bytes, result: int = 0, sequence: int = 0) -> None:
        """Puts a message there, or keeps it until there is room. Raises Halt."""
        head = (
            VERSION,
            SIGNATURE,
            RPC_HEADER + len(payload),
            function,
            result,
            result,
            sequence,
            0,
        )
        body = struct.pack("<8I", *head) + payload
        elements = -(-(HEADER + len(body)) // PAGE)
        assert elements <= MOST_ELEMENTS, f"a message of {len(body):#x} bytes"
        fields = (self._sent, elements, 0)
        first = bytes(32) + struct.pack("<4I", 0, *fields) + body + bytes(-len(body) % 8)
        data = first[:32] + struct.pack("<I", fold(first)) + first[36:]
        self._sent += 1
        self._waiting.append(data.ljust(elements * PAGE, b"\0"))
        self.flush()

    def flush(self) -> None:
        """Puts there what there is room for now. Raises Halt."""
        while self._waiting:
            data, read = self._waiting[0], self._word(self._command + _RX_AT)
            if read >= self._own_count:
                raise Halt(f"the driver has read up to {read}, of {self._own_count} elements")
            unread = (self._write - read) % self._own_count
            if unread + len(data) // PAGE >= self._own_count:
                return
            for at in range(0, len(data), PAGE):
                place = self._status + PAGE * (1 + self._write)
                self._put(place, data[at : at + PAGE])
                self._write = (self._write + 1) % self._own_count
            self._put(self._status + _WRITE_AT, struct.pack("<I", self._write))
            self._waiting.popleft()

    def _read_table(self, table: int, pages: int, command: int) -> tuple[int, ...]:
        if table % PAGE or not 0 < pages <= 0x10000:
            raise Halt(f"a table of {pages} queue pages at {table:#x}")
        own = -(-8 * pages // PAGE)
        if command != own * PAGE:
            raise Halt(f"the command queue is at {command:#x}, right behind {own} pages of table")
        first = self._chip.fetch(table, PAGE, "the table of queue pages")
        entries = list(struct.unpack("<512Q", first))
        if entries[0] != table:
            raise Halt(f"the table of queue pages begins with {entries[0]:#x}, not with itself")
        for page in entries[1:own]:
            data = self._chip.fetch(page, PAGE, "the table of queue pages")
            entries += struct.unpack("<512Q", data)
        for index, entry in enumerate(entries[:pages]):
            if entry % PAGE or not entry:
                raise Halt(f"queue page {index} is {entry:#x}, which is no page")
            self._chip.fetch(entry, PAGE, f"queue page {index}")
        return tuple(entries[:pages])

    def _check_header(self, size: int) -> int:
        found: tuple[int, ...] = _TX.unpack(self._get(self._command, _TX.size))
        version, whole, element, count, _, flags, rx, entries = found
        if version:
            raise Halt(f"the command queue has version {version}, 0 wanted")
        if whole != size:
            raise Halt(f"the command queue has {whole:#x} bytes, RMARGS {size:#x}")
        if element != PAGE or entries != PAGE or rx != _RX_AT:
            raise Halt(
                f"the command queue has elements of {element:#x} bytes from {entries:#x} on and "
                f"its read pointer at {rx:#x}: {PAGE:#x}, {PAGE:#x} and {_RX_AT:#x} wanted"
            )
        if count != size // PAGE - 1:
            raise Halt(f"the command queue has {count} elements, {size // PAGE - 1} fit")
        if flags != _SWAP_RX:
            raise Halt(f"the command queue has flags {flags:#x}: read pointers are swapped (1)")
        return count

    def _message(self, end: int) -> tuple[Message, int]:
        """The next one, and its elements. Raises Halt: the reader stands still before it."""
        first = self._element(0)
        checksum, number, elements, padding = struct.unpack_from("<4I", first, 32)
        rpc = struct.unpack_from("<8I", first, HEADER)
        version, signature, length, function, result, private, sequence, gfid = rpc
        what = f"message {self._received} (function {function})"
        if any(first[:32]) or padding:
            raise Halt(f"{what}: its tag and data of confidential computing are not 0")
        if not RPC_HEADER <= length <= MOST_ELEMENTS * PAGE - HEADER:
            raise Halt(f"{what} has {length:#x} bytes")
        if elements != -(-(HEADER + length) // PAGE):
            raise Halt(f"{what} of {length:#x} bytes tells of {elements} elements")
        if elements > (end - self._read) % self._count:
            raise Halt(f"{what} has {elements} elements, of which the write pointer shows fewer")
        data = first + b"".join(self._element(index) for index in range(1, elements))
        if fold(data[: HEADER + length + -length % 8]):
            raise Halt(f"{what}: its sum {checksum:#x} is wrong")
        if number != self._received:
            raise Halt(f"{what} has number {number}, {self._received} wanted")
        if version != VERSION:
            raise Halt(f"{what} has header version {version:#x}, {VERSION:#x} wanted")
        if signature != SIGNATURE:
            raise Halt(f"{what} has signature {signature:#x}, {SIGNATURE:#x} wanted")
        if result != PENDING or private != PENDING:
            raise Halt(f"{what} has results {result:#x} and {private:#x}: none is there yet")
        if gfid:
            raise Halt(f"{what} is of virtual function {gfid}")
        payload = data[HEADER + RPC_HEADER : HEADER + length]
        full = length == MOST_ELEMENTS * PAGE - HEADER
        return Message(function, sequence, payload, full), elements

    def _element(self, index: int) -> bytes:
        number = (self._read + index) % self._count
        return self._get(self._command + PAGE * (1 + number), PAGE)

    def _word(self, offset: int) -> int:
        return int.from_bytes(self._get(offset, 4), "little")

    def _get(self, offset: int, size: int) -> bytes:
        page = self._pages[offset // PAGE] + offset % PAGE
        return self._chip.fetch(page, size, "a queue")

    def _put(self, offset: int, data: bytes) -> None:
        self._chip.put(self._pages[offset // PAGE] + offset % PAGE, data, "a queue")
