"""The object tree: classes, parents, parameters, handles, and the status of each mistake."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from gpu.sim.nv.world import NvSimWorld
from sim.nv.numbers import (
    CHANNEL,
    COMPUTE,
    COPY,
    COPY0,
    DEBUGGER,
    DEVICE,
    DUPLICATE,
    GROUP,
    ILLEGAL_ACTION,
    INSUFFICIENT_RESOURCES,
    INVALID_ADDRESS,
    INVALID_ARGUMENT,
    INVALID_CLASS,
    INVALID_FLAGS,
    INVALID_HANDLE,
    INVALID_OBJECT,
    INVALID_OWNER,
    INVALID_PARAMETER,
    INVALID_PARENT,
    INVALID_STATE,
    NO_FREE_FIFOS,
    NO_MEMORY,
    NOT_FOUND,
    NOT_SUPPORTED,
    OK,
    PERMISSIONS,
    SHARE,
    SUBDEVICE,
    SYSMEM,
    USERMODE,
    VASPACE,
    VIDMEM,
)
from sim.nv.raw_nv import PAGE, RawNv, pack

Case = Callable[[RawNv], int]


def memory(user: RawNv, number: int = VIDMEM, **fields: tuple[str, int, object]) -> int:
    params = user.memory_params(PAGE, number == VIDMEM)
    for form, offset, value in fields.values():
        struct.pack_into("<" + form, params, offset, value)
    return user.try_alloc(number, params, parent=user.device)[0]


def vaspace(user: RawNv, *fields: tuple[str, int, object]) -> int:
    return user.try_alloc(VASPACE, pack(56, *fields), parent=user.device)[0]


REFUSED: dict[str, tuple[int, Case]] = {
    "class that RM does not know": (
        INVALID_CLASS,
        lambda u: u.try_alloc(0xBEEF, parent=u.device)[0],
    ),
    "class of another chip": (
        NOT_SUPPORTED,
        lambda u: u.try_alloc(0xC761, parent=u.subdevice)[0],
    ),
    "parameters that are required": (
        INVALID_ARGUMENT,
        lambda u: u.try_alloc(VIDMEM, parent=u.device)[0],
    ),
    "parameters that the class does not take": (
        INVALID_ARGUMENT,
        lambda u: u.try_alloc(0xC561, bytearray(8), parent=u.subdevice)[0],
    ),
    "unknown client": (
        INVALID_HANDLE,
        lambda u: u.try_alloc(DEVICE, bytearray(56), parent=1, root=0x77)[0],
    ),
    "unknown parent": (
        NOT_FOUND,
        lambda u: u.try_alloc(SUBDEVICE, bytearray(4), parent=0x77)[0],
    ),
    "device under a device": (
        INVALID_PARENT,
        lambda u: u.try_alloc(DEVICE, bytearray(56), parent=u.device)[0],
    ),
    "memory of the machine under a subdevice": (
        INVALID_PARENT,
        lambda u: u.try_alloc(SYSMEM, u.memory_params(PAGE, False), parent=u.subdevice)[0],
    ),
    "usermode page under a device": (
        INVALID_PARENT,
        lambda u: u.try_alloc(USERMODE[u.chip], parent=u.device)[0],
    ),
    "group under a subdevice": (
        INVALID_PARENT,
        lambda u: u.try_alloc(GROUP, pack(20, ("I", 12, 1)), parent=u.subdevice)[0],
    ),
    "context share under a device": (
        INVALID_PARENT,
        lambda u: u.try_alloc(SHARE, bytearray(12), parent=u.device)[0],
    ),
    "compute under a device": (
        INVALID_PARENT,
        lambda u: u.try_alloc(COMPUTE[u.chip], parent=u.device)[0],
    ),
    "handle that is taken": (
        DUPLICATE,
        lambda u: u.try_alloc(
            VIDMEM, u.memory_params(PAGE, True), parent=u.device, handle=u.device
        )[0],
    ),
    "handle of the client itself": (
        INVALID_PARENT,
        lambda u: u.try_alloc(
            VIDMEM, u.memory_params(PAGE, True), parent=u.device, handle=u.client
        )[0],
    ),
    "first handle of the firmware's": (
        INVALID_HANDLE,
        lambda u: u.try_alloc(
            VIDMEM, u.memory_params(PAGE, True), parent=u.device, handle=0xC9F0_0000
        )[0],
    ),
    "last handle of the firmware's": (
        INVALID_HANDLE,
        lambda u: u.try_alloc(
            VIDMEM, u.memory_params(PAGE, True), parent=u.device, handle=0xC9F7_FFFF
        )[0],
    ),
    "device instance that cannot be": (
        INVALID_ARGUMENT,
        lambda u: u.try_alloc(DEVICE, pack(56, ("I", 0, 32)), parent=u.client)[0],
    ),
    "device instance without a GPU": (
        INVALID_STATE,
        lambda u: u.try_alloc(DEVICE, pack(56, ("I", 0, 5)), parent=u.client)[0],
    ),
    "device without parameters": (
        INVALID_ARGUMENT,
        lambda u: u.try_alloc(DEVICE, parent=u.client)[0],
    ),
    "second subdevice": (
        INSUFFICIENT_RESOURCES,
        lambda u: u.try_alloc(SUBDEVICE, bytearray(4), parent=u.device)[0],
    ),
    "subdevice instance 1": (
        INVALID_CLASS,
        lambda u: u.try_alloc(SUBDEVICE, pack(4, ("I", 0, 1)), parent=u.device)[0],
    ),
    "event with a callback in the kernel": (
        ILLEGAL_ACTION,
        lambda u: u.try_alloc(0x78, bytearray(24), parent=u.subdevice)[0],
    ),
    "privileged usermode page": (
        PERMISSIONS,
        lambda u: u.try_alloc(0xC661, bytearray(b"\1\1"), parent=u.subdevice)[0],
    ),
    "privileged usermode page over BAR0": (
        INVALID_PARAMETER,
        lambda u: u.try_alloc(0xC661, bytearray(b"\0\1"), parent=u.subdevice)[0],
    ),
    "memory of size 0": (INVALID_ARGUMENT, lambda u: memory(u, size=("Q", 64, 0))),
    "memory without an owner": (INVALID_OWNER, lambda u: memory(u, owner=("I", 0, 0))),
    "internal flags": (INVALID_ARGUMENT, lambda u: memory(u, flags=("I", 112, 1))),
    "a range without its flag": (INVALID_ARGUMENT, lambda u: memory(u, low=("Q", 48, PAGE))),
    "vidmem in the machine": (INVALID_ARGUMENT, lambda u: memory(u, attr=("I", 24, 1 << 25))),
    "vidmem with a VA space": (INVALID_ARGUMENT, lambda u: memory(u, va=("I", 108, 1))),
    "virtual vidmem": (INVALID_ARGUMENT, lambda u: memory(u, flags=("I", 8, 1 << 19))),
    "machine memory in vidmem": (
        INVALID_ARGUMENT,
        lambda u: memory(u, SYSMEM, attr=("I", 24, 0)),
    ),
    "more memory than there is": (NO_MEMORY, lambda u: memory(u, size=("Q", 64, 1 << 40))),
    "group of an engine that is not there": (
        INVALID_ARGUMENT,
        lambda u: u.try_alloc(GROUP, pack(20, ("I", 12, COPY0 + 2)), parent=u.device)[0],
    ),
    "group of no engine": (
        INVALID_ARGUMENT,
        lambda u: u.try_alloc(GROUP, bytearray(20), parent=u.device)[0],
    ),
    "context share of what is no VA space": (
        INVALID_CLASS,
        lambda u: u.try_alloc(SHARE, pack(12, ("I", 0, u.device)), parent=u.group())[0],
    ),
    "context share of nothing": (
        NOT_FOUND,
        lambda u: u.try_alloc(SHARE, pack(12, ("I", 0, 0x77)), parent=u.group())[0],
    ),
    "debugger of a device": (
        INVALID_OBJECT,
        lambda u: u.try_alloc(
            DEBUGGER, pack(12, ("I", 4, u.client), ("I", 8, u.device)), parent=u.device
        )[0],
    ),
    "debugger for an unknown client": (
        INVALID_HANDLE,
        lambda u: u.try_alloc(DEBUGGER, pack(12, ("I", 4, 0x77)), parent=u.device)[0],
    ),
    "context share with unknown flags": (
        INVALID_ARGUMENT,
        lambda u: u.try_alloc(SHARE, pack(12, ("I", 4, 4)), parent=u.group())[0],
    ),
    "memory of RM's own heap": (INVALID_OWNER, lambda u: memory(u, owner=("I", 0, 0xDEAF_0003))),
    "memory whose pages stay in use": (PERMISSIONS, lambda u: memory(u, attr2=("I", 28, 1 << 19))),
    "memory of a subheap": (INVALID_ARGUMENT, lambda u: memory(u, attr2=("I", 28, 1 << 27))),
    "encrypted vidmem": (INVALID_ARGUMENT, lambda u: memory(u, flags=("I", 8, 1 << 18))),
    "VA space of BAR1": (INVALID_ARGUMENT, lambda u: vaspace(u, ("I", 0, 1))),
    "VA space with large big pages": (INVALID_ARGUMENT, lambda u: vaspace(u, ("I", 32, 2 << 20))),
    "VA space with ATS": (NOT_SUPPORTED, lambda u: vaspace(u, ("I", 4, 1 << 4))),
    "VA space that overflows": (
        INVALID_ARGUMENT,
        lambda u: vaspace(u, ("Q", 40, PAGE), ("Q", 8, (1 << 64) - PAGE + 1)),
    ),
    "debugger of nothing": (
        INVALID_PARENT,
        lambda u: u.try_alloc(
            DEBUGGER, pack(12, ("I", 4, u.client), ("I", 8, 0x77)), parent=u.device
        )[0],
    ),
    "debugger of old": (
        INVALID_ARGUMENT,
        lambda u: u.try_alloc(DEBUGGER, pack(12, ("I", 0, 1)), parent=u.device)[0],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_allocations_that_are_refused(opened: RawNv, name: str) -> None:
    status, case = REFUSED[name]
    before = opened.world.usage()
    assert case(opened) == status
    after = opened.world.usage()
    groups = after.objects - before.objects  # the case may have made a group for itself
    assert groups <= 1 and (after.vram, after.host) == (before.vram, before.host)


def test_memory_in_one_piece(opened: RawNv) -> None:
    """Video memory in two halves: enough of it, but no piece so large."""
    half = opened.gpu.vram.size // 2
    large = opened.memory_params(half - (4 << 20), True)
    first = opened.alloc(VIDMEM, large, parent=opened.device)
    middle = opened.alloc(VIDMEM, opened.memory_params(8 << 20, True), parent=opened.device)
    assert middle and opened.free(first) == OK
    before = opened.world.usage()
    for contiguous, status in ((1, NO_MEMORY), (0, OK)):
        params = opened.memory_params(half + (8 << 20), True, attr=contiguous << 28)
        assert opened.try_alloc(VIDMEM, params, parent=opened.device)[0] == status
        assert contiguous == (opened.world.usage().vram == before.vram)


def test_both_alloc_structures_work(opened: RawNv) -> None:
    for short in (True, False):
        params = opened.memory_params(PAGE, True)
        status, handle = opened.try_alloc(VIDMEM, params, parent=opened.device, short=short)
        assert status == OK and handle
        assert struct.unpack_from("<Q", params, 88)[0] == PAGE - 1  # limit


def test_bad_pointers_are_a_status(opened: RawNv) -> None:
    data = pack(48, ("I", 0, opened.client), ("I", 4, opened.device), ("I", 12, VIDMEM))
    struct.pack_into("<Q", data, 16, 0x1000)
    opened.escape(0x2B, data)
    assert struct.unpack_from("<I", data, 40)[0] == INVALID_ADDRESS


def test_every_class_is_listed_that_can_be_had(each: RawNv) -> None:
    count = bytearray(16)
    assert each.control(each.device, 0x800201, count) == OK
    params = bytearray(804)
    assert each.control(each.device, 0x800292, params) == OK
    number = struct.unpack_from("<I", count)[0]
    listed = struct.unpack_from(f"<{number}I", params, 4)
    assert {COMPUTE[each.chip], COPY[each.chip], CHANNEL[each.chip], VIDMEM} <= set(listed)
    others = {*COMPUTE.values()} - {COMPUTE[each.chip]}
    assert not others & set(listed)
    for number in others:
        status, _ = each.try_alloc(number, bytearray(16), parent=each.ring.handle)
        assert status == NOT_SUPPORTED


def channel(user: RawNv, **changes: tuple[str, int, object]) -> Callable[[int, int], int]:
    """Allocates a channel under a parent with a share, some fields changed."""
    buffer = user.buffer(256 << 10, local=True)

    def make(parent: int, share: int) -> int:
        params = user.channel_params(share, buffer)
        for form, offset, value in changes.values():
            struct.pack_into("<" + form, params, offset, value)
        return user.try_alloc(CHANNEL[user.chip], params, parent=parent)[0]

    return make


CHANNELS: dict[str, tuple[int, dict[str, tuple[str, int, object]]]] = {
    "0 entries": (INVALID_ARGUMENT, {"entries": ("I", 16, 0)}),
    "entries no power of two": (INVALID_ARGUMENT, {"entries": ("I", 16, 48)}),
    "VA space beside a share": (INVALID_ARGUMENT, {"space": ("I", 28, 1)}),
    "unknown share": (NOT_FOUND, {"share": ("I", 24, 0x77)}),
    "engine of another runlist": (INVALID_ARGUMENT, {"engine": ("I", 128, COPY0 + 4)}),
    "error memory that is none": (INVALID_STATE, {"error": ("I", 0, 0x77)}),
    "engine of another runlist that the chip lacks": (
        INVALID_ARGUMENT,
        {"engine": ("I", 128, COPY0 + 2)},
    ),
    "ring off its words": (INVALID_ARGUMENT, {"ring": ("Q", 8, 0x2_0000_0004)}),
    "ECC error memory that is none": (INVALID_STATE, {"error": ("I", 140, 0x77)}),
    "virtual channel": (NOT_SUPPORTED, {"flags": ("I", 20, 1)}),
    "channel of old": (NOT_SUPPORTED, {"flags": ("I", 20, 2)}),
    "without scrubbing": (INVALID_ARGUMENT, {"flags": ("I", 20, 1 << 23)}),
    "USERD of RM's own": (NOT_SUPPORTED, {"userd": ("I", 32, 0)}),
    "USERD that is no memory": (NOT_FOUND, {"userd": ("I", 32, 0x77)}),
    "USERD behind the memory": (INVALID_ARGUMENT, {"offset": ("Q", 64, 256 << 10)}),
    "USERD misaligned": (INVALID_ADDRESS, {"offset": ("Q", 64, 0x100)}),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_channels_that_are_refused(mapped: RawNv, name: str) -> None:
    status, changes = CHANNELS[name]
    group = mapped.group()
    share = mapped.share(group)
    make = channel(mapped, **changes)
    assert make(group, share) == status
    assert mapped.world.usage().channels == 0


def test_shares_belong_to_their_group_and_are_not_mixed(mapped: RawNv) -> None:
    first, second = mapped.group(), mapped.group()
    share = mapped.share(first)
    make = channel(mapped)
    assert make(second, share) == INVALID_PARENT
    assert make(mapped.device, share) == INVALID_ARGUMENT
    assert make(first, mapped.vaspace) == INVALID_CLASS
    assert make(first, share) == OK
    assert make(first, 0) == INVALID_ARGUMENT


def test_vaspaces_of_channels(mapped: RawNv) -> None:
    """In a group the share has it; without a group the channel names it, and no share."""
    group = mapped.group()
    space = ("I", 28, mapped.vaspace)
    assert channel(mapped, space=space)(group, 0) == INVALID_ARGUMENT
    make = channel(mapped, engine=("I", 128, COPY0 + 4))
    assert make(mapped.device, mapped.share(group)) == INVALID_ARGUMENT


def test_a_channel_without_a_group_gets_one(mapped: RawNv) -> None:
    buffer = mapped.buffer(256 << 10, local=True)
    params = mapped.channel_params(0, buffer)
    struct.pack_into("<I", params, 28, mapped.vaspace)
    status, handle = mapped.try_alloc(CHANNEL[mapped.chip], params, parent=mapped.device)
    assert status == INVALID_ARGUMENT  # Ampere and later need an engine
    struct.pack_into("<I", params, 128, COPY0 + 4)
    status, handle = mapped.try_alloc(CHANNEL[mapped.chip], params, parent=mapped.device)
    assert status == OK and len(mapped.gpu.groups) == 1
    assert mapped.free(handle) == OK and not mapped.gpu.groups


def test_engine_objects_follow_the_channels_engine(user: RawNv) -> None:
    copies = user.open_ring(engine=COPY0 + 4, objects=["copy"])
    status, _ = user.try_alloc(COMPUTE[user.chip], bytearray(16), parent=copies.handle)
    assert status == INVALID_CLASS
    gr, ce = user.gpu.channels
    assert [unit.engine for unit in gr.units if unit.number == user.gpu.chip.copy] == [0]
    assert [unit.engine for unit in ce.units] == [4]


def test_channel_ids_run_out(user: RawNv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu.sim.nv.chip.gpu._CHANNEL_IDS", 1)
    make = channel(user)
    assert make(user.last_group, user.last_share) == NO_FREE_FIFOS
    assert user.world.usage().channels == 1


def test_error_memory_lives_as_long_as_its_channel(mapped: RawNv) -> None:
    error = mapped.alloc(VIDMEM, mapped.memory_params(PAGE, True), parent=mapped.device)
    group = mapped.alloc(GROUP, pack(20, ("I", 0, error), ("I", 12, 1)), parent=mapped.device)
    make = channel(mapped, error=("I", 0, 0))
    assert make(group, mapped.share(group)) == OK  # the group's memory serves it
    before = mapped.world.usage().vram
    assert mapped.free(error) == OK and mapped.world.usage().vram == before
    assert mapped.free(group) == OK and mapped.world.usage().vram == before - PAGE


def test_a_groups_error_memory_is_looked_up_by_its_channels(mapped: RawNv) -> None:
    group = mapped.alloc(GROUP, pack(20, ("I", 0, 0x77), ("I", 12, 1)), parent=mapped.device)
    make = channel(mapped, error=("I", 0, 0))
    assert make(group, mapped.share(group)) == INVALID_STATE


def test_a_group_ends_with_its_vaspace(mapped: RawNv) -> None:
    params = pack(20, ("I", 8, mapped.vaspace), ("I", 12, 1))
    mapped.alloc(GROUP, params, parent=mapped.device)
    assert mapped.free(mapped.vaspace) == OK and not mapped.gpu.groups


def test_other_kinds_of_vaspaces_are_not_modelled(opened: RawNv) -> None:
    assert vaspace(opened, ("I", 0, 2)) == NOT_SUPPORTED
    assert opened.try_alloc(0x71, bytearray(40), parent=opened.device)[0] == NOT_SUPPORTED
    assert opened.try_alloc(0xCB97, parent=opened.device)[0] == NOT_SUPPORTED


def test_userd_lives_as_long_as_its_channel(mapped: RawNv) -> None:
    group = mapped.group()
    handle = mapped.alloc(VIDMEM, mapped.memory_params(1 << 18, True), parent=mapped.device)
    make = channel(mapped, userd=("I", 32, handle), error=("I", 0, 0))
    assert make(group, mapped.share(group)) == OK
    before = mapped.world.usage().vram
    assert mapped.free(handle) == OK and mapped.world.usage().vram == before
    assert mapped.free(group) == OK and mapped.world.usage().vram == before - (1 << 18)


def test_a_debugger_looks_at_graphics(user: RawNv) -> None:
    """Client 0 is the caller."""
    for name, status in (("copy", INVALID_OBJECT), ("compute", OK)):
        for client in (user.client, 0):
            params = pack(12, ("I", 4, client), ("I", 8, user.objects[name]))
            assert user.try_alloc(DEBUGGER, params, parent=user.device)[0] == status


def test_a_debugger_looks_at_its_own_process_and_gpu() -> None:
    world = NvSimWorld(chip=("gh100", "gh100"))
    user, other = RawNv(world.process), RawNv(world.process, upto="objects", gpu_index=1)
    stranger = RawNv(world.new_process(), upto="objects")
    params = pack(12, ("I", 4, user.client), ("I", 8, user.objects["compute"]))
    for asking, status in ((stranger, PERMISSIONS), (other, INVALID_ARGUMENT), (user, OK)):
        assert asking.try_alloc(DEBUGGER, params, parent=asking.device)[0] == status
    world.close()


def test_a_share_comes_behind_its_page_directory(mapped: RawNv) -> None:
    """UVM brings it when it registers the VA space."""
    late = mapped.alloc(VASPACE, pack(56, ("I", 4, 1 << 3)), parent=mapped.device)
    group = mapped.group()
    share = pack(12, ("I", 0, late), ("I", 4, 1))
    assert mapped.try_alloc(SHARE, share, parent=group)[0] == INVALID_STATE
    assert mapped.uvm_call(26, bytearray(mapped.uuid) + bytearray(4), 16) == OK
    assert mapped.register_vaspace(late) == OK
    assert mapped.try_alloc(SHARE, share, parent=group)[0] == OK
    plain = mapped.alloc(VASPACE, bytearray(56), parent=mapped.device)
    assert mapped.try_alloc(SHARE, pack(12, ("I", 0, plain)), parent=group)[0] == OK


def test_freeing_takes_all_below_and_what_depends(user: RawNv) -> None:
    world, ring = user.world, user.ring
    assert world.usage().channels == 1
    assert user.free(user.vaspace) == OK  # shares depend on it, channels on the share
    assert world.usage().channels == 0
    assert user.control(ring.handle, 0xC36F0108, bytearray(4)) == NOT_FOUND
    assert user.free(user.device) == OK
    assert world.usage().objects == 1


def test_freeing_what_is_not_there_is_ok_and_noticed(opened: RawNv) -> None:
    assert opened.free(0x77) == OK
    assert "0x77" in opened.world.debug.violations[0]
    assert opened.free(0x77, client=0x78) == INVALID_HANDLE


def test_duplicates_keep_memory(opened: RawNv) -> None:
    other = RawNv(opened.process, upto="objects")
    handle = opened.alloc(VIDMEM, opened.memory_params(PAGE, True), parent=opened.device)

    def duplicate(parent: int, source: int, client: int = 0, new: int = 0) -> tuple[int, int]:
        data = pack(
            28, ("I", 0, other.client), ("I", 4, parent), ("I", 12, client or opened.client)
        )
        struct.pack_into("<I", data, 8, new)
        struct.pack_into("<I", data, 16, source)
        other.escape(0x34, data)
        return struct.unpack_from("<I", data, 24)[0], struct.unpack_from("<I", data, 8)[0]

    assert duplicate(other.device, handle, 0x77)[0] == INVALID_HANDLE
    assert duplicate(other.device, 0x77)[0] == NOT_FOUND
    assert duplicate(0x77, handle)[0] == NOT_FOUND
    assert duplicate(other.device, opened.subdevice)[0] == INVALID_ARGUMENT
    assert duplicate(other.client, handle)[0] == INVALID_PARENT
    assert duplicate(other.device, handle, new=other.client)[0] == INVALID_HANDLE
    assert duplicate(other.device, handle, new=other.device)[0] == DUPLICATE
    space = opened.alloc(VASPACE, bytearray(56), parent=opened.device)
    assert duplicate(other.device, space)[0] == NOT_SUPPORTED  # legal, and not modelled
    status, copy = duplicate(other.device, handle)
    assert status == OK
    assert opened.free(handle) == OK and opened.world.usage().vram == PAGE
    assert other.free(copy) == OK and opened.world.usage().vram == 0


def test_client_handles_are_unique(opened: RawNv) -> None:
    assert opened.try_alloc(0x41, root=0, parent=0, handle=0xC0FFEE) == (OK, 0xC0FFEE)
    status, _ = opened.try_alloc(0x41, root=0, parent=0, handle=0xC0FFEE)
    assert status == DUPLICATE


def test_other_processes_need_a_share(opened: RawNv, world: NvSimWorld) -> None:
    handle = opened.alloc(VIDMEM, opened.memory_params(PAGE, True), parent=opened.device)
    stranger = RawNv(world.new_process(), upto="objects")
    data = pack(28, ("I", 0, stranger.client), ("I", 4, stranger.device), ("I", 12, opened.client))
    struct.pack_into("<I", data, 16, handle)
    stranger.escape(0x34, data)
    assert struct.unpack_from("<I", data, 24)[0] == PERMISSIONS
    data = pack(24, ("I", 0, opened.client), ("I", 4, handle), ("H", 16, 8))
    opened.escape(0x35, data)
    assert struct.unpack_from("<I", data, 20)[0] == INVALID_ARGUMENT


def test_a_vaspace_that_uvm_may_not_own(mapped: RawNv) -> None:
    plain = mapped.alloc(VASPACE, bytearray(56), parent=mapped.device)
    assert mapped.register_vaspace(plain) == INVALID_FLAGS
