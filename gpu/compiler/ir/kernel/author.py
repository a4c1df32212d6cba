"""Writing a kernel as a Python function: `KernelBuilder` records what it says as kernel IR.

The function is called once, with arrays to read from and to write to. Loops, memory and conditions
it takes from the builder; all else are Python's operators on numbers (`Scalar`). What it says is
done in order, one iteration after another: which loops run at once, and how, is the compiler's
choice, by what it can prove.

An index that is out of range reads zero and writes nowhere, whether it follows from loops or is
data: the masks for that are added here, so that no kernel leaves its arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, NEVER, Expr, Mask, Var, at_least, between, expr
from gpu.compiler.ir.index.rows import flatten
from gpu.compiler.ir.kernel.picks import pick_value
from gpu.compiler.ir.kernel.scalar import Read, Scalar, number, of_index
from gpu.compiler.ir.optable import MONOIDS
from gpu.core.arguments import integer
from gpu.core.dtype import DType, PyScalar, dtypes, to_dtype
from gpu.core.errors import DTypeError, InvalidIndex, InvalidType, InvalidValue, ShapeError
from gpu.core.unpicklable import Unpicklable

_MOST_LOOPS: Final = 32  # in each other, which Python's own blocks allow about


class Array(Unpicklable):
    """An array of a kernel: read and written element by element, as ``x[i, j]``.

    Attributes:
        name: of the parameter.
        shape, dtype: its form.
        read_only: whether it is an input.
    """

    def __init__(
        self, builder: KernelBuilder, buf: K.Buf, shape: tuple[int, ...], read_only: bool = False
    ):
        self.name, self.shape, self.dtype = buf.name, shape, buf.dtype
        self.read_only = read_only
        self._builder, self._buf = builder, buf  # which is flat

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.dtype.name}{list(self.shape)} of a kernel>"

    def __getitem__(self, index: Any) -> Scalar:
        return self._builder._load(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._builder._store(self, index, value)

    def __iter__(self) -> Iterator[Any]:
        raise InvalidType(f"{self!r} has no Python loop over it; write `with k.loop(n) as i:`")

    def __len__(self) -> int:
        if not self.shape:
            raise InvalidType(f"{self!r} is 0-d and has no length")
        return self.shape[0]


class _Place:
    """An element: indices, where they are inside the array, and what they need."""

    def __init__(
        self, indices: tuple[Expr, ...], mask: Mask, lets: dict[Var, K.Value], reads: set[Read]
    ):
        self.indices, self.mask, self.lets, self.reads = indices, mask, lets, reads


class KernelBuilder:
    """What a function that describes a kernel says it with."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._params: list[K.Buf] = []
        self._blocks: list[list[K.Stmt]] = [[]]
        self._guards: list[Scalar] = []
        self._masks: list[Mask] = []
        self._writes: dict[K.Buf, int] = {}
        # Of each open block the memory that is declared in it, and what earlier blocks had read of
        # memory that could change, and was used in it.
        self._declared: list[set[K.Buf]] = [set()]
        self._used: list[set[K.Buf]] = [set()]
        self._picks: dict[tuple[K.Value, int], Var] = {}
        self._numbers = itertools.count()

    # For whoever calls the function.

    def parameter(self, name: str, shape: tuple[int, ...], dtype: DType, read_only: bool) -> Array:
        """The next parameter of the kernel."""
        buf = K.Buf(name, dtype, (math.prod(shape),), "global")
        self._params.append(buf)
        self._declared[0].add(buf)
        if not read_only:
            self._writes[buf] = 0
        return Array(self, buf, shape, read_only)

    def finish(self) -> K.Kernel:
        """The kernel. Raises InvalidValue where an output is never written."""
        for buf, writes in self._writes.items():
            if buf.space == "global" and not writes:
                raise InvalidValue(f"the kernel {self.name} never writes its output {buf.name}")
        (body,) = self._blocks
        return K.Kernel("kernel", tuple(self._params), K.Block(tuple(body)))

    # For the function.

    @contextmanager
    def loop(self, *extents: int) -> Iterator[Any]:
        """Loops in each other, of so many iterations each, from 0: ``with k.loop(n, m) as (i, j):``

        The body is described once, for all iterations.
        """
        if not extents:
            raise InvalidValue("k.loop() takes how many iterations it has, as in k.loop(n)")
        counts = [integer(extent, "the iterations of k.loop()") for extent in extents]
        if any(count < 1 for count in counts):
            raise InvalidValue(f"k.loop{tuple(counts)}: a loop has at least one iteration")
        if len(self._blocks) + len(counts) > _MOST_LOOPS:
            raise InvalidValue(f"more than {_MOST_LOOPS} loops in each other in {self.name}")
        loops = [Var(f"i{next(self._numbers)}", 0, count - 1) for count in counts]
        for _ in loops:
            self._open()
        counters = tuple(of_index(var) for var in loops)
        yield counters[0] if len(counters) == 1 else counters
        for var in reversed(loops):
            body = self._close()
            if body:
                self._blocks[-1].append(K.Loop(var, "serial", K.Block(tuple(body))))

    @contextmanager
    def when(self, condition: Any) -> Iterator[None]:
        """What is written inside is written where the condition holds, and not elsewhere.

        The condition is looked at again for each write: it may not read what is written inside.
        """
        if isinstance(condition, (bool, np.bool_)):
            condition = number(bool(condition), dtypes.bool)
        if not isinstance(condition, Scalar) or condition.dtype is not dtypes.bool:
            raise DTypeError(f"k.when() takes a bool, as comparisons give it; got {condition!r}")
        if condition.mask is not None:
            self._masks.append(condition.mask)
            yield
            self._masks.pop()
            return
        self._guards.append(condition)
        yield
        self._guards.pop()

    def alloc(
        self, shape: int | Sequence[int], dtype: DType | str | type[Any], fill: PyScalar = 0
    ) -> Array:
        """Memory of an iteration's own, full of `fill`; () is one element, ``acc[()]``.

        It is there until the loop that is around ends.
        """
        sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        sizes = tuple(integer(size, "a size of k.alloc()") for size in sizes)
        if any(size < 1 for size in sizes):
            raise ShapeError(f"k.alloc({sizes}): sizes are at least 1")
        flat = (math.prod(sizes),) if sizes else ()
        buf = K.Buf(f"m{next(self._numbers)}", to_dtype(dtype), flat, "private")
        self._blocks[-1].append(K.Alloc(buf))
        self._declared[-1].add(buf)
        self._writes[buf] = 0
        array = Array(self, buf, sizes)
        masks, guards, self._masks, self._guards = self._masks, self._guards, [], []
        if not sizes:
            array[()] = fill
        else:
            with self.loop(*sizes) as places:
                array[places] = fill
        self._masks, self._guards = masks, guards
        return array

    def keep(self, value: Any) -> Scalar:
        """The number that `value` is now, whatever is written to what it was read from."""
        if not isinstance(value, Scalar):
            raise InvalidType(f"k.keep() takes a number of the kernel, got {value!r}")
        if not value.reads:
            return value
        memory = self.alloc((), value.dtype)
        memory[()] = value
        kept = memory[()]
        # Nobody else writes it, so that it stays what it is.
        return Scalar(kept.value, kept.lets)

    # Recording.

    def _open(self) -> None:
        self._blocks.append([])
        self._declared.append(set())
        self._used.append(set())

    def _close(self) -> list[K.Stmt]:
        self._declared.pop()
        self._used.pop()
        return self._blocks.pop()

    def _load(self, array: Array, index: Any) -> Scalar:
        place = self._place(array, index)
        reads = place.reads
        if not array.read_only:
            reads |= {Read(array._buf, self._writes[array._buf], len(self._blocks))}
        value = K.load(array._buf, place.indices, place.mask)
        return Scalar(value, place.lets, frozenset(reads))

    def _store(self, array: Array, index: Any, value: Any) -> None:
        if array.read_only:
            raise InvalidValue(f"{array!r} is an input, which a kernel only reads")
        place = self._place(array, index)
        try:
            stored = number(value, array.dtype)
        except DTypeError as error:
            error.add(f"it is written to {array!r}")
            raise
        mask, conditions = self._conditions()
        self._check_fresh({*place.reads, *stored.reads}.union(*(g.reads for g in self._guards)))
        monoid, used = self._combined(array._buf, place, stored.value)
        lets = {**place.lets, **stored.lets, **conditions}
        if place.mask & mask is not NEVER:
            update = K.Update(
                *(array._buf, place.indices, monoid, used, place.mask & mask),
                tuple(K.Let(var, of) for var, of in lets.items()),
            )
            self._blocks[-1].append(update)
        self._note_write(array)

    def _conditions(self) -> tuple[Mask, dict[Var, K.Value]]:
        """The conditions around a write as a mask, with lets for those that are data."""
        mask = ALWAYS
        for each in self._masks:
            mask &= each
        lets: dict[Var, K.Value] = {}
        for guard in self._guards:
            var = Var(f"c{next(self._numbers)}", 0, 1)
            lets |= {**guard.lets, var: K.cast(guard.value, dtypes.int64)}
            mask &= at_least(var, 1)
        return mask, lets

    def _combined(self, buf: K.Buf, place: _Place, value: K.Value) -> tuple[str | None, K.Value]:
        """How what is written is combined with the element there, and what with it.

        The compiler may order combinations anew, as it does with sums. None for a mere write.
        """
        if value.kind == "alu" and value.attr[0] in MONOIDS:
            own = K.load(buf, place.indices, place.mask)
            for old, other in (value.args, value.args[::-1]):
                if old is own and buf not in other.bufs:
                    return value.attr[0], other
        return None, value

    def _check_fresh(self, reads: Iterable[Read]) -> None:
        """Raises InvalidValue for what was read before it was written, and is used after that."""
        for buf, writes, depth in reads:
            if not any(buf in declared for declared in self._declared):
                raise InvalidValue(
                    f"memory of k.alloc() in {self.name} is used after the loop it was made in"
                )
            if writes != self._writes[buf]:
                raise InvalidValue(
                    f"a number read from {buf.name} in {self.name} is used after {buf.name} was"
                    " written: read it again, or hold it as it was, by k.keep(number)"
                )
            for level in range(depth, len(self._blocks)):
                self._used[level].add(buf)

    def _note_write(self, array: Array) -> None:
        """A write of what an iteration uses as it was before the loop is one too many."""
        buf = array._buf
        self._writes[buf] += 1
        for level in range(1, len(self._blocks)):
            if buf in self._used[level]:
                raise InvalidValue(
                    f"{buf.name} is written in a loop of {self.name} that uses a number read from"
                    f" {buf.name} before the loop: read it inside, or hold it, by k.keep(number)"
                )

    def _pick(self, index: K.Value, size: int) -> Var:
        """The variable for an index that is data; `size` stands for one that is out of range."""
        if (index, size) not in self._picks:
            self._picks[index, size] = Var(f"g{next(self._numbers)}", 0, size)
        return self._picks[index, size]

    def _place(self, array: Array, index: Any) -> _Place:
        """Where an index leads, inside the array or nowhere."""
        if not any(array._buf in declared for declared in self._declared):
            raise InvalidValue(f"{array!r} is used after the loop that it was made in")
        items = index if isinstance(index, tuple) else (index,)
        if len(items) != len(array.shape):
            raise InvalidIndex(f"{array!r} takes {len(array.shape)} indices, got {len(items)}")
        indices: list[Expr] = []
        mask, lets, reads = ALWAYS, dict[Var, K.Value](), set[Read]()
        for axis, (item, size) in enumerate(zip(items, array.shape, strict=True)):
            if isinstance(item, Scalar) and item.expr is None:
                if not item.dtype.is_int:
                    raise InvalidType(f"an index of {array!r} is an integer, not {item!r}")
                pick = self._pick(item.value, size)
                lets |= {**item.lets, pick: pick_value(item.value, size)}
                reads |= item.reads
                at = expr(pick)
            elif isinstance(item, Scalar):
                assert item.expr is not None
                at = item.expr
            else:
                at = expr(_constant_index(item, axis, array))
            indices.append(at)
            mask &= between(at, 0, size - 1)
        flat = (flatten(indices, array.shape),) if array._buf.shape else ()
        return _Place(flat, mask, lets, reads)


def _constant_index(item: Any, axis: int, array: Array) -> int:
    size = array.shape[axis]
    if isinstance(item, slice) or item is None or item is Ellipsis:
        raise InvalidIndex(f"{array!r} is read and written by element, as in x[i, j]; got {item!r}")
    place = integer(item, f"index {axis} of {array.name}")
    if not -size <= place < size:
        raise InvalidIndex(f"index {place} is out of range for axis {axis} of {array!r}")
    return place % size
