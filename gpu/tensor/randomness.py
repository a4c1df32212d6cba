"""Random numbers: Threefry bits under a seed, and the distributions that are made of them.

Every device has a counter of the random words it has given out, from 0 after `manual_seed`; word i
is a function of the seed and i alone (`gpu/compiler/ir/threefry.py`). So one seed gives the same
numbers on every device, whatever the schedule and the number of threads: bits, integers and uniform
floats bit for bit, normal ones as far as the device's logarithm and sine agree. Without a seed the
key comes from the operating system's entropy.

The state is read from memory when a graph runs: asking for more numbers compiles nothing new.
"""

from __future__ import annotations

import math
import os
from typing import Any, ClassVar, Final, Self, TypedDict, Unpack

import numpy as np

from gpu.compiler.ir.dims import upper_shape
from gpu.compiler.ir.graph import Node, Place, Shape
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.grid import is_shared
from gpu.core.dtype import DType, dtypes, promote, to_dtype
from gpu.core.errors import DTypeError, InvalidType, InvalidValue, ShapeError
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device
from gpu.tensor.arguments import integer, shape_of
from gpu.tensor.creation import Creation, Placement
from gpu.tensor.tracing import active
from gpu.tensor.training import TrainingMode

_WORD: Final = 1 << 32
_SEEDS: Final = 1 << 64
# Bits of a uniform number: all multiples of 2**-bits below 1, so that none rounds up to 1.
_UNIFORM_BITS: Final = {
    dtypes.fp8e5m2: 3, dtypes.fp8e4m3: 4, dtypes.bfloat16: 8, dtypes.float16: 11,
    dtypes.float32: 24, dtypes.float64: 53,
}  # fmt: skip


_OF_RANKS: Final = "mesh"  # the counter of what all ranks draw together


class _Generator:
    """The seed, None until one is needed, and how many words each counter has given out."""

    seed: ClassVar[int | None] = None
    given: ClassVar[dict[str, int]] = {}


def next_state(device: str, count: int, counter: str | None = None) -> Node:
    """The state of the next `count` random words of a device: a leaf for `G.random_bits`.

    They are those of another `counter` than the device's own, where that is given. All random
    numbers come by this one way: uint32[4], the two words of the key and the 64-bit number of the
    first word, low half first.
    """
    handle = Buffer(device, 4, dtypes.uint32)
    leaf = G.buffer(handle, (4,), dtypes.uint32, device)
    trace = active()
    own = counter or device
    if trace is None or not trace.draws(leaf, own, count):  # each replay takes words of its own
        write_state(handle, own, count)
    return leaf


def write_state(memory: Buffer, counter: str, count: int) -> None:
    """Writes the state of the next `count` random words of a counter into `memory`."""
    first = _Generator.given.get(counter, 0)
    _Generator.given[counter] = first + count
    words = [part % _WORD for n in (random_seed(), first) for part in (n, n >> 32)]
    memory.copy_in(np.array(words, np.uint32))


def random_seed() -> int:
    """The seed; it is chosen now where none was needed before."""
    if _Generator.seed is None:
        _Generator.seed = int.from_bytes(os.urandom(8))
    return _Generator.seed


def generator_state() -> tuple[int | None, dict[str, int]]:
    """The seed and how many words each counter has given out."""
    return _Generator.seed, dict(_Generator.given)


def restore_generator(state: tuple[int | None, dict[str, int]]) -> None:
    """Goes back to a state that `generator_state` gave."""
    _Generator.seed, _Generator.given = state[0], dict(state[1])


def random_words(shape: Shape, device: Place) -> Node:
    """Fresh random bits, as uint32; on several devices the same.

    Those of the first one; where other ranks have parts they come of a counter that is the same on
    all of them, whatever each draws for itself.
    """
    if not isinstance(device, str):
        counter = _OF_RANKS if is_shared(device) else None
        state = next_state(device[0], math.prod(upper_shape(shape)), counter)
        return G.random_bits(G.copy(state, device), shape)
    return G.random_bits(next_state(device, math.prod(upper_shape(shape))), shape)


class Randomness(Creation):
    """Class methods that make random tensors; a shape is one sequence or several ints."""

    __slots__ = ()

    training: ClassVar[bool] = False

    @classmethod
    def train(cls, mode: bool = True) -> TrainingMode:
        """``with Tensor.train():`` sets `Tensor.training`, on which dropout depends, inside."""
        return TrainingMode(cls, mode)

    @staticmethod
    def manual_seed(seed: int = 0) -> None:
        """Starts the random numbers of all devices anew from `seed`, taken modulo 2**64."""
        _Generator.seed = integer(seed, "seed") % _SEEDS
        _Generator.given.clear()

    @classmethod
    def rand(
        cls,
        *shape: Any,
        device: str | None = None,
        dtype: DType | str | None = None,
        contiguous: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Uniform numbers in 0..1, 1 excluded: multiples of 2**-24, of 2**-53 for float64.

        With contiguous=False they have no memory of their own: an expression that uses them once
        forms them on the way.
        """
        element = dtypes.default_float if dtype is None else to_dtype(dtype)
        made = cls._wrap(_uniform(_shape(shape), element, Device.canonicalize(device)))
        return made._finished(requires_grad, contiguous)

    def rand_like(self, **placement: Unpack[Placement]) -> Self:
        """`rand` in the shape, dtype and device of self, unless others are given."""
        return self.rand(self.shape, **self._placed(placement))

    @classmethod
    def randn(cls, *shape: Any, **placement: Unpack[Placement]) -> Self:
        """Normal numbers of mean 0 and deviation 1, by the method of Box and Muller (1958).

        Two uniform numbers give two normal ones. Those of 24 bits reach 5.8 to either side.
        """
        element = to_dtype(placement.get("dtype") or dtypes.default_float)
        device = Device.canonicalize(placement.get("device"))
        made = cls._normal(_shape(shape), element, device)
        return made._finished(placement.get("requires_grad"))

    def randn_like(self, dtype: DType | str | None = None, **placement: Unpack[_Elsewhere]) -> Self:
        """`randn` in the shape, dtype and device of self, unless others are given."""
        return self.randn(self.shape, **self._placed({"dtype": dtype, **placement}))

    @classmethod
    def randint(
        cls, *shape: Any, low: int = 0, high: int = 10, **placement: Unpack[Placement]
    ) -> Self:
        """Integers from `low` to `high` - 1, int32 if no dtype is given.

        How often two of them come differs by at most one part in 2**32 / (high - low).
        """
        first, end = integer(low, "low"), integer(high, "high")
        element = to_dtype(placement.get("dtype") or dtypes.default_int)
        if not element.is_int:
            raise DTypeError(f"randint makes integers, not {element.name}; cast the result")
        if first >= end:
            raise InvalidValue(f"randint needs low < high, got low={low} and high={high}")
        if not element.min <= first or not end - 1 <= element.max:
            raise InvalidValue(f"{first}..{end - 1} does not fit {element.name}")
        device = Device.canonicalize(placement.get("device"))
        drawn = cls._wrap(_below(end - first, _shape(shape), device))
        # Sums wrap, so that a range of more than half of the integers comes right too.
        least = G.const(first, drawn.shape, dtypes.uint64, device)
        shifted = drawn._binary("add", cls._wrap(least)).cast(element)
        return shifted._finished(placement.get("requires_grad"))

    @classmethod
    def uniform(
        cls, *shape: Any, low: float = 0.0, high: float = 1.0, **placement: Unpack[Placement]
    ) -> Self:
        """Uniform numbers from `low` to `high`; of an integer dtype, rounded toward zero."""
        element = to_dtype(placement.get("dtype") or dtypes.default_float)
        drawn = element if element.is_float else dtypes.default_float
        unit = cls._wrap(
            _uniform(_shape(shape), drawn, Device.canonicalize(placement.get("device")))
        )
        scaled = unit._binary("mul", high - low)._binary("add", low).cast(element)
        return scaled._finished(placement.get("requires_grad"))

    @classmethod
    def normal(
        cls, *shape: Any, mean: float = 0.0, std: float = 1.0, **placement: Unpack[Placement]
    ) -> Self:
        """Normal numbers of this mean and standard deviation."""
        asked = placement.pop("requires_grad", None)
        drawn = cls.randn(*shape, **placement)
        return drawn._binary("mul", std)._binary("add", mean)._finished(asked)

    @classmethod
    def scaled_uniform(cls, *shape: Any, **placement: Unpack[Placement]) -> Self:
        """Uniform within 1 / sqrt(number of elements) of 0."""
        bound = max(math.prod(_shape(shape)), 1) ** -0.5
        return cls.uniform(*shape, low=-bound, high=bound, **placement)

    @classmethod
    def glorot_uniform(cls, *shape: Any, **placement: Unpack[Placement]) -> Self:
        """Uniform within sqrt(6 / (fan in + fan out)) of 0 (X. Glorot and Y. Bengio, 2010).

        Fan out is the first size, fan in the product of the others.
        """
        bound = math.sqrt(6 / max(_fan_out(_shape(shape)) + _fan_in(_shape(shape)), 1))
        return cls.uniform(*shape, low=-bound, high=bound, **placement)

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, **placement: Unpack[Placement]) -> Self:
        """Uniform of variance 2 / (1 + a**2) / fan in (K. He et al., 2015), before `leaky_relu(a)`.

        Fan in is the product of all sizes but the first.
        """
        bound = math.sqrt(3) * _kaiming(_shape(shape), a)
        return cls.uniform(*shape, low=-bound, high=bound, **placement)

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, **placement: Unpack[Placement]) -> Self:
        """Normal of variance 2 / (1 + a**2) / fan in."""
        return cls.normal(*shape, mean=0.0, std=_kaiming(_shape(shape), a), **placement)

    @classmethod
    def _normal(cls, shape: Shape, dtype: DType, device: str) -> Self:
        if not dtype.is_float:
            raise DTypeError(f"random numbers of {dtype.name}: only floats; see randint")
        count = math.prod(shape)
        pairs = (count + 1) // 2
        wide = promote(dtype, dtypes.float32)
        unit = cls._wrap(_uniform((2, pairs), wide, device)).contiguous()
        whole = (2, pairs)
        first = cls._wrap(G.expand(G.slice_(unit._node, [(0, 1, 1), (0, pairs, 1)]), whole))
        second = cls._wrap(G.expand(G.slice_(unit._node, [(1, 1, 1), (0, pairs, 1)]), whole))
        # 1 - u is never 0. The sine of a quarter turn more is the cosine.
        radius = first._binary("sub", 1.0, reverse=True)._unary("log2")
        radius = radius._binary("mul", -2 * math.log(2))._unary("sqrt")
        quarter = unit._index_along(0, whole).cast(wide)._binary("mul", 0.25)
        angle = second._binary("add", quarter)._binary("mul", 2 * math.pi)
        both = radius._binary("mul", angle._unary("sin"))
        line = G.slice_(G.reshape(both._node, (2 * pairs,)), [(0, count, 1)])
        return cls._wrap(G.reshape(line, shape)).cast(dtype)

    def _finished(self, requires_grad: bool | None, contiguous: bool = True) -> Self:
        """self in memory of its own, which a tensor that asks for gradients has anyway."""
        made = self.contiguous() if contiguous and not requires_grad else self
        if requires_grad is not None:
            made.requires_grad = requires_grad
        return made


class _Elsewhere(TypedDict, total=False):
    """`Placement` less the dtype."""

    device: str | None
    requires_grad: bool | None


def _shape(given: tuple[Any, ...]) -> Shape:
    return shape_of(given[0], given[1:]) if given else ()


def _uniform(shape: Shape, dtype: DType, device: str) -> Node:
    """Uniform numbers below 1 with all bits that fit."""
    if dtype not in _UNIFORM_BITS:
        raise DTypeError(f"random numbers of {dtype.name}: only floats; see randint")
    bits = _UNIFORM_BITS[dtype]
    if bits <= 32:
        whole = _top_bits(random_words(shape, device), bits)
    else:
        whole = _top_bits(_long_words(shape, device), bits)
    # Exact: the whole number fits the mantissa and the factor is a power of two.
    wide = promote(dtype, dtypes.float32)
    factor = G.const(2.0**-bits, shape, wide, device)
    return G.cast(G.alu("mul", G.cast(whole, wide), factor), dtype)


def _top_bits(words: Node, bits: int) -> Node:
    shift = G.const(words.dtype.bits - bits, words.shape, words.dtype, words.device)
    return G.alu("shr", words, shift)


def _long_words(shape: Shape, device: str) -> Node:
    """Fresh random bits, as uint64."""
    words = random_words((2, *shape), device)
    halves = [
        G.reshape(
            G.slice_(words, [(half, 1, 1), *((0, n, 1) for n in shape)]),
            shape,
        )
        for half in range(2)
    ]
    low, high = (G.cast(half, dtypes.uint64) for half in halves)
    return G.alu("or", low, G.alu("shl", high, G.const(32, shape, dtypes.uint64, device)))


def _below(span: int, shape: Shape, device: str) -> Node:
    """Integers 0..span-1 as uint64."""
    if span <= _WORD:
        # The high half of a product by `span`: no division.
        words = G.cast(random_words(shape, device), dtypes.uint64)
        product = G.alu("mul", words, G.const(span, shape, dtypes.uint64, device))
        return G.alu("shr", product, G.const(32, shape, dtypes.uint64, device))
    words = _long_words(shape, device)
    if span == _SEEDS:
        return words
    return G.alu("tmod", words, G.const(span, shape, dtypes.uint64, device))


def _fan_out(shape: Shape) -> int:
    if not shape:
        raise ShapeError("weights need at least one axis, to tell what goes in and out")
    return shape[0]


def _fan_in(shape: Shape) -> int:
    return math.prod(shape[1:])


def _kaiming(shape: Shape, a: float) -> float:
    """The standard deviation that keeps the scale of what goes through the weights."""
    if not isinstance(a, int | float):
        raise InvalidType(f"a must be a number, got {a!r}")
    _fan_out(shape)
    return math.sqrt(2 / (1 + a * a)) / math.sqrt(max(_fan_in(shape), 1))
