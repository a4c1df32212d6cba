"""Branches of the kernel driver: its version, and the sizes that differ.

The sizes are those that a C compiler gives the headers of each version.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

import pytest

from gpu.core.errors import Unsupported
from gpu.sim.nv.world import NvSimWorld
from sim.nv.numbers import INVALID_ADDRESS, INVALID_ARGUMENT, INVALID_CHANNEL, OK
from sim.nv.raw_nv import MIB, PAGE, RawNv, fails, pack

BASE = 0x3_0000_0000
# Schedule, build version, class list, capabilities of copy engines.
SIZES = {
    535: (2, 776, 644, 68),
    550: (2, 776, 700, 136),
    570: (2, 1032, 404, 136),
    575: (3, 1032, 404, 136),
    580: (3, 1032, 804, 136),
    590: (3, 1032, 804, 136),
    595: (3, 1032, 804, 136),
}
COMMANDS = {0xA06C0101: "group", 0x13E: "client", 0x800292: "device", 0x20802A0A: "subdevice"}


@pytest.fixture(params=SIZES)
def old(request: pytest.FixtureRequest) -> Iterator[RawNv]:
    world = NvSimWorld(seed=3, branch=request.param)
    yield RawNv(world.process, upto="memory")
    world.close()


def number_of(user: RawNv) -> int:
    return user.world.rm.branch.number


def test_versions(old: RawNv) -> None:
    params = bytearray(SIZES[number_of(old)][1])
    assert old.control(old.client, 0x13E, params) == OK
    version = params.split(b"\0")[0]
    assert version.startswith(str(number_of(old)).encode())
    assert version in old.os.read_file("/proc/driver/nvidia/version")
    assert old.os.read_file("/sys/module/nvidia/version").strip() == version
    check = pack(72, ("I", 0, 0), ("16s", 8, bytes(version)))
    old.escape(210, check)


def test_sizes_of_commands(old: RawNv) -> None:
    targets = {name: getattr(old, name) for name in ("client", "device", "subdevice")}
    targets["group"] = old.group()
    for place, (command, name) in enumerate(COMMANDS.items()):
        right = SIZES[number_of(old)][place]
        for size in {sizes[place] for sizes in SIZES.values()}:
            wanted = OK if size == right else INVALID_ARGUMENT
            assert old.control(targets[name], command, bytearray(size)) == wanted, (name, size)


def test_ranges_are_freed_by_base_alone_from_590_on(old: RawNv) -> None:
    assert old.create_range(BASE, MIB) == OK
    if number_of(old) < 590:
        assert old.free_range(BASE, MIB // 2) == INVALID_ADDRESS
        with fails(errno.EFAULT):
            old.os.ioctl(old.uvm, 34, bytearray(16))
        assert old.free_range(BASE, MIB) == OK
    else:
        assert old.uvm_call(34, pack(16, ("Q", 0, BASE + PAGE)), 8) == INVALID_ADDRESS
        assert old.uvm_call(34, pack(16, ("Q", 0, BASE)), 8) == OK
    assert old.create_range(BASE, MIB) == OK


def test_mappings_of_535_name_fewer_gpus(old: RawNv) -> None:
    most, size = (32, 1200) if number_of(old) == 535 else (256, 9264)
    memory = old.alloc(0x40, old.memory_params(PAGE, True), parent=old.device)
    assert old.create_range(BASE, MIB) == OK
    for count, wanted in ((most + 1, INVALID_ARGUMENT), (1, OK)):
        data = pack(size, ("Q", 0, BASE), ("Q", 8, PAGE), ("16s", 24, old.uuid))
        struct.pack_into("<QiII", data, 24 + 36 * most, count, old.ctl, old.client, memory)
        assert old.uvm_call(33, data, size - 4) == wanted
    assert old.world.usage().external == 1


def test_parameters_of_classes_may_be_longer(old: RawNv) -> None:
    """The kernel reads what it knows; an older one leaves the rest alone."""
    params = old.memory_params(PAGE, True) + bytearray(b"\xee" * 384)
    assert old.try_alloc(0x40, params, parent=old.device)[0] == OK
    assert params[128:] == b"\xee" * 384


def test_what_a_branch_has_not() -> None:
    with pytest.raises(Unsupported, match="no gb202"):
        NvSimWorld(chip="gb202", branch=550)
    with pytest.raises(Unsupported, match="there are 535, 550"):
        NvSimWorld(branch=470)


@pytest.mark.parametrize(("branch", "size"), [(580, 28), (590, 12)])
def test_channels_are_unregistered_without_a_uuid_from_590_on(branch: int, size: int) -> None:
    world = NvSimWorld(branch=branch)
    user = RawNv(world.process)
    fields = (("I", size - 12, user.client), ("I", size - 8, user.ring.handle))
    data = pack(size, *fields)
    assert user.uvm_call(28, data, size - 4) == OK
    assert user.uvm_call(28, data, size - 4) == INVALID_CHANNEL
    world.close()
