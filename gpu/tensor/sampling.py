"""Random choice: permutations, draws by weight, and dropout."""

from __future__ import annotations

from typing import Final, Self

from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, accumulator, dtypes, to_dtype
from gpu.core.errors import DTypeError, InvalidValue, ShapeError
from gpu.runtime.device import Device
from gpu.tensor.arguments import check_number, integer, shape_of
from gpu.tensor.base import broadcast_to
from gpu.tensor.ordering import Ordering
from gpu.tensor.randomness import Randomness, random_words
from gpu.tensor.sorting import Keys, first_places

_WORD: Final = 1 << 32


class Sampling(Randomness, Ordering):
    """Draws that need an order or a condition besides random numbers."""

    __slots__ = ()

    @classmethod
    def randperm(cls, n: int, device: str | None = None, dtype: DType | str | None = None) -> Self:
        """The numbers 0..n-1 in random order; int32, where that holds n, if no dtype is given.

        They are sorted by random keys of 62 bits less those of n, so that ties, which would keep
        their order, do not come up.
        """
        (count,) = shape_of([n])
        element = dtypes.of(count) if dtype is None else to_dtype(dtype)
        device = Device.canonicalize(device)
        place_bits = max(count - 1, 1).bit_length()
        words = G.cast(random_words((2, count), device), dtypes.int64)
        high, low = (
            G.reshape(G.slice_(words, [(half, 1, 1), (0, count, 1)]), (count,)) for half in range(2)
        )

        def constant(value: int) -> Node:
            return G.const(value, (count,), dtypes.int64, device)

        key = G.alu("or", G.alu("shl", G.alu("shr", high, constant(2)), constant(32)), low)
        key = G.alu("and", key, constant(-1 << place_bits))
        places = first_places(Keys(key, 63), count)
        return cls._wrap(G.contiguous(G.cast(places, element)))

    def multinomial(self, num_samples: int = 1, replacement: bool = False) -> Self:
        """Places drawn with the probability that self, weights along the last axis, gives them.

        The result is int64, `num_samples` for each row. Without replacement no place comes twice;
        there have to be that many weights over 0. Weights must not be negative, which is not
        checked.
        """
        count = integer(num_samples, "num_samples")
        if self.ndim not in (1, 2):
            raise ShapeError(f"multinomial needs one axis or two, the shape is {list(self.shape)}")
        if not self.dtype.is_float:
            raise DTypeError(f"multinomial needs float weights, these are {self.dtype.name}")
        size = self.shape[-1]
        if count < 1 or (size < count and not replacement) or size == 0:
            raise InvalidValue(
                f"multinomial cannot draw {num_samples} of {size} "
                f"{'with' if replacement else 'without'} replacement"
            )
        weights = self.detach().cast(accumulator(self.dtype))
        return weights._drawn(count) if replacement else weights._drawn_once(count)

    def _drawn(self, count: int) -> Self:
        """Where a uniform number falls among the running sums."""
        *front, size = self.shape
        sums = self.cumsum(-1)
        total = sums._sliced([*((0, n, 1) for n in front), (size - 1, 1, 1)])
        shape = (*front, count, size)
        unit = self.rand((*front, count, 1), dtype=self.dtype, device=self.device)
        point = unit.mul(total._reshaped((*front, 1, 1)))
        passed = sums._reshaped((*front, 1, size)).expand(shape).le(point.expand(shape))
        return passed.sum(-1)

    def _drawn_once(self, count: int) -> Self:
        """The places of the smallest of exponential numbers over their weights.

        P. Efraimidis and P. Spirakis, "Weighted random sampling with a reservoir", 2006.
        """
        unit = self.rand(self.shape, dtype=self.dtype, device=self.device)
        waiting = unit.sub(1, reverse=True).log().neg().div(self)
        # A weight of 0 waits for ever, also where the number drawn is 0.
        waiting = self.gt(0).where(waiting, float("inf"))
        return waiting.topk(count, largest=False)[1]

    def dropout(self, p: float = 0.5) -> Self:
        """self with a share `p` of the elements set to 0 and the others over 1 - p.

        Does nothing unless `Tensor.training` is set, as inside of ``with Tensor.train():``.
        """
        check_number(p, "p")
        if not 0 <= p <= 1:
            raise InvalidValue(f"p must be in 0..1, got {p!r}")
        if not self.training or p == 0:
            return self
        x = self._as_float()
        if p == 1:
            return x.mul(0)
        words = self._wrap(random_words(self.shape, self.device))
        # In 64 bits, where the limit of every p below 1 fits.
        limit = G.const(round(p * _WORD), (), dtypes.int64, self.device)
        kept = words.cast(dtypes.int64).ge(self._wrap(broadcast_to(limit, self.shape)))
        return kept.where(x.div(1 - p), 0)
