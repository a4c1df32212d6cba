"""A machine with simulated NVIDIA GPUs behind their kernel driver.

    world = NvSimWorld(seed=1, chip="gh100")
    driver = open_it(World(world.os, world.waiter))     # gpu.transport.world.World
    assert not world.debug.violations

`gpu.sim.machine.Machine` says when its engines work. A wait for something that cannot come fails at
once.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gpu.autogen.nv import uvm
from gpu.sim.faults import ERRNOS, Given
from gpu.sim.kernel import SysError
from gpu.sim.linecaches import Mode
from gpu.sim.machine import Machine
from gpu.sim.nv.chip.channel import Channel
from gpu.sim.nv.chip.chips import find_chip
from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.chip.launch import KernelExecutor, NoExecutor
from gpu.sim.nv.files.rm import ESCAPE_NAMES, RmFile
from gpu.sim.nv.files.uvm import UvmFile
from gpu.sim.nv.rm.branches import find_branch
from gpu.sim.nv.rm.manager import ResourceManager
from gpu.sim.nv.rm.status import Status
from gpu.sim.nv.uvm.space import UvmSpace
from gpu.sim.process import SimFile, SimProcess

_HOST_MEMORY: Final = 64 << 30


@dataclass(frozen=True, slots=True)
class Usage:
    """What is held on a machine; equal before and after what gives everything back.

    Attributes:
        files: open descriptors of processes that live.
        clients, objects, cpu_mappings: of RM.
        ranges, external: address ranges of UVM, and what is mapped into them.
        channels: on all GPUs.
        vram, host, bar1: bytes.
    """

    files: int
    clients: int
    objects: int
    cpu_mappings: int
    ranges: int
    external: int
    channels: int
    vram: int
    host: int
    bar1: int


class NvSimWorld(Machine):
    """A machine.

    Args:
        seed: of all that is left to chance.
        chip: name of one GPU, or of each of several; see `gpu.sim.nv.chip.chips`.
        faults: what goes wrong on purpose; see `gpu.sim.faults`. More may come by `faults.add`.
        coherence: what caches do; see `gpu.sim.nv.chip.caches`.
        executor: runs kernels; without one a launch is an error.
        pcie_peers: whether GPUs of one chip reach each other's memory; see `gpu.sim.nv.rm.peers`.
        branch: of the kernel driver, as `gpu.sim.nv.rm.branches` has it.
        sandboxed: whether processes are in gVisor, which keeps some calls from the driver.

    Attributes: those of `Machine`, and
        gpus, rm: for tests.
    """

    vendor = "NV"
    calls = frozenset([*ESCAPE_NAMES.values(), *uvm.NAMES.values()])
    answers = ERRNOS | frozenset(Status.__members__)
    gpus: list[NvGpu]
    call_ns = 1000

    def __init__(
        self,
        seed: int = 0,
        chip: str | Sequence[str] = "gh100",
        *,
        faults: Given = (),
        coherence: Mode = "check",
        executor: KernelExecutor | None = None,
        pcie_peers: bool = True,
        branch: int = 580,
        sandboxed: bool = False,
    ):
        super().__init__(seed, faults, _HOST_MEMORY)
        parts = (self._host, self.clock, self.debug, self.rng, self.faults, self.counts, coherence)
        runner = executor or NoExecutor()
        chips = [find_chip(name) for name in ([chip] if isinstance(chip, str) else chip)]
        driver = find_branch(branch)
        for each in chips:
            driver.check_chip(each)
        self.gpus = [NvGpu(each, index, *parts, runner) for index, each in enumerate(chips)]
        self.rm = ResourceManager(self.gpus, self.debug, pcie_peers, driver)
        self._sandboxed = sandboxed
        self._spaces: list[UvmSpace] = []
        self._add_files()

    def _engines(self) -> list[Channel]:
        return [channel for gpu in self.gpus for channel in gpu.channels]

    def _run_one(self) -> bool:
        runnable = [channel for gpu in self.gpus for channel in gpu.runnable()]
        if runnable:
            self.rng.choice(runnable).run(self._steps())
        return bool(runnable)

    def _time_passed(self) -> None:
        for gpu in self.gpus:
            gpu.show_clock()

    def usage(self) -> Usage:
        """What is held now."""
        objects = [o for client in self.rm.clients.values() for o in client.objects.values()]
        ranges = [r for space in self._spaces for r in space.ranges.values()]
        return Usage(
            files=sum(process.open_files for process in self._processes),
            clients=len(self.rm.clients),
            objects=len(objects),
            cpu_mappings=sum(len(o.cpu_mappings) for o in objects),
            ranges=len(ranges),
            external=sum(len(r.mapped) for r in ranges),
            channels=sum(len(gpu.channels) for gpu in self.gpus),
            vram=sum(gpu.vram_used for gpu in self.gpus),
            host=self._host.size - self._host.free_bytes,
            bar1=sum(gpu.bar1_used for gpu in self.gpus),
        )

    def _add_files(self) -> None:
        if not self._sandboxed:  # gVisor shows nothing of the driver there
            self._add_version(self.rm.branch.version)
        devices = "Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n"
        self.tree.add("/proc/devices", devices)
        nodes: dict[str, Callable[[SimProcess], SimFile]] = {
            "/dev/nvidiactl": partial(self._open_rm, None),
            "/dev/nvidia-uvm": self._open_uvm,
        }
        for gpu in self.gpus:
            nodes[f"/dev/nvidia{gpu.index}"] = partial(self._open_rm, gpu)
            folder = f"/proc/driver/nvidia/gpus/0000:{gpu.bus:02x}:00.0"
            self.tree.add(f"{folder}/information", self._information(gpu))
            pci = f"/sys/bus/pci/devices/0000:{gpu.bus:02x}:00.0"
            self.tree.add(f"{pci}/vendor", "0x10de\n")
            self.tree.add(f"{pci}/device", f"0x{gpu.chip.device_id:04x}\n")
        for path, opener in nodes.items():
            self.devices[path] = opener
            self.tree.add(path, b"")

    def _add_version(self, version: str) -> None:
        text = (
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
            "GCC version:  gcc version 12.2.0\n"
        )
        self.tree.add("/proc/driver/nvidia/version", text)
        self.tree.add("/sys/module/nvidia/version", f"{version}\n")

    def _information(self, gpu: NvGpu) -> str:
        return (
            f"Model: \t\t {gpu.chip.board}\nBus Location: \t 0000:{gpu.bus:02x}:00.0\n"
            f"Device Minor: \t {gpu.index}\n"
        )

    def _open_rm(self, gpu: NvGpu | None, process: SimProcess) -> SimFile:
        if gpu is not None and not gpu.plugged:
            raise SysError(errno.EIO, "the GPU is lost")
        return RmFile(self.rm, gpu, self._sandboxed)

    def _open_uvm(self, process: SimProcess) -> SimFile:
        return UvmFile(self.rm, process, self._spaces)
