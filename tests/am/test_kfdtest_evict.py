"""KFDEvictTest: what two processes have in VRAM makes room for graphics buffers, and comes back.

As upstream's, the processes' buffers take seven eighths of VRAM and are not mapped for the CPU;
graphics buffers of half as much come and go. Contents are written and read by the copy engine.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator

import pytest

from am.kfdtest_kernels import PERSISTENT, STOP, kept, launch, load
from gpu.autogen import amdgpu_drm
from gpu.sim.amd.chip.lanes import LaneExecutor
from gpu.sim.amd.kfd.process import RESTORE_NS
from gpu.sim.amd.kfd.world import KfdWorld
from sim.raw_kfd import (
    ACCESS,
    PAGE,
    PM4,
    SDMA,
    SIGNAL,
    VRAM,
    RawKfd,
    fails,
    nop,
    sdma_copy,
    sdma_write,
    write_data,
)

BUFFERS = 8
"""That each process has."""


@pytest.fixture(autouse=True)
def needs_llvm(need: Callable[[str], None]) -> None:
    need("llvmlite")


@pytest.fixture(params=["check", "oldest"])
def world(request: pytest.FixtureRequest) -> Iterator[KfdWorld]:
    world = KfdWorld(seed=14, coherence=request.param, executor=LaneExecutor(14))
    yield world
    assert not world.debug.violations
    world.close()


class Client:
    """A process with buffers in VRAM, and queues that write and read them."""

    def __init__(self, world: KfdWorld):
        self.raw = RawKfd(world.new_process())
        self.size = world.gpus[0].asic.vram.size * 7 // 8 // (2 * BUFFERS) // PAGE * PAGE
        self.copies, self.compute = self.raw.queue(SDMA), self.raw.queue(PM4)
        self.result = self.raw.alloc(PAGE, SIGNAL)
        draw = random.Random(self.raw.process.pid)
        self.words = [draw.getrandbits(32) for _ in range(2 * BUFFERS)]
        self.buffers = [
            self.raw.alloc(self.size, VRAM | ACCESS, map_cpu=False) for _ in range(BUFFERS)
        ]
        for place, word in zip(self.places(), self.words, strict=True):
            self.copies.submit(sdma_write(place, word))
        self.copies.run()

    def places(self) -> list[int]:
        """The first and the last word of each buffer."""
        return [buffer.va + at for buffer in self.buffers for at in (0, self.size - 4)]

    def ask(self) -> None:
        """Submits copies of all words to the result."""
        self.result.host.store(0, bytes(4 * len(self.words)))
        for number, place in enumerate(self.places()):
            self.copies.submit(sdma_copy(place, self.result.va + 4 * number, 4))

    def answered(self) -> list[int]:
        """What arrived."""
        return [self.result.host.read(4 * at, 4) for at in range(len(self.words))]

    def graphics(self, size: int) -> int:
        """A new graphics buffer in VRAM."""
        argument = amdgpu_drm.drm_amdgpu_gem_create()
        argument.in_.bo_size, argument.in_.domains = size, amdgpu_drm.AMDGPU_GEM_DOMAIN_VRAM
        self.raw.os.ioctl(self.raw.drm_fd, amdgpu_drm.DRM_IOCTL_AMDGPU_GEM_CREATE, argument)
        handle: int = argument.out.handle
        return handle

    def drop(self, handle: int) -> None:
        """Frees it."""
        argument = amdgpu_drm.drm_gem_close(handle=handle)
        self.raw.os.ioctl(self.raw.drm_fd, amdgpu_drm.DRM_IOCTL_GEM_CLOSE, argument)


def sleep(world: KfdWorld) -> int:
    """Waits until nothing is left to do; returns how long that took, in nanoseconds."""
    before = world.clock.now_ns
    world.run_until_idle(1_000)
    return world.clock.now_ns - before


def work(world: KfdWorld, done: Callable[[], bool]) -> None:
    """Lets engines work until something is so."""
    for _ in range(1000):
        if done():
            return
        world.work()
    raise AssertionError("it does not come")


def state(client: Client) -> str:
    """Why the process's queues are off the hardware; the same for all of them."""
    queues = client.raw.gpu.queues
    pid = f" {client.raw.process.pid}"
    (found,) = {queue.host.why_off() for queue in queues if queue.host.name.endswith(pid)}
    return found


def test_basic(world: KfdWorld) -> None:
    """BasicTest: buffers of two processes make room, many times, and keep address and contents."""
    clients = [Client(world), Client(world)]
    taken = world.gpus[0].vram_used
    evicted = set()
    for turn in range(6):
        handle = clients[turn % 2].graphics(clients[0].size * BUFFERS)
        evicted |= {client.raw.process.pid for client in clients if state(client)}
        assert not state(clients[turn % 2])  # nobody evicts what is his own
        assert RESTORE_NS // 2 < sleep(world) < 5 * RESTORE_NS
        assert [state(client) for client in clients] == ["", ""]
        clients[turn % 2].drop(handle)
        assert world.gpus[0].vram_used == taken
        for client in clients:
            client.ask()
            client.copies.run()
            assert client.answered() == client.words
    assert len(evicted) == 2


def test_bursty(world: KfdWorld) -> None:
    """BurstyTest: what is submitted to an evicted process runs when that is restored, and then."""
    victim, other = Client(world), Client(world)
    pointers = victim.compute.pointers.host
    for burst in range(4):
        handle = other.graphics(other.size * BUFFERS)
        start = world.clock.now_ns
        victim.ask()
        victim.compute.submit(nop() + write_data(victim.result.va + 512, burst + 1))
        while "waits for VRAM" in state(victim):
            assert victim.answered() == [0] * len(victim.words)
            assert pointers.read(0x80, 4) < victim.compute.put
            assert victim.result.host.read(512, 4) == burst
            other.compute.submit(nop(50))
            world.work()  # of the other's
            world.clock.advance(RESTORE_NS // 10)
            assert world.clock.now_ns - start < 2 * RESTORE_NS
        sleep(world)
        assert victim.answered() == victim.words
        assert victim.result.host.read(512, 4) == burst + 1
        other.drop(handle)
        victim.ask()  # idle when it came back, at work later
        sleep(world)
        assert victim.answered() == victim.words


@pytest.mark.parametrize("world", ["check"], indirect=True)
def test_queue(world: KfdWorld) -> None:
    """QueueTest: a kernel is stopped, the memory it reads and writes moves, and it goes on."""
    victim, other = Client(world), Client(world)
    stop, kernels = victim.buffers[2].va + 64, 32
    result, counts = victim.buffers[0].va + PAGE, victim.raw.alloc(PAGE, SIGNAL)
    code = load(victim.raw, PERSISTENT)
    arguments = (stop, result, counts.va)
    victim.compute.submit(launch(code, arguments, items=kernels))
    for _ in range(4):
        before = counts.host.read(0, 4)
        work(world, lambda: counts.host.read(0, 4) > before)  # noqa: B023
        handle = other.graphics(other.size * BUFFERS)
        stopped, start = counts.host.read(0, 4), world.clock.now_ns
        while state(victim):
            assert world.clock.now_ns < start + 5 * RESTORE_NS
            assert counts.host.read(0, 4) == stopped
            world.work(world.clock.now_ns + RESTORE_NS // 10)
        other.drop(handle)
    victim.copies.submit(sdma_write(stop, STOP))
    sleep(world)
    assert victim.compute.rptr == victim.compute.put
    victim.copies.submit(sdma_copy(result, victim.result.va, 4 * kernels))
    sleep(world)
    found = [victim.result.host.read(4 * item, 4) for item in range(kernels)]
    assert found == [kept(item) for item in range(kernels)]


def test_where_a_graphics_buffer_goes(world: KfdWorld) -> None:
    """One that its own process's buffers leave no room for is in system memory."""
    client = Client(world)
    second = [client.raw.alloc(client.size, VRAM | ACCESS, map_cpu=False) for _ in range(BUFFERS)]
    taken, host = world.gpus[0].vram_used, world.gpus[0].host.free_bytes
    size = BUFFERS * client.size
    client.graphics(size)
    assert (world.gpus[0].vram_used, world.gpus[0].host.free_bytes) == (taken, host - size)
    assert not state(client)
    with fails(errno.EINVAL):
        client.drop(99)
    for buffer in second:
        client.raw.unmap(buffer)
        client.raw.free(buffer)
    client.raw.process.os.close(client.raw.drm_fd)
    assert world.gpus[0].host.free_bytes == host


def test_memory_that_is_freed_while_it_is_evicted(world: KfdWorld) -> None:
    """It is forgotten where it is; what is left comes back."""
    victim, other = Client(world), Client(world)
    taken = world.gpus[0].vram_used
    handle = other.graphics(other.size * BUFFERS)
    assert state(victim)
    gone = victim.buffers.pop(0)
    del victim.words[:2]
    victim.raw.unmap(gone)
    victim.raw.free(gone)
    sleep(world)
    other.drop(handle)
    assert world.gpus[0].vram_used == taken - victim.size
    victim.ask()
    sleep(world)
    assert victim.answered() == victim.words
