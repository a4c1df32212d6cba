"""Transformers as torch has them: layers of attention and two linear maps (arXiv 1706.03762).

Shapes are those of `MultiheadAttention`, and so are masks: bools are true where something is *not*
looked at. Causal attention without a mask is asked for by `is_causal` and its like.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from gpu.core.errors import InvalidValue
from gpu.tensor.nn.attention import MultiheadAttention
from gpu.tensor.nn.containers import ModuleList
from gpu.tensor.nn.layers import Linear
from gpu.tensor.nn.module import Module
from gpu.tensor.nn.normalization import LayerNorm
from gpu.tensor.nn.parameters import count, share
from gpu.tensor.nn.state import load_state_dict
from gpu.tensor.tensor import Tensor

Activation = Callable[[Tensor], Tensor]


def _gelu(x: Tensor) -> Tensor:
    return x.gelu("none")


def _activation(named: str | Activation) -> Activation:
    """The function between the linear maps. Raises InvalidValue for a name that is none."""
    if callable(named):
        return named
    if named not in ("relu", "gelu"):
        raise InvalidValue(f"activation must be 'relu', 'gelu' or a function, got {named!r}")
    return Tensor.relu if named == "relu" else _gelu


class _Layer(Module):
    """Attention to the sequence itself, and two linear maps with a function in between.

    Each is added to what it was computed from, and normalised: before, with `norm_first`, or after.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float,
        activation: str | Activation,
        layer_norm_eps: float,
        batch_first: bool,
        norm_first: bool,
        bias: bool,
    ):
        self.dropout, self.norm_first = share(dropout, "dropout"), norm_first
        self.activation = _activation(activation)
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias)

    def _around(self, x: Tensor, norm: LayerNorm, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x with what a part makes of it added, normalised before or after."""
        if self.norm_first:
            return x + part(norm(x)).dropout(self.dropout)
        normalised: Tensor = norm(x + part(x).dropout(self.dropout))
        return normalised

    def _mapped(self, x: Tensor) -> Tensor:
        """The linear maps."""
        hidden = self.activation(self.linear1(x)).dropout(self.dropout)
        mapped: Tensor = self.linear2(hidden)
        return mapped


def _found(attention: MultiheadAttention, query: Tensor, keys: Tensor, **masks: Any) -> Tensor:
    """What attention finds, without its weights."""
    found: Tensor = attention(query, keys, keys, need_weights=False, **masks)[0]
    return found


class TransformerEncoderLayer(_Layer):
    """Attention of a sequence to itself, then two linear maps.

    Args:
        d_model: features of an element.
        nhead: parts that attention cuts them into.
        dim_feedforward: features between the linear maps.
        dropout: share of elements set to 0, while `Tensor.training` is set.
        activation: "relu", "gelu", or a function, between the linear maps.
        layer_norm_eps: `eps` of the `LayerNorm`s.
        batch_first: whether shapes are (batch, length, d_model) and not (length, batch, d_model).
        norm_first: normalises what attention and the linear maps are given, not what they give.
        bias: whether linear maps and norms have biases.

    >>> from gpu import Tensor
    >>> TransformerEncoderLayer(8, 2, 16)(Tensor.ones(5, 3, 8), is_causal=True).shape
    (5, 3, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ):
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
        )

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The sequence `src` after the layer, in its shape."""

        def attend(x: Tensor) -> Tensor:
            return _found(
                self.self_attn,
                x,
                x,
                attn_mask=src_mask,
                key_padding_mask=src_key_padding_mask,
                is_causal=is_causal,
            )

        return self._around(self._around(src, self.norm1, attend), self.norm2, self._mapped)


class TransformerDecoderLayer(_Layer):
    """Attention of a sequence to itself, then to another, then two linear maps.

    Arguments are those of `TransformerEncoderLayer`.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ):
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
        )
        self.multihead_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first
        )
        self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """The sequence `tgt` after the layer, which also looks at `memory`, in its shape."""

        def attend(x: Tensor) -> Tensor:
            return _found(
                self.self_attn,
                x,
                x,
                attn_mask=tgt_mask,
                key_padding_mask=tgt_key_padding_mask,
                is_causal=tgt_is_causal,
            )

        def remember(x: Tensor) -> Tensor:
            return _found(
                self.multihead_attn,
                x,
                memory,
                attn_mask=memory_mask,
                key_padding_mask=memory_key_padding_mask,
                is_causal=memory_is_causal,
            )

        x = self._around(tgt, self.norm1, attend)
        x = self._around(x, self.norm2, remember)
        return self._around(x, self.norm3, self._mapped)


class _Stack(Module):
    """Copies of a layer one upon the other, and a norm behind them.

    Attributes:
        layers: the copies, each with weights of its own that begin as those of the layer.
        norm: is called with what the last one returns; or None.
    """

    def __init__(self, layer: Module, num_layers: int, norm: Module | None):
        number = count(num_layers, "num_layers")
        self.layers = ModuleList(copy.deepcopy(layer) for _ in range(number))
        self.num_layers, self.norm = number, norm

    def _normalised(self, x: Tensor) -> Tensor:
        normalised: Tensor = x if self.norm is None else self.norm(x)
        return normalised


class TransformerEncoder(_Stack):
    """Copies of a `TransformerEncoderLayer` one upon the other, and a norm behind them."""

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None):
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """The sequence `src` after all layers, each of which gets the masks."""
        x = src
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, bool(is_causal))
        return self._normalised(x)


class TransformerDecoder(_Stack):
    """Copies of a `TransformerDecoderLayer` one upon the other, and a norm behind them."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None):
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """The sequence `tgt` after all layers, each of which gets `memory` and the masks."""
        x = tgt
        for layer in self.layers:
            x = layer(
                x,
                memory,
                tgt_mask,
                memory_mask,
                tgt_key_padding_mask,
                memory_key_padding_mask,
                bool(tgt_is_causal),
                memory_is_causal,
            )
        return self._normalised(x)


class Transformer(Module):
    """An encoder of one sequence, and a decoder of another that looks at what it returns.

    Arguments are those of `TransformerEncoderLayer`; `custom_encoder` and `custom_decoder` take the
    place of the encoder and the decoder. Matrices are drawn uniformly within sqrt(6 / (rows +
    columns)).
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ):
        settings = (
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
        )
        self.encoder, self.decoder = custom_encoder, custom_decoder
        if custom_encoder is None:
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias)
            layer: Module = TransformerEncoderLayer(*settings)
            self.encoder = TransformerEncoder(layer, num_encoder_layers, norm)
        if custom_decoder is None:
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias)
            layer = TransformerDecoderLayer(*settings)
            self.decoder = TransformerDecoder(layer, num_decoder_layers, norm)
        matrices = {name: w for name, w in self.state_dict().items() if w.ndim > 1}
        drawn = {name: Tensor.glorot_uniform(*w.shape) for name, w in matrices.items()}
        load_state_dict(self, drawn, strict=False)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """`tgt` after the decoder, which looks at `src` after the encoder."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        decoded: Tensor = self.decoder(
            tgt,
            memory,
            tgt_mask,
            memory_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
            tgt_is_causal,
            memory_is_causal,
        )
        return decoded

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: str | None = None) -> Tensor:
        """What keeps each of `sz` elements from looking at later ones: 0, and minus infinity."""
        return Tensor.full((sz, sz), float("-inf"), device=device).triu(1)
