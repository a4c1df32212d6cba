"""The queues against another side that holds to msgq.c, and against one that does not."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from gpu.autogen.nv import gsp
from gpu.core.errors import FirmwareError
from gpu.core.window import MemoryWindow
from gpu.drivers.boot import BootTimeout
from gpu.drivers.nv.pci import msgq
from unit.nv_pci import made

COMMAND, STATUS = 0x1000, 0x41000
ENTRIES, COUNT = 0x1000, 63


class Other:
    """GSP's side, written down from msgq.c."""

    def __init__(self, swap: int = 1):
        self.card, _ = made.make_card()
        self.memory = MemoryWindow.over(bytearray(0x81000))
        self.rings = 0
        pages = [0x10000 * (number + 1) for number in range(0x81)]
        self.queues = msgq.Queues(self.memory, pages, self.card.wait_value, self._ring)
        self.swap = swap
        self.read = self.written = self.sequence = 0
        self.on_ring: Callable[[], None] = lambda: None

    def _ring(self) -> None:
        self.rings += 1
        self.on_ring()

    def start(self, **changed: int) -> None:
        head = {
            "version": 0,
            "size": 0x40000,
            "msgSize": 0x1000,
            "msgCount": 63,
            "writePtr": 0,
            "flags": self.swap,
            "rxHdrOff": 0x20,
            "entryOff": 0x1000,
            **changed,
        }
        self.memory.store(STATUS, struct.pack("<8I", *head.values()))

    def take(self) -> bytes | None:
        """The elements of one command."""
        written = self.memory.read(COMMAND + 0x10, 4)
        if written == self.read:
            return None
        (count,) = struct.unpack("<I", self._element(COMMAND, self.read)[0x28:0x2C])
        data = b"".join(self._element(COMMAND, self.read + index) for index in range(count))
        self.read = (self.read + count) % COUNT
        self.memory.write((STATUS if self.swap else COMMAND) + 0x20, 4, self.read)
        return data

    def _element(self, queue: int, index: int) -> bytes:
        return self.memory.load(queue + ENTRIES + index % COUNT * 0x1000, 0x1000)

    def say(self, function: int, payload: bytes = b"", **changed: int) -> None:
        """A message in the status queue, with some members changed."""
        length = 0x20 + len(payload)
        count = -(-(0x30 + length) // 0x1000)
        fields = {"seqNum": self.sequence, "elemCount": count, "signature": 0x43505256} | {
            "length": length,
            **changed,
        }
        rpc = (3 << 24, fields["signature"], fields["length"], function, 0, 0, 0, 0)
        body = struct.pack("<8I", *rpc) + payload

        def element(checksum: int) -> bytes:
            words = (checksum, fields["seqNum"], fields["elemCount"], 0)
            return bytes(32) + struct.pack("<4I", *words) + body

        whole = element(0)
        sum64 = 0
        for (word,) in struct.iter_unpack("<Q", whole + bytes(-len(whole) % 8)):
            sum64 ^= word
        checksum = (sum64 >> 32 ^ sum64 & 0xFFFFFFFF) ^ changed.get("checkSum", 0)
        data = element(checksum).ljust(count * 0x1000, b"\0")
        for index in range(count):
            at = (self.written + index) % COUNT
            part = data[index * 0x1000 : (index + 1) * 0x1000]
            self.memory.store(STATUS + ENTRIES + at * 0x1000, part)
        self.written = (self.written + count) % COUNT
        self.sequence += 1
        self.memory.write(STATUS + 0x10, 4, self.written)

    def linked(self) -> Other:
        self.start()
        self.queues.link(1.0)
        return self


def test_the_shared_memory_begins_with_the_addresses_of_its_pages() -> None:
    """All of them, the table's own first; then the head of the command queue."""
    other = Other()
    pages = struct.unpack("<129Q", other.memory.load(0, 129 * 8))
    assert pages == tuple(0x10000 * (number + 1) for number in range(129))
    head = struct.unpack("<8I", other.memory.load(COMMAND, 32))
    assert head == (0, 0x40000, 0x1000, 63, 0, 1, 0x20, 0x1000)
    arguments = other.queues.arguments
    assert (arguments.sharedMemPhysAddr, arguments.pageTableEntryCount) == (0x10000, 129)
    assert (arguments.cmdQueueOffset, arguments.statQueueOffset) == (COMMAND, STATUS)


@pytest.mark.parametrize("swap", (0, 1))
def test_commands_arrive_whole_in_order_and_wrap(swap: int) -> None:
    """Random lengths, several times around; each with its checksum, sequence and count."""
    rng = random.Random(swap)
    other = Other(swap).linked()
    for number in range(120):
        payload = rng.randbytes(rng.choice((0, 1, 7, rng.randrange(9000), 0xFFB0)))
        other.queues.send(100 + number, payload, 1.0)
        data = other.take()
        assert data is not None and other.rings == number + 1
        head = gsp.GSP_MSG_QUEUE_ELEMENT.from_buffer_copy(data)
        assert (head.seqNum, head.rpc.function) == (number, 100 + number)
        assert head.elemCount == len(data) // 0x1000 == -(-(0x50 + len(payload)) // 0x1000)
        assert head.rpc.length == 0x20 + len(payload)
        assert data[0x50:][: len(payload)] == payload
        sum64 = 0
        for (word,) in struct.iter_unpack("<Q", data):
            sum64 ^= word
        assert sum64 >> 32 == sum64 & 0xFFFFFFFF
        assert (head.rpc.header_version, head.rpc.signature) == (3 << 24, 0x43505256)
        assert head.rpc.rpc_result == head.rpc.rpc_result_private == 0xFFFFFFFF


def test_a_long_call_goes_on_in_continuation_records() -> None:
    """Each of 16 elements at most; together they are the call."""
    other = Other().linked()
    payload = random.Random(3).randbytes(2 * 0xFFB0 + 17)
    functions, got = [], b""

    def take() -> None:
        nonlocal got
        data = other.take()
        assert data is not None and len(data) <= 16 * 0x1000
        head = gsp.GSP_MSG_QUEUE_ELEMENT.from_buffer_copy(data)
        functions.append(head.rpc.function)
        got += data[0x50 : 0x30 + head.rpc.length]

    other.on_ring = take
    other.queues.send(73, payload, 1.0)
    assert functions == [73, 71, 71] and got == payload


def test_a_full_queue_is_waited_for_and_never_overwritten() -> None:
    """62 elements fit, as one stays free; the next waits until the other side has read."""
    other = Other().linked()
    for _ in range(62):
        other.queues.send(1, b"", 1.0)
    with pytest.raises(BootTimeout, match=r"free elements of the command queue is 0x0.*at least 1"):
        other.queues.send(2, b"", 1.0)
    first = other.take()
    assert first is not None and other.rings == 62
    other.queues.send(3, b"", 1.0)
    for number in range(1, 63):
        data = other.take()
        assert data is not None
        assert gsp.GSP_MSG_QUEUE_ELEMENT.from_buffer_copy(data).seqNum == number


def test_a_reader_beyond_the_queue_is_refused() -> None:
    """It is GSP who writes it."""
    other = Other().linked()
    other.memory.write(STATUS + 0x20, 4, 63)
    with pytest.raises(FirmwareError, match="readPtr 0x3f of 63"):
        other.queues.send(1, b"", 1.0)


@pytest.mark.parametrize("swap", (0, 1))
def test_messages_are_taken_whole_in_order_and_wrap(swap: int) -> None:
    """Random lengths, several times around; the place that is read is told where GSP looks."""
    rng = random.Random(10 + swap)
    other = Other(swap).linked()
    assert other.queues.receive() is None
    for number in range(100):
        payloads = [rng.randbytes(rng.choice((0, 5, rng.randrange(20000)))) for _ in range(3)]
        for payload in payloads:
            other.say(0x1000 + number, payload)
        for payload in payloads:
            message = other.queues.receive()
            assert message is not None
            assert (message.function, message.payload) == (0x1000 + number, payload)
        told = other.memory.read((COMMAND if swap else STATUS) + 0x20, 4)
        assert told == other.written


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"elemCount": 0}, "elemCount at offset 0x1028 .element 0. is 0x0"),
        ({"elemCount": 2}, "elemCount .* of 1 that are there"),
        ({"elemCount": 17}, "elemCount"),
        ({"length": 0x1F}, "rpc.length at offset 0x1038"),
        ({"length": 0x1000}, "rpc.length"),
        ({"length": 0xFFFFFFF0}, "rpc.length"),
        ({"checkSum": 1}, "checkSum at offset 0x1020"),
        ({"seqNum": 7}, "seqNum at offset 0x1024 .* wanted 0x0"),
        ({"signature": 0x43505257}, "rpc.signature at offset 0x1034"),
    ],
)
def test_a_wrong_element_is_named_and_stays(changed: dict[str, int], what: str) -> None:
    """By field and offset; no byte outside is read."""
    other = Other().linked()
    other.say(0x1001, b"abc", **changed)
    for _ in range(2):
        with pytest.raises(FirmwareError, match=what):
            other.queues.receive()
    assert other.memory.read(COMMAND + 0x20, 4) == 0


def test_a_writer_beyond_the_queue_is_refused() -> None:
    """Of which nothing is read."""
    other = Other().linked()
    other.memory.write(STATUS + 0x10, 4, 63)
    with pytest.raises(FirmwareError, match="writePtr is 0x3f of 63"):
        other.queues.receive()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("version", 1), ("size", 0x20000), ("msgSize", 0x800), ("msgCount", 64)),
        *(("rxHdrOff", 0x1C), ("entryOff", 0xFFFFF000)),
    ],
)
def test_a_status_queue_that_does_not_fit_is_refused(field: str, value: int) -> None:
    """By the field, after its time."""
    other = Other()
    other.start(**{field: value})
    with pytest.raises(FirmwareError, match=f"{field} at offset .* is {value:#x}"):
        other.queues.link(1.0)
    assert other.card.waiter.now_ns() <= 1.1e9


def test_a_status_queue_that_nobody_makes_is_waited_for_in_bounds() -> None:
    """GSP has not started."""
    other = Other()
    with pytest.raises(BootTimeout, match="status queue is made is 0x0"):
        other.queues.link(1.0)
