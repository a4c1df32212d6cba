"""The CUDA device: a GPU through libcuda, or through a model of it with chips that `SIM` names."""

from __future__ import annotations

from functools import cache, partial

from gpu.backends.cuda.context import CudaContext, open_context
from gpu.backends.cuda.exchange import CudaExchange
from gpu.backends.cuda.graph import CudaGraph
from gpu.backends.cuda.library import Library, load_library
from gpu.backends.cuda.memory import CudaAllocator
from gpu.backends.cuda.program import CudaProgram
from gpu.backends.cuda.timer import CudaTimer
from gpu.compiler.render.cstyle.cuda import CUDARenderer
from gpu.compiler.render.llvm.ptx import PTXRenderer
from gpu.compiler.targets.nvidia import nearest_architecture
from gpu.compiler.toolchain.nvptx import DriverPtxCompiler
from gpu.compiler.toolchain.nvrtc import NvrtcCompiler
from gpu.core.config import config
from gpu.core.devspec import DeviceSpec, parse_device_name
from gpu.core.errors import Unsupported
from gpu.core.log import get_logger
from gpu.runtime.device import Compiled, Toolchain
from gpu.runtime.timer import Timer

log = get_logger(__name__)


class CUDADevice(Compiled):
    """A GPU of NVIDIA's, through libcuda.

    Attributes:
        context: its primary context and streams, for programs that use libcuda themselves.
    """

    def __init__(self, device: str, context: CudaContext, toolchain: Toolchain):
        self.context = context
        allocator = CudaAllocator(context)
        allocator.exchange = CudaExchange(context)
        load = partial(CudaProgram, context, allocator)
        super().__init__(device, allocator, *toolchain, load, CudaGraph)

    def synchronize(self) -> None:
        """Waits until everything launched so far is done. Raises GpuFault, DeviceLost."""
        self.context.synchronize()

    def make_timer(self) -> Timer:
        """What times launches by the GPU's clock."""
        return CudaTimer(self.context)

    def recover(self, force: bool = False) -> None:
        """Resets the GPU for this process after a GpuFault, and computes something on it.

        All that the process has on the GPU is lost, tensors of other libraries too: so it takes
        `force`. Raises InvalidValue without it, DeviceLost where it does not help.
        """
        self.context.recover(force)

    def describe(self) -> dict[str, str]:
        """What `gpu info` prints about the device."""
        info = self.context.info
        what = f"{arch_of(info.capability)}, {info.name}, {info.multiprocessors} SMs"
        return {
            **super().describe(),
            "target": f"{what}, CUDA {info.driver[0]}.{info.driver[1]}",
            "memory": f"{info.memory:,} bytes",
        }


def open_device(name: str, spec: DeviceSpec) -> Compiled:
    """The CUDA device `name`, as in CUDA or CUDA:1.

    Raises DeviceError where there is no libcuda or no such GPU and where the driver is too old,
    Unsupported for a GPU older than those that are known, for an architecture that it does not
    have, for a chip of SIM that there is no model of and where a compiler is missing.
    """
    context = open_context(_library(config.SIM, config.CUDA_LIBRARY), parse_device_name(name)[1])
    try:
        log.info("opened %s, compute capability %d", context.info.name, context.info.capability)
        arch = arch_of(context.info.capability)
        code = nearest_architecture(arch)
        if spec.arch not in (None, arch, code):
            raise Unsupported(f"{name} is a {arch}; code for {spec.arch} does not run on it")
        return CUDADevice(name, context, _toolchain(spec.renderer, code))
    except BaseException:
        context.close()
        raise


@cache
def _library(simulated: str, path: str) -> Library:
    """One libcuda for all GPUs of a process."""
    if not simulated:
        return load_library(path)
    from gpu.sim.cuda import functions, learn

    return Library(functions(simulated, seed=config.SIM_SEED), learn)


def arch_of(capability: int) -> str:
    """What compilers call the architecture: ``sm_90``."""
    return f"sm_{capability}"


def toolchain(spec: DeviceSpec) -> Toolchain:
    """What makes code for the architecture that `spec` names, without a GPU. Raises Unsupported."""
    if spec.arch is None:
        raise Unsupported(f"{spec} names no architecture to compile for; write CUDA::sm_90, say")
    return _toolchain(spec.renderer, nearest_architecture(spec.arch))


def _toolchain(renderer: str | None, arch: str) -> Toolchain:
    if renderer in (None, "NVRTC"):
        return Toolchain(CUDARenderer(arch), NvrtcCompiler(arch))
    if renderer == "PTX":
        return Toolchain(PTXRenderer(arch), DriverPtxCompiler(arch))
    raise Unsupported(f"CUDA:{renderer} is not known; use CUDA:NVRTC or CUDA:PTX")
