"""What a machine counts, with submissions whose numbers can be told by hand."""

from __future__ import annotations

from gpu.sim.counts import Counts
from sim.nv.bench import Bench
from sim.nv.methods import inc, launch, release
from sim.nv.raw_nv import RawNv


def since(user: RawNv, before: Counts) -> Counts:
    return user.world.counts - before


def snapshot(user: RawNv) -> Counts:
    return user.world.counts + Counts()


def test_rings_entries_and_methods(user: RawNv) -> None:
    flag = user.buffer()
    before = snapshot(user)
    user.ring.submit(*release(flag.va, 1))  # an entry, and five methods by one header
    user.run()
    assert since(user, before) == Counts(doorbells=1, packets=6)
    user.ring.submit(*inc(0, 0x8, 1), 4 << 29 | 5 << 16 | 0x8 >> 2)  # one with data, one immediate
    user.run()
    assert since(user, before) == Counts(doorbells=2, packets=9)


def test_rings_between_two_looks_are_one(user: RawNv) -> None:
    flag = user.buffer()
    before = snapshot(user)
    for value in (1, 2, 3):
        user.ring.submit(*release(flag.va, value))
    user.run()
    assert since(user, before) == Counts(doorbells=1, packets=18)


def test_what_fails_counts_too(user: RawNv) -> None:
    """The method that ends a channel was carried out, those behind it were not."""
    before = snapshot(user)
    user.ring.submit(*release(0x1000, 1), *inc(0, 0x8, 1))
    user.run()
    assert since(user, before) == Counts(doorbells=1, packets=6)


def test_grids(each_bench: Bench) -> None:
    user = each_bench.user
    user.run()
    before = snapshot(user)
    each_bench.run(each_bench.qmd())
    each_bench.run(each_bench.qmd())
    entry = 1 + len(launch(0)) - 2  # two headers are no methods
    assert since(user, before) == Counts(doorbells=2, packets=2 * entry, kernels=2)


def test_calls(user: RawNv) -> None:
    before = snapshot(user)
    user.free(user.alloc(0x3E, user.memory_params(4096, False), parent=user.device))
    assert since(user, before).ioctls == 2
