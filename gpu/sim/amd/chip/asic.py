"""One GPU's chip, whoever drives it: its memory, its caches, and who runs its kernels."""

from __future__ import annotations

from gpu.sim.amd.chip.caches import Caches
from gpu.sim.amd.chip.counters import Counters
from gpu.sim.amd.chip.dispatch import KernelExecutor
from gpu.sim.amd.chips import Chip
from gpu.sim.linecaches import Mode
from gpu.sim.physical import Pool
from gpu.sim.simulation import Simulation


class Asic:
    """What the queues of one GPU share.

    Attributes:
        chip: which kind it is.
        sim: the machine's time, chance and records.
        executor: runs kernels; see `gpu.sim.amd.chip.dispatch`.
        vram, caches: its memory, and what stands before all memory.
        counters: its performance counters.
    """

    def __init__(self, chip: Chip, sim: Simulation, mode: Mode, executor: KernelExecutor):
        """Raises Unsupported where the executor does not run the chip's machine code."""
        executor.check(chip)
        self.chip = chip
        self.sim = sim
        self.executor = executor
        self.vram = Pool("VRAM", chip.vram_size, local=True, behind_hdp=mode == "oldest")
        self.caches = Caches(mode, chip.sdma_through_l2, sim.debug)
        self.counters = Counters(chip, sim.rng)
