"""The CL device: any implementation of OpenCL 1.2 or later, found through the system's loader."""

from __future__ import annotations

from functools import partial

from gpu.backends.cl.api import load_opencl
from gpu.backends.cl.compiler import CLCompiler
from gpu.backends.cl.context import CLContext
from gpu.backends.cl.memory import CLAllocator
from gpu.backends.cl.platforms import choose, find_devices
from gpu.backends.cl.program import CLGraph, CLProgram, Scratch
from gpu.backends.cl.quirks import quirks_of
from gpu.backends.cl.target import build_options, device_target
from gpu.backends.cl.timer import CLTimer
from gpu.compiler.render.cstyle.opencl import OpenCLRenderer
from gpu.compiler.targets import Target
from gpu.core.config import config, preset_variable
from gpu.core.devspec import DeviceSpec, parse_device_name
from gpu.core.errors import Unsupported
from gpu.core.log import get_logger
from gpu.runtime.device import Compiled
from gpu.runtime.timer import Timer

log = get_logger(__name__)


class CLDevice(Compiled):
    """A device of OpenCL.

    Attributes:
        context: its context and queue, for programs that use OpenCL themselves.
    """

    def __init__(self, device: str, context: CLContext, target: Target):
        self.context = context
        allocator = CLAllocator(context)
        bundle = quirks_of(context.info).bundle
        compiler = CLCompiler(context, build_options(target), bundle)
        load = partial(CLProgram, context, Scratch(allocator))
        super().__init__(device, allocator, OpenCLRenderer(target), compiler, load, CLGraph)

    def synchronize(self) -> None:
        """Waits until everything launched so far is done. Raises DeviceLost, OutOfMemory."""
        self.context.finish()

    def make_timer(self) -> Timer:
        """What times launches and copies by the device's clock."""
        return CLTimer(self.device, self.context)

    def describe(self) -> dict[str, str]:
        """What `gpu info` prints about the device."""
        info = self.context.info
        images = info.images
        return {
            **super().describe(),
            "compiler": f"{info.platform.name}, {info.platform.version}",
            "target": f"{info.name}, {info.kind}",
            "driver": f"{info.driver}, {info.version}",
            "memory": f"{info.memory:,} bytes, {info.most_memory:,} at most in one buffer",
            "images": f"{images.height} x {images.width} pixels at most" if images else "none",
            "queue": "reorders" if self.context.order else "in order",
        }


def open_device(name: str, spec: DeviceSpec) -> Compiled:
    """The OpenCL device `name`, as in CL or CL:1; CL_PLATFORM says of which platform.

    Raises DeviceError where there is no library, platform or such device, Unsupported for a device
    that programs cannot be compiled for, and ConfigError for a CL_PLATFORM there is not.
    """
    if spec.renderer not in (None, "CL") or spec.arch is not None:
        raise Unsupported(f"{name} has one renderer, CL, and no architectures; use DEV={name}")
    return CLDevice(name, *_open(parse_device_name(name)[1]))


def _open(index: int) -> tuple[CLContext, Target]:
    api = load_opencl(config.CL_LIBRARY)
    info = choose(find_devices(api, config.OCL_ICD_VENDORS, config.CL_PLATFORM), index)
    target = device_target(info)
    log.info("opening %s of %s, %s", info.name, info.platform.name, info.driver)
    for variable, value in quirks_of(info).variables.items():
        preset_variable(variable, value)
    return CLContext(api, info, config.CL_REORDER), target
