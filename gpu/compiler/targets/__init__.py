"""What the compiler must know of the machine it compiles for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from gpu.compiler.ir.optable import DOTS, OPS
from gpu.compiler.targets.edges import C, Edges
from gpu.core.bits import is_power_of_two
from gpu.core.dtype import DType, ImageDType, dtypes
from gpu.core.errors import InvalidValue

WORD: Final = 32  # bits
WORDS: Final = frozenset({dtypes.int32, dtypes.uint32, dtypes.float32})
# What machines and libraries have of these is less exact than what they are derived to, or slower;
# or few have any.
DERIVED: Final = frozenset({"exp", "exp2", "expm1", "log2", "sin", "fmod", *DOTS})
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
        shuffled: dtypes that threads of a warp exchange; others go as integers of 32 bits.
        float_quotients: whether vectors of integers are divided as floats, where those hold each
            quotient: for machines that divide vectors of floats and no vectors of integers.
        flushes: whether arithmetic and conversions take floats below the normal ones for zero, and
            give zero for them; kernels are the same, what may be expected of them is not.
        edges: what is printed for an operation gives where ours are fixed; nothing, if left out.
    """

    ops: frozenset[str]
    storage_only: frozenset[DType] = field(default=frozenset())
    compute_as_float32: frozenset[DType] = field(default=frozenset())
    compute_as_int32: frozenset[DType] = field(default=frozenset())
    paired: bool = False
    scalar: bool = False
    quads: bool = False
    lacking: frozenset[DType] = field(default=frozenset())
    shuffled: frozenset[DType] = WORDS
    float_quotients: bool = False
    flushes: bool = False
    edges: Edges = C

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

    def held_bytes(self, dtype: DType) -> int:
        """Bytes of an element in team memory: what is computed in 32 bits is held in as many."""
        return max(dtype.itemsize, 4 if self.compute_as_int32 else 1)


class ImageLimits(NamedTuple):
    """The images a machine has.

    Attributes:
        width, height: pixels of the largest.
        pitch: the number of pixels that a row must be a multiple of for plain memory to be read as
            an image in place; 0 where images have memory of their own.
    """

    width: int
    height: int
    pitch: int = 0

    def fits(self, image: ImageDType) -> bool:
        """Whether it has images as large as `image`."""
        return image.width <= self.width and image.height <= self.height


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
        shuffle: consecutive threads that can exchange values among each other without memory
            (`shuffle_xor` of the linear IR), a power of two that divides `warp`; 0 where none can.
        access_bytes: what a thread moves to or from memory in one instruction at most, a power of
            two; 0 where neighbouring elements go one by one as fast.
        max_blocks: most blocks of a launch, all grid loops together.
        buffers: most parameters of a kernel; 0 where any number will do.
        images: the images that parameters may be; None where there are none.
        features: instruction set features in canonical order, for cache keys.
        matrices: names of the matrix instructions it has (`gpu/compiler/ir/matrix.py`), and with
            those of NVIDIA's warps asynchronous copies to shared memory.
        language: what users' own kernels may be written in (`gpu/compiler/render/userkernel.py`);
            "" where that is no language that people write.
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
    shuffle: int = 0
    access_bytes: int = 0
    images: ImageLimits | None = None
    matrices: tuple[str, ...] = ()
    language: str = ""

    def __post_init__(self) -> None:
        if self.threads and (self.parallel != "grid" or self.threads % self.warp):
            raise InvalidValue(
                f"Target {self.name} has blocks of {self.threads} threads, which takes"
                f" parallel='grid' and a multiple of the {self.warp} threads of a warp"
            )
        if self.shuffle and (not is_power_of_two(self.shuffle) or self.warp % self.shuffle):
            raise InvalidValue(
                f"Target {self.name} has values exchanged among {self.shuffle} threads, which"
                f" takes a power of two that divides the {self.warp} threads of a warp"
            )

    def with_edges(self, edges: Edges) -> Target:
        """The same machine, programmed in a language that has another row of edges."""
        return replace(self, native=replace(self.native, edges=edges))

    @property
    def has_blocks(self) -> bool:
        """Whether a kernel may keep some rows of a large value near by: workers, with caches."""
        return self.parallel == "worker" and self.vector_bytes > 0

    @property
    def near_step(self) -> int:
        """How many elements apart lanes may be that vectors of neighbours are loaded for."""
        return 4 if self.parallel == "worker" and not self.native.scalar else 1

    def masks(self, itemsize: int) -> bool:
        """Whether lanes of such elements are masked by one instruction, not asked one by one."""
        if not self.has_blocks:
            return True
        needed = "+avx512bw" if itemsize < 4 else "+avx"
        return needed in self.features.split(",")

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
                native.shuffled,
            )
        ]
        shape = (self.parallel, self.workers, self.vector_bytes, self.registers)
        blocks = (self.threads, self.shared_bytes, self.warp, self.shuffle, self.access_bytes)
        launches = (self.max_blocks, self.buffers)
        lacks = (dtypes_of, native.paired, native.scalar, native.quads, self.matrices)
        sizes = f"{shape}|{blocks}|{launches}"
        images = f"|{tuple(self.images)}" if self.images else ""
        made = f"{sorted(native.ops)}|{lacks}|{native.edges.key}"
        return f"{self.name}|{self.features}|{sizes}|{made}{images}|{self.language}"
