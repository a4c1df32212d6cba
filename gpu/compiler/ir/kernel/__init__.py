"""Kernel IR: a tree of loops over explicit memory.

A `Kernel` has parameters (global buffers) and a body. Statements are `Block`, `Loop`, `Alloc`,
`Update`, `If`, `Barrier` and `Prefetch`; what they compute are `Value` expressions. `Update` is the
only write but for those of matrix instructions (`gpu/compiler/ir/matrix.py`): `Fragment`, `Mma`,
where one thread holds whole matrices `LoadTile` and `StoreTile`, and the asynchronous `AsyncCopy`,
whose copies `Commit` groups and `Wait` waits for.
There is no reduction node: an accumulator is a buffer, and a loop absent from an Update's index is
a reduction whose monoid says how it may be reordered. Loops over independent iterations say so by
their kind:

=========  ======================================================================================
loop kind  meaning
=========  ======================================================================================
grid       independent iterations, one per block of a GPU launch
worker     independent iterations, divided into contiguous chunks among the workers of a CPU
thread     the threads of a block, which run at once and meet at barriers
vector     the lanes of one vector register
unroll     written out; the iterations are interleaved, so accumulators stay in registers
serial     one after another
=========  ======================================================================================

Memory spaces: `global` (a parameter), `team` (shared by the threads of a block; on a CPU the
cache-sized workspace of one worker), `private` (registers, or the stack), `fragment` (registers
with a thread's part of a matrix, which only the statements of matrix instructions touch).

Where a kernel has `thread` loops it is one chain: grid loops, each alone in the other, in them
thread loops, in those all else. Only Allocs of team memory stand beside the thread loops: a block
has it once, while each thread has private memory, which is allocated inside. Two threads must not
touch one element of team memory, one of them writing, without a `Barrier` in between; the
interpreter finds where they do. A barrier is under no condition that differs between threads.

Threads are numbered as in the linear IR: the innermost thread loop counts fastest. `shuffle_xor`
gives a thread what another one of its warp computes: the value of an Update alone may hold it,
which is then under no condition or mask that differs between threads, and in no loop of lanes.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gpu.compiler.ir import optable
from gpu.compiler.ir.builder import Builder
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var
from gpu.compiler.ir.optable import constant_key, result_dtype
from gpu.core.dtype import DType, ImageDType, PyScalar, dtypes
from gpu.core.weak import WeakTable

PARALLEL: Final = frozenset({"grid", "worker", "thread", "vector"})
LOOP_KINDS: Final = (*sorted(PARALLEL), "unroll", "serial")
SPACES: Final = ("global", "team", "private", "fragment")


class Buf:
    """A block of memory a kernel reads or writes; compared by identity.

    Attributes:
        name: as printed; distinct within a kernel.
        dtype: element type.
        shape: sizes, row-major; () is one element.
        space: one of `SPACES`.
        image: how a parameter lies in memory that is an image, of float32 to the kernel.
    """

    __slots__ = ("dtype", "image", "name", "shape", "space")

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: tuple[int, ...],
        space: str,
        image: ImageDType | None = None,
    ):
        self.name, self.dtype, self.shape, self.space = name, dtype, shape, space
        self.image = image

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype.code}{list(self.shape)} {self.space}"


class Value:
    """A scalar expression at one point of the loops around it; interned, so `is` compares.

    ===========  ====================  ========================================================
    kind         attr                  value
    ===========  ====================  ========================================================
    const        (value,)              a constant
    index        (expr,)               index arithmetic as an int64
    load         (buf, indices, mask)  an element, or zero where the mask is false
    alu          (op,)                 a scalar operation of the op table
    cast         ()                    converted by value to `dtype`
    bitcast      ()                    the same bits as `dtype`
    shuffle_xor  (distance, warp)      what the operand is on the thread whose number is this one's
                                       xor `distance`, in the same warp of `warp` threads
    ===========  ====================  ========================================================

    Attributes:
        vars: index variables the value depends on.
        bufs: buffers it reads.
    """

    __slots__ = ("__weakref__", "args", "attr", "bufs", "dtype", "kind", "vars")

    kind: str
    args: tuple[Value, ...]
    attr: tuple[Any, ...]
    dtype: DType
    vars: frozenset[Var]
    bufs: frozenset[Buf]

    def __repr__(self) -> str:
        return f"<{self.kind} {self.attr} {self.dtype.code}>"


_interned: WeakTable[tuple[Any, ...], Value] = WeakTable()
_NO_VARS: Final[frozenset[Var]] = frozenset()
_NO_BUFS: Final[frozenset[Buf]] = frozenset()


def _value(
    kind: str,
    args: tuple[Value, ...],
    attr: tuple[Any, ...],
    dtype: DType,
    own_vars: frozenset[Var] = _NO_VARS,
    own_bufs: frozenset[Buf] = _NO_BUFS,
) -> Value:
    # 1 is told from 1.0: only one of them is a constant of the dtype.
    unique = (constant_key(attr[0]), attr[0].__class__) if kind == "const" else attr
    key = (kind, args, unique, dtype)
    value = _interned.get(key)
    if value is None:
        value = Value()
        value.kind, value.args, value.attr, value.dtype = kind, args, attr, dtype
        value.vars = own_vars.union(*(a.vars for a in args))
        value.bufs = own_bufs.union(*(a.bufs for a in args))
        value = _interned.file(key, value)
    return value


def const(dtype: DType, value: PyScalar) -> Value:
    """A constant, already rounded or wrapped to `dtype`."""
    return _value("const", (), (value,), dtype)


def index(expr: Expr) -> Value:
    """Index arithmetic as an int64 value."""
    if expr.is_const:
        return const(dtypes.int64, expr.const)
    return _value("index", (), (expr,), dtypes.int64, expr.vars)


def load(buf: Buf, indices: tuple[Expr, ...], mask: Mask = ALWAYS) -> Value:
    """The element of `buf` at `indices`, or zero where `mask` is false; nothing is read there."""
    own = mask.vars.union(*(i.vars for i in indices))
    return _value("load", (), (buf, indices, mask), buf.dtype, own, frozenset({buf}))


def alu(name: str, *args: Value) -> Value:
    """A scalar operation. Raises DTypeError where it takes no such operands."""
    return _value("alu", args, (name,), result_dtype(name, tuple(a.dtype for a in args)))


def cast(x: Value, dtype: DType) -> Value:
    """`x` converted by value."""
    return x if x.dtype is dtype else _value("cast", (x,), (), dtype)


def bitcast(x: Value, dtype: DType) -> Value:
    """The bits of `x` as another dtype of the same width."""
    return x if x.dtype is dtype else _value("bitcast", (x,), (), dtype)


def shuffle_xor(x: Value, distance: int, warp: int) -> Value:
    """What `x` is on another thread of a warp of `warp` threads; see `Value`."""
    return _value("shuffle_xor", (x,), (distance, warp), x.dtype)


class ValueBuilder(Builder[Value]):
    """Scalar operations over kernel values."""

    def op(self, name: str, *args: Value) -> Value:
        """See `alu`."""
        return alu(name, *args)

    def const(self, dtype: DType, value: PyScalar) -> Value:
        """A constant, rounded or wrapped to `dtype`."""
        return const(dtype, optable.to_python(optable.scalar(dtype)(value), dtype))

    def cast(self, x: Value, dtype: DType) -> Value:
        """See `cast`."""
        return cast(x, dtype)

    def bitcast(self, x: Value, dtype: DType) -> Value:
        """See `bitcast`."""
        return bitcast(x, dtype)

    def dtype(self, x: Value) -> DType:
        """The value's dtype."""
        return x.dtype


class Block(NamedTuple):
    """Statements in order."""

    body: tuple[Stmt, ...]


class Loop(NamedTuple):
    """`body` for each value of `var` from `var.lo` to `var.hi`; `kind` is one of `LOOP_KINDS`.

    Where `var.stop` is given the loop ends before it, and runs no iteration if that is 0.
    """

    var: Var
    kind: str
    body: Block


class Alloc(NamedTuple):
    """`buf` exists, with undefined contents, from here to the end of the enclosing block."""

    buf: Buf


class Let(NamedTuple):
    """Gives an index variable the value of an int64 that lies within the variable's bounds."""

    var: Var
    value: Value


class Update(NamedTuple):
    """Writes one element where `mask` holds.

    `buf[indices] = value`, or with a monoid `buf[indices] = combine(buf[indices], value)`. First
    the variables of `lets` get their values, in order; that is how data becomes an address.
    With `distinct` no two iterations of the loops around write one element: a promise about the
    data, where addresses do not show it.
    """

    buf: Buf
    indices: tuple[Expr, ...]
    monoid: str | None
    value: Value
    mask: Mask = ALWAYS
    lets: tuple[Let, ...] = ()
    distinct: bool = False


class If(NamedTuple):
    """`body` where `mask` holds."""

    mask: Mask
    body: Block


class Barrier(NamedTuple):
    """All threads of a block arrive before any goes on; team memory is in order across it."""


class Prefetch(NamedTuple):
    """A hint that `buf[indices]` is read soon, which a processor may take into its caches.

    Nothing is read, so the indices may lie outside of the buffer, a parameter.
    """

    buf: Buf
    indices: tuple[Expr, ...]


class AsyncCopy(NamedTuple):
    """Starts a copy of `size` elements that follow each other, from `source` to `buf`.

    `buf` is team memory and `source` a parameter that is only read; where `mask` is false the copy
    is of zeros. Both ends begin at multiples of `size`, which makes one of `COPY_BYTES`. What
    `buf` holds there is undefined until a `Wait` of the thread that copies.
    """

    buf: Buf
    indices: tuple[Expr, ...]
    source: Buf
    places: tuple[Expr, ...]
    size: int
    mask: Mask = ALWAYS


class Commit(NamedTuple):
    """The copies a thread has started since its last Commit are a group, even if there are none."""


class Wait(NamedTuple):
    """Until all of a thread's groups but the last `pending` have landed."""

    pending: int


class Fragment(NamedTuple):
    """Loads parts of matrices from team memory, all threads of a warp together.

    There are 2 ** len(steps) parts, for `buf[indices]` and the rows that follow; the axes of `buf`
    are rows, parts of a row, and elements of a part. Row r of a part begins `row * r` behind its
    first one. The first part is at `places`, the others further by the sum of `steps` for the bits
    of their number. With `transposed` rows in memory are columns of the part. Everything but where
    in its part an element lies is the same for the whole warp; distances are multiples of 8.
    """

    buf: Buf
    indices: tuple[Expr, ...]
    source: Buf
    places: tuple[Expr, ...]
    row: int
    steps: tuple[int, ...]
    transposed: bool


class Mma(NamedTuple):
    """`buf[indices] += a[a_indices] @ b[b_indices]` by the matrix instruction `name`.

    The last two axes of each buffer are parts, and elements of a part that a thread holds. Where
    all threads of a warp take part `buf` is private memory, where each has its own a fragment.
    Operands are fragments, or private memory where the threads of a warp load them one by one.
    """

    name: str
    buf: Buf
    indices: tuple[Expr, ...]
    a: Buf
    a_indices: tuple[Expr, ...]
    b: Buf
    b_indices: tuple[Expr, ...]


class LoadTile(NamedTuple):
    """Loads a tile, a matrix that one thread holds, from memory into the fragment `buf[indices]`.

    It begins at `places`, and its rows are `row` elements apart. `source` may have elements of
    another dtype than `buf`, which gets their bits.
    """

    buf: Buf
    indices: tuple[Expr, ...]
    source: Buf
    places: tuple[Expr, ...]
    row: int


class StoreTile(NamedTuple):
    """Stores the fragment `source[places]` as a tile that begins at `buf[indices]`; see `LoadTile`.

    `buf` is team or private memory.
    """

    buf: Buf
    indices: tuple[Expr, ...]
    source: Buf
    places: tuple[Expr, ...]
    row: int


MatrixStmt = AsyncCopy | Commit | Wait | Fragment | Mma | LoadTile | StoreTile
Stmt = Block | Loop | Alloc | Update | If | Barrier | Prefetch | MatrixStmt


class Kernel(NamedTuple):
    """One launch: parameters in calling order, then what it does.

    Attributes:
        name: symbol of the compiled function.
        params: global buffers; those an Update names are outputs.
        body: statements.
        vals: variables whose values are passed at launch, in calling order; stops of loops and
            indices may depend on them.
    """

    name: str
    params: tuple[Buf, ...]
    body: Block
    vals: tuple[Var, ...] = ()
