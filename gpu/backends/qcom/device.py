"""The QCOM device: an Adreno GPU behind Qualcomm's kernel driver, or one that `SIM` names."""

from __future__ import annotations

from functools import cache, partial

from gpu.backends.hcq.graph import QueueGraph
from gpu.backends.hcq.timer import QueueTimer
from gpu.backends.qcom.memory import AdrenoAllocator
from gpu.backends.qcom.program import disassemble, load_program
from gpu.backends.qcom.toolchain import check_renderer, toolchain_of
from gpu.core.config import config
from gpu.core.crashfiles import crash_folder
from gpu.core.devspec import DeviceSpec, parse_device_name
from gpu.core.errors import Unsupported
from gpu.drivers.kgsl.device import KgslDevice
from gpu.runtime.device import Compiled
from gpu.runtime.timer import Timer
from gpu.transport.qualcomm import PAGE_FAULT_POLICY, STOPS_AT_PAGE_FAULTS, stops_at_page_faults
from gpu.transport.world import World, real_world, recorded


class QCOMDevice(Compiled):
    """A GPU of Qualcomm's.

    Attributes:
        queues: its command queue and memory, for programs that use them themselves.
    """

    def __init__(self, device: str, queues: KgslDevice):
        self.queues = queues
        super().__init__(
            device,
            AdrenoAllocator(queues),
            *toolchain_of(queues.port.chip.name),
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
        they held. It may take 40 seconds, in which the screen stands still. Raises DeviceLost where
        that does not help.
        """
        return self.queues.recover() is not None

    def describe(self) -> dict[str, str]:
        """What `gpu info` prints about the device."""
        port = self.queues.port
        target = f"{port.chip.name}, {'simulated' if config.SIM else port.name}"
        if stops_at_page_faults(port.world.os) is False:
            target += (
                "; page faults are not told, reads give 0 and writes are lost: have them stop the"
                f" GPU with `echo {STOPS_AT_PAGE_FAULTS} | sudo tee {PAGE_FAULT_POLICY}`"
            )
        return {**super().describe(), "target": target}


def open_device(name: str, spec: DeviceSpec) -> Compiled:
    """The QCOM device `name`: there is one, QCOM.

    Raises Unsupported for a renderer or chip that this version does not know, and what opening the
    GPU raises.
    """
    check_renderer(spec)
    index = parse_device_name(name)[1]
    queues = KgslDevice.open(_world(config.SIM), index, timeout=config.HANG_TIMEOUT)
    try:
        chip = queues.port.chip.name
        if spec.arch not in (None, chip):
            raise Unsupported(f"{name} is a {chip}; code for {spec.arch} does not run on it")
        queues.report_to(crash_folder(), partial(disassemble, chip))
        return QCOMDevice(name, queues)
    except BaseException:
        queues.close()
        raise


@cache
def _world(simulated: str) -> World:
    """What the driver is given: this machine, or one with a simulated GPU of this chip.

    Raises ConfigError for a chip that is not Qualcomm's.
    """
    if not simulated:
        return real_world()
    from gpu.sim.worlds import simulate

    world = simulate(simulated, "QCOM").machine
    return recorded(World(world.os, world.waiter))
