"""UVM: what must come before what, ranges, mappings, registered channels."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.sim.nv.world import NvSimWorld
from sim.nv.methods import acquire, release
from sim.nv.numbers import (
    ADDRESS_IN_USE,
    COPY0,
    GRAPHICS,
    ILLEGAL_ACTION,
    IN_USE,
    INVALID_ADDRESS,
    INVALID_ARGUMENT,
    INVALID_CHANNEL,
    INVALID_DEVICE,
    INVALID_HANDLE,
    INVALID_OBJECT,
    INVALID_OFFSET,
    INVALID_STATE,
    NOT_FOUND,
    NOT_SUPPORTED,
    OK,
    OTHER_DEVICE,
    OUT_OF_RANGE,
    UUID_NOT_FOUND,
    VASPACE,
    VIDMEM,
)
from sim.nv.raw_nv import MIB, PAGE, RawNv, fails, pack

Case = Callable[[RawNv], int]
BASE = 0x3_0000_0000


def fresh(user: RawNv) -> int:
    return user.os.open("/dev/nvidia-uvm", os.O_RDWR)


def test_nothing_works_before_initialize(mapped: RawNv) -> None:
    fd = fresh(mapped)
    calls = ((25, 32, 28), (27, 56, 48), (33, 9264, 9260), (34, 24, 16), (37, 40, 36), (73, 24, 16))
    for number, size, status in calls:
        assert mapped.uvm_call(number, bytearray(size), status, fd) == ILLEGAL_ACTION


def test_initialize(mapped: RawNv) -> None:
    fd = fresh(mapped)
    assert mapped.uvm_call(0x30000001, pack(16, ("Q", 0, 8)), 8, fd) == INVALID_ARGUMENT
    assert mapped.uvm_call(0x30000001, pack(16, ("Q", 0, 1)), 8, fd) == OK
    assert mapped.uvm_call(0x30000001, pack(16, ("Q", 0, 1)), 8, fd) == OK
    assert mapped.uvm_call(0x30000001, bytearray(16), 8, fd) == INVALID_ARGUMENT
    assert mapped.uvm_call(0x30000001, bytearray(16), 8, mapped.uvm_mm) == INVALID_ARGUMENT


def test_mm_initialize(mapped: RawNv) -> None:
    fd = fresh(mapped)
    assert mapped.uvm_call(75, pack(8, ("i", 0, mapped.ctl)), 4, fd) == INVALID_ARGUMENT
    assert mapped.uvm_call(75, pack(8, ("i", 0, fd)), 4, fd) == INVALID_ARGUMENT
    assert mapped.uvm_call(75, pack(8, ("i", 0, -1)), 4, fd) == INVALID_ARGUMENT
    assert mapped.uvm_call(75, pack(8, ("i", 0, mapped.uvm)), 4, fd) == INVALID_STATE
    assert mapped.uvm_call(75, pack(8, ("i", 0, mapped.uvm)), 4, mapped.uvm) == IN_USE
    assert mapped.uvm_call(75, pack(8, ("i", 0, mapped.uvm)), 4, mapped.uvm_mm) == IN_USE


def test_unknown_calls_and_short_arguments_are_errnos(mapped: RawNv) -> None:
    with fails(errno.EINVAL):
        mapped.uvm_call(9999, bytearray(64), 0)
    with fails(errno.EFAULT):
        mapped.os.ioctl(mapped.uvm, 73, bytearray(8))


def test_a_child_may_not_use_its_parents_file(mapped: RawNv) -> None:
    child = mapped.process.fork()
    with fails(errno.EBADF):
        child.os.ioctl(mapped.uvm, 73, bytearray(24))
    child.exit()


def test_gpus_are_registered_once(mapped: RawNv) -> None:
    def gpu(number: int, uuid: bytes, size: int, status: int) -> int:
        return mapped.uvm_call(number, bytearray(uuid) + bytearray(size - 16), status)

    assert gpu(37, bytes(16), 40, 36) == UUID_NOT_FOUND
    assert gpu(37, mapped.uuid, 40, 36) == INVALID_DEVICE
    assert gpu(38, bytes(16), 20, 16) == INVALID_DEVICE
    assert gpu(38, mapped.uuid, 20, 16) == OK
    assert gpu(38, mapped.uuid, 20, 16) == INVALID_DEVICE
    assert mapped.register_vaspace(mapped.vaspace) == INVALID_DEVICE


def test_vaspaces_are_registered_once(mapped: RawNv) -> None:
    assert mapped.register_vaspace(0x77) == NOT_FOUND
    assert mapped.register_vaspace(mapped.device) == INVALID_OBJECT
    assert mapped.register_vaspace(mapped.vaspace) == INVALID_DEVICE
    assert mapped.uvm_call(26, bytearray(mapped.uuid) + bytearray(4), 16) == OK
    assert mapped.uvm_call(26, bytearray(mapped.uuid) + bytearray(4), 16) == INVALID_DEVICE
    assert mapped.register_vaspace(mapped.vaspace) == OK


def test_a_vaspace_has_one_owner(mapped: RawNv) -> None:
    fd, first = fresh(mapped), mapped.uvm
    assert mapped.uvm_call(0x30000001, bytearray(16), 8, fd) == OK
    assert mapped.uvm_call(37, bytearray(mapped.uuid) + bytearray(24), 36, fd) == OK
    mapped.uvm = fd
    assert mapped.register_vaspace(mapped.vaspace) == NOT_SUPPORTED
    mapped.os.close(first)
    assert mapped.register_vaspace(mapped.vaspace) == OK


def test_a_vaspace_of_another_gpu() -> None:
    world = NvSimWorld(chip=("gh100", "gh100"))
    first = RawNv(world.process, upto="memory")
    device = first.alloc(0x80, pack(56, ("I", 0, 1)), parent=first.client)
    other = first.alloc(VASPACE, pack(56, ("I", 4, 8)), parent=device)
    assert first.uvm_call(26, bytearray(first.uuid) + bytearray(4), 16) == OK
    assert first.register_vaspace(other) == OTHER_DEVICE
    world.close()


RANGES: dict[str, tuple[int, tuple[int, int]]] = {
    "unaligned base": (INVALID_ADDRESS, (BASE + 512, PAGE)),
    "unaligned length": (INVALID_ADDRESS, (BASE, PAGE + 8)),
    "base 0": (INVALID_ADDRESS, (0, PAGE)),
    "length 0": (INVALID_ADDRESS, (BASE, 0)),
    "overflow": (INVALID_ADDRESS, ((1 << 64) - PAGE, 2 * PAGE)),
    "the same": (ADDRESS_IN_USE, (BASE + MIB, MIB)),
    "the front half": (ADDRESS_IN_USE, (BASE + MIB // 2, MIB)),
    "the back half": (ADDRESS_IN_USE, (BASE + MIB + MIB // 2, MIB)),
    "around": (ADDRESS_IN_USE, (BASE, 4 * MIB)),
    "inside": (ADDRESS_IN_USE, (BASE + MIB + PAGE, PAGE)),
    "right before": (OK, (BASE, MIB)),
    "right behind": (OK, (BASE + 2 * MIB, MIB)),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges(mapped: RawNv, name: str) -> None:
    status, span = RANGES[name]
    assert mapped.create_range(BASE + MIB, MIB) == OK
    assert mapped.create_range(*span) == status


def test_ranges_are_freed_whole(mapped: RawNv) -> None:
    assert mapped.create_range(BASE, MIB) == OK
    assert mapped.free_range(BASE, MIB // 2) == INVALID_ADDRESS
    assert mapped.free_range(BASE + PAGE, MIB - PAGE) == INVALID_ADDRESS
    assert mapped.free_range(BASE, MIB) == OK
    assert mapped.free_range(BASE, MIB) == INVALID_ADDRESS
    assert mapped.create_range(BASE, MIB) == OK


MAPS: dict[str, tuple[int, Callable[[RawNv, int], int]]] = {
    "no range": (INVALID_ADDRESS, lambda u, m: u.map_range(BASE + 4 * MIB, PAGE, m)),
    "beyond the range": (INVALID_ADDRESS, lambda u, m: u.map_range(BASE, 2 * MIB, m)),
    "unaligned": (INVALID_ADDRESS, lambda u, m: u.map_range(BASE + 1, PAGE, m)),
    "no GPUs": (INVALID_ARGUMENT, lambda u, m: u.map_range(BASE, PAGE, m, count=0)),
    "too many GPUs": (INVALID_ARGUMENT, lambda u, m: u.map_range(BASE, PAGE, m, count=257)),
    "unknown kind": (INVALID_ARGUMENT, lambda u, m: u.map_range(BASE, PAGE, m, kind=4)),
    "unknown memory": (NOT_FOUND, lambda u, m: u.map_range(BASE, PAGE, 0x77)),
    "no memory": (INVALID_HANDLE, lambda u, m: u.map_range(BASE, PAGE, u.device)),
    "beyond the memory": (
        INVALID_OFFSET,
        lambda u, m: u.map_range(BASE, 64 << 10, m, offset=PAGE),
    ),
    "a second GPU that is not registered": (
        INVALID_DEVICE,
        lambda u, m: u.map_range(BASE, PAGE, m, count=2),
    ),
    "unaligned offset": (INVALID_ADDRESS, lambda u, m: u.map_range(BASE, PAGE, m, offset=512)),
    "all of it": (OK, lambda u, m: u.map_range(BASE, 64 << 10, m)),
    "its end": (OK, lambda u, m: u.map_range(BASE + MIB - PAGE, PAGE, m, offset=60 << 10)),
}


@pytest.mark.parametrize("name", MAPS)
def test_mappings(mapped: RawNv, name: str) -> None:
    status, case = MAPS[name]
    assert mapped.create_range(BASE, MIB) == OK
    memory = mapped.alloc(VIDMEM, mapped.memory_params(64 << 10, True), parent=mapped.device)
    assert case(mapped, memory) == status
    assert mapped.world.usage().external == (status == OK)


@pytest.mark.parametrize("field", [20, 24, 28, 32])
def test_attributes_that_are_not_modelled(mapped: RawNv, field: int) -> None:
    """Caching beyond the last; formats and compression, of which there are none but 0."""
    assert mapped.create_range(BASE, MIB) == OK
    memory = mapped.alloc(VIDMEM, mapped.memory_params(PAGE, True), parent=mapped.device)
    data = pack(
        9264, ("Q", 0, BASE), ("Q", 8, PAGE), ("16s", 24, mapped.uuid), ("I", 24 + field, 3)
    )
    struct.pack_into("<QiII", data, 9240, 1, mapped.ctl, mapped.client, memory)
    assert mapped.uvm_call(33, data, 9260) == INVALID_ARGUMENT
    struct.pack_into("<I", data, 24 + field, 0)
    assert mapped.uvm_call(33, data, 9260) == OK


def test_addresses_beyond_the_gpu(mapped: RawNv) -> None:
    memory = mapped.alloc(VIDMEM, mapped.memory_params(PAGE, True), parent=mapped.device)
    assert mapped.create_range(1 << 50, PAGE) == OK
    assert mapped.map_range(1 << 50, PAGE, memory) == OUT_OF_RANGE


def test_a_mapping_keeps_freed_memory(mapped: RawNv) -> None:
    """RM_FREE drops the handle; UVM's duplicate holds the pages until the range goes."""
    buffer = mapped.buffer(64 << 10, local=True)
    buffer.host.write(0, 4, 77)
    assert mapped.free(buffer.handle) == OK
    assert mapped.world.usage().vram == 64 << 10
    assert mapped.free_range(buffer.va, 64 << 10) == OK
    assert mapped.world.usage().vram == 0


def test_mapping_again_replaces(user: RawNv) -> None:
    first, second = user.buffer(), user.buffer()
    assert user.map_range(first.va, PAGE, second.handle) == OK
    user.ring.submit(*release(first.va, 5))
    user.run()
    assert first.host.read(0, 4) == 0 and second.host.read(0, 4) == 5


def test_unmapping_flushes_the_tlb(user: RawNv) -> None:
    buffer = user.buffer()
    user.ring.submit(*release(buffer.va, 5))
    user.run()
    data = pack(40, ("Q", 0, buffer.va), ("Q", 8, PAGE))
    data[16:32] = user.uuid
    assert user.uvm_call(66, data, 32) == OK
    user.ring.submit(*release(buffer.va, 6))
    user.run()
    assert buffer.host.read(0, 4) == 5 and user.ring.error()[0] == 31


def test_read_only_mappings(user: RawNv) -> None:
    buffer = user.buffer()
    assert user.map_range(buffer.va, PAGE, buffer.handle, kind=3) == OK
    user.ring.submit(*release(buffer.va, 6))
    user.run()
    assert user.ring.error()[0] == 31 and "read-only" in user.world.debug.faults[0]


CHANNELS: dict[str, tuple[int, Case]] = {
    "unknown": (INVALID_HANDLE, lambda u: u.register_channel(0x77, BASE, 256 * MIB)),
    "no channel": (INVALID_HANDLE, lambda u: u.register_channel(u.device, BASE, 256 * MIB)),
    "window unaligned": (
        INVALID_ADDRESS,
        lambda u: u.register_channel(u.ring.handle, BASE + 8, 256 * MIB),
    ),
    "window too small": (
        INVALID_ADDRESS,
        lambda u: u.register_channel(u.ring.handle, BASE, 64 * MIB),
    ),
    "window too high": (
        OUT_OF_RANGE,
        lambda u: u.register_channel(u.ring.handle, 1 << 57, 256 * MIB),
    ),
}


@pytest.mark.parametrize(("chip", "fits"), [("ga102", 1), ("ad102", 1), ("gh100", 0), ("gb202", 1)])
def test_windows_of_64_mib(chip: str, fits: bool) -> None:
    """They are known to serve all but Hopper, of which nothing is known."""
    world = NvSimWorld(chip=chip)
    user = RawNv(world.process, upto="memory")
    ring = user.open_ring(register=False, schedule=False)
    status = user.register_channel(ring.handle, user.new_va(64 * MIB), 64 * MIB)
    assert status == (OK if fits else INVALID_ADDRESS)
    world.close()


@pytest.mark.parametrize("name", CHANNELS)
def test_channels_that_are_not_registered(mapped: RawNv, name: str) -> None:
    status, case = CHANNELS[name]
    mapped.ring = mapped.open_ring(register=False, schedule=False)
    before = mapped.world.usage()
    assert case(mapped) == status
    assert mapped.world.usage() == before
    assert mapped.control(mapped.last_group, 0xA06C0101, bytearray(b"\1\0\0")) == INVALID_STATE


def test_a_channel_is_registered_once(user: RawNv) -> None:
    ring = user.ring
    assert user.register_channel(ring.handle, BASE, 256 * MIB) == INVALID_CHANNEL
    data = bytearray(user.uuid) + pack(12, ("I", 0, user.client), ("I", 4, ring.handle))
    assert user.uvm_call(28, data, 24) == OK
    assert user.uvm_call(28, data, 24) == INVALID_CHANNEL


@pytest.mark.parametrize("engine", [GRAPHICS, COPY0 + 4])
def test_an_unregistered_channel_stands_still(mapped: RawNv, engine: int) -> None:
    objects = ["copy"] if engine != GRAPHICS else ["compute"]
    ring, s = mapped.open_ring(engine=engine, objects=objects), mapped.buffer()
    ring.submit(*acquire(s.va, 1), *release(s.va + 4, 1))
    mapped.run()
    data = bytearray(mapped.uuid) + pack(12, ("I", 0, mapped.client), ("I", 4, ring.handle))
    assert mapped.uvm_call(28, data, 24) == OK
    s.host.write(0, 4, 1)
    mapped.run()
    assert s.host.read(4, 4) == 0
    assert mapped.register_channel(ring.handle, BASE, 256 * MIB) == OK
    ring.submit(*release(s.va + 4, 2))
    mapped.run()
    assert s.host.read(4, 4) == 2


def test_a_window_does_not_touch_ranges(mapped: RawNv) -> None:
    ring = mapped.open_ring(register=False, schedule=False)
    assert mapped.create_range(BASE + 16 * MIB, PAGE) == OK
    assert mapped.register_channel(ring.handle, BASE, 148 * MIB) == INVALID_ADDRESS
    assert mapped.register_channel(ring.handle, BASE, 256 * MIB) == OK
    assert mapped.create_range(BASE + 32 * MIB, PAGE) == ADDRESS_IN_USE


def test_a_window_is_no_external_range(mapped: RawNv) -> None:
    ring = mapped.open_ring(register=False, schedule=False)
    assert mapped.register_channel(ring.handle, BASE, 256 * MIB) == OK
    assert mapped.map_range(BASE, PAGE, ring.memory.handle) == INVALID_ADDRESS
    assert mapped.free_range(BASE, 132 * MIB) == INVALID_ADDRESS
    assert mapped.create_range(BASE + 131 * MIB, PAGE) == ADDRESS_IN_USE


def test_unknown_clients(user: RawNv) -> None:
    ring, client = user.ring.handle, user.client
    assert user.create_range(BASE, PAGE) == OK
    user.client = 0x77
    assert user.register_channel(ring, BASE + MIB, 256 * MIB) == INVALID_HANDLE
    assert user.register_vaspace(user.vaspace) == INVALID_HANDLE
    assert user.map_range(BASE, PAGE, user.ring.memory.handle) == INVALID_HANDLE
    user.client = client
    assert user.map_range(BASE, PAGE, user.ring.memory.handle) == OK


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 15), st.integers(1, 6)), max_size=25))
@settings(max_examples=40, deadline=None)
def test_ranges_are_as_a_set_of_pages(calls: list[tuple[bool, int, int]]) -> None:
    world = NvSimWorld()
    user = RawNv(world.process, upto="memory")
    taken: dict[int, int] = {}
    for create, page, count in calls:
        base, size = BASE + page * PAGE, count * PAGE
        if create:
            pages = {p for start, n in taken.items() for p in range(start, start + n)}
            free = pages.isdisjoint(range(page, page + count))
            assert user.create_range(base, size) == (OK if free else ADDRESS_IN_USE)
            if free:
                taken[page] = count
        else:
            there = taken.get(page) == count
            assert user.free_range(base, size) == (OK if there else INVALID_ADDRESS)
            if there:
                del taken[page]
    assert world.usage().ranges == len(taken)
    world.close()


def test_graphics_needs_its_object_first(mapped: RawNv) -> None:
    ring = mapped.open_ring(register=False, schedule=False, objects=[])
    assert mapped.register_channel(ring.handle, BASE, 256 * MIB) == INVALID_STATE


def test_copy_channels_need_no_window(mapped: RawNv) -> None:
    ring = mapped.open_ring(engine=COPY0 + 4, objects=["copy"], register=False)
    assert mapped.register_channel(ring.handle, 0, 0) == OK


def test_a_grce_on_its_own_has_no_context(mapped: RawNv) -> None:
    """UVM takes the runlist's first engine, graphics, and finds no context of it."""
    ring = mapped.open_ring(engine=COPY0, objects=["copy"], register=False, schedule=False)
    assert mapped.register_channel(ring.handle, BASE, 256 * MIB) == NOT_FOUND


def test_channels_of_a_group_share_their_context(mapped: RawNv) -> None:
    mapped.open_ring()
    before = mapped.world.usage().ranges
    memory = mapped.buffer(256 << 10, local=True)
    params = mapped.channel_params(mapped.last_share, memory)
    second = mapped.alloc(0xC86F, params, parent=mapped.last_group)
    assert mapped.register_channel(second, BASE, 256 * MIB) == OK
    assert mapped.world.usage().ranges == before + 1  # the ring's memory


def test_a_channel_of_another_vaspace(mapped: RawNv) -> None:
    space = mapped.alloc(VASPACE, bytearray(56), parent=mapped.device)
    group = mapped.group()
    share = mapped.alloc(0x9067, pack(12, ("I", 0, space)), parent=group)
    memory = mapped.buffer(256 << 10, local=True)
    handle = mapped.alloc(0xC86F, mapped.channel_params(share, memory), parent=group)
    assert mapped.register_channel(handle, BASE, 256 * MIB) == INVALID_CHANNEL


def test_closing_the_file_gives_all_back(user: RawNv) -> None:
    user.buffer(64 << 10, local=True)
    user.os.close(user.uvm)
    usage = user.world.usage()
    assert (usage.ranges, usage.external) == (0, 0)
    user.ring.submit(*release(0x1000, 1))
    user.run()
    assert user.ring.get == 0  # its context is gone: UVM stopped the channel


def test_a_uuid_is_sixteen_bytes(mapped: RawNv) -> None:
    assert len(mapped.uuid) == 16 and struct.unpack("<QQ", mapped.uuid) != (0, 0)
