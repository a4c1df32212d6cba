"""Nodes, escapes and mappings: what is an errno, and what a status."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

import pytest

from gpu.core import hostmem
from gpu.core.window import MemoryWindow
from gpu.sim.nv.world import NvSimWorld
from sim.nv.numbers import (
    ALLOC,
    CONTROL,
    DEVICE,
    FREE,
    INVALID_ARGUMENT,
    INVALID_BASE,
    INVALID_CLIENT,
    INVALID_FLAGS,
    INVALID_LIMIT,
    INVALID_PARENT,
    MAP,
    NO_MEMORY,
    NOT_FOUND,
    NOT_SUPPORTED,
    OK,
    PERMISSIONS,
    RESET_REQUIRED,
    STATE_IN_USE,
    SYSMEM,
    VIDMEM,
)
from sim.nv.raw_nv import PAGE, READ_WRITE, RawNv, fails, pack


def test_files_tell_of_the_driver(world: NvSimWorld) -> None:
    assert b"580.142" in world.os.read_file("/proc/driver/nvidia/version")
    assert world.os.exists("/dev/nvidia0") and not world.os.exists("/dev/nvidia1")
    assert world.os.list_dir("/proc/driver/nvidia/gpus") == ["0000:01:00.0"]


@pytest.mark.parametrize("number", [FREE, CONTROL, ALLOC, MAP, 0x27, 0x34, 0x35, 0x4F, 210])
@pytest.mark.parametrize("change", [-4, 4])
def test_a_wrong_size_is_einval(opened: RawNv, number: int, change: int) -> None:
    sizes = {FREE: 16, CONTROL: 32, ALLOC: 48, MAP: 56, 0x27: 56, 0x34: 28, 0x35: 24, 0x4F: 32}
    fd = opened.dev if number == 0x27 else opened.ctl
    with fails(errno.EINVAL):
        opened.escape(number, bytearray(sizes.get(number, 72) + change), fd)


@pytest.mark.parametrize("number", [FREE, CONTROL, MAP, 0x34, 0x35, 0x4F])
def test_rm_calls_are_for_the_control_file(opened: RawNv, number: int) -> None:
    sizes = {FREE: 16, CONTROL: 32, MAP: 56, 0x34: 28, 0x35: 24, 0x4F: 32}
    with fails(errno.EINVAL):
        opened.escape(number, bytearray(sizes[number]), opened.dev)


def test_alloc_on_a_cards_file_is_einval(opened: RawNv) -> None:
    with fails(errno.EINVAL):
        opened.try_alloc(VIDMEM, parent=opened.device, fd=opened.dev)
    with fails(errno.EINVAL):
        opened.try_alloc(0x41, parent=0, root=0, fd=opened.dev)


def test_unknown_escapes_are_einval(opened: RawNv) -> None:
    for number in (0x32, 0x99, 202, 255):
        with fails(errno.EINVAL):
            opened.escape(number, bytearray(16))


def test_cards(world: NvSimWorld, opened: RawNv) -> None:
    data = bytearray(32 * 72)
    opened.escape(200, data)
    valid, bus, vendor, device = struct.unpack_from("<B7xB3xHH", data)
    assert (valid, bus, vendor, device) == (1, 1, 0x10DE, 0x2335)
    assert struct.unpack_from("<I", data, 16)[0] == world.gpus[0].gpu_id
    assert data[72] == 0
    with fails(errno.EINVAL):
        opened.escape(200, bytearray(71))
    with fails(errno.EINVAL):
        opened.escape(200, bytearray(72), opened.dev)


def test_version_checks(opened: RawNv) -> None:
    query = pack(72, ("I", 0, ord("2")))
    opened.escape(210, query)
    assert query[8:].split(b"\0")[0] == b"580.142" and query[4] == 1
    relaxed = pack(72, ("I", 0, ord("1")), ("10s", 8, b"580.9"))
    opened.escape(210, relaxed)
    for command, text in ((0, b"580.141"), (ord("1"), b"570.142")):
        wrong = pack(72, ("I", 0, command), ("10s", 8, text))
        with fails(errno.EINVAL):
            opened.escape(210, wrong)
        assert wrong[4] == 0 and wrong[8:15] == b"580.142"


def test_a_file_is_registered_once(opened: RawNv) -> None:
    fd = opened.open_card(register=False)
    other = opened.open_card(register=False)
    with fails(errno.EINVAL):  # INVALID_ARGUMENT: no control file
        opened.escape(201, pack(4, ("i", 0, other)), fd)
    opened.escape(201, pack(4, ("i", 0, opened.ctl)), fd)
    with fails(errno.EINVAL):  # INVALID_STATE
        opened.escape(201, pack(4, ("i", 0, opened.ctl)), fd)
    with fails(errno.EINVAL):  # itself
        opened.escape(201, pack(4, ("i", 0, opened.ctl)), opened.ctl)
    linked = opened.os.open("/dev/nvidiactl", os.O_RDWR)
    opened.escape(201, pack(4, ("i", 0, opened.ctl)), linked)
    with fails(errno.EINVAL):  # a control file that is registered itself
        opened.escape(201, pack(4, ("i", 0, linked)), other)


def test_transfer_carries_large_arguments(opened: RawNv) -> None:
    inner = (ctypes.c_uint8 * 72)()
    inner[0] = ord("2")
    outer = pack(16, ("I", 0, 210), ("I", 4, 72), ("Q", 8, ctypes.addressof(inner)))
    opened.escape(211, outer)
    assert bytes(inner)[8:15] == b"580.142"
    with fails(errno.EINVAL):
        opened.escape(211, outer[:12])


def vidmem(user: RawNv, size: int = 1 << 20) -> int:
    return user.alloc(VIDMEM, user.memory_params(size, True), parent=user.device)


def sysmem(user: RawNv, size: int = 1 << 20) -> int:
    return user.alloc(SYSMEM, user.memory_params(size, False), parent=user.device)


def test_mapping_needs_rm_and_begins_at_zero(opened: RawNv) -> None:
    fd = opened.open_card()
    with fails(errno.EINVAL):
        opened.os.mmap(fd, PAGE, READ_WRITE, hostmem.MAP_SHARED)
    assert opened.map_raw(vidmem(opened), 1 << 20, fd) == OK
    with fails(errno.EINVAL):
        opened.os.mmap(fd, 1 << 20, READ_WRITE, hostmem.MAP_SHARED, PAGE)


def test_a_bar_mapping_has_its_exact_size(opened: RawNv) -> None:
    fd = opened.open_card()
    assert opened.map_raw(vidmem(opened), 1 << 16, fd, offset=1 << 16) == OK
    for size in (PAGE, 1 << 17):
        with fails(errno.ENXIO):
            opened.os.mmap(fd, size, READ_WRITE, hostmem.MAP_SHARED)
    opened.os.mmap(fd, 1 << 16, READ_WRITE, hostmem.MAP_SHARED)


def test_machine_memory_may_be_mapped_in_part(opened: RawNv) -> None:
    fd = opened.os.open("/dev/nvidiactl", os.O_RDWR)
    assert opened.map_raw(sysmem(opened), 1 << 20, fd) == OK
    opened.os.mmap(fd, PAGE, READ_WRITE, hostmem.MAP_SHARED)
    with fails(errno.ERANGE):
        opened.os.mmap(fd, 2 << 20, READ_WRITE, hostmem.MAP_SHARED)


def test_a_file_takes_one_mapping(opened: RawNv) -> None:
    memory, fd = vidmem(opened), opened.open_card()
    assert opened.map_raw(memory, PAGE, fd) == OK
    assert opened.map_raw(memory, PAGE, fd) == STATE_IN_USE
    assert opened.world.usage().cpu_mappings == 2  # the doorbell's, and this one


@pytest.mark.parametrize("local", [True, False])
def test_a_mapping_goes_to_the_right_kind_of_file(opened: RawNv, local: bool) -> None:
    memory = vidmem(opened) if local else sysmem(opened)
    wrong = opened.os.open("/dev/nvidiactl", os.O_RDWR) if local else opened.open_card()
    assert opened.map_raw(memory, PAGE, wrong) == INVALID_ARGUMENT
    assert opened.map_raw(memory, PAGE, 1 << 20) == INVALID_ARGUMENT


def test_spans_of_mappings(opened: RawNv) -> None:
    memory, fd = vidmem(opened, 1 << 20), opened.open_card()
    assert opened.map_raw(memory, PAGE, fd, offset=1 << 20) == INVALID_BASE
    assert opened.map_raw(memory, 0, fd) == INVALID_LIMIT
    assert opened.map_raw(memory, 2 << 20, fd) == INVALID_LIMIT
    assert opened.map_raw(memory, PAGE, fd, flags=1 << 4) == INVALID_FLAGS
    assert opened.map_raw(memory, PAGE, fd, flags=1 << 8) == PERMISSIONS
    assert opened.map_raw(opened.usermode, 0x20000, fd) == INVALID_LIMIT
    assert opened.map_raw(opened.device, PAGE, fd) == NOT_SUPPORTED
    assert opened.map_raw(0xDEAD, PAGE, fd) == NOT_FOUND


def test_mappings_name_a_device_and_a_file_of_the_driver(mapped: RawNv) -> None:
    memory, device = vidmem(mapped), mapped.device
    assert mapped.map_raw(memory, PAGE, mapped.uvm) == INVALID_ARGUMENT
    mapped.device = memory
    assert mapped.map_raw(memory, PAGE, mapped.open_card()) == INVALID_PARENT
    mapped.device = device
    assert mapped.map_raw(memory, PAGE, mapped.open_card()) == OK


def test_escapes_have_their_type_and_all_their_bytes(opened: RawNv) -> None:
    with fails(errno.EFAULT):
        opened.os.ioctl(opened.ctl, 3 << 30 | 16 << 16 | 0x46 << 8 | FREE, bytearray(8))
    opened.os.ioctl(opened.ctl, 3 << 30 | 16 << 16 | 0x47 << 8 | FREE, bytearray(16))
    assert "0x46" in opened.world.debug.violations[0]


def test_unmapping_goes_by_the_answered_address(opened: RawNv) -> None:
    memory = vidmem(opened)
    before = opened.world.usage()
    assert opened.map_raw(memory, PAGE, opened.open_card()) == OK
    assert opened.unmap_raw(memory, opened.linear + PAGE) == NOT_FOUND
    assert opened.unmap_raw(memory, opened.linear) == OK
    assert opened.unmap_raw(memory, opened.linear) == NOT_FOUND
    assert opened.world.usage().bar1 == before.bar1


def test_the_bar_has_an_end() -> None:
    world = NvSimWorld(chip="ga102")
    user = RawNv(world.process, upto="objects")
    memory = vidmem(user, 512 << 20)
    assert user.map_raw(memory, 512 << 20, user.open_card()) == NO_MEMORY
    assert user.map_raw(memory, 128 << 20, user.open_card()) == OK
    assert user.map_raw(memory, 256 << 20, user.open_card()) == NO_MEMORY
    world.close()


def test_read_only_mappings(opened: RawNv) -> None:
    params = opened.memory_params(PAGE, False)
    struct.pack_into("<I", params, 28, 1 << 22)
    memory = opened.alloc(SYSMEM, params, parent=opened.device)
    fd = opened.os.open("/dev/nvidiactl", os.O_RDWR)
    assert opened.map_raw(memory, PAGE, fd) == INVALID_ARGUMENT
    assert opened.map_raw(memory, PAGE, fd, flags=1) == OK
    address = opened.os.mmap(fd, PAGE, READ_WRITE, hostmem.MAP_SHARED)
    assert MemoryWindow(address, PAGE).read(0, 4) == 0


def test_clients_belong_to_their_file(opened: RawNv) -> None:
    other = opened.os.open("/dev/nvidiactl", os.O_RDWR)
    status, _ = opened.try_alloc(DEVICE, bytearray(56), parent=opened.client, fd=other)
    assert status == INVALID_CLIENT
    data = pack(32, ("I", 0, opened.client), ("I", 4, opened.client), ("I", 8, 0x201))
    opened.escape(CONTROL, data, other)
    assert struct.unpack_from("<I", data, 28)[0] in (INVALID_ARGUMENT, INVALID_CLIENT)


def test_the_client_dies_with_its_file(opened: RawNv, world: NvSimWorld) -> None:
    sysmem(opened)
    assert world.usage().clients == 1 and world.usage().host
    opened.os.close(opened.ctl)
    usage = world.usage()
    assert (usage.clients, usage.objects, usage.host) == (0, 0, 0)


def test_memory_of_the_process(opened: RawNv) -> None:
    address = hostmem.map_file(-1, 0, 4 * PAGE, READ_WRITE, 0x22, 0)  # private, anonymous

    def describe(
        flags: int, at: int, limit: int, fd: int = -1, parent: int = 0, number: int = 0x71
    ) -> int:
        data = pack(
            56,
            *(("I", 0, opened.client), ("I", 4, parent or opened.device), ("I", 8, 0x1234)),
            *(("I", 12, number), ("I", 16, flags), ("Q", 24, at), ("Q", 32, limit)),
        )
        opened.escape(0x27, data, opened.dev if fd < 0 else fd)
        return struct.unpack_from("<I", data, 40)[0]

    good = 1 << 4 | 1 << 12 | 1 << 30
    assert describe(good & ~(1 << 30), address, PAGE - 1) == INVALID_FLAGS
    assert describe(good | 1 << 9, address, PAGE - 1) == INVALID_FLAGS
    assert describe(1 << 4 | 2 << 12 | 1 << 30, address, PAGE - 1) == INVALID_FLAGS
    assert describe(good, address + 16, PAGE - 1) == NOT_SUPPORTED
    assert describe(good, address, (1 << 64) - 1) == INVALID_LIMIT
    assert describe(good, 0x1000, PAGE - 1) == 0x1E
    assert describe(good, address, PAGE - 1, opened.open_card(register=False)) == INVALID_CLIENT
    assert describe(good, address, PAGE - 1, parent=opened.client) == INVALID_PARENT
    assert describe(good, address, PAGE - 1, number=SYSMEM) == NOT_SUPPORTED
    with fails(errno.EINVAL):
        describe(good, address, PAGE - 1, opened.ctl)
    assert describe(good, address, 4 * PAGE - 1) == OK
    assert opened.map_raw(0x1234, PAGE, opened.os.open("/dev/nvidiactl", 2)) == NOT_SUPPORTED
    assert opened.free(0x1234) == OK


def test_a_lost_gpu_fails_all(opened: RawNv, world: NvSimWorld) -> None:
    world.unplug()
    with fails(errno.EINVAL):
        opened.escape(FREE, bytearray(16))
    with fails(errno.EIO):
        opened.os.open("/dev/nvidia0", os.O_RDWR)


def test_a_gpu_without_its_firmware(opened: RawNv, world: NvSimWorld) -> None:
    """What the firmware would answer is refused; what was made can be freed."""
    params = opened.memory_params(PAGE, local=True)
    handle = opened.alloc(VIDMEM, bytearray(params), parent=opened.device)
    world.gpus[0].lose_firmware()
    assert opened.try_alloc(VIDMEM, params, parent=opened.device)[0] == RESET_REQUIRED
    assert opened.free(handle) == OK
