"""What benchmarks must compute, in numpy.

Gradients are derived by hand, so that training is compared with something that shares nothing with
the libraries that are measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from gpu.cli.bench.adapters import (
    ADAM_EPSILON,
    BETA1,
    BETA2,
    EPSILON,
    Adapter,
    Array,
    Function,
    Loss,
    Value,
)

Gradient: TypeAlias = Callable[[Sequence[Array], Array, Array], tuple[float, list[Array]]]


class NumpyAdapter(Adapter):
    """The operations of workloads in numpy; training is `train`."""

    name = "numpy"

    def version(self) -> str:
        """The version."""
        return np.__version__

    def put(self, array: Array) -> Array:
        """The array itself."""
        return array

    def get(self, value: Value) -> Array:
        """The array itself."""
        return np.asarray(value, np.float32)

    def compiled(self, function: Function) -> Function:
        """As it is."""
        return function

    def eager(self, function: Function) -> Function:
        """As it is."""
        return function

    def training(self, loss: Loss, parameters: Sequence[Array], rate: float) -> Function:
        """Not by `loss`: numpy has no gradients."""
        raise NotImplementedError("use train with a gradient derived by hand")

    def sum(self, x: Value) -> Value:
        """In float64."""
        return x.sum(dtype=np.float64)

    def int8_product(self, a: Value, b: Value) -> Value:
        """In float64, which holds it."""
        return a.astype(np.float64) @ b.astype(np.float64)

    def softmax(self, x: Value) -> Value:
        """Along the last axis."""
        powers = np.exp(x - x.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)

    def layernorm(self, x: Value, weight: Value, bias: Value) -> Value:
        """Along the last axis."""
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + EPSILON) * weight + bias

    def conv2d(self, x: Value, weight: Value, bias: Value | None, padding: int) -> Value:
        """As a product of matrices."""
        y = _convolve(_pad(x, padding), weight)
        return y if bias is None else y + bias[:, None, None]

    def relu(self, x: Value) -> Value:
        """The larger of x and 0."""
        return np.maximum(x, 0)

    def gelu(self, x: Value) -> Value:
        """By the formula with tanh."""
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    def permute(self, x: Value, axes: Sequence[int]) -> Value:
        """The axes in another order."""
        return x.transpose(axes)

    def contiguous(self, x: Value) -> Value:
        """In C order."""
        return np.ascontiguousarray(x)


def train(
    gradient: Gradient, parameters: Sequence[Array], rate: float, x: Array, y: Array, steps: int
) -> Array:
    """The losses of some steps of Adam on one batch, each before its step."""
    weights = [p.copy() for p in parameters]
    means = [np.zeros_like(p) for p in weights]
    squares = [np.zeros_like(p) for p in weights]
    losses = []
    for step in range(1, steps + 1):
        loss, slopes = gradient(weights, x, y)
        losses.append(loss)
        for number, slope in enumerate(slopes):
            means[number] += (1 - BETA1) * (slope - means[number])
            squares[number] += (1 - BETA2) * (slope * slope - squares[number])
            scale = np.sqrt(squares[number] / (1 - BETA2**step)) + ADAM_EPSILON
            weights[number] -= rate * means[number] / (1 - BETA1**step) / scale
    return np.array(losses, np.float32)


def mlp_gradient(weights: Sequence[Array], x: Array, y: Array) -> tuple[float, list[Array]]:
    """The loss of `gpu.cli.bench.models.mlp_loss`, and its gradient by each parameter."""
    w1, b1, w2, b2, w3, b3 = weights
    flat = x.reshape(len(x), -1)
    hidden1 = np.maximum(flat @ w1 + b1, 0)
    hidden2 = np.maximum(hidden1 @ w2 + b2, 0)
    loss, d3 = _cross_entropy(hidden2 @ w3 + b3, y)
    d2 = d3 @ w3.T * (hidden2 > 0)
    d1 = d2 @ w2.T * (hidden1 > 0)
    return loss, [flat.T @ d1, d1.sum(0), hidden1.T @ d2, d2.sum(0), hidden2.T @ d3, d3.sum(0)]


def cnn_gradient(weights: Sequence[Array], x: Array, y: Array) -> tuple[float, list[Array]]:
    """The loss of `gpu.cli.bench.models.cnn_loss`, and its gradient by each parameter."""
    w1, b1, w2, b2, w3, b3 = weights
    before1 = _convolve(x, w1) + b1[:, None, None]
    pooled1, chosen1 = _pool(np.maximum(before1, 0))
    before2 = _convolve(pooled1, w2) + b2[:, None, None]
    pooled2, chosen2 = _pool(np.maximum(before2, 0))
    flat = pooled2.reshape(len(x), -1)
    loss, d3 = _cross_entropy(flat @ w3 + b3, y)
    d2 = _unpool((d3 @ w3.T).reshape(pooled2.shape), chosen2, before2)
    # A convolution's gradient by its input is one with the filters turned round.
    turned = w2[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    d1 = _unpool(_convolve(_pad(d2, w2.shape[-1] - 1), turned), chosen1, before1)
    return loss, [
        *(_filter_gradient(x, d1), d1.sum((0, 2, 3))),
        *(_filter_gradient(pooled1, d2), d2.sum((0, 2, 3))),
        *(flat.T @ d3, d3.sum(0)),
    ]


def _cross_entropy(scores: Array, labels: Array) -> tuple[float, Array]:
    """The mean loss and its gradient by the scores."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(shares[rows, labels]).mean()
    shares[rows, labels] -= 1
    return float(loss), shares / np.float32(len(labels))


def _pad(x: Array, padding: int) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))


def _windows(x: Array, size: tuple[int, int]) -> Array:
    """(n, c, h, w) to a matrix with a row (c, kh, kw) for each place (n, y, x)."""
    windows = np.lib.stride_tricks.sliding_window_view(x, size, (2, 3))
    n, c, h, w = windows.shape[:4]
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, c * size[0] * size[1])


def _convolve(x: Array, weight: Array) -> Array:
    outputs, _, kh, kw = weight.shape
    n, h, w = len(x), x.shape[2] - kh + 1, x.shape[3] - kw + 1
    y = _windows(x, (kh, kw)) @ weight.reshape(outputs, -1).T
    return y.reshape(n, h, w, outputs).transpose(0, 3, 1, 2)


def _filter_gradient(x: Array, slope: Array) -> Array:
    outputs, h, w = slope.shape[1:]
    size = (x.shape[2] - h + 1, x.shape[3] - w + 1)
    rows = slope.transpose(1, 0, 2, 3).reshape(outputs, -1)
    return (rows @ _windows(x, size)).reshape(outputs, x.shape[1], *size)


def _pool(x: Array) -> tuple[Array, Array]:
    """The largest of each 2 x 2 elements, and which of the four it is."""
    n, c, h, w = x.shape[0], x.shape[1], x.shape[2] // 2, x.shape[3] // 2
    blocks = x[:, :, : 2 * h, : 2 * w].reshape(n, c, h, 2, w, 2)
    fours = blocks.transpose(0, 1, 2, 4, 3, 5).reshape(n, c, h, w, 4)
    return fours.max(-1), fours.argmax(-1)


def _unpool(slope: Array, chosen: Array, before: Array) -> Array:
    """The gradient by what went into relu and then `_pool`."""
    n, c, h, w = slope.shape
    fours = slope[..., None] * (np.arange(4) == chosen[..., None])
    blocks = fours.reshape(n, c, h, w, 2, 2).transpose(0, 1, 2, 4, 3, 5)
    full = np.zeros_like(before)
    full[:, :, : 2 * h, : 2 * w] = blocks.reshape(n, c, 2 * h, 2 * w)
    return full * (before > 0)
