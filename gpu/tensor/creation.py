"""Tensors made from nothing but a shape and numbers."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, Self, TypedDict, Unpack

from gpu.compiler.ir.dims import dimension, is_symbolic, upper
from gpu.compiler.ir.graph import Node, Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, Number, PyScalar, dtypes, promote, to_dtype
from gpu.core.errors import InvalidType, InvalidValue, ShapeError
from gpu.core.scalars import check_fits
from gpu.runtime.device import Device
from gpu.tensor.arguments import check_number, integer, shape_of, size_of
from gpu.tensor.customgrad import own
from gpu.tensor.operands import Operands

Dtype = DType | str


class Placement(TypedDict, total=False):
    """Where and how a tensor is made; each is the default of `Creation` if it is not given."""

    dtype: Dtype | None
    device: str | None
    requires_grad: bool | None


class Creation(Operands):
    """Class methods; `device` is the default one and `requires_grad` unset if not given.

    `buffer` says whether a constant should have memory of its own. Here it changes nothing: an
    expression forms a constant on the way, and memory is taken when something has to lie in it.
    """

    __slots__ = ()

    @classmethod
    def full(
        cls,
        shape: int | tuple[int, ...] | list[int],
        fill_value: Number,
        dtype: Dtype | None = None,
        device: str | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """`fill_value` everywhere, in the dtype of the number if none is given."""
        if not isinstance(fill_value, bool | int | float | complex):
            raise InvalidType(f"fill_value must be a number, got {fill_value!r}")
        element = dtypes.of(fill_value) if dtype is None else to_dtype(dtype)
        check_fits(fill_value, element)
        made = own(G.const(fill_value, shape_of(shape), element, Device.canonicalize(device)))
        made = G.cast(made, element)  # an image is memory, which no number is
        tensor = cls._wrap(made)
        if requires_grad is not None:
            tensor.requires_grad = requires_grad
        return tensor

    @classmethod
    def zeros(
        cls,
        *shape: Any,
        dtype: Dtype | None = None,
        device: str | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Zeros, float32 if no dtype is given: ``zeros(2, 3)`` or ``zeros((2, 3))``."""
        return cls.full(_variadic(shape), 0, _or_float(dtype), device, buffer, requires_grad)

    @classmethod
    def ones(
        cls,
        *shape: Any,
        dtype: Dtype | None = None,
        device: str | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Ones, float32 if no dtype is given."""
        return cls.full(_variadic(shape), 1, _or_float(dtype), device, buffer, requires_grad)

    @classmethod
    def empty(
        cls,
        *shape: Any,
        device: str | None = None,
        dtype: Dtype | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """A tensor whose values do not matter; they are zeros."""
        return cls.zeros(*shape, dtype=dtype, device=device, requires_grad=requires_grad)

    def full_like(
        self,
        fill_value: Number,
        dtype: Dtype | None = None,
        device: str | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """`fill_value` in the shape, dtype and device of self, unless others are given."""
        placed = (dtype or self.dtype, device or self.device, buffer, requires_grad)
        return self.full(self.shape, fill_value, *placed)

    def zeros_like(
        self,
        dtype: Dtype | None = None,
        device: str | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Zeros in the shape, dtype and device of self, unless others are given."""
        return self.full_like(0, dtype, device, buffer, requires_grad)

    def ones_like(
        self,
        dtype: Dtype | None = None,
        device: str | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Ones in the shape, dtype and device of self, unless others are given."""
        return self.full_like(1, dtype, device, buffer, requires_grad)

    def empty_like(
        self,
        dtype: Dtype | None = None,
        device: str | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """A tensor like self whose values do not matter; they are zeros."""
        return self.full_like(0, dtype, device, requires_grad=requires_grad)

    def new_full(self, size: Any, fill_value: Number, **placement: Unpack[Placement]) -> Self:
        """`fill_value` in a shape, with the dtype and device of self unless others are given."""
        return self.full(size, fill_value, **self._placed(placement))

    def new_zeros(self, *size: Any, **placement: Unpack[Placement]) -> Self:
        """Zeros in a shape, with the dtype and device of self unless others are given."""
        return self.new_full(_variadic(size), 0, **placement)

    def new_ones(self, *size: Any, **placement: Unpack[Placement]) -> Self:
        """Ones in a shape, with the dtype and device of self unless others are given."""
        return self.new_full(_variadic(size), 1, **placement)

    def new_empty(self, *size: Any, **placement: Unpack[Placement]) -> Self:
        """`new_zeros`, for values that do not matter."""
        return self.new_zeros(*size, **placement)

    def new_tensor(self, data: Any, **placement: Unpack[Placement]) -> Self:
        """A tensor of `data`, with the dtype and device of self unless others are given."""
        return type(self)(data, **self._placed(placement))

    def _placed(self, placement: Placement) -> Placement:
        """`placement` with the dtype and device of self where none is given."""
        return {
            "dtype": placement.get("dtype") or self.dtype,
            "device": placement.get("device") or self.device,
            "requires_grad": placement.get("requires_grad"),
        }

    @classmethod
    def arange(
        cls,
        start: float,
        stop: float | None = None,
        step: float = 1,
        dtype: Dtype | None = None,
        device: str | None = None,
    ) -> Self:
        """start, start + step, ... before `stop`; 0, 1, ... before `start` if it is alone.

        int32 if all are ints (int64 where they do not fit), else float32; bound `Var`s count as
        ints. Raises InvalidValue for a step of 0, NumberOverflow where `dtype` does not hold all.
        """
        first, end = (0, start) if stop is None else (start, stop)
        if is_symbolic(first) or is_symbolic(end):
            line = cls._wrap(_symbolic_range(first, end, step, Device.canonicalize(device)))
            return line if dtype is None else line.cast(dtype)
        for name, value in (("start", first), ("stop", end), ("step", step)):
            check_number(value, name)
        if step == 0 or not all(map(math.isfinite, (first, end, step))):
            raise InvalidValue(
                f"arange({first}, {end}, {step}): all must be finite, the step not 0"
            )
        count = max(0, math.ceil((end - first) / step))
        natural = _holding(first, end, step)
        element = natural if dtype is None else to_dtype(dtype)
        for value in (first, first + (count - 1) * step) if count else ():
            check_fits(value, element)
        # Steps are counted in integers: floats run out of them.
        exact = natural if natural.bits == 64 else promote(natural, dtypes.int32)
        index = cls._wrap(G.iota(count, _counter(count), Device.canonicalize(device)))
        return index.cast(exact)._binary("mul", step)._binary("add", first).cast(element)

    @classmethod
    def linspace(
        cls,
        start: float,
        stop: float,
        steps: int,
        dtype: Dtype | None = None,
        device: str | None = None,
    ) -> Self:
        """`steps` numbers at equal distances from `start` to `stop`, both included; float32."""
        count = integer(steps, "steps")
        if count < 0:
            raise InvalidValue(f"steps must not be negative, got {steps}")
        element = to_dtype(_or_float(dtype))
        wide = promote(element, dtypes.float32)
        gap = (stop - start) / (count - 1) if count > 1 else 0.0
        index = cls._wrap(G.iota(count, _counter(count), Device.canonicalize(device)))
        up = index.cast(wide)._binary("mul", gap)._binary("add", start)
        left = index._binary("sub", count - 1, reverse=True).cast(wide)
        down = left._binary("mul", -gap)._binary("add", stop)
        nearer = index._binary("lt", count // 2 + count % 2)
        return cls._wrap(G.alu("where", nearer._node, up._node, down._node)).cast(element)

    @classmethod
    def eye(
        cls,
        n: int,
        m: int | None = None,
        dtype: Dtype | None = None,
        device: str | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Ones on the diagonal of a matrix of `n` rows and `m` columns (`n` if not given)."""
        shape = shape_of((n, n if m is None else m))
        blank = cls.zeros(shape, dtype=dtype, device=device)
        on_diagonal = blank._index_along(0, shape)._binary("eq", blank._index_along(1, shape))
        made = on_diagonal.cast(blank.dtype)
        if requires_grad is not None:
            made.requires_grad = requires_grad
        return made

    def clone(self, device: str | None = None) -> Self:
        """The same value in memory of its own, on `device` if one is given."""
        return (self if device is None else self.to(device)).contiguous()


def _variadic(shape: tuple[Any, ...]) -> Shape:
    return shape_of(shape[0], shape[1:]) if shape else ()


def _or_float(dtype: Dtype | None) -> Dtype:
    return dtypes.default_float if dtype is None else dtype


def _holding(*numbers: PyScalar) -> DType:
    """The first of int32, int64, uint64 and float32 that numbers fit."""
    kinds = set(map(dtypes.of, numbers))
    if dtypes.uint64 in kinds and dtypes.default_float not in kinds:
        return dtypes.uint64  # which does not promote to an integer with signed ones
    return reduce(promote, kinds)


def _symbolic_range(first: object, end: object, step: object, device: str) -> Node:
    """first, first + step, ... before `end`, where those two are made of bound variables."""
    start, stop = size_of(first, "start"), size_of(end, "stop")
    jump = integer(step, "step")
    if jump < 1 or start > stop:
        raise InvalidValue(f"arange({start}, {stop}, {jump}): symbolic ranges have to rise")
    count = dimension((stop - start + jump - 1) // jump)
    index = G.iota(count, dtypes.of(upper(stop)), device)
    steps = G.expand(G.reshape(G.const(jump, (), index.dtype, device), (1,)), index.shape)
    offset = G.expand(G.reshape(G.index(start, index.dtype, device), (1,)), index.shape)
    return G.alu("add", G.alu("mul", index, steps), offset)


def _counter(count: int) -> DType:
    """The dtype that counts `count` elements."""
    if count > dtypes.int64.max:
        raise ShapeError(f"{count} elements are more than any memory holds")
    return dtypes.of(count)
