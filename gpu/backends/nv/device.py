"""The NV device: a GPU behind NVIDIA's kernel driver, or a simulated one that `SIM` names."""

from __future__ import annotations

import os
from functools import cache, partial

from gpu.backends.hcq.graph import QueueGraph
from gpu.backends.hcq.memory import QueueAllocator
from gpu.backends.hcq.timer import QueueTimer
from gpu.backends.nv.program import Learn, load_bare_program, load_program
from gpu.compiler.render.cstyle.cuda import CUDARenderer
from gpu.compiler.render.llvm.ptx import PTXRenderer
from gpu.compiler.render.nir.nak import NAKRenderer
from gpu.compiler.toolchain.base import Compiler
from gpu.compiler.toolchain.nak import NakCompiler
from gpu.compiler.toolchain.nvbinary import disassemble_sass
from gpu.compiler.toolchain.nvptx import PtxCompiler
from gpu.compiler.toolchain.nvrtc import NvrtcCompiler
from gpu.core.config import config
from gpu.core.crashfiles import crash_folder
from gpu.core.devspec import DeviceSpec, parse_device_name
from gpu.core.errors import Unsupported
from gpu.drivers.nv.channel.probes import parse
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.port import QueueOptions, port_of
from gpu.runtime.device import Compiled, Renderer, Toolchain
from gpu.runtime.timer import Timer
from gpu.transport.world import World, real_world


class NVDevice(Compiled):
    """A GPU of NVIDIA's.

    Attributes:
        queues: its command queues and memory, for programs that use them themselves.
    """

    def __init__(
        self,
        device: str,
        queues: RmDevice,
        renderer: Renderer,
        compiler: Compiler,
        learn: Learn | None = None,
    ):
        """`learn` is told of each kernel, for simulated GPUs."""
        self.queues = queues
        self._is_simulated = learn is not None
        if isinstance(compiler, NakCompiler):
            load = partial(load_bare_program, queues, self._is_simulated)
        else:
            load = partial(load_program, queues, learn)
        super().__init__(
            device,
            QueueAllocator(queues),
            renderer,
            compiler,
            load,
            partial(QueueGraph, queues),
        )

    def synchronize(self) -> None:
        """Waits until everything launched so far is done. Raises DeviceHang, GpuFault, ..."""
        self.queues.synchronize()

    def make_timer(self) -> Timer:
        """What times launches and copies by the GPU's clock."""
        return QueueTimer(self.device, self.queues)

    def recover(self) -> bool:
        """Makes the device usable again after a GpuFault; whether there was one.

        Tensors that were computed since the last synchronization hold anything, all others what
        they held. Raises DeviceLost where that does not help.
        """
        return self.queues.recover() is not None

    def describe(self) -> dict[str, str]:
        """What `gpu info` prints about the device."""
        gpu = self.queues.port.gpu
        what = "simulated" if self._is_simulated else gpu.name
        target = f"{arch_of(self.queues)}, {what}, {gpu.units.sms} SMs, driver"
        return {**super().describe(), "target": f"{target} {gpu.session.version}"}


def open_device(name: str, spec: DeviceSpec) -> Compiled:
    """The NV device `name`, as in NV or NV:1.

    Raises Unsupported for an interface, renderer or chip that this version does not know and for an
    architecture that the GPU does not have, ConfigError for a wrong NV_VARIANTS, and what opening
    the GPU raises.
    """
    queues, learn = _open_queues(name, spec.interface)
    try:
        arch = arch_of(queues)
        if spec.arch not in (None, arch):
            raise Unsupported(f"{name} is a {arch}; code for {spec.arch} does not run on it")
        queues.report_to(crash_folder(), partial(disassemble_sass, arch))
        return NVDevice(name, queues, *_toolchain(spec.renderer, arch), learn)
    except BaseException:
        queues.close()
        raise


def _open_queues(name: str, interface: str | None) -> tuple[RmDevice, Learn | None]:
    """The GPU of a name, and what learns its kernels if it is a model."""
    index, force = parse_device_name(name)[1], parse(config.NV_VARIANTS)
    if interface == "PCI":
        from gpu.backends.nv.simulated import card_world
        from gpu.drivers.nv.pci.gpu import open_card

        world, load, learn = card_world(config.SIM)
        opened = open_card(world, index, load=load, force=force, crashes=crash_folder())
        return RmDevice(port_of(opened, QueueOptions()), timeout=config.HANG_TIMEOUT), learn
    if interface not in (None, "NVK"):
        raise Unsupported(
            f"{name} is reached through NVIDIA's kernel driver (NVK+NV) or over PCI (PCI+NV), not"
            f" by {interface}"
        )
    learn = None
    if config.SIM:
        from gpu.backends.nv.simulated import simulated

        world, _, learn = simulated(config.SIM)
    else:
        world = _this_machine(config.TRACE, os.getpid())
    return RmDevice.open(world, index, force=force, timeout=config.HANG_TIMEOUT), learn


@cache
def _this_machine(trace: str, process: int) -> World:
    """One world for all GPUs of a process and a recording: they are peers within one only."""
    return real_world()


def arch_of(queues: RmDevice) -> str:
    """What compilers call the architecture: ``sm_90``."""
    return f"sm_{queues.target.sm}"


def toolchain(spec: DeviceSpec) -> Toolchain:
    """What makes code for the architecture that `spec` names, without a GPU. Raises Unsupported."""
    if spec.arch is None:
        raise Unsupported(f"{spec} names no architecture to compile for; write NV::sm_90, say")
    return _toolchain(spec.renderer, spec.arch)


def _toolchain(renderer: str | None, arch: str) -> Toolchain:
    if renderer in (None, "CUDA"):
        return Toolchain(CUDARenderer(arch), NvrtcCompiler(arch))
    if renderer == "PTX":
        return Toolchain(PTXRenderer(arch), PtxCompiler(arch))
    if renderer == "NAK":
        return Toolchain(NAKRenderer(arch), NakCompiler(arch))
    raise Unsupported(f"NV:{renderer} is not known; use NV:CUDA, NV:PTX or NV:NAK")
