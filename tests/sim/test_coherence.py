"""Caches: what a missing invalidate, write-back or flush does; KFDMemoryTest's coherence cases.

A shader's accesses are made through the ports that an executor is given.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu.core import hostmem
from gpu.core.window import MemoryWindow
from gpu.sim.amd.chip.dispatch import KernelMemory
from gpu.sim.amd.kfd.world import KfdWorld
from sim.raw_kfd import (
    ACCESS,
    GTT,
    L2_WRITE_BACK,
    PAGE,
    PM4,
    READ_WRITE,
    SDMA,
    SIGNAL,
    VRAM,
    Buffer,
    RawKfd,
    acquire_mem,
    halves,
    packet3,
    release_mem,
    sdma_copy,
    sdma_write,
    write_data,
)

GLI_INV, GLK_INV, GLV_INV, GL1_INV, GL2_INV, GL2_WB = 1, 1 << 7, 1 << 8, 1 << 9, 1 << 14, 1 << 15
SCALAR_ACQUIRE = GLK_INV | GL2_INV
VECTOR_ACQUIRE = GLV_INV | GL1_INV | GL2_INV
CODE_ACQUIRE = GLI_INV | GL2_INV


@pytest.fixture(params=["check", "oldest"])
def machine(request: pytest.FixtureRequest) -> Iterator[RawKfd]:
    world = KfdWorld(seed=5, coherence=request.param)
    yield RawKfd(world.process)
    world.close()


def _shader(user: RawKfd) -> KernelMemory:
    device = next(iter(user.process.state.values())).device(user.gpu_id)
    return KernelMemory(device.space, user.gpu.asic.caches)


def _submit(user: RawKfd, kind: int, words: list[int]) -> None:
    queue = user.queue(kind)
    queue.submit(words)
    queue.run()


def _strict(user: RawKfd) -> bool:
    return user.gpu.asic.caches.mode == "oldest"


@pytest.mark.parametrize(
    ("port", "acquire", "cache"),
    [
        ("scalar", SCALAR_ACQUIRE, "K$"),
        ("vector", VECTOR_ACQUIRE, "V$"),
        ("code", CODE_ACQUIRE, "I$"),
    ],
)
def test_cache_invalidate_on_cpu_write(
    machine: RawKfd, port: str, acquire: int, cache: str
) -> None:
    """CacheInvalidateOnCPUWrite, SramCacheCoherenceWithGPU: kernel arguments and code reused."""
    memory = machine.alloc(PAGE, GTT | ACCESS)
    memory.host.write(0, 4, 1)
    read = getattr(_shader(machine), port).read_word
    assert read(memory.va, 4) == 1
    memory.host.write(0, 4, 2)
    assert read(memory.va, 4) == (1 if _strict(machine) else 2)
    assert bool(machine.world.debug.violations) != _strict(machine)
    if not _strict(machine):
        assert any(cache in text for text in machine.world.debug.violations)
    memory.host.write(0, 4, 3)
    before = len(machine.world.debug.violations)
    _submit(machine, PM4, acquire_mem(acquire))
    assert read(memory.va, 4) == 3
    assert len(machine.world.debug.violations) == before


def test_one_acquire_does_not_serve_another_cache(machine: RawKfd) -> None:
    memory = machine.alloc(PAGE, GTT | ACCESS)
    shader = _shader(machine)
    assert shader.scalar.read_word(memory.va, 4) == 0
    memory.host.write(0, 4, 1)
    _submit(machine, PM4, acquire_mem(VECTOR_ACQUIRE))
    assert shader.scalar.read_word(memory.va, 4) == (0 if _strict(machine) else 1)
    assert len(machine.world.debug.violations) == (0 if _strict(machine) else 1)


def test_uncached_memory_needs_nothing(machine: RawKfd) -> None:
    memory = machine.alloc(PAGE, SIGNAL)
    shader = _shader(machine)
    for value in range(5):
        memory.host.write(0, 4, value)
        assert shader.vector.read_word(memory.va, 4) == value
        shader.vector.write_word(memory.va + 8, 4, value)
        assert memory.host.read(8, 4) == value
    assert not machine.world.debug.violations


def test_a_shaders_own_writes_are_seen_by_it(machine: RawKfd) -> None:
    memory = machine.alloc(PAGE, GTT | ACCESS)
    vector = _shader(machine).vector
    for value in range(5):
        vector.write_word(memory.va, 4, value)
        assert vector.read_word(memory.va, 4) == value
    assert not machine.world.debug.violations


@pytest.mark.parametrize("flags", [GTT, VRAM])
def test_write_back_for_the_cpu(machine: RawKfd, flags: int) -> None:
    """VramCacheCoherenceWithCPU: without RELEASE_MEM's write-back L2 may keep the data."""
    memory, done = machine.alloc(PAGE, flags | ACCESS), machine.alloc(PAGE, SIGNAL)
    _shader(machine).vector.write_word(memory.va, 4, 7)
    _submit(machine, PM4, release_mem(done.va, 1))
    assert memory.host.read(0, 4) == (0 if _strict(machine) else 7)
    _submit(machine, PM4, release_mem(done.va, 2, gcr=L2_WRITE_BACK))
    assert memory.host.read(0, 4) == 7


def test_the_packet_processors_own_writes_through_l2(machine: RawKfd) -> None:
    memory = machine.alloc(PAGE, GTT | ACCESS)
    _submit(machine, PM4, write_data(memory.va, 7, target=2))
    assert memory.host.read(0, 4) == (0 if _strict(machine) else 7)
    copy = packet3(0x40, 2 | 5 << 8, *halves(memory.va), *halves(memory.va + 256))
    _submit(machine, PM4, copy + acquire_mem(GL2_WB))
    assert (memory.host.read(0, 4), memory.host.read(256, 4)) == (7, 7)


def test_cache_invalidate_on_sdma_write(machine: RawKfd) -> None:
    """CacheInvalidateOnSdmaWrite: the copy engine writes what a shader has read before."""
    memory = machine.alloc(PAGE, VRAM | ACCESS)
    shader = _shader(machine)
    assert shader.vector.read_word(memory.va, 4) == 0
    _submit(machine, SDMA, sdma_write(memory.va, 9))
    _submit(machine, PM4, acquire_mem(GLV_INV | GL1_INV))  # L2 saw the write by itself
    assert shader.vector.read_word(memory.va, 4) == 9
    assert not machine.world.debug.violations


def test_the_copy_engine_reads_through_l2(machine: RawKfd) -> None:
    memory, target = machine.alloc(PAGE, GTT | ACCESS), machine.alloc(PAGE, SIGNAL)
    _shader(machine).vector.write(memory.va + 100, b"x" * 200)
    _submit(machine, SDMA, sdma_copy(memory.va, target.va, 512))
    assert target.host.load(0, 512) == bytes(100) + b"x" * 200 + bytes(212)


def test_a_sdma_write_is_newer_than_what_l2_holds(machine: RawKfd) -> None:
    memory, done = machine.alloc(PAGE, GTT | ACCESS), machine.alloc(PAGE, SIGNAL)
    _shader(machine).vector.write(memory.va, b"a" * 64)
    _submit(machine, SDMA, sdma_write(memory.va + 4, 0))
    _submit(machine, PM4, release_mem(done.va, 1, gcr=L2_WRITE_BACK))
    assert memory.host.load(0, 64) == b"aaaa" + bytes(4) + b"a" * 56


@pytest.fixture
def old() -> Iterator[RawKfd]:
    """GFX9, whose copy engine goes behind L2."""
    world = KfdWorld(chip="gfx942")
    yield RawKfd(world.process)
    world.close()


def test_behind_l2_a_write_back_must_come_first(old: RawKfd) -> None:
    memory, done = old.alloc(PAGE, GTT | ACCESS), old.alloc(PAGE, SIGNAL)
    target = old.alloc(PAGE, SIGNAL)
    vector = _shader(old).vector
    vector.write_word(memory.va, 4, 1)
    _submit(old, PM4, release_mem(done.va, 1, gcr=1 << 15))
    _submit(old, SDMA, sdma_copy(memory.va, target.va, 64))
    assert not old.world.debug.violations
    vector.write_word(memory.va, 4, 2)
    _submit(old, SDMA, sdma_copy(memory.va, target.va, 64))
    assert "read of system memory" in old.world.debug.violations[0]
    vector.write_word(memory.va, 4, 3)
    _submit(old, SDMA, sdma_write(memory.va, 4))
    assert "write of system memory" in old.world.debug.violations[1]


def test_behind_l2_a_write_needs_an_invalidate(old: RawKfd) -> None:
    memory = old.alloc(PAGE, VRAM | ACCESS)
    shader = _shader(old)
    assert shader.scalar.read_word(memory.va, 4) == 0
    _submit(old, SDMA, sdma_write(memory.va, 5))
    _submit(old, PM4, packet3(0x58, 1 << 27, 0xFFFFFFFF, 0xFFFFFF, 0, 0, 0xA))  # K$ alone
    assert shader.scalar.read_word(memory.va, 4) == 5
    assert "L2" in old.world.debug.violations[0]


def _remapped(user: RawKfd) -> MemoryWindow:
    offset = user.gpu_id << 46
    at = user.os.mmap(user.kfd_fd, PAGE, READ_WRITE, hostmem.MAP_SHARED, offset)
    return MemoryWindow(at, PAGE)


def _through_pci(user: RawKfd, memory: Buffer, target: Buffer) -> int:
    _submit(user, SDMA, sdma_copy(memory.va, target.va, 4))
    return target.host.read(0, 4)


def test_host_hdp_flush(machine: RawKfd) -> None:
    """HostHdpFlush: what the CPU wrote to VRAM is sure to be there after the flush register."""
    memory, target = machine.alloc(PAGE, VRAM | ACCESS), machine.alloc(PAGE, SIGNAL)
    memory.host.write(0, 4, 7)
    assert _through_pci(machine, memory, target) == (0 if _strict(machine) else 7)
    flush = _remapped(machine)
    for value in (8, 9):
        memory.host.write(0, 4, value)
        flush.write(0, 4, 1)
        assert _through_pci(machine, memory, target) == value


def test_device_hdp_flush(machine: RawKfd) -> None:
    """DeviceHdpFlush: the copy engine's own flush."""
    memory, target = machine.alloc(PAGE, VRAM | ACCESS), machine.alloc(PAGE, SIGNAL)
    memory.host.write(0, 4, 7)
    _submit(machine, SDMA, [8 | 1 << 26 | 3 << 28, 0, 0, 0, 0, 0])
    assert _through_pci(machine, memory, target) == 7


def test_what_the_gpu_writes_to_vram_the_cpu_sees(machine: RawKfd) -> None:
    memory = machine.alloc(PAGE, VRAM | ACCESS)
    _submit(machine, SDMA, sdma_write(memory.va, 5))
    assert memory.host.read(0, 4) == 5


def test_freed_memory_is_forgotten(machine: RawKfd) -> None:
    """A line of a freed buffer must not come back in the next one."""
    memory = machine.alloc(PAGE, GTT | ACCESS)
    shader = _shader(machine)
    shader.vector.write_word(memory.va, 4, 1)
    assert shader.scalar.read_word(memory.va, 4) == 1
    machine.unmap(memory)
    machine.free(memory)
    again = machine.alloc(PAGE, GTT | ACCESS)
    assert shader.scalar.read_word(again.va, 4) == 0
    assert not machine.world.debug.violations
