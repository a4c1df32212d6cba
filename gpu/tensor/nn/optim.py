"""The optimisers. In the formulas p is a parameter, g its gradient, norms are over all elements.

Weight decay is w, momentum is c, `lr` the learning rate; state is 0 before the first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu.core.dtype import DType
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.nn.optimizer import Optimizer, OptimizerGroup, at_least, decay
from gpu.tensor.tensor import Tensor

__all__ = ["LAMB", "LARS", "SGD", "Adam", "AdamW", "Muon", "Optimizer", "OptimizerGroup"]


class LARS(Optimizer):
    """Gradient descent with momentum and a rate for each parameter (https://arxiv.org/abs/1708.03888).

    r = tcoef * |p| / (|g| + w * |p|), or 1 where a norm is 0 or `tcoef` is; g += w * p.
    With `classic` momentum: b = c * b + lr * r * g and p -= b, or c * b + lr * r * g if `nesterov`;
    otherwise b = c * b + g and p -= lr * r * b, or lr * r * (c * b + g) if `nesterov`.

    Args:
        params: tensors to change.
        ns_steps, ns_coefficients: if the latter are given, `Tensor.newton_schulz` with them makes
            the change close to orthogonal, as a matrix of p.shape[0] rows.
        pre_wd: otherwise weight decay is lr * w * p, taken from p apart from momentum.

    Attributes:
        b: momentum of each parameter; empty if `momentum` is 0.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        ns_steps: int = 0,
        ns_coefficients: Sequence[float] | None = None,
        nesterov: bool = False,
        classic: bool = True,
        pre_wd: bool = True,
        tcoef: float = 0.001,
    ):
        super().__init__(params, lr)
        self.momentum = at_least(momentum, 0, "momentum")
        self.wd = at_least(weight_decay, 0, "weight_decay")
        self.tcoef = at_least(tcoef, 0, "tcoef")
        self.nesterov, self.classic, self.pre_wd = nesterov, classic, pre_wd
        self.ns_steps, self.ns_coefficients = ns_steps, ns_coefficients
        if nesterov and not momentum:
            raise InvalidValue("nesterov needs a momentum above 0")
        if ns_coefficients is not None:
            for param in self.params:
                if param.ndim < 2:
                    raise ShapeError(
                        f"parameters of shape {list(param.shape)} are no matrices and cannot be "
                        "made orthogonal: give them to another optimiser of an OptimizerGroup"
                    )
        self.b = self._zeros() if momentum else []

    def _update(self, chosen: Sequence[int]) -> list[Tensor]:
        for number in chosen:
            param, gradient, rate = self._operands(number)
            if self.tcoef:
                rate = rate * self._trust(param, gradient)
            change = gradient + self.wd * param if self.pre_wd and self.wd else gradient
            if self.classic:
                change = change * rate
            if self.momentum:
                change = self._with_momentum(number, change)
            if self.ns_coefficients is not None:
                rows = change.reshape(change.shape[0], -1)
                turned = rows.newton_schulz(self.ns_steps, self.ns_coefficients)
                change = turned.reshape(change.shape)
            if not self.classic:
                change = change * rate
            if not self.pre_wd and self.wd:
                change = change + self.lr.reshape(()).cast(param.dtype) * self.wd * param
            self._subtract(number, change)
        return self.b

    def _with_momentum(self, number: int, change: Tensor) -> Tensor:
        state = self.b[number]
        moving = self.momentum * state + change
        state.assign(moving)
        return change + self.momentum * moving if self.nesterov else moving

    def _trust(self, param: Tensor, gradient: Tensor) -> Tensor:
        size, slope = _norm(param), _norm(gradient)
        ratio = self.tcoef * size / (slope + self.wd * size)
        return (size * slope > 0).where(ratio, 1.0)


class SGD(LARS):
    """Gradient descent: g += w * p; b = c * b + g; p -= lr * b, or lr * (g + c * b) if `nesterov`.

    With `classic` the momentum holds changes, b = c * b + lr * g, so that a change of `lr` takes
    effect slowly.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        classic: bool = False,
    ):
        super().__init__(
            params, lr, momentum, weight_decay, nesterov=nesterov, classic=classic, tcoef=0.0
        )


class Muon(LARS):
    """Momentum, made orthogonal (https://kellerjordan.github.io/posts/muon, arXiv 2502.16982).

    b = c * b + g; o = newton_schulz(b, or g + c * b if `nesterov`); p -= lr * (o + w * p). For
    parameters of two axes or more; those after the first count as one.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        ns_steps: int = 5,
        ns_coefficients: Sequence[float] = (3.4445, -4.775, 2.0315),
        nesterov: bool = True,
    ):
        super().__init__(
            params,
            lr,
            momentum,
            weight_decay,
            ns_steps,
            ns_coefficients,
            nesterov,
            classic=False,
            pre_wd=False,
            tcoef=0.0,
        )


class LAMB(Optimizer):
    """Adam with a rate for each parameter (https://arxiv.org/abs/1904.00962).

    m = b1 * m + (1 - b1) * g; v = b2 * v + (1 - b2) * g * g;
    u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + w * p at step t = 1, 2, ...;
    p -= lr * r * u, where r = |p| / |u|, or 1 where a norm is 0, and 1 with `adam`.

    A parameter without a gradient keeps m and v, but t is that of all.

    Attributes:
        m, v: running means of each parameter's gradient and its square.
        share1, share2: 1 - b1^t and 1 - b2^t, of one element each. They are kept as running means
            of 1: float32 loses half of the digits in taking b2^t from 1.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
    ):
        super().__init__(params, lr)
        self.b1, self.b2 = decay(b1, "b1"), decay(b2, "b2")
        self.eps, self.wd = at_least(eps, 0, "eps"), at_least(weight_decay, 0, "weight_decay")
        self.adam = adam
        self.share1, self.share2 = self._scalar(0), self._scalar(0)
        self.m, self.v = self._zeros(), self._zeros()

    def _update(self, chosen: Sequence[int]) -> list[Tensor]:
        self.share1.assign(self.b1 * self.share1 + (1 - self.b1))
        self.share2.assign(self.b2 * self.share2 + (1 - self.b2))
        for number in chosen:
            param, gradient, rate = self._operands(number)
            first, second = self._shares(param.dtype)
            mean = self.b1 * self.m[number] + (1 - self.b1) * gradient
            square = self.b2 * self.v[number] + (1 - self.b2) * gradient * gradient
            self.m[number].assign(mean)
            self.v[number].assign(square)
            change = (mean / first) / ((square / second).sqrt() + self.eps)
            if self.wd:
                change = change + self.wd * param
            if not self.adam:
                size, step = _norm(param), _norm(change)
                rate = rate * (size * step > 0).where(size / step, 1.0)
            self._subtract(number, rate * change)
        return [self.share1, self.share2, *self.m, *self.v]

    def _shares(self, dtype: DType) -> tuple[Tensor, Tensor]:
        first, second = (share.reshape(()).cast(dtype) for share in (self.share1, self.share2))
        return first, second


class Adam(LAMB):
    """`LAMB` with the same rate for all parameters (https://arxiv.org/abs/1412.6980)."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
    ):
        super().__init__(params, lr, b1, b2, eps, 0.0, adam=True)


class AdamW(LAMB):
    """`Adam` with weight decay apart from the gradient (https://arxiv.org/abs/1711.05101)."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ):
        super().__init__(params, lr, b1, b2, eps, weight_decay, adam=True)


def _norm(x: Tensor) -> Tensor:
    """The root of the sum of squares."""
    return x.square().sum().sqrt()
