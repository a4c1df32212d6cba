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
    """

    ops: frozenset[str]
    storage_only: frozenset[DType] = field(default=frozenset())
    compute_as_float32: frozenset[DType] = field(default=frozenset())

    def __post_init__(self) -> None:
        if unknown := sorted(self.ops - OPS.keys()):
            raise InvalidValue(f"Native.ops names no operations: {unknown}; see OPS in optable.py")
        narrowed = self.storage_only | self.compute_as_float32
        if wrong := sorted(d.name for d in narrowed - NARROW_FLOATS):
            raise InvalidValue(f"only narrow floats can lack arithmetic in Native, got {wrong}")
        if both := sorted(d.name for d in self.storage_only & self.compute_as_float32):
            raise InvalidValue(f"Native has {both} as storage_only and as compute_as_float32")


@dataclass(frozen=True)
class Target:
    """A machine, as scheduling and lowering see it. Renderers give one.

    Attributes:
        name: for messages, as in ``x86_64``.
        native: operations and dtypes the renderer prints directly.
        parallel: kind of the loop that spreads over the machine: `worker` or `grid`.
        workers: how many run at once; 1 means that splitting across them gains nothing.
        vector_bytes: width of a vector register, 0 where lanes do not exist.
        registers: vector registers a kernel may hold live.
        features: instruction set features in canonical order, for cache keys.
    """

    name: str
    native: Native
    parallel: str
    workers: int = 1
    vector_bytes: int = 0
    registers: int = 0
    features: str = ""

    @property
    def key(self) -> str:
        """All of the above as text that is the same in every process, for cache keys."""
        native = self.native
        dtypes_of = [
            sorted(d.name for d in s) for s in (native.storage_only, native.compute_as_float32)
        ]
        shape = (self.parallel, self.workers, self.vector_bytes, self.registers)
        return f"{self.name}|{self.features}|{shape}|{sorted(native.ops)}|{dtypes_of}"
