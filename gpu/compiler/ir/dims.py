"""Symbolic dimensions: sizes and places that are known when a kernel is launched.

A dimension is an int or an index expression over `Symbol` variables. It is typed as an int
(`Dim`): ints and expressions share their arithmetic, comparisons of expressions hold for all
values of the variables or raise InvalidValue, and few places have to know which of the two they
have. Those that do ask `is_symbolic`.

Memory is laid out by upper bounds (`upper`), so that strides are ints: element i of an axis lies at
i times the same stride whatever the value of a variable is.

Values are part of a Symbol, so that nodes over other values are other nodes; compiled programs are
found by names and bounds (`Plain`), and take the values when they are launched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias, TypeGuard

from gpu.compiler.ir.index.expression import Expr, Var
from gpu.core.errors import InvalidValue
from gpu.core.weak import WeakTable

Dim: TypeAlias = int
Shape: TypeAlias = tuple[Dim, ...]
_INTS: Final = frozenset({int})


class Symbol(Var):
    """A variable of the graph, bound to a value.

    Attributes:
        base: the name of the user's variable, of which this one may count multiples.
    """

    __slots__ = ("base", "bound")

    def __init__(self, name: str, lo: int, hi: int, value: int):
        super().__init__(name, lo, hi)
        self.bound = value
        self.base = name.partition(".")[0]

    @property
    def number(self) -> int:
        """The value, which every Symbol has."""
        assert self.bound is not None
        return self.bound


_symbols: WeakTable[tuple[str, int, int, int], Symbol] = WeakTable()


def symbol(name: str, lo: int, hi: int, value: int) -> Symbol:
    """The one variable with these bounds that is bound to `value`."""
    key = (name, lo, hi, value)
    return _symbols.get(key) or _symbols.file(key, Symbol(*key))


def any_symbols() -> bool:
    """Whether there may be a symbolic dimension at all: most programs need not look for one."""
    return _symbols.count() > 0


class TwoValues(InvalidValue):
    """A variable is bound to two values in one program."""


def is_symbolic(dim: object) -> TypeGuard[Expr]:
    """Whether a dimension is not an int."""
    return isinstance(dim, Expr)


def dimension(value: Expr | Dim) -> Dim:
    """An expression as a dimension: constant ones are ints."""
    if isinstance(value, Expr) and value.is_const:
        return value.const
    return value  # type: ignore[return-value]


def has_symbols(value: object) -> bool:
    """Whether an expression is in `value`, a dimension or nested tuples with dimensions."""
    if isinstance(value, tuple):
        return not _INTS.issuperset(map(type, value)) and any(map(has_symbols, value))
    return isinstance(value, Expr)


def upper(dim: Dim) -> int:
    """The largest value of a dimension."""
    return dim.hi if is_symbolic(dim) else dim


def upper_shape(shape: Sequence[Dim]) -> tuple[int, ...]:
    """The sizes that memory for a tensor of `shape` has."""
    return tuple([upper(d) for d in shape])


def bound(value: Any) -> Any:
    """`value`, a dimension or nested tuples with dimensions, with the values of the variables."""
    if isinstance(value, tuple):
        return tuple([bound(v) for v in value])
    return value.value if isinstance(value, Expr) else value


def is_many(dim: Dim) -> bool:
    """Whether an axis of this size needs a loop: a symbolic one does, whatever its value."""
    return is_symbolic(dim) or dim > 1


def find_symbols(value: object, found: dict[str, Symbol]) -> None:
    """Adds the variables in a dimension, or in nested tuples with dimensions, to `found`.

    Raises InvalidValue where one name stands for two variables, TwoValues where it does for two
    values of one.
    """
    if isinstance(value, tuple):
        for part in value:
            find_symbols(part, found)
    elif isinstance(value, Expr):
        for var in value.vars:
            if isinstance(var, Symbol):
                _note(var, found)


def _note(var: Symbol, found: dict[str, Symbol]) -> None:
    known = found.setdefault(var.base, var)
    if known is var:
        return
    if (known.name, known.lo, known.hi) != (var.name, var.lo, var.hi):
        raise InvalidValue(
            f"variable {var.base} has two ranges in one program, {_range(known)} and "
            f"{_range(var)}: give one of the variables another name"
        )
    raise TwoValues(
        f"variable {var.base} is bound to two values in one program, {known.bound} and "
        f"{var.bound}: realize() what was computed with the first one before, or use two variables"
    )


def _range(var: Symbol) -> str:
    factor = var.name.partition(".by")[2]
    return f"{var.lo}..{var.hi}" + (f" times {factor}" if factor else "")


def rebound(value: Any, found: dict[str, Symbol]) -> Any:
    """`value`, a dimension or nested tuples, over the variables in `found` of the same names."""
    if isinstance(value, tuple):
        return tuple([rebound(v, found) for v in value])
    if not isinstance(value, Expr):
        return value
    old = [var for var in value.vars if isinstance(var, Symbol) and var.base in found]
    return dimension(value.subst({var: found[var.base] for var in old}))


def plain(value: Any) -> Any:
    """`value`, a dimension or nested tuples, in a form that does not tell the values apart."""
    if isinstance(value, tuple):
        return tuple([plain(v) for v in value])
    if not isinstance(value, Expr):
        return value
    variables = sorted(f"{v.name} {v.lo}..{v.hi}" for v in value.vars)
    return f"{value} over {', '.join(variables)}"


def ordered(found: dict[str, Symbol]) -> tuple[Symbol, ...]:
    """Variables in the order in which programs take them: by name."""
    return tuple(found[name] for name in sorted(found))


def product(sizes: Iterable[Dim]) -> Dim:
    """The number of elements. Raises InvalidValue where two symbolic sizes are multiplied."""
    total: Dim = 1
    for size in sizes:
        if is_symbolic(size) and is_symbolic(total):
            raise InvalidValue(
                f"the product of {total} and {size} is no size: an axis can be a multiple of one "
                "symbolic size only"
            )
        total = total * size
    return total


Group: TypeAlias = tuple[range, range]


def reshape_groups(old: Shape, new: Shape) -> list[Group] | None:
    """Axes of `old` and of `new` that hold the same elements, from the first to the last.

    None where there is no such division, or one in which a symbolic axis lies inside another axis
    of its group: where an element is would not be affine in its index.
    """
    groups: list[Group] = []
    i, j = len(old), len(new)
    while i or j:
        last_i, last_j = i, j
        left: Dim = 1
        right: Dim = 1
        if i:
            i, left = i - 1, old[i - 1]
        if j:
            j, right = j - 1, new[j - 1]
        while left is not right and left != right:
            if i and _may_grow(left, right):
                i, left = i - 1, old[i - 1] * left
            elif j and _may_grow(right, left):
                j, right = j - 1, new[j - 1] * right
            else:
                return None
        groups.append((range(i, last_i), range(j, last_j)))
    return groups[::-1]


def _may_grow(dim: Dim, other: Dim) -> bool:
    """Whether a group's inner size can take in the next axis, to become `other` or more."""
    if is_symbolic(dim):
        return False
    return is_symbolic(other) or dim < other


def same_memory(old: Shape, new: Shape) -> bool:
    """Whether the elements of a tensor lie at the same places under both shapes."""
    if not has_symbols(old) and not has_symbols(new):
        return True
    groups = reshape_groups(old, new)
    return groups is not None and all(_elements(old, a) == _elements(new, b) for a, b in groups)


def _elements(shape: Shape, axes: range) -> int:
    total = 1
    for axis in axes:
        total *= upper(shape[axis])
    return total
