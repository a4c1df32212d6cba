"""The same work over and over: what a process and the model hold must be the same afterwards.

    PYTHONPATH=tests python -m am.endurance

does it in full, 100,000 launches, 10,000 allocations and 1,000 openings, and prints what is held.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from am.kernels import LAYOUTS, PythonKernels, code_object
from gpu.core import hostmem
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.kfd.port import QueueOptions, open_kfd
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.conformance.kit import WORDS, numbers, upload
from gpu.hcq.ports import MemoryKind
from gpu.hcq.program import HCQProgram
from gpu.sim.amd.kfd.process import KfdProcess
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.transport.world import World

LAUNCHES, ALLOCATIONS, OPENINGS = 100_000, 10_000, 1_000


class Held(NamedTuple):
    """What is held at a time.

    Attributes:
        fds, mappings: of this process, but for private memory that it may write to: Python's own
            allocator takes and gives that back.
        handles: allocations, queues and events in the model.
        vram: bytes of the GPU's memory.
        records: of the model's debug channel.
        blocks: of memory that Python objects have.
        rss: KiB of this process in memory.
    """

    fds: int
    mappings: int
    handles: tuple[int, ...]
    vram: int
    records: int
    blocks: int
    rss: int

    def exact(self) -> Held:
        """What must be the same to the last one."""
        return self._replace(blocks=0, rss=0)


class Bench:
    """A simulated GPU, and what is done with it a number of times."""

    def __init__(self) -> None:
        self.sim = KfdWorld(seed=1, executor=PythonKernels(1))
        self.world = World(self.sim.os, self.sim.waiter)

    def held(self) -> Held:
        """What is held now."""
        gc.collect()
        kfd: KfdProcess = self.sim.process.state[KfdProcess]
        (device,) = kfd.devices.values()
        lines = Path("/proc/self/maps").read_text().splitlines()
        mappings = [line for line in lines if not (" rw-p " in line and line.endswith(" 0 "))]
        return Held(
            fds=len(os.listdir("/proc/self/fd")),
            mappings=len(mappings),
            handles=(len(device.allocations), len(kfd.queues), len(kfd.events)),
            vram=self.sim.gpus[0].vram_used,
            records=len(self.sim.debug.records),
            blocks=sys.getallocatedblocks(),
            rss=int(Path("/proc/self/statm").read_text().split()[1]) * hostmem.page_size >> 10,
        )

    def device(self) -> AmDevice:
        """One whose rings are all touched after some launches."""
        options = QueueOptions(compute_ring=1 << 12, copy_ring=1 << 12)
        size = 1 << 14
        return open_kfd(self.world, options=options, command_memory=size, staging=size)

    def open(self, count: int) -> None:
        """Opens the GPU and closes it again."""
        for _ in range(count):
            self.device().close()

    def allocate(self, device: AmDevice, count: int) -> None:
        """Allocates and frees, some at a time, through the allocator's cache and beside it."""
        live: deque[HCQBuffer] = deque()
        for number in range(count):
            size = 5000 * (1 + number % 13)
            live.append(device.allocator.alloc(size))
            if len(live) > 20:
                live.popleft().free()
            if number % 2:
                device.exclusively(device.release, device.allocate(size, MemoryKind.VRAM))
        for buffer in live:
            buffer.free()

    def launch(self, device: AmDevice, fill: HCQProgram, out: HCQBuffer, count: int) -> None:
        """Launches, and waits for some at a time."""
        for number in range(count):
            fill(out, vals=(number & 0xFF, WORDS))
            if number % 40 == 39:
                device.synchronize()
        device.synchronize()


def endure(
    launches: int, allocations: int, openings: int, tell: Callable[[str, Held, Held], None]
) -> None:
    """Does each a number of times, and tells what was held before and after.

    Before counts what is held after some of that number, when rings went round and free lists have
    their size.
    """
    bench = Bench()

    def run(name: str, action: Callable[[int], None], count: int) -> None:
        action(min(count, 250))
        before = bench.held()
        action(count)
        tell(f"{count:,} {name}", before, bench.held())

    with bench.device() as device:
        code = code_object("fill", device.target.version)
        fill = device.load(code, "fill", LAYOUTS["fill"], written=(0,))
        out = upload(device, numbers(0))
        run("launches", lambda count: bench.launch(device, fill, out, count), launches)
        run("allocations", lambda count: bench.allocate(device, count), allocations)
    run("openings", bench.open, openings)
    assert bench.sim.debug.violations == []
    bench.sim.close()


def main() -> None:
    """All of it."""

    def tell(what: str, before: Held, after: Held) -> None:
        same = "the same" if before.exact() == after.exact() else "NOT the same"
        sys.stdout.write(f"{what}: {same}\n  before {before}\n  after  {after}\n")

    endure(LAUNCHES, ALLOCATIONS, OPENINGS, tell)


if __name__ == "__main__":
    main()
