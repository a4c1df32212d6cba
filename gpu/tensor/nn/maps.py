"""Torch's linear maps, convolutions and lookups by torch's names and in its argument order."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.core.errors import InvalidIndex, InvalidValue, ShapeError, Unsupported
from gpu.tensor.arguments import integer
from gpu.tensor.tensor import Tensor
from gpu.tensor.windows import Each


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias.

    Args:
        input: (..., in_features).
        weight: (out_features, in_features), or (in_features,) for a result without that axis.
        bias: (out_features,), or one number.
    """
    result = input.matmul(weight if weight.ndim == 1 else weight.transpose())
    return result if bias is None else result + bias


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input1 @ weight[k] @ input2 + bias[k] for each k, along a new last axis.

    Args:
        input1: (..., in1_features).
        input2: (..., in2_features).
        weight: (out_features, in1_features, in2_features).
        bias: (out_features,).
    """
    if weight.ndim != 3 or (input1.shape[-1:], input2.shape[-1:]) != (
        weight.shape[1:2],
        weight.shape[2:],
    ):
        raise ShapeError(
            f"bilinear takes (..., n), (..., m) and a weight (out, n, m), got shapes "
            f"{list(input1.shape)}, {list(input2.shape)} and {list(weight.shape)}"
        )
    out, first, second = weight.shape
    halfway = input1.matmul(weight.permute(1, 0, 2).reshape(first, out * second))
    halfway = halfway.reshape(*input1.shape[:-1], out, second)
    result = (halfway * input2.unsqueeze(-2)).sum(-1)
    return result if bias is None else result + bias


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Each = 1,
    padding: Each | str = 0,
    dilation: Each = 1,
    groups: int = 1,
) -> Tensor:
    """`Tensor.conv2d` over one axis, of (batch, channels, length).

    A sample may lack the first axis.
    """
    batch = _batch(input, weight, 1, "conv1d")
    result = batch.conv2d(weight, bias, groups, stride, dilation, padding)
    return result if batch is input else result.squeeze(0)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Each = 1,
    padding: Each | str = 0,
    dilation: Each = 1,
    groups: int = 1,
) -> Tensor:
    """`Tensor.conv2d` over two axes, of (batch, channels, height, width).

    A sample may lack the first axis.
    """
    batch = _batch(input, weight, 2, "conv2d")
    result = batch.conv2d(weight, bias, groups, stride, dilation, padding)
    return result if batch is input else result.squeeze(0)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Each = 1,
    padding: Each | str = 0,
    dilation: Each = 1,
    groups: int = 1,
) -> Tensor:
    """`Tensor.conv2d` over three axes, of (batch, channels, depth, height, width).

    A sample may lack the first axis.
    """
    batch = _batch(input, weight, 3, "conv3d")
    result = batch.conv2d(weight, bias, groups, stride, dilation, padding)
    return result if batch is input else result.squeeze(0)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Each = 1,
    padding: Each = 0,
    output_padding: Each = 0,
    groups: int = 1,
    dilation: Each = 1,
) -> Tensor:
    """`Tensor.conv_transpose2d` over one axis, of (batch, channels, length).

    A sample may lack the first axis.
    """
    batch = _batch(input, weight, 1, "conv_transpose1d")
    result = batch.conv_transpose2d(weight, bias, groups, stride, dilation, padding, output_padding)
    return result if batch is input else result.squeeze(0)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Each = 1,
    padding: Each = 0,
    output_padding: Each = 0,
    groups: int = 1,
    dilation: Each = 1,
) -> Tensor:
    """`Tensor.conv_transpose2d` over two axes, of (batch, channels, height, width).

    A sample may lack the first axis.
    """
    batch = _batch(input, weight, 2, "conv_transpose2d")
    result = batch.conv_transpose2d(weight, bias, groups, stride, dilation, padding, output_padding)
    return result if batch is input else result.squeeze(0)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Each = 1,
    padding: Each = 0,
    output_padding: Each = 0,
    groups: int = 1,
    dilation: Each = 1,
) -> Tensor:
    """`Tensor.conv_transpose2d` over three axes, of (batch, channels, depth, height, width).

    A sample may lack the first axis.
    """
    batch = _batch(input, weight, 3, "conv_transpose3d")
    result = batch.conv_transpose2d(weight, bias, groups, stride, dilation, padding, output_padding)
    return result if batch is input else result.squeeze(0)


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` that `input` names: of shape (*input.shape, width).

    Args:
        input: integers, of any shape.
        weight: (rows, width).
        padding_idx: the row that gets no gradient; negative ones count from the end.
        max_norm, norm_type, scale_grad_by_freq, sparse: torch's, which are refused by Unsupported:
            they write to the table, or want the gradient in another form.
    """
    given = {"max_norm": max_norm is not None, "scale_grad_by_freq": scale_grad_by_freq}
    for name, wanted in (given | {"sparse": sparse}).items():
        if wanted:
            raise Unsupported(f"embedding has no {name}=: leave it out")
    rows = weight.embedding(input)
    if padding_idx is None:
        return rows
    row = integer(padding_idx, "padding_idx")
    if not -weight.shape[0] <= row < weight.shape[0]:
        raise InvalidIndex(f"padding_idx {row} is no row of a table of {weight.shape[0]}")
    return input.eq(row % weight.shape[0]).unsqueeze(-1).where(rows.detach(), rows)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`Tensor.scaled_dot_product_attention`; `scale` stands in for 1 / sqrt(width)."""
    if scale is not None:
        query = query * (scale * float(query.shape[-1]) ** 0.5)
    return query.scaled_dot_product_attention(
        key, value, attn_mask, dropout_p, is_causal, enable_gqa
    )


def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """`Tensor.pad` by (before, after, before, after, ...) from the last axis on."""
    if len(pad) % 2:
        raise InvalidValue(f"pad has two numbers for each axis, got {len(pad)}: {tuple(pad)}")
    return input.pad(tuple(pad), mode, 0.0 if value is None else value)


def _batch(input: Tensor, weight: Tensor, axes: int, name: str) -> Tensor:
    """`input` with an axis of samples."""
    if input.ndim not in (axes + 1, axes + 2) or weight.ndim != axes + 2:
        raise ShapeError(
            f"{name} takes (batch, channels, *spatial) with {axes} spatial axes, or one sample "
            f"without the first, and a weight of {axes + 2} axes, got shapes "
            f"{list(input.shape)} and {list(weight.shape)}"
        )
    return input.unsqueeze(0) if input.ndim == axes + 1 else input
