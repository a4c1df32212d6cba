"""Packets, registers, indirect buffers, waits and events of the command processor."""

from __future__ import annotations

import errno
import random
import struct

import pytest

from gpu.core.errors import HwTimeout, TransportError
from gpu.sim.kgsl.world import KgslWorld
from sim.kgsl.conftest import Make
from sim.kgsl.raw_kgsl import (
    DONE,
    DROP_UCHE,
    FLUSH,
    PAGE,
    Object,
    RawKgsl,
    fails,
    halves,
    operation,
    registers,
)


def word(user: RawKgsl, item: Object, at: int = 0) -> int:
    return item.host.read(at, 4)


def refused(user: RawKgsl, words: list[int], message: str) -> None:
    """The command processor stops at some dwords: the context is invalid, and says no more."""
    debug, context = user.world.debug, user.new_context()
    stamp = user.run(words, wait=False, context=context)
    with fails(errno.EDEADLK):
        user.wait(stamp, context=context)
    assert message in debug.violations[-1], debug.violations[-1]
    user.destroy(context)


# Headers.


@pytest.mark.parametrize("bit", [15, 23])
def test_parity_of_operations(user: RawKgsl, bit: int) -> None:
    (head,) = operation("NOP")
    refused(user, [head ^ 1 << bit], "the parity of the header")


@pytest.mark.parametrize("bit", [7, 27])
def test_parity_of_register_writes(user: RawKgsl, bit: int) -> None:
    head, value = registers(0xA9B1, 1)
    refused(user, [head ^ 1 << bit, value], "the parity of the header")


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 5, 6, 8, 15])
def test_types_of_packets(user: RawKgsl, kind: int) -> None:
    refused(user, [kind << 28 | 0x10], f"a packet of type {kind}; there are 4 and 7")


def test_reserved_bits_and_lengths(user: RawKgsl) -> None:
    (head,) = operation("NOP")
    refused(user, [head | 1 << 24], "has bits that no field has")
    refused(user, registers(0xA9B1), "writes no register")
    refused(user, operation("NOP", 1, 2)[:-1], "a packet of 3 dwords in a buffer that has 2 left")
    refused(user, operation("WAIT_FOR_IDLE", 0), "CP_WAIT_FOR_IDLE of 1 dwords; it has 0")
    refused(user, operation("MEM_WRITE", 0, 0), "CP_MEM_WRITE of 2 dwords")


def test_packets_that_are_not_for_users(user: RawKgsl) -> None:
    refused(user, operation("PROTECT", 0), "CP_SET_PROTECTED_MODE is not modelled, or not for")
    refused(user, operation("DRAW", 0, 0, 0), "CP_DRAW_INDX_OFFSET is not modelled")
    refused(user, operation(0x7E), "opcode 0x7e is no packet")


# Registers.


@pytest.mark.parametrize(
    ("chip", "offset", "is_protected"),
    [
        *(("a630", 0x800, True), ("a630", 0xAF80, True), ("a660", 0xAF80, False)),
        *(("a630", 0x980, True), ("a660", 0xB608, True), ("a630", 0xB608, False)),
    ],
)
def test_registers_that_are_protected(
    make: Make, chip: str, offset: int, is_protected: bool
) -> None:
    user = RawKgsl(make(chip=chip).process)
    if is_protected:
        refused(user, registers(offset, 0), f"({offset:#x}), which is protected")
    else:
        user.run(registers(offset, 0))


def test_protected_registers_may_be_read_where_their_row_says_so(user: RawKgsl) -> None:
    item = user.alloc(PAGE)
    user.run(operation("REG_TO_MEM", 0x8D0, *halves(item.address)))
    refused(
        user,
        operation("REG_TO_MEM", 0x800, *halves(item.address)),
        "a read of CP_RB_BASE (0x800), which is protected",
    )


def test_writes_that_mean_nothing(user: RawKgsl, world: KgslWorld) -> None:
    user.run(registers(0xA9B0, 1 << 25))
    assert "SP_CS_CTRL_REG0 = 0x2000000: its bits 0x2000000" in world.debug.violations[-1]
    user.run(registers(0x2FFF0, 1))
    assert "a write of 0x1 to 0x2fff0, where no register is" in world.debug.violations[-1]
    item = user.alloc(PAGE)
    user.run(operation("REG_TO_MEM", 0x2FFF0, *halves(item.address)))
    assert "a read of 0x2fff0" in world.debug.violations[-1]


def test_registers_are_poisoned_between_commands(user: RawKgsl) -> None:
    """Another context may have run: nothing is left that a command before has written."""
    item = user.alloc(PAGE)
    read = operation("REG_TO_MEM", 0xA9B1, *halves(item.address))
    user.run(registers(0xA9B1, 5) + read)
    assert word(user, item) == 5
    user.run(read)
    assert word(user, item) == 0xB1A5_B1A5


def test_the_clock_counts_at_19_2_mhz(user: RawKgsl, world: KgslWorld) -> None:
    item = user.alloc(PAGE)
    for head in (0x980 | 1 << 30, 0x980 | 2 << 18, 0x980 | 2 << 18 | 1 << 30):
        user.run(operation("REG_TO_MEM", head, *halves(item.address)))
        ticks = item.host.read(0, 8)
        assert ticks <= world.clock.now_ns * 192 // 10_000 < ticks + 5000
        world.clock.advance(10_000_000)
    refused(user, operation("REG_TO_MEM", 0x980 | 1 << 31, *halves(item.address)), "ACCUMULATE")


# Indirect buffers.


def test_buffers_call_others_once(user: RawKgsl) -> None:
    inner, item = user.alloc(PAGE), user.alloc(PAGE)
    words = operation("MEM_WRITE", *halves(item.address), 5)
    inner.host.store(0, struct.pack(f"<{len(words)}I", *words))
    user.run(operation("IB", *halves(inner.address), len(words)) + operation("NOP"))
    assert word(user, item) == 5
    third = user.alloc(PAGE)
    third.host.store(0, struct.pack("<I", *operation("NOP")))
    deeper = operation("IB", *halves(third.address), 1)
    inner.host.store(0, struct.pack("<4I", *deeper))
    refused(user, operation("IB", *halves(inner.address), 4), "in one that another called")
    refused(user, operation("IB", *halves(inner.address), 0), "an indirect buffer of 0 dwords")
    refused(user, operation("IB", *halves(inner.address + 2), 4), "an indirect buffer of 4 dwords")


def test_a_chain_leaves_its_buffer(user: RawKgsl, world: KgslWorld) -> None:
    inner, item = user.alloc(PAGE), user.alloc(PAGE)
    words = operation("MEM_WRITE", *halves(item.address), 5)
    inner.host.store(0, struct.pack(f"<{len(words)}I", *words))
    chain = operation("CHAIN", *halves(inner.address), len(words))
    user.run(chain)
    assert word(user, item) == 5 and not world.debug.violations
    user.run(chain + operation("MEM_WRITE", *halves(item.address), 6))
    assert word(user, item) == 5 and "leaves 4 dwords behind it undone" in world.debug.violations[0]


def test_several_buffers_of_a_command_keep_registers(user: RawKgsl) -> None:
    item, buffer = user.alloc(PAGE), user.alloc(PAGE)
    first, second = registers(0xA9B1, 6), operation("REG_TO_MEM", 0xA9B1, *halves(item.address))
    buffer.host.store(0, struct.pack("<6I", *first, *second))
    user.wait(user.submit([(buffer.address, 8), (buffer.address + 8, 16)]))
    assert word(user, item) == 6


def test_dwords_are_left_out(user: RawKgsl) -> None:
    item, flags = user.alloc(PAGE), user.alloc(PAGE)
    body = operation("MEM_WRITE", *halves(item.address), 7)
    at = halves(flags.address)
    for first, ref, expected in ((0, 0, 0), (1, 9, 0), (1, 1, 7)):
        flags.host.write(0, 4, first)
        item.host.write(0, 4, 0)
        user.run(operation("COND_EXEC", *at, *at, ref, len(body)) + body)
        assert word(user, item) == expected
    flags.host.write(0, 4, 0)
    refused(user, operation("COND_EXEC", *at, *at, 0, 9), "9 dwords are to be left out")


# Memory.


def test_words_are_added(user: RawKgsl) -> None:
    item = user.alloc(PAGE)
    item.host.store(0, struct.pack("<QQQQ", 0, 50, 7, 1 << 33))
    places = [halves(item.address + 8 * i) for i in range(4)]
    user.run(operation("MEM_TO_MEM", 1 << 29 | 2, *places[0], *places[1], *places[2], *places[3]))
    assert item.host.read(0, 8) == 50 - 7 + (1 << 33)
    user.run(operation("MEM_TO_MEM", 1, *places[0], *places[2]))
    assert word(user, item) == (1 << 32) - 7
    user.run(operation("MEMCPY", 4, *places[2], *places[0]))
    assert item.host.read(0, 8) == 7
    refused(user, operation("MEM_TO_MEM", 0, 2, 0, 0, 0), "which is no multiple of 4")


def test_what_was_written_is_waited_for(user: RawKgsl, world: KgslWorld) -> None:
    one, two = user.alloc(PAGE), user.alloc(PAGE)
    write = operation("MEM_WRITE", *halves(one.address), 5)
    copy = operation("MEM_TO_MEM", 0, *halves(two.address), *halves(one.address))
    user.run(write + operation("WAIT_MEM_WRITES") + copy)
    user.run(write + operation("MEM_TO_MEM", 1 << 30, *halves(two.address), *halves(one.address)))
    poll = operation("WAIT_REG_MEM", 0x13, *halves(one.address), 5, 0xFFFF_FFFF, 1)
    user.run(write + poll + copy)
    assert word(user, two) == 5 and not world.debug.violations
    user.run(write + copy)
    assert "CP_WAIT_MEM_WRITES comes in between" in world.debug.violations[-1]


@pytest.mark.parametrize(
    ("function", "value", "is_met"),
    [
        *((1, 4, True), (1, 5, False), (2, 5, True), (3, 5, True), (3, 4, False), (4, 4, True)),
        *((4, 5, False), (5, 5, True), (5, 4, False), (6, 6, True), (6, 5, False), (0, 9, True)),
    ],
)
def test_polls(user: RawKgsl, function: int, value: int, is_met: bool) -> None:
    item = user.alloc(PAGE)
    item.host.write(0, 4, value | 0xFF00)
    words = operation("WAIT_REG_MEM", 0x10 | function, *halves(item.address), 5, 0xFF, 1)
    stamp = user.run(words, wait=False)
    if is_met:
        user.wait(stamp)
    else:
        with fails(errno.ETIMEDOUT):
            user.wait(stamp, 5)


def test_polls_of_registers_and_of_a_least_value(user: RawKgsl) -> None:
    user.run(registers(0xA9B1, 5) + operation("WAIT_REG_MEM", 3, 0xA9B1, 0, 5, 0xFF, 1))
    item = user.alloc(PAGE)
    item.host.write(0, 4, 6)
    user.run(operation("WAIT_MEM_GTE", 0, *halves(item.address), 6))
    at = halves(item.address)
    refused(user, operation("WAIT_REG_MEM", 0x17, *at, 1, 1, 1), "with function 7")
    refused(user, operation("WAIT_REG_MEM", 0x23, *at, 1, 1, 1), "polls place 2")
    refused(user, operation("WAIT_REG_MEM", 0x113, *at, 1, 1, 1), "only function and place")


def test_a_wait_that_nobody_ends_says_what_it_waits_for(user: RawKgsl, world: KgslWorld) -> None:
    item = user.alloc(PAGE)
    user.run(operation("WAIT_MEM_GTE", 0, *halves(item.address), 6), wait=False)
    world.run_until_idle()
    with pytest.raises(HwTimeout, match=r"CP_WAIT_MEM_GTE until 0x4000000000 is at least 0x6"):
        world.waiter.idle(1_000_000_000)


# Events.


def test_events_write_values_or_the_time(user: RawKgsl, world: KgslWorld) -> None:
    item = user.alloc(PAGE)
    for event in (FLUSH, DONE):
        item.host.write(0, 8, 0)
        user.run(operation("EVENT", event, *halves(item.address), 77))
        assert item.host.read(0, 8) == 77
        user.run(operation("EVENT", event | 1 << 30, *halves(item.address), 77))
        assert abs(item.host.read(0, 8) - world.clock.now_ns * 192 // 10_000) < 5000
    user.run(operation("EVENT", DROP_UCHE) + operation("EVENT", 25) + operation("EVENT", 63))
    assert not world.debug.violations


def test_events_that_are_wrong(user: RawKgsl, world: KgslWorld) -> None:
    item = user.alloc(PAGE)
    user.run(operation("EVENT", FLUSH))
    assert "CACHE_FLUSH_TS has no address" in world.debug.violations[-1]
    user.run(operation("EVENT", FLUSH | 1 << 31, *halves(item.address), 1))
    assert "interrupts are the kernel's" in world.debug.violations[-1]
    refused(user, operation("EVENT", 30), "CP_EVENT_WRITE of BLIT is not modelled")
    refused(user, operation("EVENT", 200), "event 200 is not modelled")
    refused(user, operation("EVENT", FLUSH, 1, 0), "CP_EVENT_WRITE of 3 dwords; it has 1 or 4")


def test_markers_are_of_compute(user: RawKgsl, world: KgslWorld) -> None:
    user.run(operation("SET_MARKER", 8))
    assert not world.debug.violations
    user.run(operation("SET_MARKER", 1))
    assert "compute runs in RM6_COMPUTE" in world.debug.violations[-1]
    user.run(operation("SET_MARKER", 0x108))
    assert "only the mode in its low 4 bits is for users" in world.debug.violations[-1]


def test_an_event_loses_its_value(make: Make) -> None:
    world = make(faults=["stuck-fence"])
    user = RawKgsl(world.process)
    item = user.alloc(PAGE)
    user.run(operation("EVENT", FLUSH, *halves(item.address), 1))
    assert word(user, item) == 0 and "was lost" in world.debug.records[-1].what


def test_a_register_is_written_by_an_operation(user: RawKgsl) -> None:
    item = user.alloc(PAGE)
    words = operation("REG_WRITE", 0, 0xA9B1, 9)
    user.run(words + operation("REG_TO_MEM", 0xA9B1, *halves(item.address)))
    assert word(user, item) == 9


def test_bytes_that_mean_nothing_never_end_the_model(user: RawKgsl, world: KgslWorld) -> None:
    draw = random.Random(5)
    for _ in range(60):
        body = [draw.choice([0, 1, draw.getrandbits(32)]) for _ in range(draw.randrange(9))]
        code = draw.choice([0x10, 0x26, 0x3D, 0x3E, 0x46, 0x73, 0x34, 0x33])
        words = operation(code, *body)
        if draw.random() < 0.3:
            words[draw.randrange(len(words))] ^= 1 << draw.randrange(32)
        context = user.new_context()
        stamp = user.run(words, wait=False, context=context)
        try:
            user.wait(stamp, 50, context)
        except TransportError as error:
            assert error.errno in (errno.EDEADLK, errno.ETIMEDOUT), error
        user.destroy(context)
    assert user.run(operation("NOP"))
