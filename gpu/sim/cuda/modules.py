"""Loaded modules and their functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gpu.sim.cuda import attributes
from gpu.sim.cuda.codes import INVALID_PTX, INVALID_VALUE, NOT_SUPPORTED, CudaError
from gpu.sim.cuda.context import Allocation, Context
from gpu.sim.cuda.images import Image
from gpu.sim.isa.ptx.data import LoadedModule, place_module
from gpu.sim.isa.ptx.engine import shared_engine
from gpu.sim.isa.ptx.program import Program
from gpu.sim.isa.ptx.syntax import PtxError

_WARP: Final = 32
_GUESSED_REGISTERS: Final = 32
"""Of a thread, where no machine code tells: what a JIT would take is not known."""
_PTX_LOG: Final = "ptxas application ptx input, line {}; error   : {}"

# CUfunction_attribute.
MAX_THREADS: Final = 0
SHARED: Final = 1
CONSTANT: Final = 2
LOCAL: Final = 3
REGISTERS: Final = 4
PTX_VERSION: Final = 5
BINARY_VERSION: Final = 6
CACHE_MODE: Final = 7
DYNAMIC_SHARED: Final = 8
CARVEOUT: Final = 9
SETTABLE: Final = (DYNAMIC_SHARED, CARVEOUT)
_NO_CLUSTERS: Final = (10, 11, 12, 13, 14, 15)


class Module:
    """A module in a context, with variables of its own.

    Attributes:
        data: where its variables lie.
        functions: handles of those that were asked for.
    """

    def __init__(self, context: Context, image: Image, number: int):
        """Raises CudaError, whose text is what the log says."""
        self.context = context
        self.image = image
        self.handle = 0
        self.functions: dict[str, int] = {}
        self.data: Allocation | None = None
        self._programs: dict[str, Program] = {}
        try:
            self.loaded: LoadedModule = place_module(image.ptx, number)
        except PtxError as error:
            raise self._refused(error) from error
        self.kernels = [f.name for f in self.loaded.module.functions.values() if f.is_kernel]
        if not image.compiled:
            for name in self.kernels:
                self.program(name)

    def program(self, name: str) -> Program:
        """A kernel, translated. Raises CudaError for what the engine does not know."""
        found = self._programs.get(name)
        if found is None:
            try:
                found = Program(shared_engine(), self.loaded, name)
            except PtxError as error:
                raise self._refused(error) from error
            self._programs[name] = found
        return found

    def variable(self, name: str) -> tuple[int, int] | None:
        """(address, bytes) of a variable; None where it has none of that name."""
        space, address = self.loaded.symbols.get(name, ("", 0))
        if space not in ("global", "const"):
            return None
        return address, self.loaded.module.variables[name].size

    @property
    def constant_bytes(self) -> int:
        """Bytes of its ``.const`` variables."""
        return sum(v.size for v in self.loaded.module.variables.values() if v.space == "const")

    def _refused(self, error: PtxError) -> CudaError:
        if self.image.compiled:
            return CudaError(NOT_SUPPORTED, f"the engine does not know this: {error.message}")
        return CudaError(INVALID_PTX, _PTX_LOG.format(error.line, error.message))


@dataclass(eq=False)
class Function:
    """A kernel of a module.

    Attributes:
        parameters: (offset, bytes) of each.
        attributes: CUfunction_attribute -> value.
    """

    module: Module
    name: str
    program: Program
    parameters: list[tuple[int, int]] = field(init=False)
    attributes: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        function = self.module.loaded.module.functions[self.name]
        offsets = function.parameter_offsets()
        self.parameters = [(offsets[p.name], p.size) for p in function.parameters]
        image = self.module.image
        limits = image.limits.get(self.name, {})
        registers = image.registers.get(self.name) or min(
            limits.get("maxnreg", (_GUESSED_REGISTERS,))[0], _GUESSED_REGISTERS
        )
        self.attributes = dict.fromkeys(_NO_CLUSTERS, 0) | {
            MAX_THREADS: self._most_threads(limits, registers),
            SHARED: self.program.shared_bytes,
            CONSTANT: self.module.constant_bytes,
            LOCAL: self.program.local_bytes,
            REGISTERS: registers,
            PTX_VERSION: image.version,
            BINARY_VERSION: image.binary,
            CACHE_MODE: 0,
            DYNAMIC_SHARED: max(0, attributes.STATIC_SHARED - self.program.shared_bytes),
            CARVEOUT: -1,
        }

    @property
    def required_block(self) -> tuple[int, ...]:
        """The block that ``.reqntid`` demands; empty where it does not."""
        return self.module.image.limits.get(self.name, {}).get("reqntid", ())

    def set_attribute(self, attribute: int, value: int) -> None:
        """Raises CudaError for an attribute that cannot be set, or not to that."""
        if attribute not in SETTABLE:
            raise CudaError(INVALID_VALUE, f"function attribute {attribute} cannot be set")
        if attribute == CARVEOUT and not -1 <= value <= 100:
            raise CudaError(INVALID_VALUE, f"a carveout of {value} per cent")
        if attribute == DYNAMIC_SHARED:
            most = attributes.shared_per_block(self.module.context.device.chip)
            if not 0 <= value <= most - self.program.shared_bytes:
                raise CudaError(
                    INVALID_VALUE,
                    f"{value} bytes of dynamic shared memory beside {self.program.shared_bytes}:"
                    f" a block has {most}",
                )
        self.attributes[attribute] = value

    def blocks_per_sm(self, threads: int, dynamic: int) -> int:
        """How many blocks an SM holds at a time ("CUDA C++ Best Practices Guide", Occupancy)."""
        chip = self.module.context.device.chip
        device = self.module.context.device.attributes
        warps = -(-threads // _WARP)
        shared = self.program.shared_bytes + dynamic + attributes.RESERVED_SHARED
        per_warp = -(-self.attributes[REGISTERS] * _WARP // 256) * 256
        return min(
            device[106],
            chip.warps // warps,
            attributes.shared_per_sm(chip) // (-(-shared // 128) * 128),
            attributes.REGISTERS // per_warp // warps,
        )

    def _most_threads(self, limits: dict[str, tuple[int, ...]], registers: int) -> int:
        most = attributes.REGISTERS // (-(-registers * _WARP // 256) * 256) * _WARP
        for kind in ("maxntid", "reqntid"):
            if kind in limits:
                threads = 1
                for size in limits[kind]:
                    threads *= size
                most = min(most, threads)
        return min(most, attributes.MOST_THREADS)
