"""The allocator against a brute-force model of intervals."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpu.core.errors import InvalidValue, OutOfMemory
from gpu.core.tlsf import Span, Tlsf


class Machine(RuleBasedStateMachine):
    """Random allocations and frees; the model is the list of live (address, size)."""

    @initialize(
        base=st.integers(0, 2**20),
        size=st.one_of(st.integers(1, 64), st.integers(1, 5000)),
        granule=st.sampled_from([1, 16, 4096]),
    )
    def start(self, base: int, size: int, granule: int) -> None:
        self.granule = granule
        self.base, self.size = base * granule, size * granule
        self.tlsf = Tlsf(self.base, self.size, granule)
        self.live: dict[int, int] = {}
        self.dead: list[int] = []

    def holes(self) -> list[tuple[int, int]]:
        """(start, end) of what is not live, by looking between all neighbours."""
        position, found = self.base, []
        for address, size in sorted(self.live.items()):
            if address > position:
                found.append((position, address))
            position = address + size
        end = self.base + self.size
        return found + ([(position, end)] if position < end else [])

    @rule(
        fraction=st.floats(0.001, 1.1),
        odd=st.integers(0, 20),
        align=st.sampled_from([1, 2, 8, 64, 1024]),
    )
    def alloc(self, fraction: float, odd: int, align: int) -> None:
        size = max(1, int(self.size * fraction * fraction) - odd)
        align *= self.granule
        rounded = -(-size // self.granule) * self.granule
        fits = [(lo, hi) for lo, hi in self.holes() if -(-lo // align) * align + rounded <= hi]
        try:
            address = self.tlsf.alloc(size, align)
        except OutOfMemory as error:
            assert not fits
            largest = max((hi - lo for lo, hi in self.holes()), default=0)
            assert f"no room for {size} bytes" in str(error)
            assert f"the largest hole has {largest}" in str(error)
            return
        assert address % align == 0
        assert any(lo <= address and address + rounded <= hi for lo, hi in self.holes())
        assert self.tlsf.size_of(address) == rounded
        self.live[address] = rounded

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.live)))
        self.tlsf.free(address)
        del self.live[address]
        self.dead.append(address)

    @precondition(lambda self: self.dead)
    @rule(data=st.data(), shift=st.sampled_from([0, 1, 4096]))
    def free_what_is_not_live(self, data: st.DataObject, shift: int) -> None:
        address = data.draw(st.sampled_from(self.dead)) + shift
        if address not in self.live:
            with pytest.raises(InvalidValue, match=f"freeing {address:#x}: it is "):
                self.tlsf.free(address)

    @invariant()
    def spans_are_the_model(self) -> None:
        live = [Span(address, size, True) for address, size in self.live.items()]
        holes = [Span(lo, hi - lo, False) for lo, hi in self.holes()]  # all merged
        assert list(self.tlsf.spans()) == sorted(live + holes)
        assert self.tlsf.in_use == sum(self.live.values())
        assert self.tlsf.largest_hole == max((h.size for h in holes), default=0)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=70, stateful_step_count=40, deadline=None)


def test_the_whole_range_can_be_one_allocation() -> None:
    for granules in (1, 31, 32, 33, 63, 64, 65, 1000, 2**20 - 1, 2**20 + 1):
        tlsf = Tlsf(4096, granules * 256, 256)
        assert tlsf.alloc(granules * 256) == 4096
        assert (tlsf.in_use, tlsf.largest_hole) == (granules * 256, 0)
        tlsf.free(4096)
        assert tlsf.largest_hole == granules * 256


def test_aligned_holes_are_found_even_when_they_fit_just_so() -> None:
    tlsf = Tlsf(256, 512, 256)
    assert tlsf.alloc(256, align=512) == 512
    assert tlsf.alloc(1) == 256


def test_many_holes_of_one_size() -> None:
    """Holes leave their list from its head, its middle and its end."""
    for seed in range(20):
        random = Random(seed)
        tlsf = Tlsf(0, 96, 1)
        live = {tlsf.alloc(2) for _ in range(48)}
        for _ in range(200):
            if len(live) < 48 and random.random() < 0.5:
                address = tlsf.alloc(2)
                assert address not in live
                live.add(address)
            elif live:
                address = random.choice(sorted(live))
                live.remove(address)
                tlsf.free(address)
            assert {span.address for span in tlsf.spans() if span.allocated} == live


def test_wrong_frees_say_what_is_there() -> None:
    tlsf = Tlsf(0x1000, 0x1000, 0x100)
    first, second = tlsf.alloc(0x100), tlsf.alloc(0x200)
    with pytest.raises(InvalidValue, match="inside the allocation of 0x200 bytes at 0x1100"):
        tlsf.free(second + 0x100)
    tlsf.free(first)
    with pytest.raises(InvalidValue, match="in the hole of 0x100 bytes at 0x1000: freed twice"):
        tlsf.free(first)
    with pytest.raises(InvalidValue, match="outside the 0x1000 bytes at 0x1000"):
        tlsf.free(0x2000)
    with pytest.raises(InvalidValue, match="size of 0x1000: it is in the hole"):
        tlsf.size_of(first)
    assert tlsf.in_use == 0x200


def test_the_same_calls_give_the_same_addresses() -> None:
    def run() -> list[int]:
        tlsf = Tlsf(0, 1 << 20, 256)
        got = [tlsf.alloc(257 * k % 5000 + 1) for k in range(100)]
        for address in got[::3]:
            tlsf.free(address)
        return got + [tlsf.alloc(300 * k + 1, 1024) for k in range(20)]

    assert run() == run()


def test_bad_arguments() -> None:
    for base, size, granule in ((0, 64, 3), (1, 64, 2), (0, 63, 2), (0, 0, 2), (-2, 64, 2)):
        with pytest.raises(InvalidValue):
            Tlsf(base, size, granule)
    tlsf = Tlsf(0, 64, 4)
    for size, align in ((0, 1), (-1, 1), (1, 3), (1, 0)):
        with pytest.raises(InvalidValue, match="must be positive and the alignment a power of two"):
            tlsf.alloc(size, align)
