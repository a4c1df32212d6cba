"""Arguments for overloads of ATen, drawn: shapes, dtypes, strides and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: module torch is not installed")

FLOATS = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
COMPLEXES = (torch.complex64, torch.complex128)


class Draw:
    """A generator of tensors, and of numbers by Python's `Random`."""

    def __init__(self, seed: str):
        self.random = Random(seed)
        self.torch = torch.Generator().manual_seed(self.random.randrange(1 << 40))

    def shape(self, least: int = 0, most: int = 4, size: int = 6) -> tuple[int, ...]:
        """Sizes, now and then one of 0 or 1."""
        rank = self.random.randint(least, most)
        sizes = (self.random.choice((1, *range(2, size), size)) for _ in range(rank))
        shape = [*sizes]
        if shape and self.random.random() < 0.06:
            shape[self.random.randrange(rank)] = 0
        return tuple(shape)

    def tensor(
        self,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        low: float = -3,
        high: float = 3,
    ) -> torch.Tensor:
        """Values between two numbers, lying in memory in one of several ways."""
        shape = tuple(shape)
        lying = self.random.choice(("plain", "plain", "turned", "apart", "repeated"))
        if lying == "turned" and len(shape) > 1:
            order = self.random.sample(range(len(shape)), len(shape))
            back = [order.index(axis) for axis in range(len(shape))]
            return self._values([shape[axis] for axis in order], dtype, low, high).permute(back)
        if lying == "apart" and shape:
            return self._values([*shape[:-1], shape[-1] * 2 + 1], dtype, low, high)[..., 1::2]
        if lying == "repeated" and shape:
            return self._values([1, *shape[1:]], dtype, low, high).expand(shape)
        return self._values(shape, dtype, low, high)

    def _values(
        self, shape: Sequence[int], dtype: torch.dtype, low: float, high: float
    ) -> torch.Tensor:
        if dtype.is_complex:
            real = torch.float32 if dtype == torch.complex64 else torch.float64
            parts = (self._values(shape, real, low, high) for _ in range(2))
            return torch.complex(*parts)
        if dtype == torch.bool:
            return torch.rand(tuple(shape), generator=self.torch) < 0.5
        if not dtype.is_floating_point:
            least = max(int(low), 0) if not dtype.is_signed else int(low)
            high = max(int(high), least + 1)
            return torch.randint(least, high, tuple(shape), generator=self.torch).to(dtype)
        values = torch.rand(tuple(shape), generator=self.torch, dtype=torch.float64)
        return (values * (high - low) + low).to(dtype)

    def dtype(self, *kinds: Sequence[torch.dtype]) -> torch.dtype:
        """One of some dtypes."""
        return self.random.choice([dtype for kind in kinds for dtype in kind])

    def axis(self, shape: Sequence[int]) -> int:
        """An axis, from the front or from behind."""
        rank = max(len(shape), 1)
        return self.random.randrange(-rank, rank)

    def axes(self, shape: Sequence[int]) -> list[int]:
        """Some axes."""
        rank = len(shape)
        return sorted(self.random.sample(range(rank), self.random.randint(min(rank, 1), rank)))

    def flag(self) -> bool:
        """True or False."""
        return self.random.random() < 0.5

    def broadcast(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to another."""
        whole = tuple(n if self.random.random() < 0.7 else 1 for n in shape)
        return whole[self.random.randint(0, len(whole)) :] if self.flag() else whole

    def number(self, dtype: torch.dtype) -> Any:
        """A number of the kind of a dtype, or of a lower one."""
        if dtype.is_floating_point and self.flag():
            return self.random.choice((0.5, -1.25, 2.0, 3.0))
        return self.random.choice((1, 2, 3))


Arguments = tuple[list[Any], dict[str, Any]]
Sample = Callable[[Draw], Arguments]
SAMPLES: dict[str, Sample] = {}
# Names of overloads whose argument values have kinks or poles, where a result of low precision says
# little, get their own intervals.
_UNARY: dict[str, tuple[float, float]] = {
    "acos": (-1, 1), "acosh": (1, 4), "asin": (-1, 1), "asinh": (-3, 3), "atan": (-3, 3),
    "atanh": (-0.9, 0.9), "cos": (-3, 3), "cosh": (-3, 3), "erf": (-3, 3), "exp": (-3, 3),
    "expm1": (-3, 3), "log": (0.1, 4), "log10": (0.1, 4), "log1p": (-0.5, 4), "log2": (0.1, 4),
    "rsqrt": (0.1, 4), "sigmoid": (-3, 3), "sin": (-3, 3), "sinh": (-3, 3), "sqrt": (0, 4),
    "tan": (-1, 1), "tanh": (-3, 3), "reciprocal": (0.2, 3),
}  # fmt: skip


def sample(*names: str) -> Callable[[Sample], Sample]:
    """Notes what draws the arguments of overloads."""

    def note(function: Sample) -> Sample:
        SAMPLES.update(dict.fromkeys(names, function))
        return function

    return note


def _unary(low: float, high: float, *kinds: Sequence[torch.dtype]) -> Sample:
    def drawn(draw: Draw) -> Arguments:
        dtype = draw.dtype(*kinds)
        if not dtype.is_floating_point and not dtype.is_complex:
            return [draw.tensor(draw.shape(), dtype, max(low, 1), max(high, 4))], {}
        return [draw.tensor(draw.shape(), dtype, low, high)], {}

    return drawn


for _name, (_low, _high) in _UNARY.items():
    _ints = () if _name in ("acos", "asin", "atanh") else INTS
    sample(_name)(_unary(_low, _high, FLOATS, FLOATS, _ints))
for _name in ("neg", "relu", "floor", "ceil", "trunc", "sign", "round", "abs"):
    sample(_name)(_unary(-3, 3, FLOATS, INTS))
for _name in ("isnan", "isinf", "logical_not"):
    sample(_name)(_unary(-3, 3, FLOATS, INTS, (torch.bool,)))
for _name in ("gelu", "elu", "leaky_relu", "hardtanh"):
    sample(_name)(_unary(-3, 3, FLOATS))
sample("bitwise_not")(_unary(-3, 3, INTS, (torch.bool,)))


def _pair(draw: Draw, *kinds: Sequence[torch.dtype], low: float = -3, high: float = 3) -> list[Any]:
    shape = draw.shape()
    first = draw.tensor(shape, draw.dtype(*kinds), low, high)
    second = draw.tensor(draw.broadcast(shape), draw.dtype(*kinds), low, high)
    return [first, second] if draw.flag() else [second, first]


def _binary(*kinds: Sequence[torch.dtype], low: float = -3, high: float = 3) -> Sample:
    return lambda draw: (_pair(draw, *kinds, low=low, high=high), {})


def _with_number(*kinds: Sequence[torch.dtype], low: float = -3, high: float = 3) -> Sample:
    def drawn(draw: Draw) -> Arguments:
        dtype = draw.dtype(*kinds)
        return [draw.tensor(draw.shape(), dtype, low, high), draw.number(dtype)], {}

    return drawn


for _name in ("add", "sub", "mul"):
    sample(f"{_name}.Tensor")(_binary(FLOATS, FLOATS, INTS, COMPLEXES))
    sample(f"{_name}.Scalar")(_with_number(FLOATS, INTS))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    sample(f"{_name}.Tensor")(_binary(FLOATS, INTS))
    sample(f"{_name}.Scalar")(_with_number(FLOATS, INTS))
for _name in ("logical_and", "logical_or", "logical_xor"):
    sample(_name)(_binary(FLOATS, INTS, (torch.bool,)))
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    sample(f"{_name}.Tensor")(_binary(INTS, (torch.bool,)))
    sample(f"{_name}.Scalar")(_with_number(INTS))
for _name in ("maximum", "minimum"):
    sample(_name)(_binary(FLOATS, INTS))
for _name in ("fmod", "remainder"):
    sample(f"{_name}.Tensor")(_binary((torch.float32, torch.float64), INTS, low=1, high=9))
    sample(f"{_name}.Scalar")(_with_number((torch.float32, torch.float64), INTS))
sample("div.Tensor")(_binary(FLOATS, INTS, low=1, high=5))
sample("div.Scalar")(_with_number(FLOATS, INTS))
sample("atan2")(_binary(FLOATS, low=0.2, high=3))
sample("pow.Tensor_Tensor")(_binary(FLOATS, low=0.2, high=3))
sample("pow.Tensor_Scalar")(_with_number(FLOATS, INTS, low=0.2, high=3))


@sample("div.Tensor_mode")
def _div_mode(draw: Draw) -> Arguments:
    pair = _pair(draw, (torch.float32, torch.float64), INTS, low=1, high=9)
    return pair, {"rounding_mode": draw.random.choice((None, "trunc", "floor"))}


@sample("div.Scalar_mode")
def _div_number(draw: Draw) -> Arguments:
    x = draw.tensor(draw.shape(), draw.dtype((torch.float32,), INTS), 1, 9)
    return [x, draw.random.choice((2, 3))], {
        "rounding_mode": draw.random.choice((None, "trunc", "floor"))
    }


@sample("pow.Scalar")
def _power_of(draw: Draw) -> Arguments:
    return [draw.random.choice((2, 0.5, 3.0)), draw.tensor(draw.shape(), draw.dtype(FLOATS))], {}


@sample("clamp")
def _clamp(draw: Draw) -> Arguments:
    low, high = draw.random.choice(((-1, 1), (None, 1), (-1, None), (2, 1)))
    return [draw.tensor(draw.shape(), draw.dtype(FLOATS, INTS)), low, high], {}


@sample("clamp.Tensor")
def _clamp_by(draw: Draw) -> Arguments:
    shape, dtype = draw.shape(), draw.dtype(FLOATS)
    return [
        draw.tensor(shape, dtype),
        draw.tensor(draw.broadcast(shape), dtype, -2, 0),
        draw.tensor(draw.broadcast(shape), dtype, 0, 2),
    ], {}


@sample("where.self")
def _where(draw: Draw) -> Arguments:
    shape = draw.shape()
    condition = draw.tensor(draw.broadcast(shape), torch.bool)
    both = (draw.tensor(draw.broadcast(shape), draw.dtype(FLOATS, INTS)) for _ in range(2))
    return [condition, *both], {}


# Reductions.


def _reduced(*kinds: Sequence[torch.dtype], low: float = -3, high: float = 3) -> Sample:
    return lambda draw: ([draw.tensor(draw.shape(), draw.dtype(*kinds), low, high)], {})


def _over_axes(*kinds: Sequence[torch.dtype], least: int = 1) -> Sample:
    def drawn(draw: Draw) -> Arguments:
        shape = draw.shape(1, 4, 9)
        shape = tuple(max(size, least) for size in shape)
        return [draw.tensor(shape, draw.dtype(*kinds)), draw.axes(shape), draw.flag()], {}

    return drawn


def _over_axis(*kinds: Sequence[torch.dtype]) -> Sample:
    def drawn(draw: Draw) -> Arguments:
        shape = tuple(max(size, 1) for size in draw.shape(1, 4, 9))
        return [draw.tensor(shape, draw.dtype(*kinds)), draw.axis(shape), draw.flag()], {}

    return drawn


sample("mean")(_reduced(FLOATS))
sample("prod")(_reduced(FLOATS, INTS, low=0.5, high=1.5))
sample("any")(_reduced(FLOATS, INTS, (torch.bool,)))
sample("sum.dim_IntList")(_over_axes(FLOATS, INTS, (torch.bool,)))
sample("mean.dim")(_over_axes(FLOATS))
sample("amax", "amin")(_over_axes(FLOATS, INTS))
sample("any.dims")(_over_axes(FLOATS, INTS, (torch.bool,)))
sample("any.dim")(_over_axis(FLOATS, INTS, (torch.bool,)))
sample("argmax", "argmin", "max.dim", "min.dim")(_over_axis((torch.float32,), INTS))


@sample("prod.dim_int")
def _prod(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    return [draw.tensor(shape, draw.dtype(FLOATS), 0.5, 1.5), draw.axis(shape), draw.flag()], {}


@sample("var.correction")
def _var(draw: Draw) -> Arguments:
    shape = tuple(size + 3 for size in draw.shape(1, 3))
    x = draw.tensor(shape, draw.dtype(FLOATS))
    return [x, draw.axes(shape)], {"correction": draw.random.choice((0, 1, 2)), "keepdim": True}


@sample("var.dim")
def _var_unbiased(draw: Draw) -> Arguments:
    shape = tuple(size + 3 for size in draw.shape(1, 3))
    return [draw.tensor(shape, draw.dtype(FLOATS)), draw.axes(shape), draw.flag(), draw.flag()], {}


@sample("cumsum")
def _cumsum(draw: Draw) -> Arguments:
    shape = draw.shape()
    return [draw.tensor(shape, draw.dtype(FLOATS, INTS)), draw.axis(shape)], {}


@sample("_softmax", "_log_softmax")
def _softmax(draw: Draw) -> Arguments:
    shape = draw.shape()
    return [draw.tensor(shape, draw.dtype(FLOATS)), draw.axis(shape), False], {}


def distinct(draw: Draw, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Values of which no two are alike."""
    count = 1
    for size in shape:
        count *= size
    return torch.randperm(count, generator=draw.torch).reshape(tuple(shape)).to(dtype)


@sample("sort")
def _sort(draw: Draw) -> Arguments:
    shape = draw.shape(0, 3, 9)
    dtype = draw.dtype((torch.float32, torch.int64))
    return [distinct(draw, shape, dtype), draw.axis(shape), draw.flag()], {}


@sample("topk")
def _topk(draw: Draw) -> Arguments:
    shape = tuple(max(size, 2) for size in draw.shape(1, 3, 9))
    axis = draw.axis(shape)
    x = distinct(draw, shape, draw.dtype((torch.float32, torch.int64)))
    return [x, draw.random.randint(1, shape[axis]), axis, draw.flag(), True], {}


# Movement.

ANY = (FLOATS, INTS, COMPLEXES, (torch.bool,))


@sample("view")
def _view(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    x = draw.tensor(shape, draw.dtype(*ANY)).contiguous()
    inner = draw.random.randint(0, len(shape) - 1)
    if 0 in shape:
        return [x, [0, 3]], {}
    return [x, [*shape[:inner], -1]], {}


@sample("expand")
def _expand(draw: Draw) -> Arguments:
    shape = draw.shape(0, 3)
    x = draw.tensor(draw.broadcast(shape), draw.dtype(*ANY))
    return [x, [2, *shape]], {}


@sample("permute")
def _permute(draw: Draw) -> Arguments:
    shape = draw.shape()
    order = draw.random.sample(range(len(shape)), len(shape))
    return [draw.tensor(shape, draw.dtype(*ANY)), order], {}


@sample("unsqueeze")
def _unsqueeze(draw: Draw) -> Arguments:
    shape = draw.shape(0, 3)
    return [draw.tensor(shape, draw.dtype(*ANY)), draw.random.randrange(len(shape) + 1)], {}


@sample("squeeze.dim")
def _squeeze(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4, 2)
    return [draw.tensor(shape, draw.dtype(*ANY)), draw.axis(shape)], {}


@sample("squeeze.dims")
def _squeeze_axes(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4, 2)
    return [draw.tensor(shape, draw.dtype(*ANY)), draw.axes(shape)], {}


def _part(draw: Draw, size: int) -> list[Any]:
    start = draw.random.choice((None, 0, 1, -2))
    end = draw.random.choice((None, size, size - 1, (1 << 63) - 1, -1))
    return [start, end, draw.random.choice((1, 1, 2))]


@sample("slice.Tensor")
def _slice(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    axis = draw.axis(shape)
    return [draw.tensor(shape, draw.dtype(*ANY)), axis, *_part(draw, shape[axis])], {}


@sample("slice_scatter")
def _slice_scatter(draw: Draw) -> Arguments:
    shape = tuple(max(size, 1) for size in draw.shape(1, 4))
    axis, dtype = draw.axis(shape), draw.dtype(FLOATS, INTS)
    part = _part(draw, shape[axis])
    x = draw.tensor(shape, dtype)
    source = torch.ops.aten.slice.Tensor(x, axis, *part)
    return [x, draw.tensor(source.shape, dtype), axis, *part], {}


@sample("select.int")
def _select(draw: Draw) -> Arguments:
    shape = tuple(max(size, 1) for size in draw.shape(1, 4))
    axis = draw.axis(shape)
    place = draw.random.randrange(-shape[axis], shape[axis])
    return [draw.tensor(shape, draw.dtype(*ANY)), axis, place], {}


@sample("select_scatter")
def _select_scatter(draw: Draw) -> Arguments:
    (x, axis, place), _ = _select(draw)
    source = x.select(axis, place)
    return [x, draw.tensor(source.shape, x.dtype), axis, place], {}


@sample("diagonal")
def _diagonal(draw: Draw) -> Arguments:
    shape = (*draw.shape(0, 2), draw.random.randint(1, 5), draw.random.randint(1, 5))
    return [draw.tensor(shape, draw.dtype(*ANY)), draw.random.randint(-2, 2), -2, -1], {}


@sample("split_with_sizes")
def _split(draw: Draw) -> Arguments:
    sizes = [draw.random.randint(0, 4) for _ in range(3)]
    shape = (3, sum(sizes), 2)
    return [draw.tensor(shape, draw.dtype(*ANY)), sizes, 1], {}


@sample("cat")
def _cat(draw: Draw) -> Arguments:
    shape = list(draw.shape(1, 3))
    axis = draw.axis(shape)
    parts = []
    for _ in range(draw.random.randint(1, 4)):
        shape[axis] = draw.random.randint(0, 4)
        parts.append(draw.tensor(shape, draw.dtype(FLOATS, INTS)))
    return [parts, axis], {}


@sample("repeat")
def _repeat(draw: Draw) -> Arguments:
    shape = draw.shape(0, 3)
    return [
        draw.tensor(shape, draw.dtype(*ANY)),
        [2, *(draw.random.randint(1, 3) for _ in shape)],
    ], {}


@sample("flip")
def _flip(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    return [draw.tensor(shape, draw.dtype(*ANY)), draw.axes(shape)], {}


@sample("clone", "alias")
def _same(draw: Draw) -> Arguments:
    return [draw.tensor(draw.shape(), draw.dtype(*ANY))], {}


@sample("_to_copy")
def _to_copy(draw: Draw) -> Arguments:
    x = draw.tensor(draw.shape(), draw.dtype(FLOATS, INTS), 0, 3)
    return [x], {"dtype": draw.dtype(FLOATS, INTS, (torch.bool,))}


@sample("copy")
def _copy(draw: Draw) -> Arguments:
    shape = draw.shape()
    x = draw.tensor(shape, draw.dtype(FLOATS, INTS))
    return [x, draw.tensor(draw.broadcast(shape), draw.dtype(FLOATS, INTS), 0, 3)], {}


@sample("as_strided")
def _as_strided(draw: Draw) -> Arguments:
    x = draw.tensor((40,), draw.dtype(FLOATS, INTS)).contiguous()
    return [x, [3, 2, 4], [draw.random.randint(0, 6), 4, 1], draw.random.randint(0, 9)], {}


@sample("constant_pad_nd")
def _pad(draw: Draw) -> Arguments:
    shape = tuple(size + 2 for size in draw.shape(1, 4))
    pads = [draw.random.randint(-1, 3) for _ in range(2 * draw.random.randint(1, len(shape)))]
    return [draw.tensor(shape, draw.dtype(FLOATS, INTS)), pads, draw.random.choice((0, 2))], {}


@sample("fill.Scalar", "full_like")
def _fill(draw: Draw) -> Arguments:
    return [draw.tensor(draw.shape(), draw.dtype(FLOATS, INTS)), 3], {}


@sample("full")
def _full(draw: Draw) -> Arguments:
    return [list(draw.shape()), draw.random.choice((1, 2.5, True))], {}


@sample("scalar_tensor")
def _scalar(draw: Draw) -> Arguments:
    return [draw.random.choice((1, 2.5))], {"dtype": draw.dtype(FLOATS)}


@sample("arange.start_step")
def _arange(draw: Draw) -> Arguments:
    start, step = draw.random.randint(-5, 5), draw.random.choice((1, 2, -1, 0.5))
    return [start, start + step * draw.random.randint(0, 9), step], {}


# Places.


def _places(draw: Draw, shape: Sequence[int], size: int, is_negative: bool = False) -> torch.Tensor:
    low = -size if is_negative else 0
    return torch.randint(low, size, tuple(shape), generator=draw.torch)


def _solid(draw: Draw, least: int = 1, most: int = 3) -> tuple[int, ...]:
    return tuple(max(size, 1) for size in draw.shape(least, most))


@sample("index.Tensor")
def _index(draw: Draw) -> Arguments:
    shape = _solid(draw, 1, 4)
    x = draw.tensor(shape, draw.dtype(*ANY))
    inner = draw.shape(0, 2)
    indices = [
        _places(draw, draw.broadcast(inner), size, True) if draw.flag() else None for size in shape
    ]
    if all(each is None for each in indices):
        indices[0] = _places(draw, inner, shape[0])
    return [x, indices], {}


@sample("index_put")
def _index_put(draw: Draw) -> Arguments:
    shape = tuple(size + 4 for size in _solid(draw, 1, 3))
    x = draw.tensor(shape, draw.dtype((torch.float32, torch.float64)))
    lead, before = draw.random.randint(1, len(shape)), 0
    if lead < len(shape):
        before = draw.random.randint(0, len(shape) - lead)
    flat = [
        distinct(draw, (shape[axis],), torch.int64)[:4] for axis in range(before, before + lead)
    ]
    indices = [*[None] * before, *flat]
    count = min(len(each) for each in flat)
    indices = [None if each is None else each[:count] for each in indices]
    target = x[tuple(slice(None) if each is None else each for each in indices)]
    return [x, indices, draw.tensor(draw.broadcast(target.shape), x.dtype), draw.flag()], {}


@sample("index_select")
def _index_select(draw: Draw) -> Arguments:
    shape = _solid(draw)
    axis = draw.axis(shape)
    places = _places(draw, (draw.random.randint(0, 5),), shape[axis])
    return [draw.tensor(shape, draw.dtype(*ANY)), axis, places], {}


@sample("gather")
def _gather(draw: Draw) -> Arguments:
    shape = _solid(draw)
    axis = draw.axis(shape)
    return [draw.tensor(shape, draw.dtype(*ANY)), axis, _places(draw, shape, shape[axis])], {}


def _once(draw: Draw, shape: Sequence[int], axis: int) -> torch.Tensor:
    """Places along an axis of which none comes twice."""
    return torch.rand(tuple(shape), generator=draw.torch).argsort(axis)


@sample("scatter.src")
def _scatter(draw: Draw) -> Arguments:
    shape, dtype = _solid(draw), draw.dtype(FLOATS, INTS)
    axis = draw.axis(shape)
    return [
        draw.tensor(shape, dtype), axis, _once(draw, shape, axis), draw.tensor(shape, dtype)
    ], {}  # fmt: skip


@sample("scatter.value")
def _scatter_value(draw: Draw) -> Arguments:
    shape = _solid(draw)
    axis = draw.axis(shape)
    x = draw.tensor(shape, draw.dtype(FLOATS, INTS))
    return [x, axis, _places(draw, shape, shape[axis]), 2], {}


@sample("scatter_add")
def _scatter_add(draw: Draw) -> Arguments:
    shape, dtype = _solid(draw), draw.dtype((torch.float32, torch.float64), INTS)
    axis = draw.axis(shape)
    places = _places(draw, shape, shape[axis])
    return [draw.tensor(shape, dtype), axis, places, draw.tensor(shape, dtype)], {}


@sample("scatter_reduce.two")
def _scatter_reduce(draw: Draw) -> Arguments:
    (x, axis, places, src), _ = _scatter_add(draw)
    reduce = draw.random.choice(("sum", "prod", "amax", "amin", "mean"))
    x, src = (each.float() for each in (x, src))
    return [x, axis, places, src, reduce], {"include_self": draw.flag()}


@sample("masked_scatter")
def _masked_scatter(draw: Draw) -> Arguments:
    shape, dtype = _solid(draw), draw.dtype(FLOATS, INTS)
    return [
        draw.tensor(shape, dtype),
        draw.tensor(shape, torch.bool),
        draw.tensor(shape, dtype),
    ], {}


@sample("embedding")
def _embedding(draw: Draw) -> Arguments:
    weight = draw.tensor((7, 5), draw.dtype(FLOATS))
    return [weight, _places(draw, draw.shape(0, 3), 7)], {}


@sample("embedding_dense_backward")
def _embedding_backward(draw: Draw) -> Arguments:
    shape = _solid(draw, 1, 2)
    grad = draw.tensor((*shape, 5), draw.dtype((torch.float32, torch.float64)))
    return [grad, _places(draw, shape, 7), 7, draw.random.choice((-1, 2)), draw.flag()], {}


@sample("_embedding_bag")
def _embedding_bag(draw: Draw) -> Arguments:
    places = _places(draw, (9,), 7)
    offsets = torch.tensor([0, *sorted(draw.random.sample(range(1, 9), 3))])
    return [draw.tensor((7, 5)), places, offsets, False, draw.random.choice((0, 1))], {}


# Products.

_WIDE = (torch.float32, torch.float64)


def _matrices(draw: Draw, *batch: int) -> list[torch.Tensor]:
    m, k, n = (draw.random.randint(1, 20) for _ in range(3))
    dtype = draw.dtype(_WIDE, FLOATS)
    return [draw.tensor((*batch, m, k), dtype), draw.tensor((*batch, k, n), dtype)]


sample("mm")(lambda draw: (_matrices(draw), {}))
sample("bmm")(lambda draw: (_matrices(draw, draw.random.randint(1, 4)), {}))


@sample("addmm")
def _addmm(draw: Draw) -> Arguments:
    first, second = _matrices(draw)
    shape = draw.broadcast((first.shape[0], second.shape[1]))
    how = {"beta": draw.random.choice((0, 1, 2)), "alpha": draw.random.choice((1, 3))}
    return [draw.tensor(shape, first.dtype), first, second], how


@sample("_cdist_forward")
def _cdist(draw: Draw) -> Arguments:
    p = draw.random.choice((1.0, 2.0, 3.0))
    return [draw.tensor((4, 6)).contiguous(), draw.tensor((5, 6)).contiguous(), p, None], {}


@sample("_pdist_forward")
def _pdist(draw: Draw) -> Arguments:
    x = draw.tensor((draw.random.randint(1, 6), 4)).contiguous()
    return [x, draw.random.choice((1.0, 2.0, 3.0))], {}


@sample("_fft_r2c")
def _rfft(draw: Draw) -> Arguments:
    shape = _solid(draw)
    axes = draw.axes(shape)
    return [
        draw.tensor(shape, draw.dtype(_WIDE)),
        axes,
        draw.random.choice((0, 1, 2)),
        draw.flag(),
    ], {}


@sample("_fft_c2r")
def _irfft(draw: Draw) -> Arguments:
    shape = tuple(size + 1 for size in _solid(draw))
    axes, dtype = draw.axes(shape), draw.dtype(_WIDE)
    size = draw.random.choice((2 * shape[axes[-1]] - 2, 2 * shape[axes[-1]] - 1))
    real = torch.rand([size if a == axes[-1] else n for a, n in enumerate(shape)], dtype=dtype,
                      generator=draw.torch)  # fmt: skip
    return [torch.fft.rfftn(real, dim=axes), axes, draw.random.choice((0, 1, 2)), size], {}


# Layers.


@sample("convolution")
def _convolution(draw: Draw) -> Arguments:
    axes, groups = draw.random.randint(1, 3), draw.random.choice((1, 1, 2))
    transposed = draw.flag()
    inner, outer = 2 * groups, 3 * groups
    kernel = [draw.random.randint(1, 3) for _ in range(axes)]
    x = draw.tensor(
        (2, inner, *(draw.random.randint(6, 8) for _ in range(axes))), draw.dtype(_WIDE)
    )
    weight = (inner, outer // groups) if transposed else (outer, inner // groups)
    stride, padding, dilation = (
        [draw.random.choice(choice) for _ in range(axes)] for choice in ((1, 2), (0, 1), (1, 2))
    )
    bias = draw.tensor((outer,), x.dtype) if draw.flag() else None
    rest = [0] * axes
    return [
        x, draw.tensor((*weight, *kernel), x.dtype), bias,
        stride, padding, dilation, transposed, rest, groups,
    ], {}  # fmt: skip


@sample("convolution_backward")
def _convolution_backward(draw: Draw) -> Arguments:
    (x, weight, bias, *how), _ = _convolution(draw)
    result = torch.ops.aten.convolution(x, weight, bias, *how)
    sizes = [result.shape[1]] if bias is not None else None
    mask = [draw.flag() or bias is None, True, bias is not None]
    return [draw.tensor(result.shape, x.dtype).contiguous(), x, weight, sizes, *how, mask], {}


def _normalised(draw: Draw) -> tuple[torch.Tensor, list[int], Any, Any]:
    shape = _solid(draw, 2, 4)
    inner = list(shape[draw.random.randint(1, len(shape) - 1) :])
    x = draw.tensor(shape, draw.dtype(_WIDE)).contiguous()
    given = (draw.tensor(inner, x.dtype).contiguous() if draw.flag() else None for _ in range(2))
    return x, inner, *given


@sample("native_layer_norm")
def _layer_norm(draw: Draw) -> Arguments:
    return [*_normalised(draw), 1e-5], {}


@sample("native_layer_norm_backward")
def _layer_norm_backward(draw: Draw) -> Arguments:
    x, inner, weight, bias = _normalised(draw)
    _, mean, scale = torch.ops.aten.native_layer_norm(x, inner, weight, bias, 1e-2)
    grad = draw.tensor(x.shape, x.dtype).contiguous()
    mask = [True, weight is not None, bias is not None]
    return [grad, x, inner, mean, scale, weight, bias, mask], {}


def _grouped(draw: Draw) -> list[Any]:
    groups = draw.random.choice((1, 2, 3))
    channels, inner = 2 * groups, draw.random.randint(2, 6)
    x = draw.tensor((2, channels, inner), draw.dtype(_WIDE)).contiguous()
    weight, bias = (draw.tensor((channels,), x.dtype).contiguous() for _ in range(2))
    return [x, weight, bias, 2, channels, inner, groups]


@sample("native_group_norm")
def _group_norm(draw: Draw) -> Arguments:
    return [*_grouped(draw), 1e-5], {}


@sample("native_group_norm_backward")
def _group_norm_backward(draw: Draw) -> Arguments:
    x, weight, bias, *form = _grouped(draw)
    _, mean, scale = torch.ops.aten.native_group_norm(x, weight, bias, *form, 1e-2)
    grad = draw.tensor(x.shape, x.dtype).contiguous()
    return [grad, x, mean, scale, weight, *form, [True, True, True]], {}


def _batch(draw: Draw) -> list[torch.Tensor]:
    shape = (4, 3, *draw.shape(0, 2))
    shape = tuple(max(size, 1) for size in shape)
    x = draw.tensor(shape, draw.dtype(_WIDE)).contiguous()
    weight, bias, mean = (draw.tensor((3,), x.dtype).contiguous() for _ in range(3))
    return [x, weight, bias, mean, draw.tensor((3,), x.dtype, 0.5, 2).contiguous()]


@sample("_native_batch_norm_legit")
def _batch_norm(draw: Draw) -> Arguments:
    return [*_batch(draw), draw.flag(), 0.1, 1e-3], {}


@sample("_native_batch_norm_legit.no_stats")
def _batch_norm_alone(draw: Draw) -> Arguments:
    return [*_batch(draw)[:3], True, 0.1, 1e-3], {}


@sample("_native_batch_norm_legit_no_training")
def _batch_norm_at_rest(draw: Draw) -> Arguments:
    return [*_batch(draw), 0.1, 1e-3], {}


def _pictures(draw: Draw, axes: int) -> torch.Tensor:
    lead = (2, 3) if draw.flag() else (3,)
    shape = (*lead, *(draw.random.randint(5, 9) for _ in range(axes)))
    return draw.tensor(shape, draw.dtype(_WIDE)).contiguous()


def _windows(draw: Draw, axes: int) -> list[list[int]]:
    kernel = [draw.random.randint(2, 3) for _ in range(axes)]
    stride = [draw.random.randint(1, 3) for _ in range(axes)]
    return [kernel, stride, [draw.random.randint(0, 1) for _ in range(axes)]]


def _avg_pool(axes: int) -> Sample:
    return lambda draw: (
        [_pictures(draw, axes), *_windows(draw, axes), draw.flag(), draw.flag()], {}
    )  # fmt: skip


def _max_pool(axes: int) -> Sample:
    return lambda draw: (
        [_pictures(draw, axes), *_windows(draw, axes), [1] * axes, draw.flag()], {}
    )  # fmt: skip


for _axes in (1, 2, 3):
    sample(f"avg_pool{_axes}d")(_avg_pool(_axes))
sample("max_pool2d_with_indices")(_max_pool(2))
sample("max_pool3d_with_indices")(_max_pool(3))


@sample("max_pool2d_with_indices_backward")
def _max_pool_backward(draw: Draw) -> Arguments:
    (x, *how), _ = _max_pool(2)(draw)
    x = x.relu()  # so that there are ties
    result, places = torch.ops.aten.max_pool2d_with_indices(x, *how)
    return [draw.tensor(result.shape, x.dtype).contiguous(), x, *how, places], {}


@sample("avg_pool2d_backward")
def _avg_pool_backward(draw: Draw) -> Arguments:
    (x, *how), _ = _avg_pool(2)(draw)
    result = torch.ops.aten.avg_pool2d(x, *how)
    return [draw.tensor(result.shape, x.dtype).contiguous(), x, *how, None], {}


def _adaptive(axes: int) -> Sample:
    return lambda draw: (
        [_pictures(draw, axes), [draw.random.randint(1, 5) for _ in range(axes)]], {}
    )  # fmt: skip


sample("adaptive_avg_pool1d")(_adaptive(1))
sample("_adaptive_avg_pool2d")(_adaptive(2))
sample("_adaptive_avg_pool3d")(_adaptive(3))


@sample("_adaptive_avg_pool2d_backward")
def _adaptive_backward(draw: Draw) -> Arguments:
    (x, size), _ = _adaptive(2)(draw)
    return [draw.tensor((*x.shape[:-2], *size), x.dtype).contiguous(), x], {}


@sample("col2im")
def _col2im(draw: Draw) -> Arguments:
    kernel, dilation, padding, stride = [2, 3], [1, 2], [1, 0], [draw.random.randint(1, 2), 1]
    columns = torch.ops.aten.im2col(torch.zeros(2, 3, 7, 8), kernel, dilation, padding, stride)
    return [draw.tensor(columns.shape), [7, 8], kernel, dilation, padding, stride], {}


@sample("grid_sampler_2d")
def _grid(draw: Draw) -> Arguments:
    grid = draw.tensor((2, 3, 4, 2), torch.float32, -1.2, 1.2)
    modes = [draw.random.choice((0, 2)), draw.random.randint(0, 2), draw.flag()]
    return [draw.tensor((2, 3, 5, 6)), grid, *modes], {}


def _pads(draw: Draw, axes: int) -> Arguments:
    return [_pictures(draw, axes), [draw.random.randint(0, 3) for _ in range(2 * axes)]], {}


sample("reflection_pad1d")(lambda draw: _pads(draw, 1))
sample("reflection_pad2d", "replication_pad2d")(lambda draw: _pads(draw, 2))
sample("reflection_pad3d", "replication_pad3d")(lambda draw: _pads(draw, 3))


@sample("upsample_nearest2d.vec")
def _nearest(draw: Draw) -> Arguments:
    x = draw.tensor((2, 3, 5, 6)).contiguous()
    if draw.flag():
        return [x, [draw.random.randint(3, 11), draw.random.randint(3, 11)], None], {}
    return [x, None, [2.0, 1.5]], {}


@sample("upsample_bilinear2d.vec")
def _bilinear(draw: Draw) -> Arguments:
    (x, size, scale), _ = _nearest(draw)
    return [x, size, draw.flag(), scale], {}
