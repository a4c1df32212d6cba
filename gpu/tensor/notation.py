"""`einsum` and `rearrange`: axes by name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, Self, TypeVar

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, promote, to_dtype, total_dtype
from gpu.core.errors import InvalidType, ParseError, ShapeError
from gpu.tensor.arguments import integer
from gpu.tensor.base import broadcast_shape, broadcast_to
from gpu.tensor.joining import Joining
from gpu.tensor.matmul import multiply_and_sum

# Stands for one of the axes under an ellipsis: counted from the last, so that they broadcast.
_ELLIPSIS: Final = "…{}"
_TOKEN: Final = re.compile(r"\s*(\.\.\.|[()]|[A-Za-z_]\w*|\d+)")


class Notation(Joining):
    """Operations whose axes are spelled out in a formula."""

    __slots__ = ()

    @staticmethod
    def einsum(formula: str, *operands: T | Sequence[T], dtype: DType | str | None = None) -> T:
        """Products summed over the axes whose letters are not in the result.

        ``einsum("bij,bjk->bik", a, b)`` is a batch of matrix products. A letter twice in one
        operand is its diagonal; `...` stands for axes that broadcast; without ``->`` the result has
        the letters that occur once, in alphabetical order. Operands are combined from the left.
        Products are summed in their own dtype, as those of matrices; one operand as by `sum`.

        Args:
            formula: letters of each operand's axes, and those of the result.
            operands: tensors, or one sequence of them.
            dtype: of the result, in place of the promoted dtype.

        Raises:
            ParseError: the formula cannot be read.
            ShapeError: operands do not fit it.
        """
        tensors = _tensors(operands)
        names, result = _parse_einsum(formula, [t.ndim for t in tensors])
        wanted = None if dtype is None else to_dtype(dtype)
        terms = [_without_repeats(t, n) for t, n in zip(tensors, names, strict=True)]
        tensor, axes = terms[0]
        for i, (other, others) in enumerate(terms[1:], 2):
            later = {name for _, rest in terms[i:] for name in rest}
            tensor, axes = _contract((tensor, axes), (other, others), {*result, *later}, wanted)
        extra = [axis for axis, name in enumerate(axes) if name not in result]
        if wanted is None:
            wanted = total_dtype(tensor.dtype) if extra else tensor.dtype
        summed = tensor._wrap(G.reduce("add", tensor.cast(wanted)._node, extra))
        kept = [name for name in axes if name in result]
        summed = summed._reshaped(tuple(tensor.shape[axes.index(name)] for name in kept))
        return summed.permute([kept.index(name) for name in result])

    def rearrange(self, formula: str, **sizes: int) -> Self:
        """Axes reordered, split and merged, in the notation of einops.

        ``x.rearrange("b (h w) c -> b c h w", h=8)``. Parentheses group axes into one; `sizes` tells
        those that cannot be worked out; `...` stands for any axes; 1 for one of size 1.

        Raises:
            ParseError: the formula cannot be read, or names an axis on one side only.
            ShapeError: the tensor does not fit it.
        """
        if not isinstance(formula, str):
            raise InvalidType(f"a formula is a str, got {type(formula).__name__} {formula!r}")
        sides = formula.split("->")
        if len(sides) != 2:
            raise ParseError(f"rearrange formula {formula!r} needs one ->")
        left, right = (_groups(side, formula) for side in sides)
        left = _with_ellipsis(left, self.ndim - sum(group != ["..."] for group in left), formula)
        dots = [name for group in left for name in group if name.startswith("…")]
        right = [[n for name in g for n in (dots if name == "..." else [name])] for g in right]
        known = _axis_sizes(left, self.shape, sizes, formula)
        apart = [name for group in left for name in group if name != "1"]
        target = [name for group in right for name in group if name != "1"]
        if sorted(apart) != sorted(target) or len(set(apart)) != len(apart):
            raise ParseError(f"rearrange formula {formula!r}: each axis must be once on each side")
        split = self._reshaped(tuple(known[name] for name in apart))
        moved = split.permute([apart.index(name) for name in target])
        return moved._reshaped(tuple(math.prod(known[n] for n in group) for group in right))


T = TypeVar("T", bound=Notation)
Term = tuple[T, list[str]]


def _tensors(operands: Sequence[T | Sequence[T]]) -> list[T]:
    flat = [t for item in operands for t in (item if isinstance(item, list | tuple) else (item,))]
    if not flat or not all(isinstance(t, Notation) for t in flat):
        raise InvalidType(f"einsum takes tensors, got {[type(t).__name__ for t in flat]}")
    return flat


def _parse_einsum(formula: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Names of each operand's axes and of the result's."""
    text = formula.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    for part in (*inputs, right):
        if not re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", part):
            raise ParseError(f"einsum formula {formula!r}: {part!r} is not letters and one ...")
    if len(inputs) != len(ranks):
        raise ParseError(f"einsum formula {formula!r} has {len(inputs)} operands, not {len(ranks)}")
    names = [_axis_names(part, rank, formula) for part, rank in zip(inputs, ranks, strict=True)]
    every = [name for axes in names for name in axes]
    dots = sorted({name for name in every if name.startswith("…")}, reverse=True)
    if not arrow:
        once = sorted(n for n in set(every) if every.count(n) == 1 and not n.startswith("…"))
        return names, [*dots, *once]
    before, has_dots, after = right.partition("...")
    result = [*before, *(dots if has_dots else []), *after]
    if len(set(result)) != len(result) or not set(result) <= set(every):
        raise ParseError(f"einsum formula {formula!r}: the result names axes once, and known ones")
    return names, result


def _axis_names(part: str, rank: int, formula: str) -> list[str]:
    before, has_dots, after = part.partition("...")
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not has_dots):
        raise ShapeError(f"einsum formula {formula!r}: {part!r} does not fit {rank} axes")
    return [*before, *(_ELLIPSIS.format(i) for i in reversed(range(hidden))), *after]


def _without_repeats(tensor: T, names: list[str]) -> Term[T]:
    """Diagonals of axes named twice, as the last axis."""
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            first = names.index(name)
            second = names.index(name, first + 1)
            if tensor.shape[first] != tensor.shape[second]:
                raise ShapeError(f"einsum: axes {name!r} of shape {list(tensor.shape)} differ")
            tensor = tensor.diagonal(0, first, second)
            names = [n for i, n in enumerate(names) if i not in (first, second)] + [name]
    return tensor, names


def _contract(a: Term[T], b: Term[T], needed: set[str], wanted: DType | None) -> Term[T]:
    """The product of two operands, summed over axes that nothing else needs."""
    (x, left), (y, right) = a, b
    x._as_node(y)  # which refuses a tensor of another device
    names = [*left, *(name for name in right if name not in left)]
    summed = [axis for axis, name in enumerate(names) if name not in needed]
    aligned = [_aligned(tensor, axes, names) for tensor, axes in (a, b)]
    shape = broadcast_shape(*(tensor.shape for tensor in aligned))
    nodes = [broadcast_to(tensor._node, shape) for tensor in aligned]
    dtype = wanted or promote(x.dtype, y.dtype)
    product = x._wrap(multiply_and_sum(nodes[0], nodes[1], tuple(summed), dtype))
    kept = [axis for axis in range(len(names)) if axis not in summed]
    return product._reshaped(tuple(shape[a] for a in kept)), [names[a] for a in kept]


def _aligned(tensor: T, axes: Sequence[str], names: Sequence[str]) -> T:
    """`tensor` with an axis for each of `names`, of size 1 where it has none."""
    order = [axes.index(name) for name in names if name in axes]
    moved = tensor.permute(order)
    sizes = iter(moved.shape)
    return moved._reshaped(tuple(next(sizes) if name in axes else 1 for name in names))


def _groups(side: str, formula: str) -> list[list[str]]:
    """One side of a rearrange formula: the names that make up each axis."""
    groups: list[list[str]] = []
    position, inside = 0, False
    side = side.rstrip()
    while position < len(side):
        match = _TOKEN.match(side, position)
        if match is None:
            raise ParseError(f"rearrange formula {formula!r}: cannot read {side[position:]!r}")
        token, position = match[1], match.end()
        if token in "()":
            if inside == (token == "("):
                raise ParseError(f"rearrange formula {formula!r}: parentheses do not match")
            inside = token == "("
            groups += [[]] if inside else []
        elif token.isdigit() and token != "1":
            raise ParseError(f"rearrange formula {formula!r}: the only number is 1, got {token}")
        elif inside:
            groups[-1].append(token)
        else:
            groups.append([token])
    if inside:
        raise ParseError(f"rearrange formula {formula!r}: parentheses do not match")
    return groups


def _with_ellipsis(groups: list[list[str]], hidden: int, formula: str) -> list[list[str]]:
    """The groups, with one for each axis under the ellipsis in its place."""
    if sum(name == "..." for group in groups for name in group) > 1:
        raise ParseError(f"rearrange formula {formula!r}: one ... at most on each side")
    if any("..." in group and group != ["..."] for group in groups):
        raise ParseError(f"rearrange formula {formula!r}: ... in parentheses only on the right")
    if hidden < 0 or (hidden and ["..."] not in groups):
        raise ShapeError(f"rearrange formula {formula!r} does not fit the number of axes")
    dots = [[_ELLIPSIS.format(i)] for i in range(hidden)]
    return [g for group in groups for g in (dots if group == ["..."] else [group])]


def _axis_sizes(
    groups: list[list[str]], shape: Sequence[int], sizes: Mapping[str, int], formula: str
) -> dict[str, int]:
    """The size of every axis named on the left."""
    known = {name: integer(size, name) for name, size in sizes.items()}
    names = {name for group in groups for name in group}
    if unknown := sorted(known.keys() - names):
        raise ParseError(f"rearrange formula {formula!r} has no axis {unknown[0]!r}")
    known["1"] = 1
    for group, size in zip(groups, shape, strict=True):
        product = math.prod(known.get(name, 1) for name in group)
        missing = [name for name in group if name not in known]
        if len(missing) > 1:
            raise ParseError(
                f"rearrange formula {formula!r}: give the size of one of {', '.join(missing)}"
            )
        if missing and product and size % product == 0:
            known[missing[0]] = size // product
        elif missing or product != size:
            raise ShapeError(
                f"rearrange formula {formula!r}: ({' '.join(group)}) does not fit size {size}"
            )
    return known
