"""Special functions that torch has as methods of tensors too."""

from __future__ import annotations

from typing import Self

from gpu.tensor.arguments import Operand
from gpu.tensor.elementwise import Elementwise


class Special(Elementwise):
    """Each is the function of `gpu.special` of that name, or of the name it tells.

    Their modules are imported when they are called: few programs need them.
    """

    __slots__ = ()

    def erfc(self) -> Self:
        """1 - erf(self), also where that is close to 0."""
        from gpu.tensor.special import error

        return error.erfc(self)

    def erfinv(self) -> Self:
        """The inverse of `erf`: infinite at -1 and 1, NaN beyond."""
        from gpu.tensor.special import error

        return error.erfinv(self)

    def i0(self) -> Self:
        """The modified Bessel function of the first kind, of order 0."""
        from gpu.tensor.special import bessel

        return bessel.i0(self)

    def lgamma(self) -> Self:
        """The logarithm of the gamma function's magnitude."""
        from gpu.tensor.special import gamma

        return gamma.lgamma(self)

    def digamma(self) -> Self:
        """The derivative of `lgamma`."""
        from gpu.tensor.special import gamma

        return gamma.digamma(self)

    def polygamma(self, n: int) -> Self:
        """The derivative number `n` of `digamma`. Raises InvalidValue for a negative one."""
        from gpu.tensor.special import gamma

        return gamma.polygamma(n, self)

    def mvlgamma(self, p: int) -> Self:
        """`multigammaln`: the logarithm of the gamma function of `p` dimensions, at least 1."""
        from gpu.tensor.special import gamma

        return gamma.multigammaln(self, p)

    def igamma(self, other: Operand) -> Self:
        """`gammainc`: the share of the gamma function's integral below `other`."""
        from gpu.tensor.special import incomplete

        result: Self = incomplete.gammainc(self, other)
        return result

    def igammac(self, other: Operand) -> Self:
        """`gammaincc`: the share of the gamma function's integral above `other`."""
        from gpu.tensor.special import incomplete

        result: Self = incomplete.gammaincc(self, other)
        return result
