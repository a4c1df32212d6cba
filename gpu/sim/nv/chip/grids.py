"""Grids under way, and what their end does: semaphores, interrupts, following QMDs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpu.sim.nv.chip.launch import KernelMemory, Launch
from gpu.sim.nv.chip.port import Port
from gpu.sim.nv.chip.qmd import Qmd, Release

if TYPE_CHECKING:
    from gpu.sim.nv.chip.compute import ComputeEngine

_SLICE: Final = 256  # instructions of a grid before something else may go on


class Grid:
    """One grid that runs on a channel's compute engine."""

    def __init__(self, engine: ComputeEngine, launch: Launch, qmd: Qmd):
        self._engine = engine
        self._launch = launch
        self._releases = qmd.releases()
        self._dependents = qmd.dependents()
        gpu = engine.gpu
        if self._dependents and not qmd.get("CWD_MEMBAR_TYPE"):
            gpu.debug.violation(
                f"the QMD at {launch.qmd_address:#x} starts others without CWD_MEMBAR_TYPE: they"
                " may not see what its grid writes"
            )
        memory = KernelMemory(engine.port.space, gpu.caches, launch, gpu.chip.window_bits)
        self._kernel = gpu.executor.launch(launch, memory)

    def why_stuck(self) -> str:
        """Why it does not get on unless others write memory. Raises PageFault, KernelFault."""
        return self._kernel.why_stuck()

    def step(self) -> bool:
        """Runs a slice; True when the grid is done. Raises PageFault, KernelFault, ChannelError."""
        if not self._kernel.step(_SLICE):
            return False
        engine = self._engine
        engine.gpu.counts.instructions += self._kernel.instructions
        for release in self._releases:
            if not engine.channel.loses_completion():
                write_release(engine.port, release, engine.gpu.clock.now_ns)
            if release.trap:
                engine.channel.interrupt()
        for dependent in self._dependents:
            engine.launch(dependent.address, dependent.invalidate)
        return True


def write_release(port: Port, release: Release, now_ns: int) -> None:
    """Writes a semaphore, its time stamp first so that whoever sees the payload sees both."""
    if release.words == 4:
        port.write_word(release.address + 8, 8, now_ns)
    width = 8 if release.wide or release.words == 2 else 4
    port.write_word(release.address, width, release.payload)
