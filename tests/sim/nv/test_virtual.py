"""Addresses that RM maps by itself: NV01_MEMORY_VIRTUAL, MAP_MEMORY_DMA, UNMAP_MEMORY_DMA."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

import pytest

from gpu.core.window import MemoryWindow
from gpu.sim.nv.rm.branches import BRANCHES
from gpu.sim.nv.rm.objects import Device
from gpu.sim.nv.world import NvSimWorld
from gpu.sim.translate import AddressSpace, PageFault
from sim.nv.methods import release
from sim.nv.numbers import (
    CHANNEL,
    INVALID_ARGUMENT,
    INVALID_CLIENT,
    INVALID_HANDLE,
    INVALID_LIMIT,
    INVALID_OBJECT,
    INVALID_OFFSET,
    NO_MEMORY,
    NOT_FOUND,
    NOT_SUPPORTED,
    OK,
    VIDMEM,
)
from sim.nv.raw_nv import MIB, PAGE, Buffer, RawNv, Ring, fails, pack

FIXED, READ_ONLY, BIG_PAGES = 1 << 15, 1, 2 << 8
BASE = 1 << 40


class Dma:
    """A client with virtual memory of RM's, from BASE on for 64 MiB unless told otherwise."""

    def __init__(self, user: RawNv, vaspace: int = 0, base: int = BASE, limit: int = 0):
        self.user, self.long = user, user.world.rm.branch.number >= 580
        params = pack(24, ("Q", 0, base), ("Q", 8, limit), ("I", 16, vaspace))
        self.handle = user.alloc(0x70, params, parent=user.device)
        self.limit = struct.unpack_from("<Q", params, 8)[0]

    def memory(self, size: int) -> int:
        return self.user.alloc(VIDMEM, self.user.memory_params(size, True), parent=self.user.device)

    def map(
        self, memory: int, offset: int, length: int, flags: int = 0, at: int = 0, **how: int
    ) -> tuple[int, int]:
        """(status, address)."""
        client, device = how.get("client", self.user.client), how.get("device", self.user.device)
        handles = struct.pack("<4I", client, device, how.get("dma", self.handle), memory)
        place, size = (48, 64) if self.long else (40, 56)
        data = bytearray(size)
        data[:36] = handles + struct.pack("<QQI", offset, length, flags)
        struct.pack_into("<Q", data, place, at)
        self.user.escape(0x57, data)
        address, status = struct.unpack_from("<QI", data, place)
        return status, address

    def unmap(self, address: int, size: int = 0, flags: int = 0, **how: int) -> int:
        device, long = how.get("device", self.user.device), self.user.world.rm.branch.number != 535
        data = bytearray(48 if long else 40)
        struct.pack_into(
            *("<4I", data, 0, self.user.client, device, how.get("dma", self.handle), 0),
        )
        struct.pack_into("<I4xQ", data, 16, flags, address)
        if long:
            struct.pack_into("<Q", data, 32, size)
        self.user.escape(0x58, data)
        return int(struct.unpack_from("<I", data, 40 if long else 32)[0])

    @property
    def space(self) -> AddressSpace:
        device = self.user.world.rm.clients[self.user.client].objects[self.user.device]
        assert isinstance(device, Device) and device.default_vaspace
        return device.default_vaspace.space


@pytest.fixture
def dma(opened: RawNv) -> Dma:
    return Dma(opened)


@pytest.fixture(params=BRANCHES)
def on_branch(request: pytest.FixtureRequest) -> Iterator[Dma]:
    world = NvSimWorld(chip="ad102", branch=request.param)
    yield Dma(RawNv(world.process, upto="objects"))
    world.close()


def test_arguments_have_the_size_of_their_branch(on_branch: Dma) -> None:
    memory = on_branch.memory(PAGE)
    status, address = on_branch.map(memory, 0, PAGE)
    assert status == OK and address == BASE
    assert on_branch.unmap(address) == OK
    on_branch.long = not on_branch.long
    with fails(22):
        on_branch.map(memory, 0, PAGE)


@pytest.mark.parametrize("chip", ["ga102", "gb202"])
def test_limits_of_virtual_memory(chip: str) -> None:
    world = NvSimWorld(chip=chip)
    user = RawNv(world.process, upto="objects")
    bits = {"ga102": 49, "gb202": 57}[chip]

    def status(base: int, limit: int, vaspace: int = 0) -> int:
        params = pack(24, ("Q", 0, base), ("Q", 8, limit), ("I", 16, vaspace))
        return user.try_alloc(0x70, params, parent=user.device)[0]

    assert Dma(user).limit == (1 << bits) - 1
    assert Dma(user, limit=BASE + 5).limit == BASE + 5
    assert status(0, 1 << bits) == INVALID_LIMIT and status(1 << bits, 0) == INVALID_OFFSET
    assert status(BASE, BASE - 2) == INVALID_OFFSET
    assert status(0, 1 << 40, 0xFFFF_FFFF) == INVALID_LIMIT  # it has 40 bits
    assert status(0, 0, 0x1234) == NOT_FOUND and status(0, 0, user.device) == INVALID_HANDLE
    world.close()


CASES: dict[str, tuple[int, Callable[[Dma, int], int]]] = {
    "nothing": (INVALID_LIMIT, lambda d, m: d.map(m, 0, 0)[0]),
    "beyond the memory": (INVALID_LIMIT, lambda d, m: d.map(m, PAGE, MIB)[0]),
    "unknown client": (INVALID_HANDLE, lambda d, m: d.map(m, 0, PAGE, client=0x99)[0]),
    "unknown mapper": (NOT_FOUND, lambda d, m: d.map(m, 0, PAGE, dma=0x99)[0]),
    "unknown memory": (NOT_FOUND, lambda d, m: d.map(0x99, 0, PAGE)[0]),
    "unknown device": (NOT_FOUND, lambda d, m: d.map(m, 0, PAGE, device=0x99)[0]),
    "no device": (INVALID_OBJECT, lambda d, m: d.map(m, 0, PAGE, device=m)[0]),
    "no memory": (INVALID_HANDLE, lambda d, m: d.map(d.user.device, 0, PAGE)[0]),
    "mapper without addresses": (INVALID_HANDLE, lambda d, m: d.map(m, 0, PAGE, dma=m)[0]),
    "page size that there is not": (INVALID_ARGUMENT, lambda d, m: d.map(m, 0, PAGE, 9 << 8)[0]),
    "two kinds": (INVALID_ARGUMENT, lambda d, m: d.map(m, 0, PAGE, 1 << 3 | 1 << 19)[0]),
    "address beyond all": (NO_MEMORY, lambda d, m: d.map(m, 0, PAGE, FIXED, 1 << 57)[0]),
    "relative address beyond": (NO_MEMORY, lambda d, m: d.map(m, 0, PAGE, 0, 1 << 57)[0]),
    "unmapping nothing": (NOT_FOUND, lambda d, m: d.unmap(BASE)),
    "unmapping half a page": (INVALID_ARGUMENT, lambda d, m: d.unmap(BASE, 100)),
    "unmapping beyond 64 bits": (INVALID_ARGUMENT, lambda d, m: d.unmap(BASE, (1 << 64) - PAGE)),
    "unmapping by no device": (INVALID_OBJECT, lambda d, m: d.unmap(BASE, device=m)),
    "unmapping from memory": (INVALID_HANDLE, lambda d, m: d.unmap(BASE, dma=m)),
}


@pytest.mark.parametrize("name", CASES)
def test_mappings_that_are_refused(dma: Dma, name: str) -> None:
    status, case = CASES[name]
    assert case(dma, dma.memory(MIB)) == status
    assert not dma.user.violations


def test_where_rm_may_not_map(mapped: RawNv) -> None:
    memory = mapped.alloc(VIDMEM, mapped.memory_params(PAGE, True), parent=mapped.device)
    assert Dma(mapped, mapped.vaspace).map(memory, 0, PAGE)[0] == NOT_SUPPORTED  # UVM's
    assert Dma(mapped, 0xFFFF_FFFF, 0).map(memory, 0, PAGE)[0] == NOT_FOUND
    other = RawNv(mapped.process, upto="objects")
    assert Dma(other).map(memory, 0, PAGE, client=mapped.client)[0] == INVALID_CLIENT


def test_addresses(dma: Dma) -> None:
    memory = dma.memory(MIB)
    assert dma.map(memory, 0, MIB, at=4 * MIB) == (OK, BASE + 4 * MIB)  # relative
    assert dma.map(memory, 0x123, 1, FIXED | BIG_PAGES, at=BASE + 0x567) == (OK, BASE + 0x123)
    assert dma.map(memory, 0, MIB) == (OK, BASE + 0x10000)  # behind the 64 KiB at BASE
    assert dma.map(memory, 0, PAGE, FIXED, at=BASE)[0] == NO_MEMORY  # taken


def test_memory_ends_with_its_mappings(dma: Dma) -> None:
    memory, other = dma.memory(PAGE), dma.memory(PAGE)
    _, first = dma.map(memory, 0, PAGE)
    _, second = dma.map(other, 0, PAGE)
    assert dma.space.translate(first, True) and dma.space.translate(second, True)
    assert dma.user.free(memory) == OK
    with pytest.raises(PageFault):
        dma.space.translate(first, False)
    assert dma.space.translate(second, True)
    assert dma.user.free(dma.handle) == OK
    with pytest.raises(PageFault):
        dma.space.translate(second, False)


def test_translations_stay_where_nobody_invalidates(dma: Dma) -> None:
    _, address = dma.map(dma.memory(PAGE), 0, PAGE, READ_ONLY)
    with pytest.raises(PageFault, match="read-only"):
        dma.space.translate(address, True)
    assert dma.unmap(address, flags=1) == OK
    assert dma.space.translate(address, False)
    dma.space.flush_tlb()
    with pytest.raises(PageFault):
        dma.space.translate(address, False)


@pytest.mark.parametrize("seed", range(4))
def test_ranges_cut_mappings(dma: Dma, seed: int) -> None:
    """Against a table of pages."""
    rng, pages = random.Random(seed), dict[int, tuple[int, int]]()
    memories = [dma.memory(16 * PAGE) for _ in range(3)]
    objects = dma.user.world.rm.clients[dma.user.client].objects
    for _ in range(60):
        at, count = rng.randrange(48), rng.randint(1, 12)
        place = range(at, at + count)
        if rng.random() < 0.6:
            which, first = rng.randrange(3), rng.randrange(16 - count + 1)
            flags = FIXED | 1 << 8
            status, address = dma.map(
                *(memories[which], first * PAGE, count * PAGE, flags, BASE + at * PAGE)
            )
            free = not pages.keys() & set(place)
            assert (status, address) == (OK if free else NO_MEMORY, BASE + at * PAGE)
            if free:
                pages |= {page: (which, first + i) for i, page in enumerate(place)}
        else:
            assert dma.unmap(BASE + at * PAGE, count * PAGE) == OK
            pages = {page: what for page, what in pages.items() if page not in place}
        for page in range(64):
            found = dma.space.find(BASE + page * PAGE)
            assert (found is not None) == (page in pages)
            if found:
                which, offset = pages[page]
                physical = objects[memories[which]].physical  # type: ignore[attr-defined]
                (piece,) = physical.pieces(offset * PAGE, PAGE)
                assert found.offset + BASE + page * PAGE - found.start == piece.offset


def test_a_channel_runs_on_what_rm_mapped(opened: RawNv) -> None:
    """Its ring, pushbuffer and semaphore are at addresses that RM mapped; UVM is not asked."""
    dma = Dma(opened, base=1 << 36)  # ring entries have 40 bits of address
    memory = dma.memory(MIB)
    status, va = dma.map(memory, 0, MIB)
    fd = opened.open_card()
    assert status == OK and opened.map_raw(memory, MIB, fd) == OK
    buffer = Buffer(memory, MIB, va)

    buffer.host_window = MemoryWindow(opened.os.mmap(fd, MIB, 3, 1), MIB)
    params = opened.channel_params(0, buffer)
    struct.pack_into("<I", params, 128, 1)
    handle = opened.alloc(CHANNEL[opened.chip], params, parent=opened.device)
    ring = Ring(opened, handle, buffer, 64)
    token = bytearray(4)
    assert opened.control(handle, 0xC36F0108, token) == OK
    ring.token = struct.unpack("<I", token)[0]
    assert opened.control(handle, 0xA06F0103, bytearray(b"\1\0\0")) == OK
    ring.submit(*release(va + 0xF_0000, 0xABCD))
    opened.run()
    assert buffer.host.read(0xF_0000, 4) == 0xABCD and not opened.violations
    assert opened.free(dma.handle) == OK
    ring.submit(*release(va + 0xF_0000, 1))
    opened.run()
    assert opened.world.debug.faults
