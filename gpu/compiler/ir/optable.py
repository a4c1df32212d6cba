"""The scalar operations and the monoids: one row each, from which everything else derives.

Interpreters take a row's `evaluate`, verifiers its arity and domain, text forms its name,
constructors its folding, autodiff its gradient (`gpu/compiler/ir/derivative.py`), renderers its
name. A row marked `core` must be native on every device; the others have a derivation in
`gpu/compiler/lower/legalize.py` for devices without them. Edge cases are fixed in
`gpu/compiler/ir/evaluate.py`, accuracy in `gpu/compiler/lower/transcendental.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from gpu.compiler.ir import evaluate
from gpu.compiler.ir.evaluate import Array, through_float32
from gpu.core.dtype import DType, Number, PyScalar, dtypes
from gpu.core.errors import DTypeError


class Op(NamedTuple):
    """One scalar operation.

    Attributes:
        name: as printed in every text form.
        arity: number of operands.
        domain: dtype kinds the operands may have; `where` looks at its last two. Complex numbers
            are in graphs alone, of which `gpu/compiler/ir/graph/complex.py` makes floats. None
            where `DOTS` tells what they are.
        result: `same` as the operands, or `bool`.
        evaluate: its meaning on numpy arrays of one dtype.
        core: every device provides it.
        commutes: operands may be swapped.
    """

    name: str
    arity: int
    domain: frozenset[str]
    result: str
    evaluate: Callable[..., Array]
    core: bool = True
    commutes: bool = False


NUMBER: Final = frozenset({"int", "uint", "float"})
ANY: Final = NUMBER | {"bool"}
FIELD: Final = NUMBER | {"complex"}
ELEMENT: Final = ANY | {"complex"}
FLOAT: Final = frozenset({"float"})
INTEGER: Final = frozenset({"int", "uint"})
BITS: Final = INTEGER | {"bool"}


class Dot(NamedTuple):
    """An operation that multiplies the elements of two words, each with its like, and adds up.

    Attributes:
        elements: of both words, uint32s in which the first element is lowest.
        sums: of what is added to, and comes out. Those of integers wrap; how those of floats round
            in between is a device's own affair, as is whether it takes denormal numbers for zero.
    """

    elements: tuple[DType, DType]
    sums: DType

    @property
    def together(self) -> int:
        """How many elements a word has."""
        return dtypes.uint32.bits // self.elements[0].bits


DOTS: Final = {
    "dot_u8i8": Dot((dtypes.uint8, dtypes.int8), dtypes.uint32),
    "dot_i8i8": Dot((dtypes.int8, dtypes.int8), dtypes.uint32),
    "dot_u8u8": Dot((dtypes.uint8, dtypes.uint8), dtypes.uint32),
    "dot_i16i16": Dot((dtypes.int16, dtypes.int16), dtypes.uint32),
    "dot_bf16": Dot((dtypes.bfloat16, dtypes.bfloat16), dtypes.float32),
}
"""Products of neighbours: of two words and what is added to. They have no other operands."""

_ROWS: Final = (
    Op("neg", 1, FIELD, "same", np.negative, core=False),
    Op("abs", 1, NUMBER, "same", np.abs, core=False),
    Op("not", 1, BITS, "same", evaluate.logical_not),
    Op("exp", 1, FLOAT, "same", through_float32(np.exp), core=False),
    Op("exp2", 1, FLOAT, "same", through_float32(np.exp2), core=False),
    Op("expm1", 1, FLOAT, "same", through_float32(np.expm1), core=False),
    Op("log2", 1, FLOAT, "same", through_float32(np.log2), core=False),
    Op("sin", 1, FLOAT, "same", through_float32(np.sin), core=False),
    Op("sqrt", 1, FLOAT, "same", through_float32(np.sqrt)),
    Op("floor", 1, FLOAT, "same", through_float32(np.floor), core=False),
    Op("rint", 1, FLOAT, "same", through_float32(np.rint), core=False),
    Op("trunc", 1, FLOAT, "same", through_float32(np.trunc), core=False),
    Op("add", 2, FIELD, "same", np.add, commutes=True),
    Op("sub", 2, FIELD, "same", np.subtract, core=False),
    Op("mul", 2, FIELD, "same", np.multiply, commutes=True),
    Op("div", 2, FLOAT | {"complex"}, "same", np.divide),
    Op("tdiv", 2, INTEGER, "same", evaluate.truncating_division),
    Op("tmod", 2, INTEGER, "same", np.fmod),
    Op("fmod", 2, FLOAT, "same", through_float32(np.fmod), core=False),
    Op("max", 2, ANY, "same", np.maximum, commutes=True),
    Op("min", 2, ANY, "same", np.minimum, commutes=True),
    Op("and", 2, BITS, "same", np.bitwise_and, commutes=True),
    Op("or", 2, BITS, "same", np.bitwise_or, commutes=True),
    Op("xor", 2, BITS, "same", np.bitwise_xor, commutes=True),
    Op("shl", 2, INTEGER, "same", evaluate.shift_left),
    Op("shr", 2, INTEGER, "same", evaluate.shift_right),
    Op("lt", 2, ANY, "bool", np.less),
    Op("le", 2, ANY, "bool", np.less_equal, core=False),
    Op("eq", 2, ELEMENT, "bool", np.equal, commutes=True),
    Op("ne", 2, ELEMENT, "bool", np.not_equal, commutes=True, core=False),
    Op("where", 3, ELEMENT, "same", np.where),
    Op("fma", 3, FLOAT, "same", through_float32(evaluate.multiply_add), core=False),
    *(
        Op(name, 3, frozenset(), "same", evaluate.dot(*row.elements), core=False)
        for name, row in DOTS.items()
    ),
)
OPS: Final = {row.name: row for row in _ROWS}
# Operations that take as long, or are as much code, as several others: about how many.
COSTLY_OPS: Final = {
    "exp": 12, "exp2": 12, "expm1": 12, "log2": 12, "sin": 30, "sqrt": 4, "div": 4, "tdiv": 8,
    "tmod": 8, "fmod": 30,
}  # fmt: skip


class Monoid(NamedTuple):
    """An associative, commutative way to combine the elements of a reduction.

    Attributes:
        name: as printed.
        combine: the scalar operation that merges two partial results.
        domain: dtype kinds it is defined for.
        ufunc: the numpy ufunc of `combine`, whose `reduce` and `at` the interpreters use.
    """

    name: str
    combine: str
    domain: frozenset[str]
    ufunc: np.ufunc

    def identity(self, dtype: DType) -> PyScalar:
        """The value that changes nothing when combined."""
        match self.name:
            case "add":
                return 0.0 if dtype.is_float else 0
            case "mul":
                return 1.0 if dtype.is_float else 1
            case "max":
                return dtype.min
            case "min":
                return dtype.max
            case "and":
                return True if dtype is dtypes.bool else (dtype.max if dtype.kind == "uint" else -1)
            case _:
                return False if dtype is dtypes.bool else 0


MONOIDS: Final = {
    "add": Monoid("add", "add", FIELD, np.add),
    "mul": Monoid("mul", "mul", FIELD, np.multiply),
    "max": Monoid("max", "max", ANY, np.maximum),
    "min": Monoid("min", "min", ANY, np.minimum),
    "and": Monoid("and", "and", BITS, np.bitwise_and),
    "or": Monoid("or", "or", BITS, np.bitwise_or),
}


@functools.cache
def result_dtype(name: str, operands: tuple[DType, ...]) -> DType:
    """The dtype of an operation's result.

    Raises DTypeError where the operation takes no such operands.
    """
    row = OPS[name]
    if len(operands) != row.arity:
        raise DTypeError(f"{name} takes {row.arity} operands, got {len(operands)}")
    if name == "where":
        if operands[0] is not dtypes.bool:
            raise DTypeError(f"the condition of where must be bool, got {operands[0].name}")
        operands = operands[1:]
    if name in DOTS:
        if operands != (dtypes.uint32, dtypes.uint32, DOTS[name].sums):
            raise DTypeError(f"{name} takes no {[d.name for d in operands]}")
        return DOTS[name].sums
    first = operands[0]
    if any(d is not first for d in operands):
        raise DTypeError(f"{name} needs operands of one dtype, got {[d.name for d in operands]}")
    if first.kind not in row.domain:
        raise DTypeError(f"{name} is not defined for {first.name}, only for {sorted(row.domain)}")
    return dtypes.bool if row.result == "bool" else first


def apply(name: str, dtype: DType, args: tuple[Array, ...]) -> Array:
    """Evaluates an operation on numpy arrays;

    `dtype` is the result's. Warnings of numpy are silenced.
    """
    with np.errstate(all="ignore"):
        return apply_bare(name, dtype, args)


def apply_bare(name: str, dtype: DType, args: tuple[Array, ...]) -> Array:
    """As `apply`, for callers that silence warnings once for many operations."""
    result = np.asarray(OPS[name].evaluate(*args))
    return result if result.dtype == dtype.np else result.astype(dtype.np)


def _unwarned(value: Any, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        return np.array(value, dtype.np)


@functools.cache
def scalar(dtype: DType) -> Callable[[Any], Array]:
    """A function that makes a 0-d array of `dtype` from a Python scalar, as a cast would.

    Integers wrap into range. Floats out of range become infinity, or NaN where there is none.
    """
    if not dtype.is_int:
        return lambda value: _unwarned(value, dtype)
    span, low = 1 << dtype.bits, int(dtype.min)
    return lambda value: np.array((int(value) - low) % span + low, dtype.np)


def rounded(value: Number, dtype: DType) -> Any:
    """`value` as `dtype` holds it: rounded or wrapped."""
    # 0.0 and -0.0 would be one key of the memo, also as a part of a complex number.
    if isinstance(value, complex):
        return to_python(scalar(dtype)(value), dtype)
    if value:
        return _rounded_memo(value, dtype)
    if dtype.is_float:
        return float(value)
    return 0 if dtype.is_int else complex(value) if dtype.is_complex else False


@functools.lru_cache(maxsize=4096, typed=True)
def _rounded_memo(value: PyScalar, dtype: DType) -> Any:
    if dtype.is_float:
        value = float(value)  # narrow floats take no integer of more than 64 bits
    return to_python(scalar(dtype)(value), dtype)


def constant_key(value: Number) -> object:
    """A constant of one dtype as a key, which tells -0.0 from 0.0 and finds NaN again."""
    if isinstance(value, complex):
        return repr(value)
    return value if value < 0 or value > 0 else repr(value)


def fold(name: str, dtype: DType, operand_dtype: DType, values: tuple[Number, ...]) -> Any:
    """Evaluates an operation on constants; `operand_dtype` is that of the last operand."""
    arrays = [scalar(operand_dtype)(v) for v in values]
    if name in DOTS:
        arrays[:2] = map(scalar(dtypes.uint32), values[:2])
    if name == "where":
        arrays[0] = np.array(bool(values[0]))
    return to_python(apply(name, dtype, tuple(arrays)), dtype)


def fold_cast(value: Number, source: DType, target: DType, bits: bool) -> Any:
    """Casts (or, with `bits`, bitcasts) a constant."""
    array = scalar(source)(value)
    with np.errstate(all="ignore"):
        if bits:
            result = evaluate.bitcast(array, target)
        else:
            result = evaluate.cast(array, source, target)
    return to_python(result, target)


def to_python(array: Array, dtype: DType) -> Any:
    """A 0-d array as the Python scalar constants are kept as."""
    if dtype is dtypes.bool:
        return bool(array)
    if dtype.is_complex:
        return complex(array)
    return float(array) if dtype.is_float else int(array)
