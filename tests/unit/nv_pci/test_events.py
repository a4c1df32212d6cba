"""Programs that GSP sends, and its events: what they do, and what they may not."""

from __future__ import annotations

import random
import struct

import pytest

from gpu.autogen.nv import gsp
from gpu.core.errors import FirmwareError, GpuError
from gpu.drivers.boot import BootTimeout
from gpu.drivers.nv.pci import events, sequencer
from gpu.drivers.nv.pci.chips import GH100
from gpu.drivers.nv.pci.msgq import Message
from unit.nv_pci import made
from unit.nv_pci.test_msgq import Other

WRITE, MODIFY, POLL, DELAY, STORE, RESET, START, HALT, RESUME = range(9)


class Cores:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def reset(self) -> None:
        self.asked.append("reset")

    def start(self) -> None:
        self.asked.append("start")

    def wait_halted(self) -> None:
        self.asked.append("halt")

    def resume(self) -> None:
        self.asked.append("resume")


def program(*words: int, size: int | None = None, used: int | None = None) -> bytes:
    head = ((len(words) + 1) if size is None else size, len(words) if used is None else used)
    return struct.pack("<10I", *head, *range(8)) + struct.pack(f"<{len(words) + 1}I", *words, 0)


def test_a_program_does_what_it_says() -> None:
    """Each command once, in order."""
    card, function = made.make_card(GH100)
    function.values.update({0x100: 0xF0F0, 0x104: 0x12})
    cores = Cores()
    words = (WRITE, 0x200, 7, MODIFY, 0x100, 0xFF, 0x0F, POLL, 0x104, 0xF0, 0x10, 5, 9)
    more = (DELAY, 250, STORE, 0x100, 3, RESET, START, HALT, RESUME)
    stored = sequencer.run(card, program(*words, *more), cores)
    assert function.values[0x200] == 7 and function.values[0x100] == 0xF00F
    assert stored[3] == 0xF00F and cores.asked == ["reset", "start", "halt", "resume"]
    assert card.waiter.now_ns() >= 250_000


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (b"123", "3 bytes, its head has 40"),
        (program(DELAY, 1, size=0), "bufferSizeDWord 0"),
        (program(DELAY, 1, size=2, used=2), "cmdIndex at offset 4 is 2"),
        (program(DELAY, 1, size=9999, used=9998), "cmdIndex at offset 4 is 9998"),
        (program(9), "opCode at offset 0x28 is 0x9, which is none"),
        (program(DELAY, 1, POLL, 0, 0), "opCode at offset 0x30 is 0x2, with 5 words"),
        (program(WRITE, 0x1000000, 1), "addr 0x1000000 is no register"),
        (program(WRITE, 0x102, 1), "addr 0x102 is no register"),
        (program(STORE, 0x100, 8), "index 8 of 8"),
    ],
)
def test_a_program_that_is_not_whole_does_nothing(payload: bytes, what: str) -> None:
    """No command of it runs, and the error has offset and field."""
    card, function = made.make_card(GH100)
    before = program(WRITE, 0x200, 7)[40:52]
    if len(payload) > 40 and what.startswith(("opCode", "addr", "index")):
        size, used = struct.unpack_from("<II", payload)
        longer = struct.pack("<II", size + 3, used + 3) + payload[8:40] + before + payload[40:]
        with pytest.raises(FirmwareError):
            sequencer.run(card, longer, Cores())
    with pytest.raises(FirmwareError, match=what):
        sequencer.run(card, payload, Cores())
    assert not function.log


def test_a_poll_is_bounded_by_its_own_time_and_by_the_steps() -> None:
    """Whichever is shorter; the error names the register."""
    card, _ = made.make_card(GH100, seconds=2.0)
    with pytest.raises(BootTimeout, match=r"PMC_BOOT_42 is 0x0.*its error 0x77"):
        sequencer.run(card, program(POLL, 0xA00, 1, 1, 1000, 0x77), Cores())
    assert card.waiter.now_ns() < 3_000_000
    with pytest.raises(BootTimeout):
        sequencer.run(card, program(POLL, 0xA00, 1, 1, 0xFFFFFFFF, 0), Cores())
    with pytest.raises(BootTimeout, match="a delay of GSP's program"):
        sequencer.run(card, program(DELAY, 0xFFFFFFFF), Cores())
    assert card.waiter.now_ns() < 2_100_000_000


def test_random_programs_end_and_stay_within() -> None:
    """Whatever the words: done, or refused by a typed error."""
    rng = random.Random(5)
    for _ in range(150):
        card, function = made.make_card(GH100, seconds=0.01)
        words = [rng.choice((rng.randrange(9), rng.randrange(1 << 25), 4)) for _ in range(20)]
        try:
            sequencer.run(card, program(*words), Cores())
        except (FirmwareError, BootTimeout):
            pass
        except GpuError as error:
            raise AssertionError(str(error)) from error
        assert all(offset < 1 << 24 for offset, _ in function.log)
        assert card.waiter.now_ns() <= 11_000_000


def test_events_before_the_one_that_is_waited_for_are_served_in_order() -> None:
    """A program, an error, others of this branch; then it."""
    other = Other().linked()
    card, function = made.make_card(GH100)
    xid = struct.pack("<III256sI", 13, 0, 3, b"a fault\0junk", 0)
    other.say(gsp.NV_VGPU_MSG_EVENT_GSP_RUN_CPU_SEQUENCER, program(WRITE, 0x200, 7))
    other.say(gsp.NV_VGPU_MSG_EVENT_OS_ERROR_LOG, xid)
    other.say(0x1013, b"whatever")
    other.say(gsp.NV_VGPU_MSG_EVENT_GSP_INIT_DONE)
    done = gsp.NV_VGPU_MSG_EVENT_GSP_INIT_DONE
    message = events.wait_for(card, other.queues, done, Cores())
    assert message.function == done and function.values[0x200] == 7
    assert events.describe_error(xid) == "Xid 13, runlist 0, channel 3: a fault"


def test_a_message_that_nobody_waits_for_is_refused() -> None:
    """A reply to nothing, and an event of a later branch."""
    card, _ = made.make_card(GH100)
    for number in (76, 0x1000, gsp.NV_VGPU_MSG_EVENT_NUM_EVENTS, 0xFFFFFFFF):
        with pytest.raises(FirmwareError, match=f"function {number:#x}"):
            events.serve(card, Message(number, 0, 0, b""), Cores())
    with pytest.raises(FirmwareError, match="OS_ERROR_LOG has 3 bytes"):
        events.serve(card, Message(0x1006, 0, 0, b"abc"), Cores())


def test_an_init_that_failed_is_an_error_by_name() -> None:
    """The status is the header's."""
    other = Other().linked()
    card, _ = made.make_card(GH100)
    other.say(0x1001)
    status = other.memory
    status.write(0x41000 + 0x1000 + 0x30 + 0x10, 4, 0x65)
    checksum = status.read(0x41000 + 0x1000 + 0x20, 4)
    status.write(0x41000 + 0x1000 + 0x20, 4, checksum ^ 0x65)
    with pytest.raises(FirmwareError, match=r"GSP_INIT_DONE says 0x65 .*TIMEOUT"):
        events.wait_for(card, other.queues, 0x1001, Cores())


def test_silence_is_bounded() -> None:
    """The wait names what is waited for."""
    other = Other().linked()
    card, _ = made.make_card(GH100, seconds=3.0)
    with pytest.raises(BootTimeout, match="GSP_INIT_DONE is waited for"):
        events.wait_for(card, other.queues, 0x1001, Cores())
    assert card.waiter.now_ns() <= 3_100_000_000
