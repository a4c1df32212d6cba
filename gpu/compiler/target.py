"""What the compiler must know of the machine it compiles for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gpu.compiler.ir.optable import OPS
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import InvalidValue

NARROW_FLOATS: Final = frozenset({dtypes.bfloat16, dtypes.float16, dtypes.fp8e4m3, dtypes.fp8e5m2})


@dataclass(frozen=True)
class Native:
    """What a device has.

    A narrow float named in neither set is wholly native: `ops` on it, and its casts as
    `evaluate.cast` defines them.

    Attributes:
        ops: operations it has on float32, float64, integers and bool, each in its domain.
        storage_only: narrow floats that exist in memory only; even their conversions are derived.
        compute_as_float32: narrow floats with native conversions from and to float32, and no more.
        compute_as_int32: integers of 8 and 16 bits that are loaded, stored and converted to
            integers of 32 bits, and no more.
        paired: whether integers of 64 bits are two of 32; all that is left of int64 is then
            counters and places in memory, which fit 32 bits.
        scalar: whether vectors are written out lane by lane.
        quads: whether memory is best accessed by four neighbouring words at a time.
        lacking: dtypes that no kernel may have.
    """

    ops: frozenset[str]
    storage_only: frozenset[DType] = field(default=frozenset())
    compute_as_float32: frozenset[DType] = field(default=frozenset())
    compute_as_int32: frozenset[DType] = field(default=frozenset())
    paired: bool = False
    scalar: bool = False
    quads: bool = False
    lacking: frozenset[DType] = field(default=frozenset())

    def __post_init__(self) -> None:
        if unknown := sorted(self.ops - OPS.keys()):
            raise InvalidValue(f"Native.ops names no operations: {unknown}; see OPS in optable.py")
        narrowed = self.storage_only | self.compute_as_float32
        if wrong := sorted(d.name for d in narrowed - NARROW_FLOATS):
            raise InvalidValue(f"only narrow floats can lack arithmetic in Native, got {wrong}")
        if both := sorted(d.name for d in self.storage_only & self.compute_as_float32):
            raise InvalidValue(f"Native has {both} as storage_only and as compute_as_float32")
        if wide := sorted(d.name for d in self.compute_as_int32 if not d.is_int or d.bits > 16):
            raise InvalidValue(
                f"only integers of 8 and 16 bits can be computed as int32, got {wide}"
            )


@dataclass(frozen=True)
class Target:
    """A machine, as scheduling and lowering see it. Renderers give one.

    Attributes:
        name: for messages, as in ``x86_64``.
        native: operations and dtypes the renderer prints directly.
        parallel: kind of the loop that spreads over the machine: `worker` or `grid`.
        workers: how many run at once; 1 means that splitting across them gains nothing.
        vector_bytes: width of a vector register, 0 where lanes do not exist.
        registers: registers a kernel may hold live: of vectors, or 32-bit ones of a thread where
            there are no vectors.
        threads: most threads of a block; 0 where a block is one thread, and there are no `thread`
            loops and no barriers.
        shared_bytes: `team` memory that the threads of a block share at the cost of a cache; 0
            where it is no faster than other memory, and then no operands are staged there.
        warp: consecutive threads whose accesses to consecutive memory become one.
        max_blocks: most blocks of a launch, all grid loops together.
        buffers: most parameters of a kernel; 0 where any number will do.
        features: instruction set features in canonical order, for cache keys.
    """

    name: str
    native: Native
    parallel: str
    workers: int = 1
    vector_bytes: int = 0
    registers: int = 0
    features: str = ""
    threads: int = 0
    shared_bytes: int = 0
    warp: int = 32
    max_blocks: int = (1 << 31) - 1
    buffers: int = 0

    def __post_init__(self) -> None:
        if self.threads and (self.parallel != "grid" or self.threads % self.warp):
            raise InvalidValue(
                f"Target {self.name} has blocks of {self.threads} threads, which takes"
                f" parallel='grid' and a multiple of the {self.warp} threads of a warp"
            )

    @property
    def key(self) -> str:
        """All of the above as text that is the same in every process, for cache keys."""
        native = self.native
        dtypes_of = [
            sorted(d.name for d in s)
            for s in (
                native.storage_only,
                native.compute_as_float32,
                native.compute_as_int32,
                native.lacking,
            )
        ]
        shape = (self.parallel, self.workers, self.vector_bytes, self.registers)
        blocks = (self.threads, self.shared_bytes, self.warp, self.max_blocks, self.buffers)
        lacks = (dtypes_of, native.paired, native.scalar, native.quads)
        return f"{self.name}|{self.features}|{shape}|{blocks}|{sorted(native.ops)}|{lacks}"
