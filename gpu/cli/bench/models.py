"""The models that benchmarks run and train, for any library, with what they compute from.

All random numbers are numpy's, from fixed seeds, so that every library gets the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from gpu.cli.bench.adapters import Adapter, Array, Value

CLASSES: Final = 10


def normal(seed: int, *shape: int, scale: float = 1.0) -> Array:
    """Normally distributed float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)


class Transformer(NamedTuple):
    """An encoder of sentences, as all-MiniLM-L6-v2 has it in its full size, without embeddings.

    Attributes:
        batch: sentences.
        words: in each of them.
        width: of the vector of a word.
        heads: of attention, which divide `width`.
        inner: the width between the two linear maps of a layer.
        layers: one after another.
    """

    batch: int
    words: int
    width: int
    heads: int
    inner: int
    layers: int

    @property
    def flops(self) -> int:
        """Of all products of matrices."""
        words = self.batch * self.words
        linear = 2 * words * (4 * self.width**2 + 2 * self.width * self.inner)
        return self.layers * (linear + 2 * 2 * words * self.words * self.width)

    def inputs(self) -> Iterator[Array]:
        """The words' vectors, then the parameters of each layer as `_layer` takes them."""
        yield normal(1, self.batch, self.words, self.width)
        for layer in range(self.layers):
            seed = 100 * (layer + 1)
            maps = [(self.width, self.width)] * 4
            maps += [(self.width, self.inner), (self.inner, self.width)]
            for number, shape in enumerate(maps):
                yield normal(seed + number, *shape, scale=1 / math.sqrt(shape[0]))
                yield normal(seed + 10 + number, shape[1], scale=0.02)
            for number in range(2):
                yield 1 + normal(seed + 20 + number, self.width, scale=0.02)
                yield normal(seed + 30 + number, self.width, scale=0.02)

    def forward(self, library: Adapter, x: Value, *parameters: Value) -> Value:
        """The vectors after all layers."""
        each = len(parameters) // self.layers
        for start in range(0, len(parameters), each):
            x = self._layer(library, x, parameters[start : start + each])
        return x

    def _layer(self, library: Adapter, x: Value, parameters: Sequence[Value]) -> Value:
        wq, bq, wk, bk, wv, bv, wo, bo, w1, b1, w2, b2, *norms = parameters
        size = self.width // self.heads

        def split(y: Value) -> Value:
            rows = y.reshape(self.batch, self.words, self.heads, size)
            return library.permute(rows, (0, 2, 1, 3))

        query, key, value = split(x @ wq + bq), split(x @ wk + bk), split(x @ wv + bv)
        scores = (query @ library.permute(key, (0, 1, 3, 2))) * (1 / math.sqrt(size))
        seen = library.permute(library.softmax(scores) @ value, (0, 2, 1, 3))
        attention = seen.reshape(self.batch, self.words, self.width) @ wo + bo
        x = library.layernorm(x + attention, *norms[:2])
        return library.layernorm(x + (library.gelu(x @ w1 + b1) @ w2 + b2), *norms[2:])


def images(batch: int, side: int) -> Iterator[Array]:
    """A batch of images, (batch, 1, side, side), and their labels."""
    yield normal(7, batch, 1, side, side)
    yield np.random.default_rng(8).integers(0, CLASSES, batch, np.int64)


def mlp_parameters(side: int, hidden: int) -> list[Array]:
    """Of a perceptron with two hidden layers, on images of side x side."""
    widths = (side * side, hidden, hidden, CLASSES)
    return [
        parameter
        for number, (inner, outer) in enumerate(pairwise(widths))
        for parameter in (
            normal(number, inner, outer, scale=1 / math.sqrt(inner)),
            np.zeros(outer, np.float32),
        )
    ]


def mlp_loss(library: Adapter, parameters: Sequence[Value], x: Value, y: Value) -> Value:
    """Two hidden layers with relu, then the scores."""
    w1, b1, w2, b2, w3, b3 = parameters
    flat = x.reshape(x.shape[0], w1.shape[0])
    hidden = library.relu(library.relu(flat @ w1 + b1) @ w2 + b2)
    return library.cross_entropy(hidden @ w3 + b3, y)


def cnn_parameters(side: int, channels: tuple[int, int]) -> list[Array]:
    """Of two convolutions, each pooled, and a linear map, on images of side x side."""
    first, second = channels
    pooled = ((side - 2) // 2 - 2) // 2
    return [
        normal(1, first, 1, 3, 3, scale=1 / 3),
        np.zeros(first, np.float32),
        normal(2, second, first, 3, 3, scale=1 / math.sqrt(9 * first)),
        np.zeros(second, np.float32),
        normal(3, second * pooled**2, CLASSES, scale=1 / math.sqrt(second * pooled**2)),
        np.zeros(CLASSES, np.float32),
    ]


def cnn_loss(library: Adapter, parameters: Sequence[Value], x: Value, y: Value) -> Value:
    """Two convolutions with relu and pooling, then the scores."""
    w1, b1, w2, b2, w3, b3 = parameters
    hidden = library.max_pool(library.relu(library.conv2d(x, w1, b1, 0)))
    hidden = library.max_pool(library.relu(library.conv2d(hidden, w2, b2, 0)))
    return library.cross_entropy(hidden.reshape(x.shape[0], w3.shape[0]) @ w3 + b3, y)
