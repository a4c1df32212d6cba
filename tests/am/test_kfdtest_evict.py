"""KFDEvictTest: what two processes have in VRAM makes room for graphics buffers, and comes back.

As upstream's, the processes' buffers take seven eighths of VRAM and are not mapped for the CPU;
graphics buffers of half as much come and go. Contents are written and read by the copy engine.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator

import pytest

from am.kfdtest_kernels import FLAG, POLL_AND_COPY, launch, load
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
    Buffer,
    RawKfd,
    fails,
    nop,
    sdma_copy,
    sdma_write,
    wait_mem,
    write_data,
)

BUFFERS = 8
"""That each process has."""


@pytest.fixture(params=["check", "oldest"])
def world(request: pytest.FixtureRequest) -> Iterator[KfdWorld]:
    world = KfdWorld(seed=14, coherence=request.param, executor=LaneExecutor(14))
    yield world
    assert not world.debug.violations
    world.close()


class Client:
    """A process with buffers in VRAM, and queues that write and read them."""

    def __init__(self, world: KfdWorld, process: object = None):
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
