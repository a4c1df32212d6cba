"""Activation functions of neural networks.

Where a function has a kink, the gradient there is torch's.
"""

from __future__ import annotations

import math
from typing import Final, Self

from gpu.tensor.arguments import Operand, choice
from gpu.tensor.functions import Functions
from gpu.tensor.precision import float_function

# log(1 + exp(x)) is x from here on, in any float.
LINEAR: Final = 50.0


class Activation(Functions):
    """Element-wise; integers are taken as float32, except by `relu`, `relu6` and `hardtanh`."""

    __slots__ = ()

    def relu(self) -> Self:
        """self, or 0 where it is negative."""
        return self.le(0).where(0, self)

    def relu6(self) -> Self:
        """self within 0..6."""
        return self.hardtanh(0, 6)

    def hardtanh(self, min_val: float = -1, max_val: float = 1) -> Self:
        """self within min_val..max_val, with no gradient at the ends."""
        raised = self.le(min_val).where(min_val, self)
        return raised.ge(max_val).where(max_val, raised)

    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        """self, or neg_slope * self where it is negative."""
        return self.gt(0).where(self, self.mul(neg_slope))

    @float_function
    def sigmoid(self) -> Self:
        """1 / (1 + exp(-self))."""
        decay = self._magnitude().neg().exp()
        return self.lt(0).where(decay, 1).div(decay.add(1))

    @float_function
    def logsigmoid(self) -> Self:
        """log(sigmoid(self))."""
        return self.neg().softplus().neg()

    @float_function
    def silu(self) -> Self:
        """self * sigmoid(self)."""
        return self.mul(self.sigmoid())

    def swish(self) -> Self:
        """The same as `silu`."""
        return self.silu()

    @float_function
    def quick_gelu(self) -> Self:
        """self * sigmoid(1.702 * self)."""
        return self.mul(self.mul(1.702).sigmoid())

    def gelu(self, approximate: str = "tanh") -> Self:
        """self times the normal distribution's integral up to self.

        `approximate` is "tanh" for the approximation by it, "none" for the error function.
        """
        choice(approximate, "approximate", ("tanh", "none"))
        return self._gelu_by_erf() if approximate == "none" else self._gelu_by_tanh()

    @float_function
    def _gelu_by_erf(self) -> Self:
        return self.mul(0.5).mul(self.mul(math.sqrt(0.5)).erf().add(1))

    @float_function
    def _gelu_by_tanh(self) -> Self:
        cubic = self.square().mul(self).mul(0.044715).add(self)
        return self.mul(0.5).mul(cubic.mul(math.sqrt(2 / math.pi)).tanh().add(1))

    @float_function
    def elu(self, alpha: float = 1.0) -> Self:
        """self, or alpha * (exp(self) - 1) where it is negative."""
        positive = self.gt(0)
        # The exponential of what is not chosen must stay finite, or its gradient is not.
        return positive.where(self, positive.where(0, self).expm1().mul(alpha))

    @float_function
    def celu(self, alpha: float = 1.0) -> Self:
        """self, or alpha * (exp(self / alpha) - 1) where it is negative."""
        positive = self.gt(0)
        return positive.where(self, positive.where(0, self).div(alpha).expm1().mul(alpha))

    @float_function
    def selu(self, alpha: float = 1.67326, gamma: float = 1.0507) -> Self:
        """gamma * elu(self, alpha)."""
        return self.elu(alpha).mul(gamma)

    @float_function
    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """alpha * self + beta within 0..1."""
        return self.mul(alpha).add(beta).hardtanh(0, 1)

    @float_function
    def hardswish(self) -> Self:
        """self * relu6(self + 3) / 6."""
        return self.mul(self.add(3).relu6().div(6))

    @float_function
    def softplus(self, beta: float = 1.0) -> Self:
        """log(1 + exp(beta * self)) / beta."""
        scaled = self.mul(beta)
        # Nothing beside self is left there, and beta * self may be infinite.
        large = scaled.gt(LINEAR)
        return large.where(self, large.where(0, scaled).logaddexp(0).div(beta))

    @float_function
    def softsign(self) -> Self:
        """self / (1 + |self|)."""
        return self.div(self.abs().add(1))

    @float_function
    def mish(self) -> Self:
        """self * tanh(softplus(self))."""
        return self.mul(self.softplus().tanh())

    def logaddexp(self, other: Operand) -> Self:
        """log(exp(self) + exp(other)), finite wherever the result is."""
        a, b = self._pair(other)
        return a._as_float()._logaddexp(b)

    @float_function
    def _logaddexp(self, other: Self) -> Self:
        b = other.cast(self.dtype)
        # Infinities of one sign have no difference; it is 0 between equals.
        distance = self.eq(b).where(0, self.sub(b)).abs()
        return self.maximum(b).add(distance.neg().exp().log1p())
