"""Attention with weights."""

from __future__ import annotations

import math

from gpu.core.dtype import dtypes
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.nn.layers import Linear
from gpu.tensor.nn.module import Module
from gpu.tensor.nn.parameters import count, filled, normal, share, uniform
from gpu.tensor.tensor import Tensor


class MultiheadAttention(Module):
    """Several attentions side by side, each over a part of the features: torch's, also its names.

    Attributes:
        in_proj_weight: what queries, keys and values are made with, shape (3 * embed_dim,
            embed_dim); None where keys or values have another width, and then there are
            q_proj_weight, k_proj_weight and v_proj_weight, shape (embed_dim, width).
        in_proj_bias: shape (3 * embed_dim,), or None without `bias`.
        out_proj: a `Linear` of embed_dim features, applied to the result.
        bias_k, bias_v: one further key and value, shape (1, 1, embed_dim), with `add_bias_kv`.

    >>> from gpu import Tensor
    >>> x = Tensor.ones(7, 2, 8)
    >>> out, weights = MultiheadAttention(8, 4)(x, x, x)
    >>> out.shape, weights.shape
    ((7, 2, 8), (2, 7, 7))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
    ):
        self.embed_dim, self.num_heads = count(embed_dim, "embed_dim"), count(num_heads, "heads")
        if embed_dim % num_heads:
            raise InvalidValue(f"num_heads must divide embed_dim {embed_dim}, got {num_heads}")
        self.dropout, self.batch_first = share(dropout, "dropout"), batch_first
        self.add_zero_attn = add_zero_attn
        self.kdim = embed_dim if kdim is None else count(kdim, "kdim")
        self.vdim = embed_dim if vdim is None else count(vdim, "vdim")
        self.in_proj_weight = self.q_proj_weight = self.k_proj_weight = self.v_proj_weight = None
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = _glorot(3 * embed_dim, embed_dim)
        else:
            self.q_proj_weight = _glorot(embed_dim, embed_dim)
            self.k_proj_weight = _glorot(embed_dim, self.kdim)
            self.v_proj_weight = _glorot(embed_dim, self.vdim)
        self.in_proj_bias = filled(0, 3 * embed_dim) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        if bias:
            self.out_proj.bias = filled(0, embed_dim)
        deviation = 1 / math.sqrt(embed_dim)
        self.bias_k = normal(1, 1, embed_dim, deviation=deviation) if add_bias_kv else None
        self.bias_v = normal(1, 1, embed_dim, deviation=deviation) if add_bias_kv else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """What the queries find, in their shape, and the weights of the keys.

        Args:
            query: (length, batch, embed_dim); (batch, length, embed_dim) with `batch_first`;
                (length, embed_dim) of one sequence.
            key: the same with the length of the keys and `kdim`.
            value: the same with `vdim`.
            key_padding_mask: (batch, keys), of one sequence (keys,): bools that are true where a
                key is *not* looked at, or floats that are added to the scores.
            need_weights: whether weights are returned: (batch, length, keys), or None. Without
                them no score is stored (`Tensor.scaled_dot_product_attention`).
            attn_mask: (length, keys) or (batch * num_heads, length, keys), likewise.
            average_attn_weights: otherwise weights are (batch, num_heads, length, keys).
            is_causal: query i looks at keys 0..i; an `attn_mask` says so already.
        """
        one = query.ndim == 2
        q, k, v = (self._batched(x) for x in (query, key, value))
        if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[1] != v.shape[1]:
            raise ShapeError(
                "queries, keys and values must be of one batch, and keys and values of one length, "
                f"got {list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
            )
        if is_causal and attn_mask is None:
            attn_mask = Tensor.ones(q.shape[1], k.shape[1], dtype=dtypes.bool, device=q.device)
            attn_mask = attn_mask.triu(1)
        q, k, v = self._projected(q, k, v)
        scores = self._scores(q, k, attn_mask, key_padding_mask)
        k, v, scores = self._extended(k, v, scores)
        q, k, v = (self._heads(x) for x in (q, k, v))
        dropout = self.dropout if Tensor.training else 0.0
        weights = None
        if need_weights:
            products = q.mul(1 / math.sqrt(q.shape[-1])).matmul(k.transpose(-2, -1))
            weights = (products if scores is None else products.add(scores)).softmax(-1)
            weights = weights.dropout(dropout)
            found = weights.matmul(v)
        else:
            found = q.scaled_dot_product_attention(k, v, scores, dropout)
        out = self.out_proj(found.transpose(1, 2).flatten(2))
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights.squeeze(0) if one else weights
        if one:
            return out.squeeze(0), weights
        return out if self.batch_first else out.transpose(0, 1), weights

    def _batched(self, x: Tensor) -> Tensor:
        """x as (batch, length, width)."""
        if x.ndim == 2:
            return x.unsqueeze(0)
        if x.ndim != 3:
            raise ShapeError(
                "attention takes (length, batch, width), (batch, length, width) with batch_first, "
                f"or (length, width), got {list(x.shape)}"
            )
        return x if self.batch_first else x.transpose(0, 1)

    def _projected(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values times their weights, plus their biases."""
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            assert self.q_proj_weight is not None and self.k_proj_weight is not None
            assert self.v_proj_weight is not None
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        triples = zip((q, k, v), weights, biases, strict=True)
        return tuple(x.linear(weight.T, bias) for x, weight, bias in triples)

    def _scores(
        self, q: Tensor, k: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> Tensor | None:
        """What both masks add to the scores: broadcasts to (batch, num_heads, length, keys)."""
        batch, length, keys = q.shape[0], q.shape[1], k.shape[1]
        total = None
        if attn_mask is not None:
            whole = (batch * self.num_heads, length, keys)
            if attn_mask.shape not in ((length, keys), whole):
                raise ShapeError(
                    f"attn_mask has shape {list(attn_mask.shape)}, expected {[length, keys]} or "
                    f"{list(whole)}"
                )
            apart = attn_mask.ndim == 3
            shape = (batch, self.num_heads, length, keys) if apart else (1, 1, length, keys)
            total = _added(attn_mask, q).reshape(shape)
        if key_padding_mask is not None:
            if key_padding_mask.shape not in ((batch, keys), *([(keys,)] if batch == 1 else [])):
                raise ShapeError(
                    f"key_padding_mask has shape {list(key_padding_mask.shape)}, expected "
                    f"{[batch, keys]}"
                )
            padding = _added(key_padding_mask, q).reshape(batch, 1, 1, keys)
            total = padding if total is None else total.add(padding)
        return total

    def _extended(
        self, k: Tensor, v: Tensor, scores: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values with those of `bias_k`, `bias_v` and `add_zero_attn`, not masked."""
        further = 0
        if self.bias_k is not None and self.bias_v is not None:
            shape = (k.shape[0], 1, self.embed_dim)
            k = Tensor.cat(k, self.bias_k.expand(shape), dim=1)
            v = Tensor.cat(v, self.bias_v.expand(shape), dim=1)
            further += 1
        if self.add_zero_attn:
            k, v = k.pad((0, 0, 0, 1)), v.pad((0, 0, 0, 1))
            further += 1
        return k, v, scores if scores is None else scores.pad((0, further))

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, length, embed_dim) as (batch, num_heads, length, width)."""
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """What a mask adds to scores: bools that are true add minus infinity."""
    if mask.dtype is not dtypes.bool:
        return mask.cast(like.dtype)
    zeros = Tensor.zeros(mask.shape, dtype=like.dtype, device=mask.device)
    return mask.where(-math.inf, zeros)


def _glorot(outputs: int, inputs: int) -> Tensor:
    """A parameter, uniform within sqrt(6 / (outputs + inputs))."""
    return uniform(math.sqrt(6 / (outputs + inputs)), outputs, inputs)
