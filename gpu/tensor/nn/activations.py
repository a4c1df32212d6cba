"""Torch's functions between linear maps, by torch's names and in its argument order.

With `inplace` the result is written to `input`, which is returned. Where torch's default differs
from that of the method of a tensor, as in `gelu`, it is torch's.
"""

from __future__ import annotations

from functools import partial

from gpu.core.dtype import DType, accumulator
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import axis_of
from gpu.tensor.nn.parameters import share
from gpu.tensor.tensor import Tensor

_SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """`Tensor.relu`."""
    return _kept(input, input.relu(), inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """`Tensor.relu6`."""
    return _kept(input, input.relu6(), inplace)


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """`Tensor.hardtanh`. Raises InvalidValue unless `min_val` is less than `max_val`."""
    if not min_val < max_val:
        raise InvalidValue(f"min_val {min_val} of hardtanh must be less than max_val {max_val}")
    return _kept(input, input.hardtanh(min_val, max_val), inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """`Tensor.leaky_relu`."""
    return _kept(input, input.leaky_relu(negative_slope), inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """`Tensor.elu`."""
    return _kept(input, input.elu(alpha), inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """`Tensor.celu`."""
    return _kept(input, input.celu(alpha), inplace)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """`Tensor.selu`, with the numbers of arXiv 1706.02515 to all digits."""
    return _kept(input, input.selu(*_SELU), inplace)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """`Tensor.silu`."""
    return _kept(input, input.silu(), inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """`Tensor.mish`."""
    return _kept(input, input.mish(), inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """`Tensor.hardsigmoid`."""
    return _kept(input, input.hardsigmoid(), inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """`Tensor.hardswish`."""
    return _kept(input, input.hardswish(), inplace)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """input, or `value` where it is not more than `threshold`."""
    return _kept(input, input.le(threshold).where(value, input), inplace)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """`Tensor.gelu`, by the error function unless `approximate` is "tanh"."""
    return input.gelu(approximate)


def sigmoid(input: Tensor) -> Tensor:
    """`Tensor.sigmoid`."""
    return input.sigmoid()


def tanh(input: Tensor) -> Tensor:
    """`Tensor.tanh`."""
    return input.tanh()


def logsigmoid(input: Tensor) -> Tensor:
    """`Tensor.logsigmoid`."""
    return input.logsigmoid()


def softsign(input: Tensor) -> Tensor:
    """`Tensor.softsign`."""
    return input.softsign()


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`Tensor.softplus`, and input itself where beta * input is more than `threshold`."""
    large = input.mul(beta).gt(threshold)
    return large.where(input, large.where(0, input).softplus(beta))


def tanhshrink(input: Tensor) -> Tensor:
    """input - tanh(input)."""
    return input.sub(input.tanh())


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """input, or 0 within -lambd..lambd."""
    return input.abs().le(lambd).where(0, input)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """input brought nearer to 0 by `lambd`; 0 within -lambd..lambd."""
    if not lambd >= 0:
        raise InvalidValue(f"lambd of softshrink must be at least 0, got {lambd!r}")
    high = input.gt(lambd).where(input.sub(lambd), 0)
    return input.lt(-lambd).where(input.add(lambd), high)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half of `input` along `dim`, times the sigmoid of the second half."""
    axis = axis_of(dim, input.ndim, "dim")
    if input.shape[axis] % 2:
        raise ShapeError(f"glu halves axis {axis} of shape {list(input.shape)}, whose size is odd")
    half, gate = input.chunk(2, dim=axis)
    return half.mul(gate.sigmoid())


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """input, or weight * input where it is negative; one weight, or one for each of axis 1."""
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.numel() not in (1, channels) or weight.ndim > 1:
        raise ShapeError(
            f"weight of prelu has shape {list(weight.shape)}, input {list(input.shape)}: expected "
            f"one weight{f' or {channels}' if channels > 1 else ''}"
        )
    apart = weight.numel() > 1
    slope = weight.reshape((channels, *(1,) * (input.ndim - 2)) if apart else ())
    return input.gt(0).where(input, input.mul(slope))


def rrelu(
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """input, or where it is negative input times a random number in lower..upper.

    Without `training` that number is their mean.
    """
    slope: Tensor | float = (lower + upper) / 2
    if training:
        slope = input.rand_like().mul(upper - lower).add(lower)
    return _kept(input, input.gt(0).where(input, input.mul(slope)), inplace)


def softmax(input: Tensor, dim: int, *, dtype: DType | str | None = None) -> Tensor:
    """`Tensor.softmax` along `dim`."""
    return input.softmax(dim, dtype)


def log_softmax(input: Tensor, dim: int, *, dtype: DType | str | None = None) -> Tensor:
    """`Tensor.log_softmax` along `dim`."""
    return input.log_softmax(dim, dtype)


def softmin(input: Tensor, dim: int, *, dtype: DType | str | None = None) -> Tensor:
    """`softmax` of -input."""
    return input.neg().softmax(dim, dtype)


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Tensor:
    """`softmax` of logits with random numbers of Gumbel's distribution added, over `tau`.

    With `hard` it is 1 at the largest and 0 elsewhere, and has the gradient of the soft one.
    """
    wide = logits.cast(accumulator(logits._as_float().dtype))
    soft = wide.sub(wide._waiting().log()).div(tau).softmax(dim).cast(logits._as_float().dtype)
    if not hard:
        return soft
    first = soft.argmax(dim, keepdim=True)
    chosen = soft.zeros_like().scatter(dim, first, 1.0)
    return soft._refined(chosen)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """A share `p` of the elements set to 0, the others over 1 - p; only with `training`."""
    return _kept(input, _dropped(input, p, training), inplace)


def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`dropout` of whole channels, of (batch, channels, length) or (channels, length)."""
    return _channels_dropped(input, p, training, inplace, 1)


def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`dropout` of whole channels, of (batch, channels, height, width).

    Of three axes the first is the batch, as in torch.
    """
    if input.ndim == 3:
        return _channels_dropped(input, p, training, inplace, 1)
    return _channels_dropped(input, p, training, inplace, 2)


def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`dropout` of whole channels, of (batch, channels, *spatial) or (channels, *spatial)."""
    return _channels_dropped(input, p, training, inplace, 3)


def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """`dropout` that keeps the mean and the variance of what `selu` gives (arXiv 1706.02515)."""
    return _alpha_dropped(input, input.shape, p, training, inplace)


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """`alpha_dropout` of whole channels, axis 1."""
    if input.ndim < 2:
        raise ShapeError(f"channels are axis 1, the shape is {list(input.shape)}")
    apart = (*input.shape[:2], *(1,) * (input.ndim - 2))
    return _alpha_dropped(input, apart, p, training, inplace)


def _alpha_dropped(
    input: Tensor, apart: tuple[int, ...], p: float, training: bool, inplace: bool
) -> Tensor:
    """Elements of a shape that broadcasts, `apart`, are dropped independently."""
    share(p, "p")
    if not training or p == 0:
        return _kept(input, input, inplace)
    if p == 1:
        return _kept(input, input.mul(0), inplace)
    low = -_SELU[0] * _SELU[1]
    scale = ((1 - p) * (1 + p * low**2)) ** -0.5
    ones = Tensor.ones(apart, dtype=input.dtype, device=input.device)
    kept = _dropped(ones, p, training).gt(0)
    return _kept(input, kept.where(input, low).mul(scale).sub(scale * p * low), inplace)


def _dropped(input: Tensor, p: float, training: bool) -> Tensor:
    share(p, "p")
    if not training:
        return input
    with Tensor.train():
        return input.dropout(p)


def _channels_dropped(
    input: Tensor, p: float, training: bool, inplace: bool, spatial: int
) -> Tensor:
    if input.ndim not in (spatial + 1, spatial + 2):
        raise ShapeError(
            f"channels before {spatial} spatial axes are dropped, the shape is {list(input.shape)}"
        )
    lead = input.ndim - spatial
    ones = Tensor.ones(
        (*input.shape[:lead], *(1,) * spatial), dtype=input.dtype, device=input.device
    )
    return _kept(input, input.mul(_dropped(ones, p, training)) if training else input, inplace)


def _kept(input: Tensor, result: Tensor, inplace: bool) -> Tensor:
    """A result, written to `input` if that is asked for.

    Raises InvalidValue, as torch does, where `input` asks for gradients, which would end there.
    """
    if not inplace:
        return result
    if input.requires_grad:
        raise InvalidValue("a tensor with requires_grad=True cannot be written to: inplace=False")
    return input.assign(result)


celu_ = partial(celu, inplace=True)
elu_ = partial(elu, inplace=True)
hardtanh_ = partial(hardtanh, inplace=True)
leaky_relu_ = partial(leaky_relu, inplace=True)
relu_ = partial(relu, inplace=True)
rrelu_ = partial(rrelu, inplace=True)
selu_ = partial(selu, inplace=True)
threshold_ = partial(threshold, inplace=True)
