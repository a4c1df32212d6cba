"""Rows of attention, which graphs have as one operation where torch computes it as one."""

from __future__ import annotations

import math
from typing import Any

from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported
from gpu.tensor.tensor import Tensor
from gpu.torch.rows.layers import pulled
from gpu.torch.table import row


@row("_scaled_dot_product_flash_attention_for_cpu")
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(query @ key.T * scale + mask) @ value, and the logarithms of the softmax's sums.

    These are zeros: the gradient here computes what it needs again.
    """
    if dropout:
        raise Unsupported("dropout of attention's weights inside of one operation")
    result = _attended(query, key, value, is_causal, attn_mask, scale)
    sums = Tensor.full(query.shape[:-1], 0, dtype=dtypes.float32, device=query.device, buffer=False)
    return result, sums


def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    mask: Tensor | None,
    scale: float | None,
) -> Tensor:
    if scale is not None:  # the method's own is 1 / sqrt(width)
        query = query * (scale * math.sqrt(query.shape[-1]))
    return query.scaled_dot_product_attention(key, value, mask, 0.0, is_causal)


@row("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    dropout: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """The gradients of queries, keys and values."""
    if dropout:
        raise Unsupported("dropout of attention's weights inside of one operation")
    return pulled(
        lambda q, k, v: _attended(q, k, v, is_causal, attn_mask, scale), grad, query, key, value
    )
