"""Functions between linear maps as layers: what `functional` has, with settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gpu.core.errors import ShapeError
from gpu.tensor.nn import activations
from gpu.tensor.nn.applied import Applied
from gpu.tensor.nn.module import Module
from gpu.tensor.nn.parameters import count, filled, share
from gpu.tensor.tensor import Tensor


class ReLU(Applied, function=activations.relu):
    """`functional.relu`.

    >>> from gpu import Tensor
    >>> ReLU()(Tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """


class ReLU6(Applied, function=activations.relu6):
    """`functional.relu6`."""


class Hardtanh(Applied, function=activations.hardtanh):
    """`functional.hardtanh`."""


class LeakyReLU(Applied, function=activations.leaky_relu):
    """`functional.leaky_relu`."""


class ELU(Applied, function=activations.elu):
    """`functional.elu`."""


class CELU(Applied, function=activations.celu):
    """`functional.celu`."""


class SELU(Applied, function=activations.selu):
    """`functional.selu`."""


class SiLU(Applied, function=activations.silu):
    """`functional.silu`."""


class Mish(Applied, function=activations.mish):
    """`functional.mish`."""


class Hardsigmoid(Applied, function=activations.hardsigmoid):
    """`functional.hardsigmoid`."""


class Hardswish(Applied, function=activations.hardswish):
    """`functional.hardswish`."""


class Threshold(Applied, function=activations.threshold):
    """`functional.threshold`."""


class GELU(Applied, function=activations.gelu):
    """`functional.gelu`."""


class Sigmoid(Applied, function=activations.sigmoid):
    """`functional.sigmoid`."""


class Tanh(Applied, function=activations.tanh):
    """`functional.tanh`."""


class LogSigmoid(Applied, function=activations.logsigmoid):
    """`functional.logsigmoid`."""


class Softsign(Applied, function=activations.softsign):
    """`functional.softsign`."""


class Softplus(Applied, function=activations.softplus):
    """`functional.softplus`."""


class Tanhshrink(Applied, function=activations.tanhshrink):
    """`functional.tanhshrink`."""


class Hardshrink(Applied, function=activations.hardshrink):
    """`functional.hardshrink`."""


class Softshrink(Applied, function=activations.softshrink):
    """`functional.softshrink`."""


class GLU(Applied, function=activations.glu):
    """`functional.glu`."""


class Softmax(Applied, function=activations.softmax):
    """`functional.softmax`."""


class LogSoftmax(Applied, function=activations.log_softmax):
    """`functional.log_softmax`."""


class Softmin(Applied, function=activations.softmin):
    """`functional.softmin`."""


class Identity(Module):
    """What it is given; the arguments it is made with do not matter."""

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def forward(self, input: Any) -> Any:
        """The same."""
        return input


class Flatten(Module):
    """`Tensor.flatten` of the axes behind the batch."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        """The axes `start_dim` to `end_dim` as one."""
        return input.flatten(self.start_dim, self.end_dim)


class Unflatten(Module):
    """`Tensor.unflatten`: an axis as several."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]):
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        """The axis `dim` as axes of `unflattened_size`."""
        return input.unflatten(self.dim, self.unflattened_size)


class Softmax2d(Module):
    """`functional.softmax` over the channels of (batch, channels, height, width)."""

    def forward(self, input: Tensor) -> Tensor:
        """Shares of each channel, which add up to 1 at each place."""
        if input.ndim not in (3, 4):
            raise ShapeError(
                "Softmax2d takes (batch, channels, height, width), or without the first, got shape "
                f"{list(input.shape)}"
            )
        return input.softmax(-3)


class PReLU(Module):
    """`functional.prelu`, with a weight or one for each channel.

    Attributes:
        weight: shape (num_parameters,), `init` everywhere.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25):
        self.num_parameters = count(num_parameters, "num_parameters")
        self.weight = filled(init, num_parameters)

    def forward(self, input: Tensor) -> Tensor:
        """input, or weight * input where it is negative."""
        return activations.prelu(input, self.weight)


class RReLU(Module):
    """`functional.rrelu`, with random numbers while `Tensor.training` is set."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False):
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: Tensor) -> Tensor:
        """input, or where it is negative input times a number in lower..upper."""
        return activations.rrelu(input, self.lower, self.upper, Tensor.training, self.inplace)


class _Dropout(Module):
    """A dropout that does something while `Tensor.training` is set."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, p: float = 0.5, inplace: bool = False):
        self.p, self.inplace = share(p, "p"), inplace

    def forward(self, input: Tensor) -> Tensor:
        """The input, with elements or channels set to 0 in training."""
        return self.function(input, self.p, Tensor.training, self.inplace)


class Dropout(_Dropout):
    """`functional.dropout`, while `Tensor.training` is set."""

    function = staticmethod(activations.dropout)


class Dropout1d(_Dropout):
    """`functional.dropout1d`, while `Tensor.training` is set."""

    function = staticmethod(activations.dropout1d)


class Dropout2d(_Dropout):
    """`functional.dropout2d`, while `Tensor.training` is set."""

    function = staticmethod(activations.dropout2d)


class Dropout3d(_Dropout):
    """`functional.dropout3d`, while `Tensor.training` is set."""

    function = staticmethod(activations.dropout3d)


class AlphaDropout(_Dropout):
    """`functional.alpha_dropout`, while `Tensor.training` is set."""

    function = staticmethod(activations.alpha_dropout)


class FeatureAlphaDropout(_Dropout):
    """`functional.feature_alpha_dropout`, while `Tensor.training` is set."""

    function = staticmethod(activations.feature_alpha_dropout)
