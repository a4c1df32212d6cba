"""A process with a compute channel, and an executor that runs Python functions."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu.sim.executor import RunningKernel
from gpu.sim.linecaches import Mode
from gpu.sim.nv.chip.launch import KernelMemory, Launch
from gpu.sim.nv.world import NvSimWorld
from sim.nv.methods import compute_setup, launch
from sim.nv.qmds import Qmd, plain
from sim.nv.raw_nv import RawNv

PROGRAM, BANK, RELEASE, QMD, SCRATCH = 0, 8192, 12288, 16384, 32768
Kernel = Callable[[Launch, KernelMemory], None]


@dataclass
class Machine:
    """Runs one Python function for every grid, in so many slices."""

    kernel: Kernel
    slices: int = 1
    launches: list[Launch] = field(default_factory=list)

    def launch(self, launch: Launch, memory: KernelMemory) -> RunningKernel:
        self.launches.append(launch)
        return _Running(self, launch, memory, self.slices)


@dataclass
class _Running:
    machine: Machine
    launched: Launch
    memory: KernelMemory
    left: int

    @property
    def instructions(self) -> int:
        return 0

    def why_stuck(self) -> str:
        return ""

    def step(self, budget: int) -> bool:
        self.left -= 1
        if self.left:
            return False
        self.machine.kernel(self.launched, self.memory)
        return True


def add_one(launch: Launch, memory: KernelMemory) -> None:
    """Bank 0 has an address at 0x210: one is added to the word there, once for each block."""
    target = struct.unpack("<Q", memory.constant(0, 0x210, 8))[0]
    value = struct.unpack("<I", memory.load(target, 4))[0]
    memory.store(target, struct.pack("<I", value + launch.grid.volume))


@dataclass
class Bench:
    """A process with a compute channel, and one buffer for all that a grid needs."""

    user: RawNv
    machine: Machine

    def __post_init__(self) -> None:
        self.area = self.user.buffer(64 << 10, local=True)
        self.user.ring.submit(*compute_setup(self.user.chip))
        self.area.host.write(BANK + 0x210, 8, self.at(SCRATCH))

    def at(self, offset: int) -> int:
        return self.area.va + offset

    def qmd(self, value: int = 1) -> Qmd:
        chip = self.user.chip
        return plain(chip, self.at(PROGRAM), self.at(BANK), release=self.at(RELEASE), value=value)

    def start(self, qmd: Qmd, action: int = 0xA, offset: int = QMD) -> None:
        self.area.host.store(offset, qmd.data)
        self.user.ring.submit(*launch(self.at(offset), action))

    def run(self, qmd: Qmd, **how: int) -> None:
        self.start(qmd, **how)
        self.user.run()

    def read(self, offset: int = SCRATCH) -> int:
        return self.area.host.read(offset, 4)


def bench(
    chip: str, kernel: Kernel = add_one, seed: int = 5, coherence: Mode = "check", slices: int = 1
) -> Bench:
    machine = Machine(kernel, slices)
    world = NvSimWorld(seed, chip, executor=machine, coherence=coherence)
    return Bench(RawNv(world.process), machine)
