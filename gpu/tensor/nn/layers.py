"""Layers with weights: linear maps, convolutions and embeddings.

Names and shapes of the weights, and the distributions they are drawn from, are torch's. Weights
have `requires_grad` True. What is computed with them only to be read, as in evaluating a model,
belongs into a block of `Tensor.no_grad`, which keeps nothing that only a gradient would need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpu.core.errors import DTypeError, InvalidIndex, InvalidValue
from gpu.tensor.arguments import integer
from gpu.tensor.nn.lookups import embedding_bag
from gpu.tensor.nn.maps import bilinear, embedding
from gpu.tensor.nn.module import Module
from gpu.tensor.nn.parameters import count, inverse_root, kernel_sizes, normal, uniform
from gpu.tensor.tensor import Tensor
from gpu.tensor.windows import Each


class Linear(Module):
    """x @ weight.T + bias, of x of shape (..., in_features); the result has (..., out_features).

    Attributes:
        weight: shape (out_features, in_features), uniform within 1 / sqrt(in_features).
        bias: shape (out_features,), drawn likewise, or None.

    >>> from gpu import Tensor
    >>> Linear(3, 2)(Tensor.ones(5, 3)).shape
    (5, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        bound = inverse_root(in_features)
        self.weight = uniform(bound, out_features, in_features)
        self.bias = uniform(bound, out_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return x.linear(self.weight.transpose(), self.bias)


class Bilinear(Module):
    """`functional.bilinear` with weights: (..., in1_features) and (..., in2_features) to one.

    Attributes:
        weight: shape (out_features, in1_features, in2_features), uniform within
            1 / sqrt(in1_features).
        bias: shape (out_features,), drawn likewise, or None.
    """

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True):
        bound = inverse_root(count(in1_features, "in1_features"))
        self.weight = uniform(bound, out_features, in1_features, in2_features)
        self.bias = uniform(bound, out_features) if bias else None

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """(..., in1_features) and (..., in2_features) to (..., out_features)."""
        return bilinear(input1, input2, self.weight, self.bias)


class Conv2d(Module):
    """`Tensor.conv2d` with weights: (batch, in_channels, *spatial) to (batch, out_channels, *out).

    The spatial axes are two, or as many as `kernel_size` has numbers. `stride`, `padding` (also
    "same" and "valid"), `dilation` and `groups` are those of `Tensor.conv2d`.

    Attributes:
        weight: shape (out_channels, in_channels // groups, *kernel), uniform within 1 / sqrt(n)
            where n is the number of products in a sum.
        bias: shape (out_channels,), drawn likewise, or None.

    >>> from gpu import Tensor
    >>> Conv2d(3, 8, 3, padding=1)(Tensor.ones(2, 3, 5, 5)).shape
    (2, 8, 5, 5)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: Each = 1,
        padding: Each | str = 0,
        dilation: Each = 1,
        groups: int = 1,
        bias: bool = True,
    ):
        self.kernel_size = kernel_sizes(kernel_size)
        self.stride, self.padding = stride, padding
        self.dilation, self.groups = dilation, groups
        _check_groups(groups, in_channels, out_channels)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        bound = inverse_root(math.prod(shape[1:]))
        self.weight = uniform(bound, *shape)
        self.bias = uniform(bound, out_channels) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_channels, *spatial) to (batch, out_channels, *out)."""
        return x.conv2d(
            self.weight, self.bias, self.groups, self.stride, self.dilation, self.padding
        )


def Conv1d(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    stride: Each = 1,
    padding: Each | str = 0,
    dilation: Each = 1,
    groups: int = 1,
    bias: bool = True,
) -> Conv2d:
    """A `Conv2d` over one axis: (batch, in_channels, length) to (batch, out_channels, out)."""
    taps = (kernel_size,)
    return Conv2d(in_channels, out_channels, taps, stride, padding, dilation, groups, bias)


def Conv3d(
    in_channels: int,
    out_channels: int,
    kernel_size: int | Sequence[int],
    stride: Each = 1,
    padding: Each | str = 0,
    dilation: Each = 1,
    groups: int = 1,
    bias: bool = True,
) -> Conv2d:
    """A `Conv2d` over three axes: (batch, in_channels, depth, height, width)."""
    taps = _three(kernel_size)
    return Conv2d(in_channels, out_channels, taps, stride, padding, dilation, groups, bias)


class ConvTranspose2d(Module):
    """`Tensor.conv_transpose2d` with weights, as `Conv2d`.

    Attributes:
        weight: shape (in_channels, out_channels // groups, *kernel), uniform within 1 / sqrt(n)
            where n is the number of elements of weight[0], as in torch.
        bias: shape (out_channels,), drawn likewise, or None.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: Each = 1,
        padding: Each = 0,
        output_padding: Each = 0,
        dilation: Each = 1,
        groups: int = 1,
        bias: bool = True,
    ):
        self.kernel_size = kernel_sizes(kernel_size)
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.dilation, self.groups = dilation, groups
        _check_groups(groups, in_channels, out_channels)
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        bound = inverse_root(math.prod(shape[1:]))
        self.weight = uniform(bound, *shape)
        self.bias = uniform(bound, out_channels) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_channels, *spatial) to (batch, out_channels, *out)."""
        return x.conv_transpose2d(
            self.weight,
            self.bias,
            self.groups,
            self.stride,
            self.dilation,
            self.padding,
            self.output_padding,
        )


def ConvTranspose1d(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    stride: Each = 1,
    padding: Each = 0,
    output_padding: Each = 0,
    dilation: Each = 1,
    groups: int = 1,
    bias: bool = True,
) -> ConvTranspose2d:
    """A `ConvTranspose2d` over one axis."""
    return ConvTranspose2d(
        in_channels,
        out_channels,
        (kernel_size,),
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        bias,
    )


def ConvTranspose3d(
    in_channels: int,
    out_channels: int,
    kernel_size: int | Sequence[int],
    stride: Each = 1,
    padding: Each = 0,
    output_padding: Each = 0,
    groups: int = 1,
    bias: bool = True,
    dilation: Each = 1,
) -> ConvTranspose2d:
    """A `ConvTranspose2d` over three axes; the order of arguments is torch's."""
    return ConvTranspose2d(
        in_channels,
        out_channels,
        _three(kernel_size),
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        bias,
    )


class Embedding(Module):
    """Rows of a table by their numbers: (...) integers to (..., embed_size).

    A number that is not in 0..vocab_size - 1 gives zeros, and is an error with ``CHECK=1``. The row
    `padding_idx`, negative to count from the end, starts as zeros and gets no gradient.

    Attributes:
        weight: the table, shape (vocab_size, embed_size), normally distributed.
    """

    def __init__(self, vocab_size: int, embed_size: int, padding_idx: int | None = None):
        self.vocab_size = count(vocab_size, "vocab_size")
        self.embed_size = count(embed_size, "embed_size")
        self.padding_idx = padding_idx
        self.weight = normal(vocab_size, embed_size)
        if padding_idx is not None:
            if not -vocab_size <= integer(padding_idx, "padding_idx") < vocab_size:
                raise InvalidIndex(
                    f"padding_idx {padding_idx} is out of range for a table of {vocab_size} rows"
                )
            self.padding_idx = padding_idx % vocab_size
            self.weight.detach()[self.padding_idx] = 0
            self.weight.realize()

    def forward(self, idx: Tensor) -> Tensor:
        """Integers of shape (...) to (..., embed_size)."""
        if not idx.dtype.is_int:
            raise DTypeError(f"an embedding takes integers, got {idx.dtype.name}: cast them")
        return embedding(idx, self.weight, self.padding_idx)


class EmbeddingBag(Module):
    """`functional.embedding_bag` with a table; the row `padding_idx` starts as zeros.

    Attributes:
        weight: the table, shape (num_embeddings, embedding_dim), normally distributed.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ):
        table = Embedding(num_embeddings, embedding_dim, padding_idx)
        self.weight, self.padding_idx = table.weight, table.padding_idx
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """(bags, size), or one axis with offsets, to (bags, embedding_dim)."""
        return embedding_bag(
            input,
            self.weight,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )


def _three(kernel_size: int | Sequence[int]) -> Sequence[int]:
    return (kernel_size,) * 3 if isinstance(kernel_size, int) else kernel_size


def _check_groups(groups: int, in_channels: int, out_channels: int) -> None:
    count(groups, "groups")
    count(in_channels, "in_channels")
    count(out_channels, "out_channels")
    if in_channels % groups or out_channels % groups:
        raise InvalidValue(
            f"groups must divide in_channels {in_channels} and out_channels {out_channels}, "
            f"got {groups}"
        )
