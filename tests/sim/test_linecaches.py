"""What caches of lines make of random accesses, beside memory and a cache byte by byte."""

from __future__ import annotations

import random

import pytest

from gpu.sim.clock import VirtualClock
from gpu.sim.linecaches import DirtyLines, LineCaches, Mode
from gpu.sim.physical import Pool
from gpu.sim.record import DebugChannel
from gpu.sim.translate import Mapping

SIZE = 4096


@pytest.mark.parametrize("seed", range(8))
def test_dirty_lines_are_what_was_written_last(seed: int) -> None:
    rng = random.Random(seed)
    pool, dirty = Pool("memory", SIZE, local=True), DirtyLines()
    memory, cached = bytearray(SIZE), dict[int, int]()  # bytes that are dirty, by offset
    for _ in range(200):
        offset = rng.randrange(SIZE)
        size = rng.randint(1, min(300, SIZE - offset))
        data = rng.randbytes(size)
        match rng.choice(["store", "overwrite", "read", "drop", "flush"]):
            case "store":
                dirty.store(pool, offset, data)
                cached |= dict(enumerate(data, offset))
            case "overwrite":
                pool.store(offset, data)
                dirty.overwrite(pool, offset, size)
                memory[offset : offset + size] = data
                for at in range(offset, offset + size):
                    cached.pop(at, None)
            case "drop":  # whole lines, as pages are given back
                first, end = offset // 128 * 128, -(-(offset + size) // 128) * 128
                dirty.drop(pool, offset, size)
                cached = {at: byte for at, byte in cached.items() if not first <= at < end}
            case "flush" if rng.random() < 0.2:
                dirty.write_back()
                for at, byte in cached.items():
                    memory[at] = byte
                cached.clear()
        seen = bytes(cached.get(at, memory[at]) for at in range(offset, offset + size))
        assert dirty.over(pool, offset, pool.load(offset, size)) == seen
        assert pool.load(0, SIZE) == memory
    pool.close()


@pytest.mark.parametrize("mode", ["check", "oldest", "none"])
def test_a_copy_is_as_old_as_its_first_read(mode: Mode) -> None:
    debug = DebugChannel(VirtualClock())
    pool = Pool("memory", SIZE, local=False)
    caches: LineCaches[str] = LineCaches(
        mode, debug, {"far": ("outer",), "near": ("outer", "inner")}, {"outer": "A", "inner": "B"}
    )
    mapping = Mapping(1 << 20, (1 << 20) + SIZE, pool, 0)
    wanted = bytearray(SIZE)
    for agent, offset in (("near", 100), ("far", 300), ("nobody", 200), ("near", 2000)):
        assert caches.load(agent, mapping, offset, 64) == wanted[offset : offset + 64]
    pool.store(0, b"\1" * SIZE)
    new, old = b"\1" * 64, bytes(64)
    stale = old if mode == "oldest" else new
    assert caches.load("nobody", mapping, 100, 64) == new
    assert caches.load("far", mapping, 1000, 64) == new  # no line of it was read before
    assert caches.load("far", mapping, 300, 64) == stale
    told = len(debug.violations)
    assert told == (mode == "check")
    assert all("outer holds an old copy" in text and "A must" in text for text in debug.violations)
    caches.drop(pool, 0, 1024)
    assert caches.load("near", mapping, 100, 64) == new
    assert caches.load("near", mapping, 2000, 64) == stale
    assert (len(debug.violations) > told) == (mode == "check")
    pool.close()
