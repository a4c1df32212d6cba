"""The model's own parts against brute force: pools, address spaces, caches, files, ids."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.core import hostmem
from gpu.sim.amd.chip.caches import CacheControl, Caches
from gpu.sim.amd.kfd.process import IdTable
from gpu.sim.clock import VirtualClock
from gpu.sim.kernel import SysError, UserMemory
from gpu.sim.physical import PAGE, Pool
from gpu.sim.record import DebugChannel
from gpu.sim.translate import AddressSpace, Mapping, PageFault
from gpu.sim.tree import FileTree

POOL_PAGES = 32


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool("test", POOL_PAGES * PAGE)
    yield pool
    pool.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=40))
def test_pool_never_hands_out_a_page_twice(pool: Pool, steps: list[tuple[bool, int]]) -> None:
    held = []
    for take, pages in steps:
        if take and pages * PAGE <= pool.free_bytes:
            extents = pool.allocate(pages * PAGE)
            assert sum(e.size for e in extents) == pages * PAGE
            assert all(pool.load(e.offset, e.size) == bytes(e.size) for e in extents)
            for extent in extents:
                pool.store(extent.offset, b"\xaa" * extent.size)
            held.append(extents)
        elif held:
            pool.release(held.pop(pages % len(held)))
        used = [
            page for es in held for e in es for page in range(e.offset, e.offset + e.size, PAGE)
        ]
        assert len(used) == len(set(used))
        assert pool.free_bytes == POOL_PAGES * PAGE - len(used) * PAGE
    for extents in held:
        pool.release(extents)
    assert pool._holes == [(0, POOL_PAGES * PAGE)]


def test_pool_is_finite(pool: Pool) -> None:
    with pytest.raises(SysError) as caught:
        pool.allocate((POOL_PAGES + 1) * PAGE)
    assert caught.value.number == errno.ENOMEM


RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=20)


@settings(max_examples=100, deadline=None)
@given(RANGES, st.integers(0, 40), st.integers(1, 8))
def test_address_space(pool: Pool, ranges: list[tuple[int, int]], start: int, pages: int) -> None:
    """Overlap and translation agree with a plain table of pages."""
    space = AddressSpace()
    table: dict[int, int] = {}
    for first, count in ranges:
        taken = any(page in table for page in range(first, first + count))
        begin, end = first * PAGE, (first + count) * PAGE
        assert bool(space.overlapping(begin, end)) == taken
        if not taken:
            space.map(Mapping(begin, end, pool, first * 1000, writable=first % 2 == 0))
            table |= dict.fromkeys(range(first, first + count), first)
    for page in range(start, start + pages):
        address = page * PAGE + 5
        if page not in table:
            with pytest.raises(PageFault):
                space.translate(address, False)
            continue
        mapping = space.translate(address, False)
        assert mapping.offset == table[page] * 1000
        if table[page] % 2:
            with pytest.raises(PageFault):
                space.translate(address, True)
    wanted = range(start, start + pages)
    if all(page in table for page in wanted):
        spans = list(space.spans(start * PAGE, pages * PAGE, False))
        assert sum(count for _, _, count in spans) == pages * PAGE


ACCESSES = st.lists(
    st.tuples(
        st.sampled_from(["vector", "cp_l2", "sdma", "read", "flush"]),
        st.integers(0, 500),
        st.integers(1, 60),
        st.integers(1, 255),
    ),
    max_size=30,
)


@settings(max_examples=80, deadline=None)
@given(ACCESSES)
def test_the_oldest_value_after_a_flush_is_the_newest(
    pool: Pool, accesses: list[tuple[str, int, int, int]]
) -> None:
    """Engines behind one L2 always agree; memory agrees after a write-back."""
    pool.store(0, bytes(1024))
    caches = Caches("oldest", True, DebugChannel(VirtualClock()))
    mapping = Mapping(0, PAGE, pool, 0)
    model = bytearray(1024)
    for agent, at, size, value in accesses:
        if agent == "read":
            assert caches.load("cp_l2", mapping, at, size) == model[at : at + size]
            assert caches.load("sdma", mapping, at, size) == model[at : at + size]
        elif agent == "flush":
            caches.control(CacheControl(write_back_l2=True))
            assert pool.load(0, 1024) == model
        else:
            model[at : at + size] = bytes([value]) * size
            caches.store(agent, mapping, at, bytes([value]) * size)  # type: ignore[arg-type]


def test_user_memory() -> None:
    user = UserMemory()
    at = hostmem.map_anonymous(4 << 20)
    data = bytes(range(256)) * (3 << 12)
    user.write(at + 5, data)
    assert user.read(at + 5, len(data)) == data
    for bad in (8, (1 << 47) - 4, 1 << 60):
        with pytest.raises(SysError) as caught:
            user.read(bad, 8)
        assert caught.value.number == errno.EFAULT
        with pytest.raises(SysError):
            user.write(bad, b"12345678")
    user.close()


def test_tree() -> None:
    tree = FileTree()
    tree.add("/a/b/c", "text\n")
    tree.add("/a/d", lambda: b"made")
    assert tree.names("/a") == ["b", "d"]
    assert tree.names("/") == ["a"]
    assert tree.read("/a/d") == b"made"
    for path, number in (("/a/b", errno.EISDIR), ("/x", errno.ENOENT)):
        with pytest.raises(SysError) as caught:
            tree.read(path)
        assert caught.value.number == number
    with pytest.raises(SysError) as caught:
        tree.names("/a/d")
    assert caught.value.number == errno.ENOTDIR


@given(st.lists(st.integers(0, 12), max_size=40))
def test_ids_are_the_lowest_free(steps: list[int]) -> None:
    ids: IdTable[str] = IdTable()
    taken: set[int] = set()
    for step in steps:
        if step in taken:
            ids.remove(step)
            taken.discard(step)
        else:
            lowest = next(n for n in range(100) if n not in taken)
            assert ids.add("x") == lowest
            taken.add(lowest)
    assert [number for number, _ in ids] == sorted(taken)
