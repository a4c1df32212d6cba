"""Fenced rings against a brute-force model of which bytes are live."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.core.errors import HwTimeout, InvalidValue, OutOfMemory
from gpu.core.ring import FencedRing

WRAP = 2**64


class Model:
    """Every live byte, skipped ones too, with the fence that frees it; None where it has none."""

    def __init__(self, size: int):
        self.owner: dict[int, int | None] = {}
        self.size = size
        self.head = 0
        self.fences: list[int] = []  # not passed, oldest first
        self.needed: set[int] | None = None  # what only the last value waited for has freed

    def wait_for(self, value: int) -> None:
        assert self.needed is None, "one wait is enough"
        self.needed = {byte for byte, fence in self.owner.items() if fence == value}
        passed = self.fences[: self.fences.index(value) + 1]
        self.fences = self.fences[len(passed) :]
        self.owner = {byte: fence for byte, fence in self.owner.items() if fence not in passed}

    def reserve(self, offset: int, size: int) -> None:
        assert 0 <= offset <= self.size - size
        skipped = (offset - self.head) % self.size
        if skipped + size > self.size:  # begins anew
            assert offset == 0
            assert not self.owner
            taken = set(range(size))
        else:
            taken = {(self.head + i) % self.size for i in range(skipped + size)}
            assert not taken & set(self.owner)
            assert self.needed is None or taken & self.needed, "an older value was enough"
        self.owner |= dict.fromkeys(taken)
        self.head = offset + size
        self.needed = None

    def fence(self, value: int) -> None:
        if None in self.owner.values():
            self.fences.append(value)
            self.owner = {b: value if f is None else f for b, f in self.owner.items()}


STEPS = st.one_of(
    st.tuples(st.just("reserve"), st.integers(1, 40), st.sampled_from([1, 2, 4, 8])),
    st.tuples(st.just("fence"), st.integers(1, 3), st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(8, 40),
    st.one_of(st.integers(0, WRAP - 1), st.integers(WRAP - 10, WRAP - 1)),
    st.lists(STEPS, max_size=60),
)
def test_live_bytes_are_never_handed_out(size: int, value: int, steps: list[tuple]) -> None:
    model = Model(size)
    ring = FencedRing(size, model.wait_for)
    for what, amount, align in steps:
        if what == "fence":
            value = (value + amount) % WRAP
            ring.fence(value)
            model.fence(value)
            continue
        if amount > size:
            with pytest.raises(InvalidValue):
                ring.reserve(amount, align)
            continue
        try:
            offset = ring.reserve(amount, align)
        except OutOfMemory:
            assert None in model.owner.values()
            assert model.needed is None
            continue
        assert offset % align == 0
        model.reserve(offset, amount)
        assert ring.in_use == len(model.owner)
        assert ring.in_use + ring.free == size


def sizes_and_waits(size: int, *sizes: int) -> tuple[list[int], list[int]]:
    """Offsets of reservations that are fenced with 1, 2, ...; and the values waited for."""
    waited: list[int] = []
    ring = FencedRing(size, waited.append)
    offsets = []
    for value, amount in enumerate(sizes, 1):
        offsets.append(ring.reserve(amount))
        ring.fence(value)
    return offsets, waited


@pytest.mark.parametrize(
    ("sizes", "offsets", "waited"),
    [
        ((10, 10, 10), [0, 10, 20], []),
        ((10, 10, 12), [0, 10, 20], []),  # exactly full
        ((10, 10, 12, 1), [0, 10, 20, 0], [1]),  # the oldest alone
        ((4, 4, 4, 20, 9), [0, 4, 8, 12, 0], [3]),  # the smallest value that frees enough
        ((10, 10, 13), [0, 10, 0], [2]),  # 13 do not fit before the end: over both
        ((10, 10, 20), [0, 10, 0], [2]),
        ((32, 32, 32), [0, 0, 0], [1, 2]),
        ((20, 32), [0, 0], [1]),  # never across the end: an empty ring begins anew
        ((20, 6, 20), [0, 20, 0], [1]),
        ((20, 6, 21), [0, 20, 0], [2]),
    ],
)
def test_where_and_what_for(sizes: tuple[int, ...], offsets: list[int], waited: list[int]) -> None:
    assert sizes_and_waits(32, *sizes) == (offsets, waited)


def test_bytes_without_a_fence_cannot_be_waited_for() -> None:
    ring = FencedRing(32, lambda value: pytest.fail("waits in vain"))
    ring.reserve(8)
    ring.fence(1)
    ring.reserve(8)
    with pytest.raises(OutOfMemory, match="8 bytes have no fence yet"):
        ring.reserve(28)
    assert ring.reserve(16) == 16


def test_one_fence_covers_all_since_the_last_and_empty_ones_nothing() -> None:
    waited: list[int] = []
    ring = FencedRing(32, waited.append)
    ring.fence(5)
    ring.reserve(10)
    ring.reserve(10)
    ring.fence(6)
    ring.fence(7)
    assert (ring.in_use, ring.free) == (20, 12)
    ring.reserve(12)
    ring.fence(8)
    ring.reserve(1)
    assert waited == [6]


def test_a_wait_that_fails_changes_nothing() -> None:
    answers = iter([HwTimeout("fence", 0, "1", 1.0), None])

    def wait_for(value: int) -> None:
        error = next(answers)
        if error:
            raise error

    ring = FencedRing(32, wait_for)
    ring.reserve(32)
    ring.fence(1)
    with pytest.raises(HwTimeout):
        ring.reserve(4)
    assert ring.in_use == 32
    assert ring.reserve(4) == 0
    assert ring.in_use == 4


def test_the_ring_aligns_by_default() -> None:
    ring = FencedRing(64, lambda value: None, align=16)
    assert [ring.reserve(3), ring.reserve(3), ring.reserve(3, align=1)] == [0, 16, 19]


@pytest.mark.parametrize(("size", "align"), [(0, 1), (-1, 1), (33, 1), (4, 0), (4, 64)])
def test_impossible_reservations(size: int, align: int) -> None:
    with pytest.raises(InvalidValue, match="must be 1 to 32"):
        FencedRing(32, lambda value: None).reserve(size, align)


def test_impossible_rings() -> None:
    for size, align in ((0, 1), (8, 0), (8, 16)):
        with pytest.raises(InvalidValue, match="give 0 < align <= size"):
            FencedRing(size, lambda value: None, align)
