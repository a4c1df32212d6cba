"""The machine as a whole: what is held and given back, processes, events, several GPUs."""

from __future__ import annotations

import ctypes
import struct

import pytest

from gpu.core.errors import Unsupported
from gpu.sim.nv.world import NvSimWorld
from sim.nv.methods import copy, inc, release
from sim.nv.numbers import (
    COPY,
    COPY0,
    INSUFFICIENT_RESOURCES,
    INVALID_ARGUMENT,
    INVALID_CLIENT,
    INVALID_OBJECT,
    OK,
    OPERATING_SYSTEM,
    PERMISSIONS,
)
from sim.nv.raw_nv import PAGE, RawNv, pack


def test_unknown_chips() -> None:
    with pytest.raises(Unsupported, match="gh100"):
        NvSimWorld(chip="tu102")


def test_memory_and_mappings_stay_flat(user: RawNv) -> None:
    before = user.world.usage()
    for local in (True, False) * 20:
        buffer = user.buffer(64 << 10, local=local)
        assert user.free_range(buffer.va, buffer.size) == OK
        assert user.free(buffer.handle) == OK
    after = user.world.usage()
    assert (after.vram, after.host, after.bar1) == (before.vram, before.host, before.bar1)
    assert (after.objects, after.ranges, after.external) == (
        before.objects,
        before.ranges,
        before.external,
    )
    assert after.files == before.files + 40  # each mapping took a file of its own


def test_a_missing_free_shows(user: RawNv) -> None:
    before = user.world.usage()
    buffer = user.buffer(64 << 10, local=True)
    assert user.free(buffer.handle) == OK  # UVM still has it
    assert user.world.usage().vram == before.vram + (64 << 10)
    assert user.world.usage().external == before.external + 1


def test_an_exit_gives_everything_back(world: NvSimWorld) -> None:
    process = world.new_process()
    user = RawNv(process)
    user.ring.submit(*release(user.buffer().va, 1))
    left = process.exit()
    assert any("/dev/nvidiactl" in item for item in left)
    usage = world.usage()
    assert set(vars_of(usage)) == {0}


def vars_of(usage: object) -> list[int]:
    return [getattr(usage, name) for name in usage.__slots__]  # type: ignore[attr-defined]


def test_processes_share_a_gpu_and_not_their_memory(world: NvSimWorld) -> None:
    first, second = RawNv(world.process), RawNv(world.new_process())
    a, b = first.buffer(), second.buffer()
    first.ring.submit(*release(a.va, 1))
    second.ring.submit(*release(b.va, 2))
    world.run_until_idle()
    assert (a.host.read(0, 4), b.host.read(0, 4)) == (1, 2)
    assert second.create_range(a.va, PAGE) == OK
    assert second.map_raw(a.handle, PAGE, second.os.open("/dev/nvidiactl", 2)) != OK
    data = pack(9264, ("Q", 0, a.va), ("Q", 8, PAGE))
    data[24:40] = second.uuid
    struct.pack_into("<QiII", data, 9240, 1, second.ctl, first.client, a.handle)
    assert second.uvm_call(33, data, 9260) == PERMISSIONS
    second.ring.submit(*release(a.va, 9))
    world.run_until_idle()
    assert second.ring.error()[0] == 31 and first.ring.error()[0] == 0
    assert a.host.read(0, 4) == 1


def test_a_stopped_process_does_not_stop_others(world: NvSimWorld) -> None:
    other = world.new_process()
    stuck = RawNv(other)
    stuck.ring.submit(*release(0x1000, 1))
    user = RawNv(world.process)
    s = user.buffer()
    user.ring.submit(*release(s.va, 1))
    world.run_until_idle()
    other.exit()
    assert s.host.read(0, 4) == 1 and world.usage().channels == 1


def event(user: RawNv, index: int, fd: int, source: int | None = None) -> tuple[int, int]:
    params = pack(24, ("I", 4, source or user.subdevice), ("I", 12, index), ("Q", 16, fd))
    return user.try_alloc(0x79, params, parent=user.subdevice)


def os_event(user: RawNv, number: int, fd: int) -> int:
    data = pack(16, ("I", 0, user.client), ("I", 8, fd))
    user.escape(number, data, fd)
    return int(struct.unpack_from("<I", data, 12)[0])


def fetch(user: RawNv, fd: int) -> tuple[int, tuple[int, ...], int]:
    """(status, (object, index, info), more) of GET_EVENT_DATA."""
    entry = (ctypes.c_uint8 * 16)()
    data = pack(16, ("Q", 0, ctypes.addressof(entry)))
    user.escape(0x52, data, fd)
    more, status = struct.unpack_from("<II", data, 8)
    return status, struct.unpack_from("<III", bytes(entry)), more


def test_events_of_interrupts(user: RawNv) -> None:
    fd = user.dev
    assert event(user, 12, fd)[0] == INVALID_ARGUMENT
    assert os_event(user, 206, fd) == OK
    assert os_event(user, 206, fd) == INSUFFICIENT_RESOURCES
    assert event(user, 12, fd, user.device)[0] == INVALID_OBJECT
    stranger = pack(24, ("I", 0, 0x77), ("I", 4, user.subdevice), ("I", 12, 12), ("Q", 16, fd))
    assert user.try_alloc(0x79, stranger, parent=user.subdevice)[0] == INVALID_OBJECT
    status, handle = event(user, 12, fd)
    assert status == OK and event(user, 12 | 1 << 28, fd)[0] == OK  # without data
    assert fetch(user, fd)[0] == OPERATING_SYSTEM
    user.ring.submit(*inc(0, 0x20, 0), *inc(0, 0x20, 0))
    user.run()
    assert fetch(user, fd) == (OK, (handle, 12, 0), 1)
    assert fetch(user, fd) == (OK, (handle, 12, 0), 0)
    assert user.free(handle) == OK
    user.ring.submit(*inc(0, 0x20, 0))
    user.run()
    assert fetch(user, fd)[0] == OPERATING_SYSTEM
    assert os_event(user, 207, fd) == OK and os_event(user, 207, fd) == INVALID_ARGUMENT


def test_events_of_copies_and_errors(user: RawNv) -> None:
    ring = user.open_ring(engine=COPY0 + 4, objects=["copy"])
    fd = user.dev
    assert os_event(user, 206, fd) == OK
    copied, failed = event(user, 27, fd)[1], event(user, 37, fd)[1]
    a, b = user.buffer(), user.buffer()
    ring.submit(*inc(4, 0, COPY[user.chip]), *copy(a.va, b.va, 4, 0x182 | 2 << 5))
    user.run()
    assert fetch(user, fd)[1] == (copied, 27, 0)
    ring.submit(*copy(a.va, 0x1000, 4))
    user.run()
    assert fetch(user, fd)[1] == (failed, 37, COPY0 + 4)


def test_lost_interrupts() -> None:
    world = NvSimWorld(faults=["lost-interrupt@1+"])
    user = RawNv(world.process)
    assert os_event(user, 206, user.dev) == OK and event(user, 12, user.dev)[0] == OK
    user.ring.submit(*inc(0, 0x20, 0))
    user.run()
    assert fetch(user, user.dev)[0] == OPERATING_SYSTEM
    world.close()


def test_several_gpus() -> None:
    world = NvSimWorld(chip=("gh100", "ad102"))
    users = [RawNv(world.process, gpu_index=i) for i in range(2)]
    buffers = [user.buffer(64 << 10, local=True) for user in users]
    for i, (user, buffer) in enumerate(zip(users, buffers, strict=True)):
        user.ring.submit(*release(buffer.va, i + 1))
    world.run_until_idle()
    assert [buffer.host.read(0, 4) for buffer in buffers] == [1, 2]
    assert world.gpus[0].vram_used and world.gpus[1].vram_used
    assert users[0].uuid != users[1].uuid
    assert users[0].gpu.gpu_id != users[1].gpu.gpu_id
    cards = bytearray(2 * 72)
    users[0].escape(200, cards)
    assert [cards[0], cards[72]] == [1, 1]
    world.close()


def test_a_forked_child_has_the_files_and_not_the_client(user: RawNv) -> None:
    child = user.process.fork()
    files = user.world.usage().files
    assert child.open_files * 2 == files
    data = pack(56, ("I", 0, user.client), ("I", 4, user.device), ("I", 8, user.usermode))
    struct.pack_into("<Q", data, 24, PAGE)
    struct.pack_into("<i", data, 48, user.dev)
    child.os.ioctl(user.ctl, 3 << 30 | 56 << 16 | 0x46 << 8 | 0x4E, data)
    assert struct.unpack_from("<I", data, 40)[0] == INVALID_CLIENT
    child.exit()
    assert user.world.usage().clients == 1
    semaphore = user.buffer()
    user.ring.submit(*release(semaphore.va, 1))
    user.run()
    assert semaphore.host.read(0, 4) == 1
