"""Rings, doorbells, method headers, semaphores: what runs, what waits, what ends a channel."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.core.errors import HwTimeout
from gpu.sim.nv.world import NvSimWorld
from sim.nv.methods import acquire, inc, release
from sim.nv.numbers import COMPUTE, COPY, COPY0, INVALID_STATE, OK
from sim.nv.raw_nv import RawNv, Ring


def test_releases_on_every_chip(each: RawNv) -> None:
    semaphore = each.buffer()
    each.ring.submit(*release(semaphore.va, 1), *release(semaphore.va + 16, 2, stamp=True))
    each.run()
    assert semaphore.host.read(0, 4) == 1
    assert semaphore.host.read(16, 4) == 2
    assert 0 < semaphore.host.read(24, 8) <= each.world.clock.now_ns
    assert each.ring.error() == (0, 0, 0) and not each.violations


def test_a_ring_wraps(user: RawNv) -> None:
    semaphore = user.buffer()
    for i in range(3 * user.ring.entries):
        user.ring.at = 0
        user.ring.submit(*release(semaphore.va, i))
        user.run()
        assert semaphore.host.read(0, 4) == i
    assert user.ring.get == user.ring.put == 0


def test_the_clock_is_in_the_usermode_page(user: RawNv) -> None:
    before = user.doorbell_page.read(0x80, 8)
    user.ring.submit(*release(user.buffer().va, 1))
    user.run()
    assert before < user.doorbell_page.read(0x80, 8) == user.world.clock.now_ns


def test_nothing_runs_before_the_doorbell(user: RawNv) -> None:
    semaphore = user.buffer()
    user.ring.write_entry(user.ring.entry(release(semaphore.va, 1)))
    user.ring.publish()
    user.run()
    assert semaphore.host.read(0, 4) == 0
    with pytest.raises(HwTimeout, match="doorbell was not rung"):
        user.world.waiter.idle(1000)


def test_a_wrong_token_is_noticed(user: RawNv) -> None:
    user.ring.write_entry(user.ring.entry(release(user.buffer().va, 1)))
    user.doorbell(user.ring.token + 1)
    user.run()
    assert "no channel's token" in user.violations[0]


def test_a_wrong_doorbell_is_noticed(user: RawNv) -> None:
    user.doorbell_page.write(0x94, 4, user.ring.token)
    user.run()
    assert "0x94" in user.violations[0]


def test_tokens_name_runlist_and_channel(user: RawNv) -> None:
    copies = user.open_ring(engine=COPY0 + 4, objects=["copy"])
    assert copies.token >> 16 == 4 and user.ring.token >> 16 == 0
    assert user.ring.token & 0xFFF
    slot = user.world.gpus[0].channels[0].error_memory
    assert slot and struct.unpack("<I", slot.load(16 + 8, 4))[0] == user.ring.token


def test_rings_of_a_channel_that_is_not_scheduled(mapped: RawNv) -> None:
    ring = mapped.open_ring(schedule=False)
    semaphore = mapped.buffer()
    ring.submit(*release(semaphore.va, 1))
    mapped.run()
    assert "never scheduled" in mapped.violations[0] and semaphore.host.read(0, 4) == 0
    assert mapped.control(mapped.last_group, 0xA06C0101, bytearray(b"\1\0\0")) == OK
    mapped.doorbell(ring.token)
    mapped.run()
    assert semaphore.host.read(0, 4) == 1


def test_a_group_may_be_taken_off_the_runlist(user: RawNv) -> None:
    semaphore = user.buffer()
    assert user.control(user.last_group, 0xA06C0101, bytearray(3)) == OK
    user.ring.submit(*release(semaphore.va, 1))
    user.run()
    assert semaphore.host.read(0, 4) == 0
    with pytest.raises(HwTimeout, match="never scheduled"):
        user.world.waiter.idle(1000)


def test_scheduling_needs_a_registered_channel(mapped: RawNv) -> None:
    mapped.open_ring(register=False, schedule=False)
    assert mapped.control(mapped.last_group, 0xA06C0101, bytearray(b"\1\0\0")) == INVALID_STATE


def test_doorbells_hide_each_other_and_both_are_heard(user: RawNv) -> None:
    other = user.open_ring(engine=COPY0 + 4, objects=["copy"])
    semaphore = user.buffer()
    user.ring.submit(*release(semaphore.va, 1))
    other.submit(*release(semaphore.va + 4, 2))
    user.run()
    assert semaphore.host.read(0, 8) == 2 << 32 | 1


def test_delayed_doorbells() -> None:
    world = NvSimWorld(faults=["late-doorbell:3000000@1+"])
    user = RawNv(world.process)
    semaphore = user.buffer()
    before = world.clock.now_ns
    user.ring.submit(*release(semaphore.va, 1))
    user.run()
    assert semaphore.host.read(0, 4) == 1 and world.clock.now_ns - before >= 3_000_000
    world.close()


def test_lost_completions_are_found_by_waiting() -> None:
    world = NvSimWorld(faults=["stuck-fence@1+"])
    user = RawNv(world.process)
    semaphore = user.buffer()
    user.ring.submit(*release(semaphore.va, 1))
    user.run()
    assert semaphore.host.read(0, 4) == 0 and user.ring.get == 1
    with pytest.raises(HwTimeout):
        world.waiter.idle(1000)
    world.close()


@pytest.mark.parametrize(
    ("operation", "met", "unmet"),
    [
        (0, 5, 6),  # equal
        (2, 9, 4),  # greater or equal, unsigned
        (3, 3, (5 - 2**31) % 2**32),  # greater or equal, circular
        (4, 4, 8),  # a bit in common
        (5, 0, 0xFFFFFFFF),  # a bit in neither
    ],
)
def test_acquires(user: RawNv, operation: int, met: int, unmet: int) -> None:
    payload = {0: 5, 2: 5, 3: 3, 4: 5, 5: 5}[operation]
    semaphore = user.buffer()
    semaphore.host.write(0, 4, unmet)
    user.ring.submit(*acquire(semaphore.va, payload, operation), *release(semaphore.va + 8, 1))
    user.run()
    assert semaphore.host.read(8, 4) == 0
    with pytest.raises(HwTimeout, match="waits at a semaphore"):
        user.world.waiter.idle(1000)
    semaphore.host.write(0, 4, met)
    user.run()
    assert semaphore.host.read(8, 4) == 1


def test_acquires_of_64_bits(user: RawNv) -> None:
    semaphore = user.buffer()
    words = (semaphore.va & 0xFFFFFFFF, semaphore.va >> 32, 1, 1, 1 << 24)
    user.ring.submit(*inc(0, 0x5C, *words), *release(semaphore.va + 8, 1))
    semaphore.host.write(0, 4, 1)
    user.run()
    assert semaphore.host.read(8, 4) == 0
    semaphore.host.write(0, 8, 1 << 32 | 1)
    user.run()
    assert semaphore.host.read(8, 4) == 1


def test_channels_wait_for_each_other(user: RawNv) -> None:
    other = user.open_ring(engine=COPY0 + 4, objects=["copy"])
    s = user.buffer()
    user.ring.submit(*acquire(s.va, 1), *release(s.va + 4, 1), *acquire(s.va + 8, 1))
    other.submit(*release(s.va, 1), *acquire(s.va + 4, 1), *release(s.va + 8, 1))
    user.run()
    assert user.ring.get == other.get == 1


def test_headers(user: RawNv) -> None:
    """Increasing, non-increasing, one-increase, immediate, empty, end of segment, and spanning."""
    s = user.buffer()
    low, high = s.va & 0xFFFFFFFF, s.va >> 32
    one_inc = [5 << 29 | 3 << 16 | 0x5C >> 2, low, 0, high]  # the rest goes to 0x60
    user.ring.submit(*one_inc, *inc(0, 0x64, 7, 0, 1))
    user.ring.submit(0, 4 << 29 | 9 << 16 | 0x64 >> 2, *inc(0, 0x5C, low + 4), *inc(0, 0x6C, 1))
    non_inc = [3 << 29 | 2 << 16 | 0x5C >> 2, 0, low + 8]
    user.ring.submit(*non_inc, *inc(0, 0x6C, 1), 7 << 29, 0xFFFFFFFF)
    header, *data = inc(0, 0x5C, low + 12, high, 11, 0, 1)
    user.ring.submit(header, *data[:2])
    user.ring.submit(*data[2:])
    user.run()
    assert [s.host.read(4 * i, 4) for i in range(4)] == [7, 9, 9, 11]
    assert not user.violations


@given(st.sets(st.integers(1, 40)), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_where_a_pushbuffer_is_cut_does_not_matter(cuts: set[int], seed: int) -> None:
    world = NvSimWorld(seed)
    user = RawNv(world.process)
    s = user.buffer()
    words = [w for i in range(7) for w in release(s.va + 16 * i, i + 1, stamp=bool(i & 1))]
    edges = [0, *sorted(cut for cut in cuts if cut < len(words)), len(words)]
    for start, end in pairwise(edges):
        user.ring.write_entry(user.ring.entry(words[start:end]))
    user.ring.kick()
    user.run()
    assert [s.host.read(16 * i, 4) for i in range(7)] == list(range(1, 8))
    assert not user.violations and user.ring.get == user.ring.put
    world.close()


def without_object(user: RawNv) -> list[int]:
    """SET_OBJECT of a class whose object is gone."""
    assert user.free(user.objects["copy"]) == OK
    return inc(4, 0, COPY[user.chip])


BAD: dict[str, tuple[int, Callable[[RawNv], list[int]]]] = {
    "unknown opcode": (32, lambda u: [2 << 29 | 1 << 16, 0]),
    "reserved header bit": (32, lambda u: [1 << 29 | 1 << 16 | 1 << 12, 0]),
    "unknown host method": (32, lambda u: inc(0, 0x10, 1)),
    "illegal method": (32, lambda u: inc(0, 0x4, 1)),
    "misaligned release": (32, lambda u: release(u.buffer().va + 2, 1)),
    "misaligned time stamp": (32, lambda u: release(u.buffer().va + 8, 1, stamp=True)),
    "unknown semaphore bits": (32, lambda u: inc(0, 0x6C, 1 << 8)),
    "semaphore reduction": (32, lambda u: [*release(u.buffer().va, 1)[:-1], 6]),
    "semaphore operation 7": (32, lambda u: [*release(u.buffer().va, 1)[:-1], 7]),
    "semaphore beyond 57 bits": (32, lambda u: release(1 << 57, 1)),
    "misaligned acquire": (32, lambda u: acquire(u.buffer().va + 1, 1)),
    "misaligned release of 64 bits": (
        32,
        lambda u: [*release(u.buffer().va + 4, 1)[:-1], 1 | 1 << 24],
    ),
    "unknown memory operation": (32, lambda u: inc(0, 0x34, 3 << 27)),
    "release to nowhere": (31, lambda u: release(0x1_0000, 1)),
    "acquire from nowhere": (31, lambda u: acquire(0x1_0000, 1)),
    "method before SET_OBJECT": (69, lambda u: inc(1, 0x100, 0)),
    "object that the channel has not": (69, lambda u: inc(1, 0, 0xA140)),
    "object that was freed": (69, without_object),
    "launch of the copy engine before SET_OBJECT": (69, lambda u: inc(4, 0x300, 0x182)),
    "object of another chip": (69, lambda u: inc(1, 0, 0xC6C0)),
    "software subchannel": (69, lambda u: inc(5, 0, COMPUTE[u.chip])),
    "copy on a subchannel of graphics": (69, lambda u: inc(1, 0, COPY[u.chip])),
    "compute on the copy subchannel": (69, lambda u: inc(4, 0, COMPUTE[u.chip])),
    "compute method of Ampere's": (69, lambda u: inc(1, 0, COMPUTE[u.chip]) + inc(1, 0x270, 1)),
    "unknown copy method": (69, lambda u: inc(4, 0, COPY[u.chip]) + inc(4, 0x3F0, 1)),
}


@pytest.mark.parametrize("name", BAD)
def test_pushbuffers_that_end_a_channel(user: RawNv, name: str) -> None:
    number, words = BAD[name]
    after = user.buffer()
    user.ring.submit(*words(user), *release(after.va, 1))
    user.run()
    assert user.ring.error() == (number, 1, 0xFFFF)
    assert after.host.read(0, 4) == 0
    if number != 31:
        assert user.violations
    user.ring.submit(*release(after.va, 1))
    user.run()
    assert after.host.read(0, 4) == 0
    assert "torn down" in user.world.debug.records[-1].what


ENTRIES: dict[str, tuple[int, Callable[[Ring], int]]] = {
    "illegal opcode": (32, lambda r: 1 << 32),
    "unknown opcode": (32, lambda r: 9 << 32),
    "conditional": (32, lambda r: r.entry([0]) | 1),
    "reserved bit": (32, lambda r: r.entry([0]) | 1 << 40),
    "reserved bit of the address": (32, lambda r: r.entry([0]) | 2),
    "beyond 40 bits": (31, lambda r: 0xFF_FFFF_F000 | 1 << 42),
    "longer than what is mapped": (31, lambda r: r.memory.va | 0x1FFFFF << 42),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_ring_entries_that_end_a_channel(user: RawNv, name: str) -> None:
    number, entry = ENTRIES[name]
    user.ring.write_entry(entry(user.ring))
    user.ring.kick()
    user.run()
    assert user.ring.error()[0] == number


def test_control_entries(user: RawNv) -> None:
    semaphore = user.buffer()
    for opcode in (0, 2, 3):
        user.ring.write_entry(opcode << 32)
    user.ring.submit(*release(semaphore.va, 1))
    user.run()
    assert semaphore.host.read(0, 4) == 1 and not user.violations


def test_extended_addresses_are_hoppers(each: RawNv) -> None:
    """SET_PB_SEGMENT_EXTENDED_BASE came with Hopper's channel class."""
    each.ring.write_entry(4 << 32 | 0 << 8)
    each.ring.kick()
    each.run()
    hopper = each.chip in ("gh100", "gb202")
    assert each.ring.error()[0] == (0 if hopper else 32)


def test_gp_put_stays_in_the_ring(user: RawNv) -> None:
    user.ring.publish(user.ring.entries)
    user.doorbell(user.ring.token)
    user.run()
    assert user.ring.error()[0] == 32 and "GP_PUT" in user.violations[0]


def test_entries_may_not_change_after_the_doorbell(user: RawNv) -> None:
    s = user.buffer()
    user.ring.submit(*acquire(s.va, 1))
    user.ring.submit(*release(s.va + 4, 1))
    user.run()  # stands at the acquire
    user.ring.memory.host.write(8, 8, user.ring.entry(release(s.va + 8, 1)))
    s.host.write(0, 4, 1)
    user.run()
    assert "overwritten" in user.violations[0]


def test_an_unmapped_ring_faults(user: RawNv) -> None:
    assert user.free_range(user.ring.memory.va, 256 << 10) == OK
    user.ring.put = 1
    user.ring.kick()
    user.run()
    assert user.world.debug.faults and user.gpu.groups[0].dead


def test_errors_reach_all_channels_of_the_group_and_no_other(user: RawNv) -> None:
    other = user.open_ring()
    memory, error = user.buffer(256 << 10, local=True), user.buffer()
    params = user.channel_params(user.last_share, memory)
    struct.pack_into("<I", params, 0, error.handle)
    user.alloc(0xC86F, params, parent=user.last_group)
    other.submit(*inc(0, 0x4, 1))
    user.run()
    assert other.error() == (32, 1, 0xFFFF)
    assert struct.unpack("<IHH", error.host.load(8, 8)) == (32, 1, 0xFFFF)
    assert user.ring.error() == (0, 0, 0)
    user.ring.submit(*release(error.va, 1))
    user.run()
    assert error.host.read(0, 4) == 1


def test_the_time_of_an_error_has_its_high_half_first(user: RawNv) -> None:
    user.world.clock.advance(1 << 34)
    user.ring.submit(*inc(0, 0x4, 1))
    user.run()
    memory = user.gpu.channels[0].error_memory
    assert memory
    high, low = struct.unpack("<II", memory.load(0, 8))
    assert 0 < high << 32 | low <= user.world.clock.now_ns and high == 4


def test_a_new_group_works_after_an_error(user: RawNv) -> None:
    user.ring.submit(*inc(0, 0x4, 1))
    user.run()
    assert user.free(user.last_group) == OK
    ring, semaphore = user.open_ring(), user.buffer()
    ring.submit(*release(semaphore.va, 9))
    user.run()
    assert semaphore.host.read(0, 4) == 9


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_reproduces(seed: int) -> None:
    def history() -> list[int]:
        world = NvSimWorld(seed)
        user = RawNv(world.process)
        rings = [user.ring, user.open_ring(engine=COPY0 + 4, objects=["copy"])]
        s = user.buffer()
        for ring in rings:
            for i in range(20):
                ring.submit(*release(s.va + 16 * i, i, stamp=True))
        seen = []
        while world.work():
            seen += [ring.get for ring in rings]
        world.close()
        return seen

    assert history() == history()


def test_seeds_differ() -> None:
    def order(seed: int) -> bytes:
        world = NvSimWorld(seed)
        user = RawNv(world.process)
        rings = [user.ring, user.open_ring(engine=COPY0 + 4, objects=["copy"])]
        s = user.buffer()
        for i in range(40):
            for n, ring in enumerate(rings):
                ring.submit(*release(s.va, 2 * i + n + 1))
        user.run()
        last = s.host.load(0, 4)
        world.close()
        return last

    assert len({order(seed) for seed in range(12)}) == 2
