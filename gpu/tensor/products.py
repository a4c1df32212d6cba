"""Methods built around matrix products: attention, and a matrix brought near to orthogonal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from gpu.core.dtype import accumulator, dtypes, promote
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor import customgrad
from gpu.tensor.arguments import Operand, integer
from gpu.tensor.base import broadcast_shape
from gpu.tensor.matmul import Matmul
from gpu.tensor.sampling import Sampling


class Products(Matmul, Sampling):
    """Sequences of products, softmaxes and sums."""

    __slots__ = ()

    def scaled_dot_product_attention(
        self,
        key: Operand,
        value: Operand,
        attn_mask: Operand | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        enable_gqa: bool = False,
    ) -> Self:
        """softmax(self @ key.T / sqrt(width) + mask) @ value, over the last two axes.

        Scores are formed in float32 at least; a share that would be subnormal is 0. The gradient
        computes them again; on a CPU neither pass stores them, and memory grows with the number of
        positions alone.

        Args:
            key: (..., positions, width), as self, the queries.
            value: (..., positions, any width).
            attn_mask: added to the scores; or bools, true where a query may look. A query whose
                scores are all minus infinity gives 0.
            dropout_p: `dropout` of the weights, while `Tensor.training` is set.
            is_causal: query i looks at keys 0..i; not together with `attn_mask`.
            enable_gqa: several queries share a head: that of keys and values, axis -3, repeats.
        """
        keys, values = self._lift(key), self._lift(value)
        if min(self.ndim, keys.ndim, values.ndim) < 2:
            raise ShapeError(
                "attention needs (..., positions, width), got shapes "
                f"{list(self.shape)}, {list(keys.shape)} and {list(values.shape)}"
            )
        if enable_gqa:
            keys, values = self._shared_heads(keys), self._shared_heads(values)
        if is_causal and attn_mask is not None:
            raise InvalidValue("is_causal and attn_mask exclude each other; put both in the mask")
        queries = self._as_float()
        result = promote(promote(queries.dtype, keys.dtype), values.dtype)
        scores = queries.matmul(keys.transpose(-2, -1), dtype=accumulator(result))
        scores = scores.mul(1 / math.sqrt(self.shape[-1]))
        if is_causal:
            scores = scores._beside_diagonal(0).where(scores, -math.inf)
        elif attn_mask is not None:
            scores = scores._masked(self._lift(attn_mask))
        batch = broadcast_shape(scores.shape[:-2], values.shape[:-2])
        scores = scores.expand(*batch, *scores.shape[-2:])
        values = values.cast(result).expand(*batch, *values.shape[-2:])
        drops = self.training and dropout_p
        kept = scores.full_like(1).dropout(dropout_p)._node if drops else None
        return self._wrap(customgrad.attention(scores._node, values._node, kept))

    def newton_schulz(self, steps: int, params: Sequence[float], eps: float = 1e-07) -> Self:
        """The matrices of the last two axes with singular values brought near to 1.

        Each step applies the odd polynomial ``params[0] * G + params[1] * (G G^T) G + ...`` to the
        matrices over their Frobenius norm plus `eps` (K. Jordan, "Muon", 2024; after Newton and
        Schulz).
        """
        if self.ndim < 2:
            raise ShapeError(f"newton_schulz needs two axes, the shape is {list(self.shape)}")
        if integer(steps, "steps") < 0 or not params:
            raise InvalidValue(
                f"newton_schulz needs steps of 0 or more and params, got {steps} and {params!r}"
            )
        norm = self.square().sum((-2, -1), keepdim=True).sqrt()
        matrix = self.div(norm.add(eps))
        tall = self.shape[-2] > self.shape[-1]
        matrix = matrix.transpose(-2, -1) if tall else matrix
        for _ in range(steps):
            matrix = matrix._odd_polynomial(params)
        return matrix.transpose(-2, -1) if tall else matrix

    def _odd_polynomial(self, params: Sequence[float]) -> Self:
        gram = self.matmul(self.transpose(-2, -1))
        power = self
        total = self.mul(params[0])
        for factor in params[1:]:
            power = gram.matmul(power)
            total = total.add(power.mul(factor))
        return total

    def _masked(self, mask: Self) -> Self:
        """Scores under a mask: one that is added, or bools."""
        return mask.where(self, -math.inf) if mask.dtype is dtypes.bool else self.add(mask)

    def _shared_heads(self, shared: Self) -> Self:
        """`shared` with each of its heads, axis -3, as often as queries share it."""
        if min(self.ndim, shared.ndim) < 3 or self.shape[-3] % max(shared.shape[-3], 1):
            raise ShapeError(
                f"enable_gqa: heads of queries, {list(self.shape)}, must be a multiple of those of "
                f"keys and values, {list(shared.shape)}"
            )
        repeats = self.shape[-3] // max(shared.shape[-3], 1)
        return shared.repeat_interleave(repeats, shared.ndim - 3)
