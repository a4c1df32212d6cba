"""The METAL device: a GPU of Apple's, or a model of one that `SIM` names."""

from __future__ import annotations

from functools import partial

from gpu.backends.metal.context import MetalContext
from gpu.backends.metal.exchange import MetalExchange
from gpu.backends.metal.gpus import find_gpu, gpu_info
from gpu.backends.metal.graph import MetalGraph
from gpu.backends.metal.library import open_objc
from gpu.backends.metal.memory import MetalAllocator
from gpu.backends.metal.program import Libraries, MetalCompiler, MetalProgram, Scratch
from gpu.backends.metal.timer import MetalTimer
from gpu.compiler.render.cstyle.metal import MetalRenderer
from gpu.core.config import config
from gpu.core.devspec import DeviceSpec, parse_device_name
from gpu.core.errors import Unsupported
from gpu.core.log import get_logger
from gpu.runtime.device import Compiled
from gpu.runtime.timer import Timer

log = get_logger(__name__)


class MetalDevice(Compiled):
    """A GPU of Metal's.

    Attributes:
        context: its queue, for programs that use Metal themselves.
    """

    def __init__(self, device: str, context: MetalContext):
        self.context = context
        allocator, libraries = MetalAllocator(context), Libraries(context)
        allocator.exchange = MetalExchange(context, parse_device_name(device)[1])
        family = context.info.family
        compiler = MetalCompiler(libraries, family)
        load = partial(MetalProgram, context, libraries, Scratch(context, allocator))
        super().__init__(device, allocator, MetalRenderer(family), compiler, load, MetalGraph)

    def synchronize(self) -> None:
        """Waits until everything launched so far is done. Raises GpuFault, DeviceLost."""
        self.context.synchronize()

    def make_timer(self) -> Timer:
        """What times launches by the GPU's clock."""
        return MetalTimer(self.context)

    def describe(self) -> dict[str, str]:
        """What `gpu info` prints about the device."""
        info = self.context.info
        return {
            **super().describe(),
            "compiler": "Metal",
            "target": f"{info.family}, {info.name}",
            "memory": f"{info.memory:,} bytes, {info.most_memory:,} at most in one buffer",
        }


def open_device(name: str, spec: DeviceSpec) -> Compiled:
    """The METAL device `name`, as in METAL or METAL:1.

    Raises DeviceError where there is no Metal or no such GPU, Unsupported for one of no family that
    there is code for and for a family that it is not of.
    """
    objc = open_objc(config.SIM)
    device = find_gpu(objc, parse_device_name(name)[1])
    info = gpu_info(objc, device)
    log.info("opened %s, of the family %s", info.name, info.family)
    if spec.arch not in (None, info.family):
        raise Unsupported(f"{name} is of the family {info.family}; leave {spec.arch} out")
    return MetalDevice(name, MetalContext(objc, device, info))
