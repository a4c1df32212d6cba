"""The executor that runs kernels: the PTX that machine code was made from, on the lane engine.

Machine code of NVIDIA's is not public. Whoever compiles a kernel tells the executor which PTX its
machine code stands for (`PtxExecutor.learn`); at a launch the executor reads the code from the
GPU's memory, as the instruction cache has it, and looks it up. All else is what the launch says:
parameters come out of constant bank 0, shared and local memory are at their windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final

from gpu.core.errors import GpuFault, InvalidValue
from gpu.sim.chunks import ChunkedMemory
from gpu.sim.executor import Kept, RunningKernel, RunningLanes
from gpu.sim.isa import layout
from gpu.sim.isa.ptx.data import LoadedModule, place_module
from gpu.sim.isa.ptx.engine import shared_engine
from gpu.sim.isa.ptx.faults import WarpFault
from gpu.sim.isa.ptx.program import Program
from gpu.sim.isa.ptx.run import Grid
from gpu.sim.isa.ptx.warps import GridShape
from gpu.sim.nv.chip.bank0 import check_words, words_at
from gpu.sim.nv.chip.errors import graphics
from gpu.sim.nv.chip.launch import KernelFault, KernelMemory, Launch
from gpu.sim.translate import PAGE_SIZE

_HEAD: Final = 64  # bytes by which code is looked up before all of it is read
_INSTRUCTION: Final = 16  # bytes of one in machine code, for the pc of faults
# HWW_WARP_ESR.ERROR, as nouveau's gf100_mp_warp_error names them (gr/gf100.c).
_ILLEGAL_INSTRUCTION: Final = 0x9
_OUT_OF_BOUNDS: Final = 0xE
_UNALIGNED: Final = 0xF
_ADDRESS_SPACE: Final = 0x10
_ERRORS: Final = {
    "access": _OUT_OF_BOUNDS,
    "misaligned": _UNALIGNED,
    "space": _ADDRESS_SPACE,
}


@dataclass(frozen=True)
class _Kernel:
    """A kernel that was learned.

    Attributes:
        code: its machine code.
        constants: contents of its constant banks beside bank 0, by number.
        module, program: what stands for it.
        parameters: offset of the first one in constant bank 0.
    """

    code: bytes
    constants: Mapping[int, bytes]
    module: LoadedModule
    program: Program
    parameters: int


class PtxExecutor:
    """Runs kernels of any chip, from their PTX.

    An access that the page tables do not allow is a PageFault, all else that a warp cannot do a
    KernelFault. Its pc counts PTX instructions, 16 bytes each: machine code has others.
    """

    def __init__(self, workers: int = 1, seed: int = 0):
        """`seed` decides how warps of a kernel interleave.

        `workers` is 1: warps run one after another, so that a seed reproduces. Raises InvalidValue.
        """
        if workers != 1:
            raise InvalidValue(f"{workers} workers: warps run one after another, by 1")
        self._seed = seed
        self._modules: dict[str, LoadedModule] = {}
        self._programs: dict[tuple[str, str], Program] = {}
        self._kernels: dict[bytes, list[_Kernel]] = {}
        self._heads: set[int] = set()
        self._learning = Lock()

    def learn(
        self,
        code: bytes,
        kernel: str,
        ptx: str,
        parameters: int,
        constants: Mapping[int, bytes] | None = None,
    ) -> None:
        """Machine code stands for a kernel of some PTX.

        Args:
            code: all of the kernel's ``.text`` section.
            kernel: its name in the text.
            ptx: the text of its module; kernels of one text share its variables.
            parameters: offset of the first parameter in constant bank 0: 0x210 on sm_90, 0x160 on
                sm_80 to sm_89, 0x380 from sm_100 on (the cubin's EIATTR_PARAM_CBANK).
            constants: contents of its constant banks beside bank 0, by number. Literals of float64
                are in bank 2 on sm_80 to sm_89, so kernels that differ in them have one code.

        Raises PtxError for a text that is not understood or lacks the kernel, InvalidValue where
        there is no code, Unsupported for parameters that begin elsewhere.
        """
        if not code:
            raise InvalidValue(f"the machine code of {kernel!r} is empty")
        words_at(parameters)
        with self._learning:
            self._learn(code, kernel, ptx, parameters, dict(constants or {}))

    def _learn(
        self, code: bytes, kernel: str, ptx: str, parameters: int, constants: Mapping[int, bytes]
    ) -> None:
        module = self._modules.get(ptx)
        if module is None:
            module = self._modules[ptx] = place_module(ptx, len(self._modules))
        program = self._programs.get((ptx, kernel))
        if program is None:
            program = self._programs[ptx, kernel] = Program(shared_engine(), module, kernel)
        learned = _Kernel(code, constants, module, program, parameters)
        known = self._kernels.get(code[:_HEAD], [])
        same = (code, constants)
        others = [each for each in known if (each.code, each.constants) != same]
        # Made anew: a launch in another thread may go through the old ones.
        self._kernels[code[:_HEAD]] = sorted([*others, learned], key=_size_of, reverse=True)
        self._heads = self._heads | {min(_HEAD, len(code))}

    def launch(self, launch: Launch, memory: KernelMemory) -> RunningKernel:
        """Begins a grid. Raises PageFault, KernelFault, ChannelError for code that is not known."""
        kernel = self._find(launch, memory)
        self._seed += 1
        kept = memory.space.kept.get(self)
        if not isinstance(kept, dict):
            kept = memory.space.kept[self] = {}
        return _Running(kernel, launch, memory, kept, self._seed)

    def _find(self, launch: Launch, memory: KernelMemory) -> _Kernel:
        """The kernel whose code and constants a launch has."""
        address = launch.program
        for head in sorted(self._heads, reverse=True):
            if not memory.code.is_mapped(address, head):
                continue
            for kernel in self._kernels.get(memory.code.read(address, head), ()):
                size = len(kernel.code)
                if not memory.code.is_mapped(address, size):
                    continue
                if memory.code.read(address, size) != kernel.code:
                    continue
                if _has_constants(launch, memory, kernel.constants):
                    return kernel
        raise graphics(
            f"the code at {address:#x} is none of the {sum(map(len, self._kernels.values()))}"
            " kernels that the executor has learned; tell it by PtxExecutor.learn"
        )


def _has_constants(launch: Launch, memory: KernelMemory, constants: Mapping[int, bytes]) -> bool:
    """Whether the banks of a launch hold these bytes."""
    for number, wanted in constants.items():
        bank = launch.banks[number]
        if bank is None or bank.size < len(wanted):
            return False
        if memory.constant(number, 0, len(wanted)) != wanted:
            return False
    return True


class _Running(RunningLanes[Grid]):
    """A grid under way. Raises PageFault, KernelFault."""

    def __init__(
        self,
        kernel: _Kernel,
        launch: Launch,
        memory: KernelMemory,
        kept: Kept[Grid],
        seed: int,
    ):
        program = kernel.program
        if program.shared_bytes > launch.shared_bytes:
            raise KernelFault(
                f"kernel {program.name} has {program.shared_bytes:#x} bytes of shared memory, the"
                f" launch gives it {launch.shared_bytes:#x}",
                pc=launch.program,
            )
        parameters = b""
        if program.parameter_bytes:
            parameters = memory.constant(0, kernel.parameters, program.parameter_bytes)
        check_words(words_at(kernel.parameters), program, launch, memory)
        self._launch = launch
        shape = GridShape(
            grid=launch.grid,
            block=launch.block,
            parameters=parameters,
            shared_bytes=launch.shared_bytes,
            cluster=launch.cluster,
            shared_window=launch.shared_window,
            shared_window_size=memory.window_size,
            local_window=launch.local_window,
            barriers=launch.barriers,
        )
        data = kernel.module.data
        flags = layout.READ | layout.WRITE | layout.ATOMIC
        own = (kernel.module.base, len(data), data.ctypes.data, flags)
        key = (program, shape)
        if found := kept.pop(key, None):
            grid, lanes = found
            lanes.again()
            grid.begin(parameters, seed)
        else:
            lanes = ChunkedMemory(memory.data, own=(own,), in_place=PAGE_SIZE)
            grid = Grid(shared_engine(), program, shape, lanes.map, lanes.fill, seed)
        super().__init__(grid, lanes, (kept, key))

    def _told(self, fault: GpuFault) -> KernelFault:
        assert isinstance(fault, WarpFault)
        return KernelFault(
            fault.message,
            pc=self._launch.program + _INSTRUCTION * fault.instruction,
            warp_error=_ERRORS.get(fault.reason, _ILLEGAL_INSTRUCTION),
            address=fault.address or 0,
        )


def _size_of(kernel: _Kernel) -> int:
    return len(kernel.code)
