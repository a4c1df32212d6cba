"""Objects: sizes, flags, addresses, mappings, lifetimes, imports, the CPU's caches."""

from __future__ import annotations

import ctypes
import errno
import struct

import pytest

from gpu.core import hostmem
from gpu.core.errors import OutOfMemory
from gpu.core.window import MemoryWindow
from gpu.sim.kernel import SysError
from gpu.sim.kgsl.driver.objects import Space
from gpu.sim.kgsl.world import KgslWorld
from sim.kgsl.conftest import Make
from sim.kgsl.raw_kgsl import (
    CLEAN,
    COHERENT,
    CPU_MAP,
    FIXED,
    GUARD,
    INVALIDATE,
    PAGE,
    RANGE,
    READ,
    READ_ONLY,
    SHARED,
    WRITE,
    WRITE_BACK,
    Object,
    RawKgsl,
    fails,
    operation,
)

SPACES = {"4.9": (20 << 30, 28 << 30), "4.19": (256 << 30, 4 << 30), "2025": (256 << 30, 64 << 30)}


def anonymous(size: int) -> int:
    return hostmem.map_anonymous(size)


@pytest.mark.parametrize("kernel", SPACES)
def test_objects_have_whole_pages_and_addresses(make: Make, kernel: str) -> None:
    user = RawKgsl(make(kernel=kernel).process)
    first, second = user.alloc(5000), user.alloc(1)
    assert (first.size, second.size) == (2 * PAGE, PAGE)
    assert first.address == SPACES[kernel][0] and second.address == first.address + 2 * PAGE
    shared = user.alloc(3 * PAGE, CPU_MAP)
    assert shared.address == shared.mapped > SPACES[kernel][1]
    for item in (first, second, shared):
        assert user.get_info(item.address + item.size - 1)[1] == item.id
        assert user.get_info(number=item.id)[0] == item.address


@pytest.mark.parametrize(
    ("size", "flags", "error"),
    [(0, 0, errno.EINVAL), (1 << 32, 0, errno.EINVAL), (PAGE, 8, errno.EOPNOTSUPP)],
    ids=["no bytes", "4 GiB", "secure"],
)
def test_objects_that_are_refused(user: RawKgsl, size: int, flags: int, error: int) -> None:
    with fails(error):
        user.call("ALLOC", struct.pack("<QQ", size, flags))
    with fails(error):
        user.call("ALLOC_ID", struct.pack("<IIQ", 0, flags, min(size, 1 << 32)))


def test_unknown_flags_are_dropped(make: Make) -> None:
    unknown = 1 << 40 | 1 << 6
    for kernel, cached, plain in (("4.9", 0, 0), ("4.19", 1, 1), ("2025", 1, 0)):
        user = RawKgsl(make(kernel=kernel).process)
        for mode, kept in ((WRITE_BACK, cached), (0, plain)):
            flags = user.alloc(PAGE, mode | COHERENT | unknown).flags
            assert not flags & unknown and bool(flags & COHERENT) == bool(kept), (kernel, mode)


def test_alignment_is_kept_and_capped(user: RawKgsl) -> None:
    user.alloc(PAGE)
    wide = user.alloc(PAGE, 21 << 16)
    assert wide.address % (2 << 20) == 0 and wide.flags >> 16 & 0xFF == 21
    assert user.alloc(PAGE, 40 << 16, mapped=False).flags >> 16 & 0xFF == 25
    assert user.alloc(PAGE).flags >> 16 & 0xFF == 12


def test_a_guard_page_stands_behind_an_object(user: RawKgsl, world: KgslWorld) -> None:
    item = user.alloc(PAGE, GUARD)
    assert user.info(item.id)[2:] == (PAGE, 2 * PAGE)
    target = user.alloc(PAGE)
    body = [*struct.unpack("<II", struct.pack("<Q", target.address))]
    behind = item.address + PAGE
    user.run(operation("MEM_TO_MEM", 0, *body, behind & 0xFFFF_FFFF, behind >> 32))
    assert not world.debug.faults
    user.run(operation("MEM_WRITE", behind & 0xFFFF_FFFF, behind >> 32, 1))
    assert "which is mapped read-only" in world.debug.faults[-1]


def test_read_only_objects(user: RawKgsl, world: KgslWorld) -> None:
    item = user.alloc(PAGE, READ_ONLY)
    user.run(operation("MEM_WRITE", item.address & 0xFFFF_FFFF, item.address >> 32, 1))
    assert "which is mapped read-only" in world.debug.faults[-1] and item.host.read(0, 4) == 0


@pytest.mark.parametrize("number", [7, 0])
def test_unknown_objects(user: RawKgsl, number: int) -> None:
    with fails(errno.EINVAL):
        user.info(number)
    with fails(errno.EINVAL):
        user.free(number)
    with fails(errno.EINVAL):
        user.get_info(number=number)
    with fails(errno.EINVAL):
        user.call("FREE_ID", struct.pack("<I", number))
    with fails(errno.EINVAL):
        user.get_info(0x1234_5000)


def test_mappings_have_the_size_of_their_object(user: RawKgsl) -> None:
    item = user.alloc(2 * PAGE, GUARD, mapped=False)
    for size in (PAGE, 4 * PAGE):
        with fails(errno.ERANGE):
            user.map(item.id, size)
    assert user.map(item.id, 2 * PAGE) and user.map(item.id, 3 * PAGE)
    with fails(errno.EINVAL):
        user.map(99, PAGE)
    by_address = user.os.mmap(user.fd, 2 * PAGE, READ, SHARED, item.address)
    MemoryWindow(user.map(item.id, 2 * PAGE), PAGE).write(8, 4, 77)
    assert MemoryWindow(by_address, PAGE).read(8, 4) == 77


def test_an_address_of_both_is_chosen_once(user: RawKgsl) -> None:
    item = user.alloc(PAGE, CPU_MAP, mapped=False)
    assert item.address == 0
    with pytest.raises(OutOfMemory, match="cannot be the GPU's, too"):
        user.map(item.id, PAGE, flags=SHARED | FIXED, at=1 << 30)
    wide = user.alloc(PAGE, CPU_MAP | 20 << 16, mapped=False)
    with fails(errno.EINVAL):
        user.map(wide.id, PAGE, flags=SHARED | FIXED, at=(65 << 30) + PAGE)
    at = user.map(item.id, PAGE)
    assert user.info(item.id)[0] == at
    with fails(errno.EBUSY):
        user.map(item.id, PAGE)
    assert user.map(wide.id, PAGE) % (1 << 20) == 0


def test_a_hint_is_taken_where_both_can_have_it(user: RawKgsl) -> None:
    hint = 70 << 30
    item = user.alloc(PAGE, CPU_MAP, mapped=False)
    assert user.map(item.id, PAGE, at=hint) == hint
    other = user.alloc(PAGE, CPU_MAP, mapped=False)
    assert user.map(other.id, PAGE, at=hint) not in (0, hint)


def test_freed_objects_live_while_the_cpu_maps_them(user: RawKgsl, world: KgslWorld) -> None:
    before = world.usage()
    item = user.alloc(PAGE)
    user.free(item)
    with fails(errno.EINVAL):
        user.info(item.id)
    item.host.write(0, 4, 5)
    assert world.usage().objects == before.objects + 1
    user.os.munmap(item.mapped, PAGE)
    assert world.usage() == before
    assert user.alloc(PAGE, mapped=False).id == item.id


def test_pages_are_zero_when_they_are_given_again(user: RawKgsl) -> None:
    for flags in (0, WRITE_BACK):
        item = user.alloc(PAGE, flags)
        item.host.store(0, b"x" * PAGE)
        user.free(item)
        user.os.munmap(item.mapped, PAGE)
        again = user.alloc(PAGE, flags)
        assert again.host.load(0, PAGE) == bytes(PAGE)


def test_an_object_may_go_with_a_timestamp(user: RawKgsl, world: KgslWorld) -> None:
    signal = user.alloc(PAGE)
    at = (signal.address & 0xFFFF_FFFF, signal.address >> 32)
    stamp = user.run(operation("WAIT_REG_MEM", 0x13, *at, 1, 0xFFFF_FFFF, 1), wait=False)
    with fails(errno.EINVAL):
        user.free(user.alloc(PAGE, mapped=False), at=(user.context, stamp + 1))
    item = user.alloc(PAGE, mapped=False)
    count = world.usage().objects
    user.free(item, at=(user.context, stamp))
    assert world.usage().objects == count
    signal.host.write(0, 4, 1)
    user.wait(stamp)
    assert world.usage().objects == count - 1


def test_freeing_what_a_command_uses_is_noticed(user: RawKgsl, world: KgslWorld) -> None:
    signal, item = user.alloc(PAGE), user.alloc(PAGE, mapped=False)
    at = (signal.address & 0xFFFF_FFFF, signal.address >> 32)
    words = operation("WAIT_REG_MEM", 0x13, *at, 1, 0xFFFF_FFFF, 1)
    stamp = user.run(words, wait=False, objects=[item])
    user.free(item)
    assert "1 commands that were told of it are under way" in world.debug.violations[-1]
    signal.host.write(0, 4, 1)
    user.wait(stamp)


def test_processes_do_not_see_each_others_objects(user: RawKgsl, world: KgslWorld) -> None:
    item, other = user.alloc(PAGE), RawKgsl(world.new_process())
    with fails(errno.EINVAL):
        other.info(item.id)
    mine = other.alloc(PAGE)
    assert mine.address == item.address and mine.id == item.id
    other.process.exit()
    item.host.write(0, 4, 9)
    assert user.get_info(item.address)[1] == item.id


# Memory of the process.


@pytest.mark.parametrize("mode", ["check", "none"])
def test_imports_are_seen_by_the_gpu(make: Make, mode: str) -> None:
    world = make(coherence=mode)
    user = RawKgsl(world.process)
    host = anonymous(2 * PAGE)
    memory = MemoryWindow(host, 2 * PAGE)
    memory.write(PAGE + 4, 4, 1234)
    number = user.import_memory(host, 2 * PAGE)
    at, _, size, _ = user.info(number)
    target = user.alloc(PAGE)
    here, there = at + PAGE + 4, target.address
    user.run(operation("MEM_TO_MEM", 0, *_halves(there), *_halves(here)))
    assert target.host.read(0, 4) == 1234 and size == 2 * PAGE and not world.debug.violations
    user.run(operation("MEM_WRITE", *_halves(at), 88))
    user.sync(number, INVALIDATE)
    assert memory.read(0, 4) == 88
    with fails(errno.EBUSY):
        user.map(number, 2 * PAGE)
    hostmem.unmap(host, 2 * PAGE)


def _halves(address: int) -> tuple[int, int]:
    return address & 0xFFFF_FFFF, address >> 32


def test_imports_that_are_refused(user: RawKgsl) -> None:
    host = anonymous(PAGE)
    item = user.alloc(PAGE)
    for address, size, error in (
        (host + 64, PAGE, errno.EINVAL),
        (host, 100, errno.EINVAL),
        (0, PAGE, errno.EINVAL),
        (item.mapped, PAGE, errno.EFAULT),
        (50 << 30, PAGE, errno.EFAULT),
    ):
        with fails(error):
            user.import_memory(address, size)
    with fails(524):
        user.import_memory(host, PAGE, kind=1)
    with fails(errno.EINVAL):
        user.import_memory(host, PAGE, kind=3)
    hostmem.unmap(host, PAGE)


def test_imports_at_the_same_address(user: RawKgsl) -> None:
    host = hostmem.map_anonymous(PAGE, 66 << 30, fixed=True)
    number = user.import_memory(host, PAGE, WRITE_BACK | CPU_MAP)
    assert user.info(number)[0] == host
    elsewhere = anonymous(PAGE)
    if not 64 << 30 <= elsewhere < 256 << 30:
        with fails(errno.ENOMEM):
            user.import_memory(elsewhere, PAGE, WRITE_BACK | CPU_MAP)
    user.free(number)
    hostmem.unmap(host, PAGE)
    hostmem.unmap(elsewhere, PAGE)


# The CPU's caches.


def copied(user: RawKgsl, item: Object) -> int:
    """What the GPU reads of the first word."""
    target = user.alloc(PAGE)
    user.run(operation("MEM_TO_MEM", 0, *_halves(target.address), *_halves(item.address)))
    return target.host.read(0, 4)


@pytest.mark.parametrize(("mode", "read"), [("check", 5), ("oldest", 0), ("none", 5)])
def test_what_the_cpu_wrote_must_be_cleaned(make: Make, mode: str, read: int) -> None:
    world = make(coherence=mode)
    user = RawKgsl(world.process)
    item = user.alloc(PAGE, WRITE_BACK)
    item.host.write(0, 4, 5)
    assert copied(user, item) == read
    assert len(world.debug.violations) == (mode == "check")
    item.host.write(0, 4, 6)
    user.sync(item.id, CLEAN | RANGE, 0, 64)
    assert copied(user, item) == 6 and len(world.debug.violations) == (mode == "check")


@pytest.mark.parametrize("flags", [0, WRITE_BACK | COHERENT])
def test_other_memory_needs_no_cleaning(user: RawKgsl, world: KgslWorld, flags: int) -> None:
    item = user.alloc(PAGE, flags)
    item.host.write(0, 4, 5)
    assert copied(user, item) == 5
    user.run(operation("MEM_WRITE", *_halves(item.address), 6))
    assert item.host.read(0, 4) == 6 and not world.debug.violations


def test_what_the_gpu_wrote_is_seen_after_an_invalidate(user: RawKgsl) -> None:
    item = user.alloc(PAGE, WRITE_BACK)
    user.run(operation("MEM_WRITE", *_halves(item.address), 6))
    assert item.host.read(0, 4) == 0
    user.sync(item.id, INVALIDATE)
    assert item.host.read(0, 4) == 6


def test_an_invalidate_loses_what_was_written(user: RawKgsl, world: KgslWorld) -> None:
    item = user.alloc(PAGE, WRITE_BACK)
    item.host.write(0, 4, 5)
    user.sync(item.id, INVALIDATE)
    assert item.host.read(0, 4) == 0 and "loses what the CPU wrote" in world.debug.violations[-1]
    item.host.write(0, 4, 5)
    user.sync(item.id, CLEAN | INVALIDATE)
    assert item.host.read(0, 4) == 5 and len(world.debug.violations) == 1


def test_both_write_one_line(user: RawKgsl, world: KgslWorld) -> None:
    item = user.alloc(PAGE, WRITE_BACK)
    item.host.write(0, 4, 5)
    user.run(operation("MEM_WRITE", *_halves(item.address + 4), 6))
    user.sync(item.id, CLEAN)
    assert "the GPU has written the same line" in world.debug.violations[-1]


def test_ranges_of_a_sync(user: RawKgsl, world: KgslWorld) -> None:
    item = user.alloc(4 * PAGE, WRITE_BACK)
    item.host.write(3 * PAGE, 4, 5)
    user.sync(item.id, CLEAN | RANGE, 0, 64)
    user.sync(item.id, CLEAN | RANGE, 3 * PAGE + 8, 8)  # whole pages
    user.free(item)
    other = user.alloc(4 * PAGE, WRITE_BACK)
    for op, offset, length, error in (
        (RANGE, 0, 64, errno.EINVAL),
        (CLEAN | RANGE, 0, 0, errno.EINVAL),
        (CLEAN | RANGE, 4 * PAGE - 8, 16, errno.ERANGE),
    ):
        with fails(error):
            user.sync(other.id, op, offset, length)
    for count in (0, 129):
        with fails(errno.EINVAL):
            user.sync(other.id, CLEAN, count=count)
    assert not world.debug.violations
    user.sync(999, CLEAN)
    assert "object 999, which there is not" in world.debug.violations[-1]


def test_a_sync_of_an_import_needs_a_cache_mode(user: RawKgsl, world: KgslWorld) -> None:
    host = anonymous(PAGE)
    number = user.import_memory(host, PAGE, flags=0)
    user.sync(number, CLEAN)
    assert "whose cache mode says that nothing is cached" in world.debug.violations[-1]
    hostmem.unmap(host, PAGE)


def test_the_memstore_is_only_read_and_whole(user: RawKgsl) -> None:
    token, size, _ = struct.unpack("<QQI", user.property(2, 24)[:20])
    with fails(errno.EPERM):
        user.os.mmap(user.fd, size, READ | WRITE, SHARED, token)
    with fails(errno.EINVAL):
        user.os.mmap(user.fd, PAGE, READ, SHARED, token)
    at = user.os.mmap(user.fd, size, READ, SHARED, token)
    stamp = user.run(operation("NOP"))
    memstore = MemoryWindow(at, size)
    assert memstore.read(40 * user.context, 4) == memstore.read(40 * user.context + 8, 4) == stamp


def test_memory_that_there_is_not(make: Make) -> None:
    user = RawKgsl(make(faults=["no-memory:gtt@2"]).process)
    user.alloc(PAGE)
    with pytest.raises(Exception, match="Cannot allocate memory"):
        user.alloc(PAGE)
    user.alloc(PAGE)


def test_many_objects_leave_nothing(user: RawKgsl, world: KgslWorld) -> None:
    before = world.usage()
    for i in range(300):
        item = user.alloc(PAGE * (1 + i % 7), mapped=False)
        user.free(item)
    assert world.usage() == before


def test_an_argument_that_cannot_be_read(user: RawKgsl) -> None:
    where = struct.pack("<QQQI", 1, PAGE, WRITE_BACK, 2)
    with fails(errno.EINVAL):
        user.call("IMPORT", where)
    with fails(errno.EFAULT):
        user.call("SYNC", struct.pack("<QII", 1, 24, 1))
    short = ctypes.create_string_buffer(8)
    with fails(errno.EFAULT):
        user.os.ioctl(user.fd, 3 << 30 | 0x30 << 16 | 9 << 8 | 0x45, short)


def test_addresses_run_out() -> None:
    space, among = Space(), range(4 * PAGE, 12 * PAGE)
    space.take(6 * PAGE, PAGE)
    assert space.low_hole(among, 2 * PAGE, PAGE) == 4 * PAGE
    assert space.low_hole(among, 3 * PAGE, PAGE) == 7 * PAGE
    assert space.low_hole(among, PAGE, 8 * PAGE) == 8 * PAGE
    assert space.high_hole(among, among.stop, 3 * PAGE, PAGE) == 9 * PAGE
    assert space.high_hole(among, 8 * PAGE, 2 * PAGE, PAGE) == 4 * PAGE
    for find in (
        lambda: space.low_hole(among, 6 * PAGE, PAGE),
        lambda: space.high_hole(among, among.stop, 6 * PAGE, PAGE),
    ):
        with pytest.raises(SysError, match="ENOMEM"):
            find()
