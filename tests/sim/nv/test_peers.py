"""Peers: what must come first, mappings of another GPU's memory, and how they end."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from gpu.sim.nv.chip.copyunits import P2P
from gpu.sim.nv.world import NvSimWorld
from gpu.sim.process import SimProcess
from sim.nv.bench import BANK, Bench, Machine, add_one
from sim.nv.methods import acquire, copy, inc, release
from sim.nv.numbers import (
    COPY,
    INVALID_ADDRESS,
    INVALID_ARGUMENT,
    INVALID_DEVICE,
    INVALID_OFFSET,
    NOT_SUPPORTED,
    OK,
    PARAM_STRUCT,
    SYSMEM,
    VIDMEM,
)
from sim.nv.raw_nv import PAGE, RawNv, pack

BASE = 0x3_0000_0000
SIZE = 64 << 10
READS, WRITES, PROPRIETARY, LOOPBACK, PCI = 2, 1, 4, 32, 64
BOTH = READS | WRITES | PROPRIETARY | PCI
NO_PEER = 0xFFFFFFFF


class Two(NamedTuple):
    """Two GPUs of one process, in one file of UVM."""

    near: RawNv
    far: RawNv

    def enable(self) -> int:
        return self.near.enable_peers(self.near.uuid, self.far.uuid)

    def disable(self) -> int:
        return self.far.disable_peers(self.far.uuid, self.near.uuid)

    def map_far(self, va: int = BASE, kind: int = 1, offset: int = 0) -> int:
        """Video memory of the far GPU into the near one's page tables."""
        memory = self.far.alloc(VIDMEM, self.far.memory_params(SIZE, True), parent=self.far.device)
        assert self.near.create_range(va, SIZE) == OK
        where = [self.near.uuid]
        return self.far.map_range(va, SIZE, memory, kind=kind, offset=offset, uuids=where)


def open_two(process: SimProcess, upto: str = "channel") -> Two:
    near = RawNv(process, upto)
    return Two(near, RawNv(process, upto, gpu_index=1, shared=near))


@pytest.fixture(params=["gh100", "ad102"])
def two(request: pytest.FixtureRequest) -> Iterator[Two]:
    world = NvSimWorld(seed=3, chip=(request.param,) * 2)
    yield open_two(world.process)
    world.close()


@pytest.fixture
def world() -> Iterator[NvSimWorld]:
    world = NvSimWorld(seed=3, chip=("gh100", "gh100", "ad102"))
    yield world
    world.close()


def test_peers_are_two_registered_gpus_and_once(two: Two) -> None:
    near, far = two.near.uuid, two.far.uuid
    assert two.near.enable_peers(near, bytes(16)) == INVALID_DEVICE
    assert two.near.enable_peers(near, near) == INVALID_DEVICE
    assert two.near.disable_peers(near, far) == INVALID_DEVICE
    assert two.enable() == OK
    assert two.enable() == INVALID_DEVICE
    assert two.near.enable_peers(far, near) == INVALID_DEVICE
    assert two.near.disable_peers(near, near) == INVALID_DEVICE
    assert two.disable() == OK
    assert two.disable() == INVALID_DEVICE
    assert two.enable() == OK


def test_an_unregistered_gpu_has_no_peers(world: NvSimWorld) -> None:
    near, other = RawNv(world.process, "memory"), RawNv(world.process, "memory", gpu_index=1)
    assert near.enable_peers(near.uuid, other.uuid) == INVALID_DEVICE
    assert near.register_gpu(other.uuid) == OK
    assert near.enable_peers(near.uuid, other.uuid) == OK  # no VA space is needed for it


def test_gpus_of_two_chips_are_no_peers(world: NvSimWorld) -> None:
    near = RawNv(world.process, "memory")
    ada = RawNv(world.process, "memory", gpu_index=2, shared=near)
    assert near.enable_peers(near.uuid, ada.uuid) == NOT_SUPPORTED


def test_a_machine_without_peers() -> None:
    world = NvSimWorld(chip=("gh100", "gh100"), pcie_peers=False)
    two = open_two(world.process, "memory")
    assert two.enable() == NOT_SUPPORTED
    assert two.map_far() == INVALID_DEVICE
    assert caps(two.near, 0x100, 0x200)[:2] == (OK, 0)
    world.close()


def test_mapping_needs_peers(two: Two) -> None:
    assert two.map_far() == INVALID_DEVICE
    assert two.near.world.usage().external == before_mapping(two)
    assert two.enable() == OK
    assert two.map_far(BASE + SIZE) == OK


def before_mapping(two: Two) -> int:
    return 2 * len(two.near.rings) + 2 * len(two.far.rings)


def test_memory_of_an_unregistered_gpu(world: NvSimWorld) -> None:
    """Also the machine's memory has an owner, which UVM must know."""
    near = RawNv(world.process, "memory")
    far = RawNv(world.process, "objects", gpu_index=1)
    near.client, client = far.client, near.client
    for number, local in ((VIDMEM, True), (SYSMEM, False)):
        memory = far.alloc(number, far.memory_params(PAGE, local), parent=far.device)
        assert near.create_range(BASE + local * PAGE, PAGE) == OK
        assert near.map_range(BASE + local * PAGE, PAGE, memory) == INVALID_DEVICE
    assert near.register_gpu(far.get_uuid()) == OK
    assert near.map_range(BASE, PAGE, memory) == OK
    near.client = client


def test_checks_of_peer_mappings(two: Two) -> None:
    assert two.enable() == OK
    assert two.map_far(offset=512) == INVALID_ADDRESS
    assert two.map_far(BASE + SIZE, offset=PAGE) == INVALID_OFFSET
    assert two.map_far(BASE + 2 * SIZE, kind=4) == INVALID_ARGUMENT


def test_one_call_maps_on_both(two: Two) -> None:
    memory = two.far.alloc(VIDMEM, two.far.memory_params(SIZE, True), parent=two.far.device)
    assert two.far.create_range(BASE, SIZE) == OK
    both = [two.far.uuid, two.near.uuid]
    before = two.near.world.usage().external
    assert two.far.map_range(BASE, SIZE, memory, uuids=both) == INVALID_DEVICE
    assert two.near.world.usage().external == before  # the first one was undone
    assert two.enable() == OK
    assert two.far.map_range(BASE, SIZE, memory, uuids=both) == OK
    assert two.near.world.usage().external == before + 2


def copy_across(two: Two) -> tuple[int, int]:
    """The near GPU's copy engine fetches from the far GPU's memory, and puts there."""
    near, far = two.near, two.far
    theirs, mine = far.buffer(SIZE, local=True), near.buffer(SIZE, local=True)
    assert far.map_range(theirs.va, SIZE, theirs.handle, uuids=[near.uuid]) == OK
    theirs.host.write(0, 4, 0x1234)
    mine.host.write(8, 4, 0x5678)
    words = inc(4, 0, COPY[near.chip])
    near.ring.submit(*words, *copy(theirs.va, mine.va, 4), *copy(mine.va + 8, theirs.va + 8, 4))
    near.run()
    return mine.host.read(0, 4), theirs.host.read(8, 4)


def test_the_copy_engine_reads_and_writes_a_peer(two: Two) -> None:
    assert two.enable() == OK
    assert copy_across(two) == (0x1234, 0x5678)
    assert not two.near.violations


def test_a_copy_engine_without_a_way_to_peers(two: Two) -> None:
    assert two.enable() == OK
    chip = two.near.gpu.chip
    units = tuple(replace(unit, caps=unit.caps & ~P2P) for unit in chip.copy_engines)
    two.near.gpu.chip = replace(chip, copy_engines=units)
    assert copy_across(two) == (0, 0)
    assert "memory of another GPU" in two.near.violations[0]


def test_semaphores_across_peers(two: Two) -> None:
    """The far GPU waits for what the near one releases into its memory."""
    assert two.enable() == OK
    flag = two.far.buffer(PAGE, local=True)
    assert two.far.map_range(flag.va, PAGE, flag.handle, uuids=[two.near.uuid]) == OK
    two.far.ring.submit(*acquire(flag.va, 7), *release(flag.va + 16, 1))
    two.far.run()
    assert flag.host.read(16, 4) == 0
    two.near.ring.submit(*release(flag.va, 7))
    two.near.run()
    assert flag.host.read(16, 4) == 1


def test_a_kernel_works_on_a_peer() -> None:
    machine = Machine(add_one)
    world = NvSimWorld(seed=3, chip=("gh100", "gh100"), executor=machine)
    two = open_two(world.process)
    assert two.enable() == OK
    bench = Bench(two.near, machine)
    theirs = two.far.buffer(SIZE, local=True)
    assert two.far.map_range(theirs.va, SIZE, theirs.handle, uuids=[two.near.uuid]) == OK
    theirs.host.write(0, 4, 41)
    bench.area.host.write(BANK + 0x210, 8, theirs.va)
    bench.run(bench.qmd())
    assert theirs.host.read(0, 4) == 41 + machine.launches[0].grid.volume
    assert not world.debug.violations
    world.close()


def test_a_read_only_peer_mapping(two: Two) -> None:
    assert two.enable() == OK and two.map_far(kind=3) == OK
    two.near.ring.submit(*release(BASE, 1))
    two.near.run()
    assert two.near.ring.error()[0] == 31 and "read-only" in two.near.world.debug.faults[0]


ENDS: dict[str, Callable[[Two], int]] = {
    "peer access is disabled": Two.disable,
    "the owner is unregistered": lambda t: t.near.unregister_gpu(t.far.uuid),
    "the mapping goes": lambda t: t.near.free_range(BASE, SIZE),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_a_peer_mapping(two: Two, name: str) -> None:
    assert two.enable() == OK and two.map_far() == OK
    two.near.ring.submit(*release(BASE, 1))
    two.near.run()
    assert two.near.ring.error()[0] == 0
    assert ENDS[name](two) == OK
    two.near.ring.submit(*release(BASE, 2))
    two.near.run()
    assert two.near.ring.error()[0] == 31 and "not mapped" in two.near.world.debug.faults[0]


def test_disabling_keeps_what_is_no_peer_mapping(two: Two) -> None:
    assert two.enable() == OK
    memory = two.far.alloc(SYSMEM, two.far.memory_params(PAGE, False), parent=two.far.device)
    assert two.near.create_range(BASE, PAGE) == OK
    assert two.far.map_range(BASE, PAGE, memory, uuids=[two.near.uuid]) == OK
    before = two.near.world.usage()
    assert two.disable() == OK
    assert two.near.world.usage() == before
    assert two.near.unregister_gpu(two.far.uuid) == OK  # its memory goes, also the machine's
    two.near.ring.submit(*release(BASE, 2))
    two.near.run()
    assert two.near.ring.error()[0] == 31


def test_peer_memory_outlives_its_handle(two: Two) -> None:
    """A mapping holds the pages; freeing the range gives them back to their own GPU."""
    assert two.enable() == OK and two.map_far() == OK
    used = two.far.gpu.vram_used
    assert two.far.free(two.far.client) == OK
    assert two.far.gpu.vram_used == used
    assert two.near.free_range(BASE, SIZE) == OK
    assert two.far.gpu.vram_used == used - SIZE


def test_closing_the_file_ends_peers(world: NvSimWorld) -> None:
    process = world.new_process()
    two = open_two(process, "memory")
    assert two.enable() == OK and two.map_far() == OK
    other = open_two(world.process, "memory")
    assert other.enable() == OK  # each file has peers of its own
    assert two.disable() == OK and two.enable() == OK and two.map_far(BASE + SIZE) == OK
    process.exit()
    assert caps(other.near, 0x100, 0x200)[3] == [[NO_PEER, 0], [0, NO_PEER]]
    assert other.disable() == OK
    assert caps(other.near, 0x100, 0x200)[3] == [[NO_PEER] * 2] * 2
    assert world.usage().external == 0


def caps(user: RawNv, *ids: int) -> tuple[int, int, list[int], list[list[int]]]:
    """(status, capabilities, their statuses, peer ids) of GET_P2P_CAPS_V2."""
    params = pack(8348, *(("I", 4 * i, gpu) for i, gpu in enumerate(ids)), ("I", 128, len(ids)))
    status = user.control(user.client, 0x12B, params)
    table = struct.unpack_from(f"<{len(ids) ** 2}I", params, 156)
    rows = [list(table[i : i + len(ids)]) for i in range(0, len(table), len(ids))]
    return status, struct.unpack_from("<I", params, 132)[0], list(params[144:153]), rows


def test_capabilities(world: NvSimWorld) -> None:
    user = open_two(world.process, "memory").near
    assert caps(user, 0x100, 0x200) == (OK, BOTH, [0, 0, 5, 5, 0, 5, 0, 5, 5], [[NO_PEER] * 2] * 2)
    assert caps(user, 0x100, 0x300) == (OK, 0, [5] * 9, [[NO_PEER] * 2] * 2)
    alone = [0, 0, 5, 5, 0, 0, 0, 5, 5]
    assert caps(user, 0x100) == (OK, BOTH | LOOPBACK, alone, [[NO_PEER]])
    assert caps(user, 0x100, 0x100)[:3] == (OK, BOTH | LOOPBACK, alone)
    assert caps(user, 0x100, 0x900)[0] == INVALID_ARGUMENT
    assert user.control(user.client, 0x12B, bytearray(8348)) == INVALID_ARGUMENT
    assert user.control(user.client, 0x12B, bytearray(8344)) in (INVALID_ARGUMENT, PARAM_STRUCT)
    assert user.control(user.subdevice, 0x12B, bytearray(8348)) == NOT_SUPPORTED


def test_peer_ids_exist_while_somebody_uses_the_pair(world: NvSimWorld) -> None:
    two = open_two(world.process, "memory")
    assert two.enable() == OK
    assert caps(two.near, 0x200, 0x100)[3] == [[NO_PEER, 0], [0, NO_PEER]]
    assert two.disable() == OK
    assert caps(two.near, 0x200, 0x100)[3] == [[NO_PEER] * 2] * 2


def test_older_capabilities(world: NvSimWorld) -> None:
    """GET_P2P_CAPS has pointers to the tables of peer ids, or none."""
    two = open_two(world.process, "memory")
    assert two.enable() == OK
    table = (ctypes.c_uint32 * 4)()
    ids = ("I", 0, 0x100), ("I", 4, 0x200), ("I", 128, 2)
    params = pack(176, *ids, ("Q", 160, ctypes.addressof(table)))
    assert two.near.control(two.near.client, 0x127, params) == OK
    assert struct.unpack_from("<I", params, 132)[0] == BOTH
    assert list(table) == [NO_PEER, 0, 0, NO_PEER]
    params = pack(176, *ids)
    assert two.near.control(two.near.client, 0x127, params) == OK


def test_the_matrix(world: NvSimWorld) -> None:
    user = RawNv(world.process, "objects")
    ids = tuple(("I", 8 + 4 * i, 0x100 * (i + 1)) for i in range(3))
    one = BOTH | LOOPBACK
    params = pack(1352, ("I", 0, 3), *ids)
    assert user.control(user.client, 0x13A, params) == OK
    rows = [list(struct.unpack_from("<3I", params, 72 + 32 * i)) for i in range(3)]
    assert rows == [[one, BOTH, 0], [BOTH, one, 0], [0, 0, one]]
    params = pack(1352, ("I", 0, 1), ("I", 4, 1), ("I", 8, 0x200), ("I", 40, 0x100))
    assert user.control(user.client, 0x13A, params) == OK
    assert struct.unpack_from("<I", params, 72)[0] == BOTH
    both = tuple(("I", 8 + 4 * i, 0x100) for i in range(16))
    for counts in ((0, 1), (9, 0), (1, 9)):
        params = pack(1352, ("I", 0, counts[0]), ("I", 4, counts[1]), *both)
        assert user.control(user.client, 0x13A, params) == INVALID_ARGUMENT
