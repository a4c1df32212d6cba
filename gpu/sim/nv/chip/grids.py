"""Grids under way, and what their end does: semaphores, interrupts, following QMDs."""

from __future__ import annotations

from typing import Final

from gpu.sim.executor import RunningKernel
from gpu.sim.nv.chip.host import Host
from gpu.sim.nv.chip.launch import KernelMemory, Launch
from gpu.sim.nv.chip.port import Port
from gpu.sim.nv.chip.qmd import Qmd, Release

_SLICE: Final = 8192  # branches of a grid before something else may go on


class Grid:
    """One grid that runs on a channel's compute engine.

    Attributes:
        dependents: QMDs that its end starts.
    """

    def __init__(
        self, channel: Host, launch: Launch, qmd: Qmd, instead: RunningKernel | None = None
    ):
        """``instead`` is what runs in place of its kernel."""
        self._channel = channel
        self._releases = qmd.releases()
        self.dependents = qmd.dependents()
        gpu = channel.gpu
        if self.dependents and not qmd.get("CWD_MEMBAR_TYPE"):
            gpu.debug.violation(
                f"the QMD at {launch.qmd_address:#x} starts others without CWD_MEMBAR_TYPE: they"
                " may not see what its grid writes"
            )
        memory = KernelMemory(channel.port.space, gpu.caches, launch, gpu.chip.window_bits)
        self._kernel = instead or gpu.executor.launch(launch, memory)

    def why_stuck(self) -> str:
        """Why it does not get on unless others write memory. Raises PageFault, KernelFault."""
        return self._kernel.why_stuck()

    def step(self) -> bool:
        """Runs a slice; True when the grid is done. Raises PageFault, KernelFault, ChannelError."""
        if not self._kernel.step(_SLICE):
            return False
        channel = self._channel
        channel.gpu.counts.instructions += self._kernel.instructions
        for release in self._releases:
            if not channel.loses_completion():
                write_release(channel.port, release, channel.gpu.clock.now_ns)
            if release.trap:
                channel.interrupt()
        return True


def write_release(port: Port, release: Release, now_ns: int) -> None:
    """Writes a semaphore, its time stamp first so that whoever sees the payload sees both."""
    if release.words == 4:
        port.write_word(release.address + 8, 8, now_ns)
    width = 8 if release.wide or release.words == 2 else 4
    port.write_word(release.address, width, release.payload)
