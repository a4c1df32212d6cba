"""Properties, contexts, timestamps, queues, points to wait for, timelines."""

from __future__ import annotations

import ctypes
import errno
import struct

import pytest

from gpu.core.errors import ConfigError, HwTimeout
from gpu.sim.kgsl.world import KgslWorld
from sim.kgsl.conftest import Make
from sim.kgsl.raw_kgsl import (
    CONSUMED,
    FAULT_INFO,
    NO_FAULT_TOLERANCE,
    NO_GMEM,
    NODE,
    PAGE,
    PREAMBLE,
    QUEUED,
    RETIRED,
    USER_TIMESTAMPS,
    Object,
    RawKgsl,
    fails,
    halves,
    operation,
)

CHIPS = {"a618": 0x06010800, "a630": 0x06030001, "a640": 0x06040001, "a660": 0x06060001}


def gate(user: RawKgsl, context: int | None = None) -> tuple[Object, int]:
    """A command that waits until the first word of an object is 1, and its timestamp."""
    signal = user.alloc(PAGE)
    words = operation("WAIT_REG_MEM", 0x13, *halves(signal.address), 1, 0xFFFF_FFFF, 1)
    return signal, user.run(words, wait=False, context=context)


# The device.


@pytest.mark.parametrize("chip", CHIPS)
def test_device_info(make: Make, chip: str) -> None:
    for kernel, number in (("4.9", int(chip[1:])), ("2025", 0)):
        user = RawKgsl(make(chip=chip, kernel=kernel).process)
        data = user.property(1, 40)
        assert struct.unpack_from("<II", data) == (1, CHIPS[chip])
        assert struct.unpack_from("<I", data, 24)[0] == number
        assert struct.unpack_from("<Q", data, 32)[0] in (512 << 10, 1 << 20, 1536 << 10)


@pytest.mark.parametrize("kernel", ["4.9", "4.19", "2025"])
def test_sizes_of_properties(make: Make, kernel: str) -> None:
    user = RawKgsl(make(kernel=kernel).process)
    if kernel == "2025":
        assert user.property(1, 8, claim=8) == user.property(1, 40)[:8]
        assert user.property(41, 32).startswith(b"Adreno630")
    else:
        with fails(errno.EINVAL):
            user.property(1, 8, claim=8)
    with fails(errno.EINVAL):
        user.property(8, 8)
    with fails(errno.ENODEV if kernel == "2025" else errno.EINVAL):
        user.property(77, 8)


def test_calls_that_there_are_not(make: Make, world: KgslWorld, user: RawKgsl) -> None:
    for number in (0x7F, 0x06):
        with fails(errno.ENOTTY):
            user.call("INFO", number=3 << 30 | 0x30 << 16 | 9 << 8 | number)
    old = RawKgsl(make(kernel="4.19").process)
    with fails(errno.ENOTTY):
        old.call("TIMELINE_CREATE")
    assert not old.world.debug.violations
    with fails(errno.ENOTTY):
        user.call("INFO", number=3 << 30 | 0x20 << 16 | 9 << 8 | 0x50)
    assert "SPARSE_PHYS_ALLOC is not modelled" in world.debug.violations[-1]
    user.call("ALLOC", struct.pack("<QQ", PAGE, 0), number=3 << 30 | 0x30 << 16 | 8 << 8 | 0x45)
    assert "GPUOBJ_ALLOC is 0xc0300945" in world.debug.violations[-1]


def test_machines_that_there_are_not() -> None:
    with pytest.raises(ConfigError, match="no model of 'a631'; did you mean a630"):
        KgslWorld(chip="a631")
    with pytest.raises(ConfigError, match=r"KGSL in '5.4', but in 4.9, 4.19, 2025"):
        KgslWorld(kernel="5.4")
    with pytest.raises(ConfigError, match="KGSL has one GPU"):
        KgslWorld(chip=["a630", "a640"])


def test_files_of_sysfs(user: RawKgsl, world: KgslWorld) -> None:
    folder = "/sys/class/kgsl/kgsl-3d0"
    assert world.os.read_file(f"{folder}/gpu_model") == b"Adreno630v1\n"
    assert "reset_count" in world.os.list_dir(folder)
    for name, on, off in (("ft_pagefault_policy", b"2", b"0"), ("ft_long_ib_detect", b"1", b"0")):
        world.os.write_file(f"{folder}/{name}", on)
        assert world.os.read_file(f"{folder}/{name}") == on + b"\n"
        world.os.write_file(f"{folder}/{name}", off)
        with fails(errno.EINVAL):
            world.os.write_file(f"{folder}/{name}", b"many")
    slow = int(world.os.read_file(f"{folder}/gpuclk"))
    constrained = user.new_context(0x800 | NO_FAULT_TOLERANCE)
    constrain(user, constrained, 1, 1)
    gate(user, constrained)
    assert int(world.os.read_file(f"{folder}/gpuclk")) > slow


def test_counters(make: Make, user: RawKgsl) -> None:
    def read(of: RawKgsl, group: int, count: int = 1) -> int:
        item = ctypes.create_string_buffer(struct.pack("<IIQ", group, 0, 99), 16)
        of.call("COUNTERS", struct.pack("<QI", ctypes.addressof(item), count))
        return int(struct.unpack_from("<Q", item.raw, 8)[0])

    with fails(errno.EPERM):
        read(user, 27)
    old = RawKgsl(make(kernel="4.9").process)
    first, second = read(old, 27), read(old, 27)
    assert 0 < first <= second and read(old, 3) == 0
    for group, count in ((55, 1), (27, 0), (27, 101)):
        with fails(errno.EINVAL):
            read(old, group, count)


def test_a_device_that_is_gone(make: Make) -> None:
    user = RawKgsl(make(faults=["remove@4"]).process)
    user.alloc(PAGE, mapped=False)
    with fails(errno.ENODEV):
        user.alloc(PAGE)
    with fails(errno.ENODEV):
        user.os.open(NODE, 2)
    with fails(errno.ENODEV):
        user.map(1, PAGE)


# Contexts.


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (PREAMBLE, errno.EINVAL),
        (NO_GMEM, errno.EINVAL),
        (PREAMBLE | NO_GMEM | 0x20000, errno.EOPNOTSUPP),
        (PREAMBLE | NO_GMEM | 0x2000_0000, errno.EOPNOTSUPP),
    ],
    ids=["no NO_GMEM_ALLOC", "no PREAMBLE", "secure", "LPAC"],
)
def test_contexts_that_are_refused(user: RawKgsl, flags: int, error: int) -> None:
    with fails(error):
        user.call("CREATE", struct.pack("<II", flags, 0))


def test_flags_of_contexts(make: Make) -> None:
    for kernel, kept in (("4.9", 0), ("2025", FAULT_INFO)):
        user = RawKgsl(make(kernel=kernel).process)
        data = user.call("CREATE", struct.pack("<II", PREAMBLE | NO_GMEM | FAULT_INFO | 1, 0))
        flags = struct.unpack_from("<I", data)[0]
        assert flags == PREAMBLE | NO_GMEM | kept | 0x40 | 8 << 12


def test_how_many_contexts_there_are(user: RawKgsl) -> None:
    made = [user.new_context() for _ in range(200)]
    with fails(errno.ENOSPC):
        user.new_context()
    user.destroy(made[10])
    assert user.new_context() == made[10]


def test_contexts_belong_to_their_process(user: RawKgsl, world: KgslWorld) -> None:
    other = RawKgsl(world.new_process())
    assert other.context != user.context
    for act in (other.destroy, lambda c: other.timestamp(context=c)):
        with fails(errno.EINVAL):
            act(user.context)
    with fails(errno.EINVAL):
        other.wait(0, context=user.context)
    with fails(errno.EINVAL):
        other.submit([], user.context, flags=2)


def test_a_child_uses_what_its_parent_has_opened(user: RawKgsl, world: KgslWorld) -> None:
    item, child = user.alloc(PAGE), world.process.fork()
    found = ctypes.create_string_buffer(struct.pack("<QQQQQI", 0, 0, 0, 0, 0, item.id), 0x30)
    child.os.ioctl(user.fd, 0xC030_0947, found)
    assert struct.unpack_from("<Q", found.raw)[0] == item.address
    child.exit()
    assert user.info(item.id)[0] == item.address


def test_what_a_process_leaves(world: KgslWorld) -> None:
    before = world.usage()
    user = RawKgsl(world.new_process())
    item = user.alloc(PAGE)
    gate(user)
    left = user.process.exit()
    assert str(item.id) in " ".join(left) and f"context {user.context}" in left
    assert world.usage() == before


def constrain(user: RawKgsl, context: int, kind: int, level: int, size: int = 4) -> None:
    data = ctypes.create_string_buffer(struct.pack("<I", level), 4)
    place = ctypes.addressof(data)
    value = ctypes.create_string_buffer(struct.pack("<IIQQ", kind, context, place, size), 24)
    user.call("SETPROPERTY", struct.pack("<IIQQ", 18, 0, ctypes.addressof(value), 24))


def test_power_constraints(user: RawKgsl, world: KgslWorld) -> None:
    constrain(user, user.context, 1, 1)
    assert "without KGSL_CONTEXT_PWR_CONSTRAINT" in world.debug.violations[-1]
    context = user.new_context(0x800)
    constrain(user, context, 1, 1)
    constrain(user, context, 0, 0)
    assert len(world.debug.violations) == 1
    for number, kind, level, size in ((context, 1, 2, 4), (context, 1, 1, 8), (context, 9, 0, 4)):
        with fails(errno.EINVAL):
            constrain(user, number, kind, level, size)
    with fails(errno.EINVAL):
        constrain(user, 99, 1, 1)
    with fails(errno.EINVAL):
        user.call("SETPROPERTY", struct.pack("<IIQQ", 18, 0, 0, 8))
    with fails(errno.EINVAL):
        user.call("SETPROPERTY", struct.pack("<IIQQ", 1, 0, 0, 8))


# Timestamps.


def test_timestamps_follow_each_other(user: RawKgsl) -> None:
    stamps = [user.run(operation("NOP"), wait=False) for _ in range(5)]
    assert stamps == [1, 2, 3, 4, 5]
    user.wait(5)
    assert [user.timestamp(kind) for kind in (QUEUED, CONSUMED, RETIRED)] == [5, 5, 5]
    with fails(errno.EINVAL):
        user.timestamp(4)


def test_waits(user: RawKgsl, world: KgslWorld) -> None:
    signal, stamp = gate(user)
    with fails(errno.ETIMEDOUT):
        user.wait(stamp, 20)
    assert user.timestamp(CONSUMED) == stamp and user.timestamp(RETIRED) == stamp - 1
    with fails(errno.EINVAL):
        user.wait(stamp + 1)
    with pytest.raises(HwTimeout, match=r"without a timeout.*CP_WAIT_REG_MEM until"):
        user.wait(stamp, 0)
    signal.host.write(0, 4, 1)
    user.wait(stamp, 0)
    with fails(errno.EINVAL):
        user.wait(1, context=99)


def test_users_may_number_commands(user: RawKgsl) -> None:
    context = user.new_context(USER_TIMESTAMPS | NO_FAULT_TOLERANCE)
    assert user.run(operation("NOP"), context=context, timestamp=10, wait=False) == 10
    for again in (10, 3):
        with fails(errno.ERANGE):
            user.run(operation("NOP"), context=context, timestamp=again, wait=False)
    user.wait(10, context=context)
    with fails(errno.ETIMEDOUT):
        user.wait(11, 5, context=context)
    near = (1 << 32) - 2
    for stamp in ((1 << 31), near, 1):
        user.run(operation("NOP"), context=context, timestamp=stamp, wait=False)
    user.wait(1, context=context)  # it has wrapped
    assert user.timestamp(context=context) == 1


def test_a_lost_interrupt_and_a_lost_timestamp(make: Make) -> None:
    for fault in ("lost-interrupt", "stuck-fence"):
        user = RawKgsl(make(faults=[fault]).process)
        stamp = user.run(operation("NOP"), wait=False)
        with fails(errno.ETIMEDOUT):
            user.wait(stamp, 50)
        assert user.run(operation("NOP")) == stamp + 1  # the next one makes good
        user.wait(stamp)


def test_markers_end_with_what_is_before_them(user: RawKgsl) -> None:
    assert user.submit([]) == 1 and user.timestamp() == 1
    signal, stamp = gate(user)
    marker = user.submit([], flags=2)
    after = user.run(operation("NOP"), wait=False)
    assert (stamp, marker, after) == (2, 3, 4)
    with fails(errno.ETIMEDOUT):
        user.wait(marker, 5)
    signal.host.write(0, 4, 1)
    user.wait(after)
    assert user.timestamp() == 4


@pytest.mark.parametrize(("kernel", "queue"), [("4.9", 50), ("4.19", 50), ("2025", 49)])
def test_the_queue_is_full(make: Make, kernel: str, queue: int) -> None:
    user = RawKgsl(make(kernel=kernel).process)
    signal, _ = gate(user)
    nop = user.alloc(PAGE)
    nop.host.store(0, struct.pack("<I", operation("NOP")[0]))
    for _ in range(14 + queue):
        user.submit([(nop.address, 4)])
    start = user.world.clock.now_ns
    with fails(errno.ETIMEDOUT):
        user.submit([(nop.address, 4)])
    assert user.world.clock.now_ns - start >= 10_000_000_000
    signal.host.write(0, 4, 1)
    user.wait(user.submit([(nop.address, 4)]))


# Commands.


def test_commands_that_are_refused(user: RawKgsl, world: KgslWorld) -> None:
    item = user.alloc(PAGE)
    good = [(item.address, 4)]
    cases: list[tuple[list[tuple[int, int]], int]] = [
        ([(item.address, 0)], 1),
        ([(item.address, 4 << 20)], 1),
        ([(item.address + 2, 4)], 1),
        ([(0x1000, 4)], 1),
        (good, 0),
        (good, 8),
    ]
    for buffers, flags in cases:
        with fails(errno.EINVAL):
            user.submit(buffers, list_flags=flags)
    with fails(errno.EINVAL):
        user.submit(good * 2001)
    with fails(errno.EINVAL):
        user.submit([], flags=0x400)
    with fails(errno.EINVAL):
        user.submit(good, 99)
    head = struct.pack("<QQIIQIIQIIII", 0, 0, 32, 1, 0, 0, 0, 0, 0, 0, user.context, 0)
    with fails(errno.EINVAL):
        user.call("COMMAND", head)
    head = struct.pack("<QQIIQIIQIIII", 0, 0x10, 32, 1, 0, 0, 0, 0, 0, 0, user.context, 0)
    with fails(errno.EFAULT):
        user.call("COMMAND", head)
    assert not world.debug.violations and user.timestamp(QUEUED) == 0


def test_lists_name_objects_that_are_there(user: RawKgsl, world: KgslWorld) -> None:
    item, other = user.alloc(PAGE), user.alloc(PAGE)
    item.host.store(0, struct.pack("<I", operation("NOP")[0]))
    user.wait(user.submit([(item.address, 4)], number=item.id, objects=[other]))
    assert not world.debug.violations
    user.wait(user.submit([(item.address, 4)], number=other.id))
    assert f"names object {other.id} and 0x4 bytes" in world.debug.violations[-1]
    user.wait(user.submit([(item.address, 4)], objects=[Object(99, 0, 0, 0)]))
    assert "names object 99" in world.debug.violations[-1]
    with fails(errno.EINVAL):
        user.submit([(item.address, 4)], syncs=[(9, b"")])


def test_structures_of_other_sizes(user: RawKgsl) -> None:
    """What a newer program adds must be 0; the step is the kernel's own."""
    item = user.alloc(PAGE)
    item.host.store(0, struct.pack("<I", operation("NOP")[0]))
    entry = struct.pack("<QQQII", 0, item.address, 4, 1, 0)
    for tail, is_refused in ((bytes(8), False), (b"\1" * 8, True)):
        memory = ctypes.create_string_buffer(entry + tail, 40)
        fields = (0, ctypes.addressof(memory), 40, 1, 0, 0, 0, 0, 0, 0, user.context, 0)
        data = struct.pack("<QQIIQIIQIIII", *fields)
        if is_refused:
            with fails(errno.EFAULT):
                user.call("COMMAND", data)
        else:
            user.call("COMMAND", data)


def test_points_to_wait_for(user: RawKgsl) -> None:
    other = user.new_context()
    signal, stamp = gate(user)
    point = (0, struct.pack("<II", user.context, stamp))
    later = user.run(operation("NOP"), wait=False, context=other, syncs=[point])
    with fails(errno.ETIMEDOUT):
        user.wait(later, 5, other)
    signal.host.write(0, 4, 1)
    user.wait(later, context=other)
    assert user.submit([], other, flags=0x400, syncs=[point]) == 0
    for bad in ((0, struct.pack("<II", 99, 1)), (0, struct.pack("<II", user.context, 99))):
        with fails(errno.EINVAL):
            user.submit([], other, flags=0x400, syncs=[bad])
    with fails(errno.EINVAL):
        user.submit([], other, flags=0x400, syncs=[(7, b"12345678")])
    with fails(errno.EINVAL):
        user.submit([], other, flags=0x400, syncs=[point] * 33)
    with fails(errno.EINVAL):
        user.submit([], other, flags=0x400, syncs=[(1, struct.pack("<i", user.fd))])


def test_fences_of_timestamps(user: RawKgsl) -> None:
    signal, stamp = gate(user)
    fd = ctypes.create_string_buffer(4)

    def event(kind: int, at: int, size: int = 4) -> None:
        where = ctypes.addressof(fd)
        user.call("EVENT", struct.pack("<IIIIQQ", kind, at, user.context, 0, where, size))

    event(2, stamp)
    fence = struct.unpack("<i", fd.raw)[0]
    assert user.os.wait([fence], 1_000_000) == []
    other = user.new_context()
    later = user.run(operation("NOP"), wait=False, context=other, syncs=[(1, fd.raw)])
    signal.host.write(0, 4, 1)
    assert user.os.wait([fence], 1_000_000_000) == [fence]
    user.wait(later, context=other)
    for kind, at, size in ((1, stamp, 4), (2, stamp + 9, 4), (2, stamp, 8)):
        with fails(errno.EINVAL):
            event(kind, at, size)
    user.os.close(fence)


# Timelines.


def timeline(user: RawKgsl, value: int = 0) -> int:
    data = user.call("TIMELINE_CREATE", struct.pack("<Q", value))
    return int(struct.unpack_from("<I", data, 8)[0])


def values(*pairs: tuple[int, int], padding: int = 0) -> ctypes.Array[ctypes.c_char]:
    data = b"".join(struct.pack("<QII", value, number, padding) for number, value in pairs)
    return ctypes.create_string_buffer(data, max(len(data), 16))


def raise_to(user: RawKgsl, *pairs: tuple[int, int], size: int = 16, padding: int = 0) -> None:
    given = values(*pairs, padding=padding)
    user.call("TIMELINE_SIGNAL", struct.pack("<QII", ctypes.addressof(given), len(pairs), size))


def wait_for(user: RawKgsl, *pairs: tuple[int, int], ms: int = 5, flags: int = 1) -> None:
    given = values(*pairs)
    head = (0, ms * 1_000_000, ctypes.addressof(given), len(pairs), 16, flags, 0)
    user.call("TIMELINE_WAIT", struct.pack("<qqQIIII", *head))


def query(user: RawKgsl, number: int) -> int:
    data = user.call("TIMELINE_QUERY", struct.pack("<QII", 0, number, 0))
    return int(struct.unpack_from("<Q", data)[0])


def test_timelines(user: RawKgsl) -> None:
    one, two = timeline(user), timeline(user, 5)
    raise_to(user, (one, 3), (two, 4))
    assert (query(user, one), query(user, two)) == (3, 5)
    wait_for(user, (one, 3), (two, 5))
    wait_for(user, (one, 9), (two, 5), flags=2)
    with fails(errno.ETIMEDOUT):
        wait_for(user, (one, 9), (two, 5))
    with fails(errno.EBUSY):
        wait_for(user, (one, 9), ms=0)
    with fails(errno.EINVAL):
        wait_for(user, (one, 1), flags=3)
    given = values((one, 8))
    point = (2, struct.pack("<QII", ctypes.addressof(given), 1, 16))
    stamp = user.run(operation("NOP"), wait=False, syncs=[point])
    with fails(errno.ETIMEDOUT):
        user.wait(stamp, 5)
    raise_to(user, (one, 8))
    user.wait(stamp)


def test_fences_of_timelines(user: RawKgsl) -> None:
    number = timeline(user)
    data = user.call("TIMELINE_FENCE", struct.pack("<QII", 2, number, 0))
    fence = struct.unpack_from("<i", data, 12)[0]
    assert user.os.wait([fence], 1000) == []
    user.call("TIMELINE_DESTROY", struct.pack("<I", number))
    assert user.os.wait([fence], 1000) == [fence]
    user.os.close(fence)


def test_timelines_that_are_refused(user: RawKgsl, world: KgslWorld) -> None:
    number = timeline(user)
    for act in (
        lambda: query(user, 99),
        lambda: raise_to(user, (99, 1)),
        lambda: user.call("TIMELINE_FENCE", struct.pack("<QII", 2, 99, 0)),
        lambda: user.call("TIMELINE_DESTROY", struct.pack("<I", 99)),
    ):
        with fails(errno.ENODEV):
            act()
    with fails(errno.EAGAIN):
        raise_to(user, (number, 1), size=0)
    for act in (
        lambda: raise_to(user),
        lambda: raise_to(user, (number, 1), padding=1),
        lambda: user.call("TIMELINE_QUERY", struct.pack("<QII", 0, number, 1)),
        lambda: RawKgsl(world.new_process()).call("TIMELINE_DESTROY", struct.pack("<I", number)),
    ):
        with fails(errno.EINVAL):
            act()
