"""The copy engine: lines, pitches, fills, semaphores, and what it refuses."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gpu.sim.nv.chip.copyunits import SYSMEM
from sim.nv.methods import copy, inc
from sim.nv.numbers import COPY, COPY0
from sim.nv.raw_nv import PAGE, Buffer, RawNv

SIZE = 64 << 10
PLAIN = 0x182  # non-pipelined, pitch to pitch


@pytest.fixture
def buffers(user: RawNv) -> tuple[Buffer, Buffer]:
    source, target = user.buffer(SIZE, local=True), user.buffer(SIZE)
    source.host.store(0, random.Random(1).randbytes(SIZE))
    user.ring.submit(*inc(4, 0, COPY[user.chip]))
    return source, target


def test_lines(each: RawNv) -> None:
    source, target = each.buffer(SIZE, local=True), each.buffer(SIZE)
    data = random.Random(2).randbytes(SIZE)
    source.host.store(0, data)
    each.ring.submit(*inc(4, 0, COPY[each.chip]), *copy(source.va + 3, target.va + 5, 60_001))
    each.run()
    assert target.host.load(0, SIZE) == bytes(5) + data[3:60_004] + bytes(SIZE - 60_006)
    assert not each.violations


def test_pitches(user: RawNv, buffers: tuple[Buffer, Buffer]) -> None:
    source, target = buffers
    words = inc(4, 0x400, *halves(source.va), *halves(target.va), 100, 256, 40, 30)
    user.ring.submit(*words)
    user.ring.submit(*inc(4, 0x300, PLAIN | 1 << 9))
    user.run()
    data = np.frombuffer(source.host.load(0, SIZE), np.uint8)
    want = np.zeros(SIZE, np.uint8)
    for line in range(30):
        want[256 * line : 256 * line + 40] = data[100 * line : 100 * line + 40]
    assert target.host.load(0, SIZE) == want.tobytes()


def halves(address: int) -> tuple[int, int]:
    return address >> 32, address & 0xFFFFFFFF


def test_fills(user: RawNv, buffers: tuple[Buffer, Buffer]) -> None:
    """Four bytes of constant A for every element."""
    target = buffers[1]
    user.ring.submit(
        *inc(4, 0x700, 0x11223344, 0),
        *inc(4, 0x708, 4 | 3 << 16),  # DST_X from CONST_A, components of 4 bytes
        *inc(4, 0x400, 0, 0, *halves(target.va + 64)),
        *inc(4, 0x418, 100),
        *inc(4, 0x300, PLAIN | 1 << 10),
    )
    user.run()
    data = np.frombuffer(target.host.load(0, SIZE), np.uint32)
    assert (data[16:116] == 0x11223344).all() and data.astype(bool).sum() == 100


def test_components_change_places(user: RawNv, buffers: tuple[Buffer, Buffer]) -> None:
    source, target = buffers
    swap = 1 | 0 << 4 | 1 << 20 | 1 << 24  # two source and two target components of one byte
    user.ring.submit(
        *inc(4, 0x708, swap),
        *inc(4, 0x400, *halves(source.va), *halves(target.va)),
        *inc(4, 0x418, 32),
        *inc(4, 0x300, PLAIN | 1 << 10),
    )
    user.run()
    pairs = np.frombuffer(source.host.load(0, 64), np.uint8).reshape(32, 2)
    assert target.host.load(0, 64) == pairs[:, ::-1].tobytes()


def test_semaphores(user: RawNv, buffers: tuple[Buffer, Buffer]) -> None:
    source, target = buffers
    semaphore = user.buffer()
    user.ring.submit(
        *copy(source.va, target.va, 16),
        *inc(4, 0x240, *halves(semaphore.va), 7, 1),
        *inc(4, 0x300, 1 << 2 | 1 << 3),  # flush, one word
        *inc(4, 0x240, *halves(semaphore.va + 16), 8, 2),
        *inc(4, 0x300, 1 << 2 | 2 << 3 | 1 << 27),  # four words, payload of 64 bits
    )
    user.run()
    assert semaphore.host.read(0, 8) == 7
    assert semaphore.host.read(16, 8) == 2 << 32 | 8
    assert semaphore.host.read(24, 8) > 0


def test_an_engine_of_its_own(user: RawNv) -> None:
    ring = user.open_ring(engine=COPY0 + 6, objects=["copy"])
    source, target = user.buffer(), user.buffer()
    source.host.store(0, b"hello")
    ring.submit(*inc(4, 0, COPY[user.chip]), *copy(source.va, target.va, 5))
    user.run()
    assert target.host.load(0, 5) == b"hello"
    ring.submit(*inc(4, 0x300, 3))
    user.run()
    assert ring.error() == (75, COPY0 + 6, 0xFFFF)  # ROBUST_CHANNEL_CE6_ERROR


@pytest.mark.parametrize("way", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_an_engine_without_a_way_to_system_memory(user: RawNv, way: tuple[int, int]) -> None:
    chip = user.gpu.chip
    units = tuple(replace(unit, caps=unit.caps & ~SYSMEM) for unit in chip.copy_engines)
    user.gpu.chip = replace(chip, copy_engines=units)
    source, target = (user.buffer(local=bool(local)) for local in way)
    user.ring.submit(*inc(4, 0, COPY[user.chip]), *copy(source.va, target.va, 16))
    user.run()
    assert user.ring.error()[0] == (0 if all(way) else 39)
    assert all("system memory" in each for each in user.violations)


@pytest.mark.parametrize("what", ["fill", "swizzle from it", "semaphore"])
def test_all_that_an_engine_does_needs_its_way(user: RawNv, what: str) -> None:
    chip = user.gpu.chip
    units = tuple(replace(unit, caps=unit.caps & ~SYSMEM) for unit in chip.copy_engines)
    user.gpu.chip = replace(chip, copy_engines=units)
    near, far = user.buffer(local=True), user.buffer()
    words = {
        "fill": remap(near.va, far.va, 4 | 3 << 16),
        "swizzle from it": remap(far.va, near.va, 0 | 3 << 16),
        "semaphore": inc(4, 0x240, *halves(far.va), 1) + inc(4, 0x300, 1 << 3),
    }[what]
    user.ring.submit(*inc(4, 0, COPY[user.chip]), *words)
    user.run()
    assert user.ring.error()[0] == 39 and "system memory" in user.violations[0]


@pytest.mark.parametrize("short", ["source", "target"])
def test_nothing_is_written_before_all_is_mapped(user: RawNv, short: str) -> None:
    """More than the model moves at once, of which the last page is missing."""
    large, size = (4 << 20) + PAGE, 4 << 20
    source = user.buffer(size if short == "source" else large, local=True)
    target = user.buffer(size if short == "target" else large, local=True)
    source.host.store(0, b"data")
    user.ring.submit(*inc(4, 0, COPY[user.chip]), *copy(source.va, target.va, large))
    user.run()
    assert user.ring.error()[0] == 31 and target.host.load(0, 4) == bytes(4)


def remap(source: int, target: int, components: int) -> list[int]:
    return inc(4, 0x708, components) + copy(source, target, 4, PLAIN | 1 << 10)


Bad = Callable[[int, int], list[int]]
WRONG: dict[str, tuple[int, Bad]] = {
    "length 0": (39, lambda a, b: copy(a, b, 0)),
    "no addresses": (39, lambda a, b: inc(4, 0x418, 4) + inc(4, 0x300, PLAIN)),
    "block linear": (39, lambda a, b: copy(a, b, 4, 0x82)),
    "physical": (39, lambda a, b: copy(a, b, 4, PLAIN | 1 << 12)),
    "unknown transfer": (39, lambda a, b: copy(a, b, 4, PLAIN | 3)),
    "remap before its components": (39, lambda a, b: copy(a, b, 4, PLAIN | 1 << 10)),
    "component that is not written": (39, lambda a, b: remap(a, b, 6 | 3 << 16)),
    "component that is not there": (39, lambda a, b: remap(a, b, 1 | 3 << 16)),
    "lines without a count": (39, lambda a, b: copy(a, b, 4, PLAIN | 1 << 9)),
    "reduction": (39, lambda a, b: inc(4, 0x240, *halves(a)) + inc(4, 0x300, 1 << 3 | 1 << 19)),
    "conditional": (39, lambda a, b: inc(4, 0x240, *halves(a)) + inc(4, 0x300, 3 << 3)),
    "no semaphore": (39, lambda a, b: inc(4, 0x300, 1 << 3)),
    "misaligned semaphore": (
        39,
        lambda a, b: inc(4, 0x240, *halves(b + 4), 1) + inc(4, 0x300, 2 << 3),
    ),
    "component that there is not": (39, lambda a, b: remap(a, b, 7 | 3 << 16)),
    "a copy type": (39, lambda a, b: copy(a, b, 4, PLAIN | 1 << 20)),
    "scrubbing": (39, lambda a, b: copy(a, b, 4, PLAIN | 1 << 23)),
    "bit 24": (39, lambda a, b: copy(a, b, 4, PLAIN | 1 << 24)),
    "bit 28": (39, lambda a, b: copy(a, b, 4, PLAIN | 1 << 28)),
    "misaligned semaphore of 64 bits": (
        39,
        lambda a, b: inc(4, 0x240, *halves(b + 4), 1) + inc(4, 0x300, 1 << 3 | 1 << 27),
    ),
    "semaphore not mapped": (31, lambda a, b: inc(4, 0x240, 0, 0x1000, 1) + inc(4, 0x300, 1 << 3)),
    "fill that ends early": (31, lambda a, b: remap(a, b + SIZE - 8, 4 | 3 << 16)),
    "swizzle whose source ends early": (31, lambda a, b: remap(a + SIZE - 8, b, 0 | 3 << 16)),
    "more than 49 bits": (39, lambda a, b: copy(1 << 50, b, 4)),
    "source not mapped": (31, lambda a, b: copy(0x1000, b, 4)),
    "source ends early": (31, lambda a, b: copy(a + SIZE - PAGE, b, 2 * PAGE)),
    "target not mapped": (31, lambda a, b: copy(a, 0x1000, 4)),
    "target ends early": (31, lambda a, b: copy(a, b + SIZE - PAGE, 2 * PAGE)),
}


@pytest.mark.parametrize("name", WRONG)
def test_launches_that_end_a_channel(
    user: RawNv, buffers: tuple[Buffer, Buffer], name: str
) -> None:
    number, words = WRONG[name]
    source, target = buffers
    user.ring.submit(*words(source.va, target.va))
    user.run()
    assert user.ring.error()[0] == number
    assert target.host.load(0, SIZE) == bytes(SIZE)
