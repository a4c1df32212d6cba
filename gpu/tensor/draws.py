"""Numbers of a distribution in the shape of a tensor: most are written into it, as torch's."""

from __future__ import annotations

import math
from typing import Self, Unpack

from gpu.core.dtype import DType, accumulator, dtypes, to_dtype
from gpu.core.errors import DTypeError, InvalidValue
from gpu.core.floatlimits import limits_of
from gpu.tensor.arguments import check_number
from gpu.tensor.creation import Placement
from gpu.tensor.inplace import InPlace
from gpu.tensor.sampling import Sampling


class Draws(InPlace, Sampling):
    """Draws as many as there are elements; a write in place is one as `x += y` is."""

    __slots__ = ()

    def randint_like(
        self, low: int, high: int | None = None, **placement: Unpack[Placement]
    ) -> Self:
        """Integers from `low` to `high` - 1; from 0 to `low` - 1 if that is alone.

        In the shape, dtype and device of self, unless others are given; of a float dtype too, which
        rounds those that it does not hold. Raises as `randint`.
        """
        first, end = (0, low) if high is None else (low, high)
        element = to_dtype(placement.get("dtype") or self.dtype)
        if element.is_float:
            placement["dtype"] = dtypes.int64
        asked = placement.pop("requires_grad", None)
        drawn = self.randint(self.shape, low=first, high=end, **self._placed(placement))
        return drawn.cast(element)._finished(asked)

    def bernoulli(self, p: float | Self | None = None) -> Self:
        """1 with the probability that the element of self is, else 0, in the dtype of self.

        With `p`, a number or a tensor that broadcasts to self, that is the probability. Gradients
        are 0. Raises DTypeError for probabilities that are no floats, ShapeError where they do not
        broadcast, and InvalidValue for a number `p` outside of 0..1; elements are not checked.
        """
        chance = self.detach() if p is None else p
        if not isinstance(chance, Draws):
            check_number(chance, "p")
            if not 0 <= chance <= 1:
                raise InvalidValue(f"p must be in 0..1, got {chance!r}")
        elif not chance.dtype.is_float:
            raise DTypeError(f"probabilities are floats, these are {chance.dtype.name}; give p=")
        else:
            chance = chance.expand(self.shape)
        return self._unit().lt(chance).cast(self.dtype)

    def bernoulli_(self, p: float | Self = 0.5) -> Self:
        """`bernoulli(p)`, written into self."""
        return self._filled_with(self.bernoulli(p))

    def normal_(self, mean: float = 0.0, std: float = 1.0) -> Self:
        """Normal numbers of this mean and standard deviation, written into self."""
        check_number(mean, "mean")
        check_number(std, "std")
        return self._filled_with(self.randn_like().mul(std).add(mean))

    def log_normal_(self, mean: float = 1.0, std: float = 2.0) -> Self:
        """Numbers whose logarithm has this mean and standard deviation, written into self."""
        check_number(mean, "mean")
        check_number(std, "std")
        return self._filled_with(self.randn_like(self._wide()).mul(std).add(mean).exp())

    def uniform_(self, low: float = 0.0, high: float = 1.0) -> Self:
        """Numbers of low..high, each as likely, written into self."""
        check_number(low, "low")
        check_number(high, "high")
        return self._filled_with(self.rand_like().mul(high - low).add(low))

    def exponential_(self, lambd: float = 1.0) -> Self:
        """Numbers above 0 of density lambd * exp(-lambd * x), written into self."""
        check_number(lambd, "lambd")
        if not lambd > 0:
            raise InvalidValue(f"lambd must be above 0, got {lambd!r}")
        return self._filled_with(self._floats("exponential_")._waiting().div(lambd))

    def geometric_(self, p: float) -> Self:
        """How many trials of success `p` it takes to the first one, written into self."""
        check_number(p, "p")
        if not 0 < p < 1:
            raise InvalidValue(f"p must be above 0 and below 1, got {p!r}")
        return self._filled_with(self._waiting().div(-math.log1p(-p)).ceil())

    def cauchy_(self, median: float = 0.0, sigma: float = 1.0) -> Self:
        """Numbers of density 1 / (pi * sigma * (1 + ((x - median) / sigma)**2)), into self."""
        check_number(median, "median")
        check_number(sigma, "sigma")
        if not sigma > 0:
            raise InvalidValue(f"sigma must be above 0, got {sigma!r}")
        turned = self._floats("cauchy_")._unit().sub(0.5).mul(math.pi).tan()
        return self._filled_with(turned.mul(sigma).add(median))

    def random_(self, low: int | None = None, high: int | None = None) -> Self:
        """`randint_like(low, high)`, written into self.

        Without bounds all that the dtype holds from 0 on; of floats, up to where it holds each.
        """
        kind = self.dtype
        if not (kind.is_float or kind.is_int):
            raise DTypeError(f"random_ writes integers, the tensor is {kind.name}")
        if low is None:
            low = (2 << limits_of(kind).fraction_bits) + 1 if kind.is_float else int(kind.max) + 1
        return self._filled_with(self.randint_like(low, high))

    def _waiting(self) -> Self:
        """Numbers above 0 of density exp(-x)."""
        # A uniform number may be 0, and never is 1.
        return self._unit().neg().log1p().neg().clamp(min_=math.ldexp(1.0, -30))

    def _unit(self) -> Self:
        """Uniform numbers below 1."""
        return self.rand(self.shape, dtype=self._wide(), device=self.device)

    def _wide(self) -> DType:
        return accumulator(self.dtype) if self.dtype.is_float else dtypes.float32

    def _floats(self, name: str) -> Self:
        if not self.dtype.is_float:
            raise DTypeError(f"{name} writes floats, the tensor is {self.dtype.name}")
        return self

    def _filled_with(self, drawn: Self) -> Self:
        self._refuse_leaf()
        return self._overwritten(drawn)
