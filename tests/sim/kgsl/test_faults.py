"""Faults and hangs: what the kernel makes of them, and what users are told."""

from __future__ import annotations

import ctypes
import errno
import struct

import pytest

from gpu.core.errors import ConfigError, HwTimeout, TransportError
from gpu.sim.kgsl.world import KgslWorld
from sim.kgsl.conftest import Make
from sim.kgsl.raw_kgsl import (
    CONSUMED,
    FAULT_INFO,
    NO_FAULT_TOLERANCE,
    PAGE,
    QUEUED,
    RETIRED,
    Doubles,
    Kernel,
    Object,
    RawKgsl,
    fails,
    halves,
    operation,
)

BAD = operation(0x7E)
SECOND = 1_000_000_000
TOLERANT = 0


def launch(user: RawKgsl, context: int | None = None) -> int:
    words = Kernel(user.alloc(PAGE).address).words()
    return user.run(words, wait=False, context=context)


def counter(user: RawKgsl) -> tuple[Object, list[int]]:
    """A word, and packets that add 1 to it."""
    item, one = user.alloc(PAGE), user.alloc(PAGE)
    one.host.write(0, 4, 1)
    here = halves(item.address)
    return item, operation("MEM_TO_MEM", 1 << 30, *here, *here, *halves(one.address))


def report(user: RawKgsl, context: int) -> list[tuple[int, int]]:
    """The page faults of a context: address and type."""
    head = struct.pack("<QIIII", 0, 0, 0, context, 0)
    assert struct.unpack_from("<I", user.call("FAULTS", head), 8)[0] == 2
    one = ctypes.create_string_buffer(24)

    def ask() -> None:
        at = ctypes.addressof(one)
        user.call("FAULTS", struct.pack("<QIIII", at, 1, 24, context, 0))

    ask()
    kind, count = struct.unpack_from("<II", one.raw, 8)
    found = ctypes.create_string_buffer(32 * max(count, 1))
    one.raw = struct.pack("<QIIII", ctypes.addressof(found), kind, count, 32, 0)
    ask()
    reports = [struct.unpack_from("<QQQI", found.raw, 32 * i) for i in range(count)]
    return [(address, kind) for address, _, _, kind in reports]


def reset_status(user: RawKgsl, context: int) -> int:
    return int(struct.unpack("<I", user.property(9, 4, struct.pack("<I", context)))[0])


# Contexts that do not tolerate faults.


def test_a_bad_packet_ends_its_context(user: RawKgsl) -> None:
    stamp = user.run(BAD, wait=False)
    with fails(errno.EDEADLK):
        user.wait(stamp)
    for _ in range(2):
        with fails(errno.EDEADLK):
            user.run(operation("NOP"), wait=False)
        with fails(errno.EDEADLK):
            user.wait(stamp)
    # Both timestamps are the last one's: they prove nothing.
    assert [user.timestamp(kind) for kind in (QUEUED, CONSUMED, RETIRED)] == [stamp] * 3
    assert (reset_status(user, user.context), reset_status(user, user.context)) == (1, 0)
    again = user.new_context()
    assert user.run(operation("NOP"), wait=False, context=again) == 1
    user.wait(1, context=again)
    user.destroy(user.context)
    with fails(errno.EINVAL):
        user.wait(stamp)


def test_what_was_queued_behind_a_fault_is_dropped(user: RawKgsl) -> None:
    item, add = counter(user)
    gate = user.alloc(PAGE)
    wait = operation("WAIT_REG_MEM", 0x13, *halves(gate.address), 1, 0xFFFF_FFFF, 1)
    user.run(wait + BAD, wait=False)
    last = [user.run(add, wait=False) for _ in range(20)][-1]
    gate.host.write(0, 4, 1)
    with fails(errno.EDEADLK):
        user.wait(last)
    assert item.host.read(0, 4) == 0 and user.timestamp() == last


def test_others_go_on_when_one_faults(user: RawKgsl, world: KgslWorld) -> None:
    other = RawKgsl(world.new_process())
    item, add = counter(other)
    stamps = []
    for _ in range(3):
        stamps.append(other.run(add, wait=False))
        user_stamp = user.run(BAD, wait=False, context=user.new_context())
    other.wait(stamps[-1])
    assert user_stamp == 1 and item.host.read(0, 4) == 3
    world.run_until_idle()
    assert b"3" in world.os.read_file("/sys/class/kgsl/kgsl-3d0/reset_count")
    assert reset_status(other, other.context) == 0


# Page faults.


@pytest.mark.parametrize(("write", "kind"), [(False, 5), (True, 6)])
def test_page_faults_halt_where_root_says_so(make: Make, write: bool, kind: int) -> None:
    world = make(page_faults="halt")
    user = RawKgsl(world.process, NO_FAULT_TOLERANCE | FAULT_INFO)
    item, hole = user.alloc(PAGE), 0x40_1234_5000
    here, there = halves(item.address), halves(hole + 8)
    body = (*there, *here) if write else (*here, *there)
    stamp = user.run(operation("MEM_TO_MEM", 0, *body), wait=False)
    with fails(errno.EDEADLK):
        user.wait(stamp)
    assert report(user, user.context) == [(hole + 8, kind)]
    assert not world.debug.violations and "is not mapped" in world.debug.faults[0]


def test_reports_of_faults(make: Make) -> None:
    world = make(page_faults="halt")
    user = RawKgsl(world.process)
    told, plain = user.new_context(NO_FAULT_TOLERANCE | FAULT_INFO), user.context
    for context in (told, plain, 99):
        with fails(errno.EINVAL):
            report(user, context)  # it is not invalid, or was not asked for, or is not there
    for context in (told, plain):
        user.run(BAD, wait=False, context=context)
        world.run_until_idle()
    assert report(user, told) == []
    with fails(errno.EINVAL):
        report(user, plain)
    bad = ctypes.create_string_buffer(struct.pack("<QIIII", 1, 7, 1, 32, 0), 24)
    with fails(errno.EINVAL):
        user.call("FAULTS", struct.pack("<QIIII", ctypes.addressof(bad), 1, 24, told, 0))


def test_page_faults_go_by_unseen(user: RawKgsl, world: KgslWorld) -> None:
    """By default the SMMU gives 0, drops writes, and goes on."""
    item, hole = user.alloc(PAGE), halves(0x40_1234_5000)
    item.host.write(0, 4, 7)
    words = operation("MEM_TO_MEM", 0, *halves(item.address), *hole)
    user.run(words + operation("MEM_WRITE", *hole, 5))
    assert item.host.read(0, 4) == 0 and len(world.debug.faults) == 1
    user.run(words)
    assert len(world.debug.faults) == 2


@pytest.mark.parametrize("detail", ["read", "write", "exec"])
def test_injected_page_faults(make: Make, doubles: Doubles, detail: str) -> None:
    for policy in ("halt", "continue"):
        world = make(executor=doubles, page_faults=policy, faults=[f"page-fault:{detail}"])
        user = RawKgsl(world.process)
        stamp = launch(user)
        if policy == "halt":
            with fails(errno.EDEADLK):
                user.wait(stamp)
        else:
            user.wait(stamp)
        assert ("write at" if detail == "write" else "read at") in world.debug.faults[0]


# Hangs.


def test_a_hang_lasts_without_tolerance(make: Make, doubles: Doubles) -> None:
    world = make(executor=doubles, faults=["hang"])
    user = RawKgsl(world.process)
    stamp = launch(user)
    with fails(errno.ETIMEDOUT):
        user.wait(stamp, 60_000)
    with pytest.raises(HwTimeout, match="runs a kernel that does not get on"):
        user.wait(stamp, 0)
    behind = user.new_context()
    blocked = user.run(operation("NOP"), wait=False, context=behind)
    with fails(errno.ETIMEDOUT):
        user.wait(blocked, 1000, behind)
    start = world.clock.now_ns
    user.destroy(user.context)
    assert 30 * SECOND <= world.clock.now_ns - start < 36 * SECOND
    user.wait(blocked, context=behind)
    assert launch(user, behind) and not world.debug.violations


def test_a_hang_ends_after_two_seconds_with_tolerance(make: Make, doubles: Doubles) -> None:
    world = make(executor=doubles, faults=["hang"])
    user = RawKgsl(world.process, TOLERANT)
    start = world.clock.now_ns
    stamp = launch(user)
    with fails(errno.EDEADLK):
        user.wait(stamp, 0)
    assert 2 * SECOND <= world.clock.now_ns - start < 3 * SECOND
    world.os.write_file("/sys/class/kgsl/kgsl-3d0/ft_long_ib_detect", b"0")
    world.faults.add("hang")
    context = user.new_context(TOLERANT)
    stamp = launch(user, context)
    with fails(errno.ETIMEDOUT):
        user.wait(stamp, 10_000, context)


def test_the_hang_detector_ends_a_hang_at_once(make: Make, doubles: Doubles) -> None:
    world = make(executor=doubles, faults=["hang:hard"])
    user = RawKgsl(world.process)
    stamp = launch(user)
    with fails(errno.EDEADLK):
        user.wait(stamp)
    assert "the hang detector has fired" in world.debug.faults[0] and not world.debug.violations


# The policy.


def faulty(user: RawKgsl, add: list[int], context: int) -> int:
    """A command that adds 1, waits for that, and then does what no command may."""
    return user.run(add + operation("WAIT_MEM_WRITES") + BAD, wait=False, context=context)


def test_a_faulty_command_is_left_out(user: RawKgsl) -> None:
    """A bad packet is not tried again; the next submission is told by EPROTO, and accepted."""
    context = user.new_context(TOLERANT)
    item, add = counter(user)
    user.wait(faulty(user, add, context), context=context)
    assert item.host.read(0, 4) == 1  # what it did before the fault is done
    stamp = user.run(add, wait=False, context=context)
    user.wait(stamp, context=context)
    with fails(errno.EPROTO):
        user.run(add, wait=False, context=context)
    assert user.timestamp(QUEUED, context) == stamp + 1
    user.wait(stamp + 1, context=context)
    assert item.host.read(0, 4) == 3


def test_another_contexts_fault_runs_a_command_twice(make: Make, doubles: Doubles) -> None:
    """What was under way in the ring is run again from its start, tolerant or not."""
    world = make(executor=doubles, faults=["reset"])
    user = RawKgsl(world.process)
    item, add = counter(user)
    words = add + operation("WAIT_MEM_WRITES") + Kernel(user.alloc(PAGE).address).words()
    user.run(words)
    assert item.host.read(0, 4) == 2 and reset_status(user, user.context) == 2


def test_a_command_is_tried_once_more_where_asked(make: Make, doubles: Doubles) -> None:
    world = make(executor=doubles, page_faults="halt", faults=["page-fault:read@1+"])
    user = RawKgsl(world.process)
    context = user.new_context(0x1000_0000)  # INVALIDATE_ON_FAULT
    stamp = launch(user, context)
    with fails(errno.EDEADLK):
        user.wait(stamp, context=context)
    assert world.device.dispatcher.resets == 1  # page faults are not tried again


def test_too_many_faults_end_a_context(user: RawKgsl) -> None:
    context = user.new_context(TOLERANT)
    item, add = counter(user)
    outcome: list[int | None] = []
    for _ in range(5):
        try:
            user.wait(faulty(user, add, context), context=context)
            outcome.append(0)
        except TransportError as error:
            outcome.append(error.errno)
    assert errno.EDEADLK in outcome and outcome[0] == 0
    faults = struct.pack("<QIIII", 0, 0, 1, context, 0)
    found = ctypes.create_string_buffer(8)
    asked = struct.pack("<QIII", ctypes.addressof(found), 8, 1, context) + faults[:4]
    user.property(40, 24, asked)
    assert struct.unpack("<iI", found.raw)[0] == 4
    for kind, number, error in ((0, context, errno.EINVAL), (9, context, errno.EOPNOTSUPP)):
        with fails(error):
            user.property(40, 24, struct.pack("<QIIII", 0, 8, kind, number, 0))
    assert item.host.read(0, 4)


def test_the_end_of_a_process_ends_what_hangs(make: Make, doubles: Doubles) -> None:
    world = make(executor=doubles, faults=["hang"])
    before = world.usage()
    user = RawKgsl(world.new_process())
    launch(user)
    user.process.exit()
    assert world.usage() == before
    other = RawKgsl(world.process)
    assert other.run(operation("NOP")) == 1


def test_calls_that_are_refused_on_purpose(make: Make) -> None:
    user = RawKgsl(make(faults=["ioctl:GPUOBJ_ALLOC:ENOMEM", "ioctl:GPU_COMMAND:EINTR"]).process)
    with fails(errno.ENOMEM):
        user.alloc(PAGE)
    item = user.alloc(PAGE)
    item.host.store(0, struct.pack("<I", operation("NOP")[0]))
    with fails(errno.EINTR):
        user.submit([(item.address, 4)])
    assert user.submit([(item.address, 4)]) == 1


@pytest.mark.parametrize("fault", ["ecc", "lost-doorbell", "xid:13"])
def test_faults_that_a_phone_does_not_show(fault: str) -> None:
    with pytest.raises(ConfigError, match=f"fault={fault.partition(':')[0]}: "):
        KgslWorld(faults=[fault])


# Priorities.


def test_a_higher_priority_goes_first(make: Make, doubles: Doubles) -> None:
    firsts = set()
    for seed in range(8):
        world = make(seed=seed, executor=doubles)
        user = RawKgsl(world.process)
        low, high = user.new_context(15 << 12), user.new_context(1 << 12)
        out = user.alloc(PAGE)
        many = [word for i in range(40) for word in operation("MEM_WRITE", *halves(out.address), i)]
        user.run(many, wait=False, context=low)
        stamp = user.run(operation("NOP"), wait=False, context=high)
        user.wait(stamp, context=high)
        firsts.add(user.timestamp(context=low))
    assert 0 in firsts
