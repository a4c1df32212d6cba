"""The AMD device: a GPU behind the amdgpu kernel driver or on the bus, or one that `SIM` names."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from gpu.backends.amd.chips import chip_name
from gpu.backends.amd.program import load_program
from gpu.backends.hcq.graph import QueueGraph
from gpu.backends.hcq.memory import QueueAllocator
from gpu.backends.hcq.timer import QueueTimer
from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.compiler.toolchain.amdgcn import AMDCompiler
from gpu.core.config import config
from gpu.core.crashfiles import crash_folder
from gpu.core.devspec import DeviceSpec, parse_device_name
from gpu.core.errors import Unsupported
from gpu.core.firmware import Wanted
from gpu.core.firmware import load as load_firmware
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.kfd.port import open_kfd
from gpu.drivers.am.kfd.questions import parse
from gpu.runtime.device import Compiled, Toolchain
from gpu.runtime.timer import Timer
from gpu.transport.pci.bus import HostPci
from gpu.transport.world import World, real_world, recorded


class AMDDevice(Compiled):
    """A GPU of AMD's.

    Attributes:
        queues: its command queues and memory, for programs that use them themselves.
    """

    def __init__(self, device: str, queues: AmDevice, renderer: str | None):
        self.queues = queues
        self._chip = chip_name(queues.target.version)
        super().__init__(
            device,
            QueueAllocator(queues),
            *_toolchain(self._chip, renderer),
            partial(load_program, queues),
            partial(QueueGraph, queues),
        )

    def synchronize(self) -> None:
        """Waits until everything launched so far is done. Raises DeviceHang, GpuFault, ..."""
        self.queues.synchronize()

    def make_timer(self) -> Timer:
        """What times launches and copies by the GPU's clock."""
        return QueueTimer(self.device, self.queues)

    def recover(self) -> bool:
        """Makes the device usable again after a GpuFault or DeviceHang; whether there was one.

        Tensors that were computed since the last synchronization hold anything, all others what
        they held. Raises DeviceLost where that does not help.
        """
        return self.queues.recover() is not None

    def describe(self) -> dict[str, str]:
        """What `gpu info` prints about the device."""
        where = f"{self._chip}, simulated" if config.SIM else f"{self._chip}, {self.queues.name}"
        return {**super().describe(), "target": where}


def open_device(name: str, spec: DeviceSpec) -> Compiled:
    """The AMD device `name`, as in AMD or AMD:1.

    Raises Unsupported for an interface, renderer or chip that this version does not know,
    ConfigError for a wrong AM_VARIANTS, and what opening the GPU raises.
    """
    queues = _open_queues(name, spec.interface)
    try:
        chip = chip_name(queues.target.version)
        if spec.arch not in (None, chip):
            raise Unsupported(f"{name} is a {chip}; code for {spec.arch} does not run on it")
        queues.report_to(crash_folder(), partial(_disassemble, chip))
        return AMDDevice(name, queues, spec.renderer)
    except BaseException:
        queues.close()
        raise


def _open_queues(name: str, interface: str | None) -> AmDevice:
    """The GPU of a name, through KFD, on the bus, or behind a bridge on USB."""
    index, timeout = parse_device_name(name)[1], config.HANG_TIMEOUT
    if interface in (None, "KFD"):
        force = parse(config.AM_VARIANTS)
        return open_kfd(_world(config.SIM), index, force=force, timeout=timeout)
    # Imported on use: they have the registers of all chips.
    if interface == "USB":
        from gpu.drivers.am.pci.usb import open_usb

        world, load = usb_world(config.SIM)
        return open_usb(world, index, load=load, timeout=timeout)
    from gpu.drivers.am.pci.port import open_pci

    world, load = card_world(config.SIM)
    return open_pci(world, index, load=load, timeout=timeout)


def _disassemble(chip: str, code: bytes, start: int) -> list[str]:
    from gpu.compiler.toolchain.llvm_disassembler import disassemble_amdgcn

    return disassemble_amdgcn(code, chip, start)


def toolchain(spec: DeviceSpec) -> Toolchain:
    """What makes code for the chip that `spec` names, without a GPU. Raises Unsupported."""
    if spec.arch is None:
        raise Unsupported(f"{spec} names no chip to compile for; write AMD::gfx1100, say")
    return _toolchain(spec.arch, spec.renderer)


def _toolchain(chip: str, renderer: str | None) -> Toolchain:
    if renderer == "HIP":
        # Imported on use: few do.
        from gpu.compiler.render.cstyle.hip import HIPRenderer
        from gpu.compiler.toolchain.comgr import ComgrCompiler

        return Toolchain(HIPRenderer(chip), ComgrCompiler(chip))
    return Toolchain(AMDRenderer(chip), AMDCompiler(chip))


@cache
def card_world(simulated: str) -> tuple[World, Callable[[Wanted], bytes]]:
    """A machine whose cards no kernel driver has, and what gives their firmware; as `_world`."""
    if not simulated:
        return real_world(), load_firmware
    from gpu.sim.amd.pci.world import AmPciWorld
    from gpu.sim.worlds import simulate

    machine = simulate(simulated, "AMD", "PCI").machine
    assert isinstance(machine, AmPciWorld), "the model that is named so"
    world = World(machine.os, machine.waiter, HostPci(machine.os))
    return recorded(world), lambda wanted: machine.firmware[wanted.name]


@cache
def usb_world(simulated: str) -> tuple[World, Callable[[Wanted], bytes]]:
    """A machine with bridges on USB, and what gives firmware of cards behind them; as `_world`."""
    if not simulated:
        return real_world(), load_firmware
    from gpu.sim.usb.world import UsbWorld
    from gpu.sim.worlds import simulate

    machine = simulate(simulated, "AMD", "USB").machine
    assert isinstance(machine, UsbWorld), "the model that is named so"
    world = World(machine.os, machine.waiter, usb=machine.usb)
    return recorded(world), lambda wanted: machine.firmware[wanted.name]


@cache
def _world(simulated: str) -> World:
    """What drivers are given: this machine, or one with simulated GPUs of these chips.

    All devices of a process share it. Raises ConfigError for a chip that is not AMD's, or whose
    kernels no model runs.
    """
    if not simulated:
        return real_world()
    from gpu.sim.worlds import simulate

    world = simulate(simulated, "AMD").machine
    return recorded(World(world.os, world.waiter))
