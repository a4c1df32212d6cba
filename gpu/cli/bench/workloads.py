"""The table of what `gpu bench` runs: each workload's inputs, what it computes, and how much work.

Every workload has a size to measure, and a small one with which tests and `--scale small` see
whether everything works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import numpy as np

from gpu.cli.bench.adapters import Adapter, Array, Loss, Value
from gpu.cli.bench.models import (
    Transformer,
    cnn_loss,
    cnn_parameters,
    images,
    mlp_loss,
    mlp_parameters,
    normal,
)
from gpu.cli.bench.reference import Gradient, NumpyAdapter, cnn_gradient, mlp_gradient, train

Scale = Literal["full", "small"]
RATE: Final = 1e-3  # of Adam, where training is measured
CHECKED_STEPS: Final = 4  # runs before any is timed; of training, their losses are the answer
_SAMPLE: Final = 100_000  # elements of an answer that are compared


class Training(NamedTuple):
    """What is trained: a loss in terms of any library, and its gradient in numpy."""

    loss: Loss
    gradient: Gradient
    parameters: Callable[[], list[Array]]


@dataclass(frozen=True)
class Workload:
    """Something to measure.

    Attributes:
        inputs: makes the arrays it works on, one after another.
        compute: the function to run on them; None where it is training or a whole process.
        training: what to train on them, in its place.
        process: the side of the matrices that a whole process multiplies, in the place of both.
        eager: `compute` is run call by call and not compiled as a whole.
        flops: floating point operations of one run, 0 where they are not what limits it.
        nbytes: bytes that have to be moved to or from memory, 0 where they are not.
        tolerance: the largest difference from numpy's answer, as a share of its largest element.
    """

    inputs: Callable[[], Iterator[Array]]
    compute: Callable[..., Value] | None = None
    training: Training | None = None
    process: int = 0
    eager: bool = False
    flops: int = 0
    nbytes: int = 0
    tolerance: float = 2e-4

    def answer(self) -> Array:
        """What must come out, in numpy: elements that `sample` chooses."""
        if self.process:
            # The mean of a product of two uniform numbers is 1/4.
            return np.array([self.process**3 / 4], np.float32)
        if self.training:
            x, y = self.inputs()
            parameters = self.training.parameters()
            return train(self.training.gradient, parameters, RATE, x, y, CHECKED_STEPS)
        assert self.compute is not None
        return sample(np.asarray(self.compute(NumpyAdapter(), *self.inputs())))


class Entry(NamedTuple):
    """A row of the table."""

    about: str
    full: Workload
    small: Workload

    def at(self, scale: Scale) -> Workload:
        """The workload in one of its sizes."""
        return self.full if scale == "full" else self.small


def sample(answer: Array) -> Array:
    """At most about 100,000 elements, spread evenly."""
    flat = np.asarray(answer, np.float32).reshape(-1)
    return flat[:: max(1, flat.size // _SAMPLE)]


def _normals(*shapes: tuple[int, ...]) -> Callable[[], Iterator[Array]]:
    return lambda: (normal(seed, *shape) for seed, shape in enumerate(shapes, 1))


def _product(batch: tuple[int, ...], m: int, k: int, n: int) -> Workload:
    flops = 2 * int(np.prod(batch)) * m * k * n
    # A vector is used once: reading the matrix is all the work.
    nbytes = 4 * m * k if n == 1 else 0
    inputs = _normals((*batch, m, k), (*batch, k, n))
    return Workload(inputs, lambda library, a, b: a @ b, flops=flops, nbytes=nbytes)


def _int8_product(side: int) -> Workload:
    def inputs() -> Iterator[Array]:
        for seed in (1, 2):
            yield np.random.default_rng(seed).integers(-128, 128, (side, side), np.int8)

    return Workload(inputs, lambda library, a, b: library.int8_product(a, b))


def _elementwise(count: int) -> Workload:
    inputs = _normals((count,), (count,), (count,))
    return Workload(inputs, lambda library, a, b, c: a * b + c, flops=2 * count, nbytes=16 * count)


def _sum(count: int) -> Workload:
    def inputs() -> Iterator[Array]:
        yield np.random.default_rng(1).random(count, np.float32)

    return Workload(inputs, lambda library, x: library.sum(x), flops=count, nbytes=4 * count)


def _softmax(rows: int, columns: int) -> Workload:
    inputs = _normals((rows, columns))
    return Workload(inputs, lambda library, x: library.softmax(x), nbytes=8 * rows * columns)


def _layernorm(rows: int, columns: int) -> Workload:
    def compute(library: Adapter, x: Value, weight: Value, bias: Value) -> Value:
        return library.layernorm(x, weight, bias)

    inputs = _normals((rows, columns), (columns,), (columns,))
    return Workload(inputs, compute, nbytes=8 * rows * columns)


def _convolution(batch: int, channels: int, side: int) -> Workload:
    inputs = _normals((batch, channels, side, side), (channels, channels, 3, 3))
    flops = 2 * batch * channels**2 * side**2 * 9
    return Workload(inputs, lambda library, x, w: library.conv2d(x, w, None, 1), flops=flops)


def _transpose(side: int) -> Workload:
    def compute(library: Adapter, x: Value) -> Value:
        return library.contiguous(library.permute(x, (1, 0)))

    return Workload(_normals((side, side)), compute, nbytes=8 * side**2)


def _transformer(model: Transformer) -> Workload:
    return Workload(model.inputs, model.forward, flops=model.flops, tolerance=1e-3)


def _mlp(batch: int, side: int, hidden: int) -> Workload:
    widths = (side**2, hidden, hidden, 10)
    products = [2 * batch * a * b for a, b in pairwise(widths)]
    training = Training(mlp_loss, mlp_gradient, lambda: mlp_parameters(side, hidden))
    return _trained(training, batch, side, products)


def _cnn(batch: int, side: int, channels: tuple[int, int]) -> Workload:
    first, second = side - 2, (side - 2) // 2 - 2
    products = [
        2 * batch * first**2 * channels[0] * 9,
        2 * batch * second**2 * channels[0] * channels[1] * 9,
        2 * batch * (second // 2) ** 2 * channels[1] * 10,
    ]
    training = Training(cnn_loss, cnn_gradient, lambda: cnn_parameters(side, channels))
    return _trained(training, batch, side, products)


def _trained(training: Training, batch: int, side: int, products: Sequence[int]) -> Workload:
    # Two gradients for each product; the images themselves need none.
    flops = 3 * sum(products) - products[0]
    return Workload(lambda: images(batch, side), training=training, flops=flops, tolerance=2e-3)


def _dispatch(side: int) -> Workload:
    inputs = _normals((side, side), (side, side))
    return Workload(inputs, lambda library, a, b: a + b, eager=True)


def _replay(side: int, layers: int) -> Workload:
    def compute(library: Adapter, x: Value, *weights: Value) -> Value:
        for weight in weights:
            x = library.softmax(x @ weight)
        return x

    return Workload(_normals(*[(side, side)] * (layers + 1)), compute)


def _start(side: int) -> Workload:
    # The sum of random numbers lies within this of what is expected, by several deviations.
    return Workload(lambda: iter(()), process=side, tolerance=5 / side)


_MILLION16: Final = 1 << 24
_MINILM: Final = Transformer(batch=8, words=128, width=384, heads=12, inner=1536, layers=6)
_TINY: Final = Transformer(batch=2, words=6, width=16, heads=2, inner=24, layers=2)

WORKLOADS: Final[dict[str, Entry]] = {
    "gemm256": Entry("256 x 256 matrices", _product((), 256, 256, 256), _product((), 8, 8, 8)),
    "gemm1000": Entry(
        "matrices whose side no vector divides", _product((), 1000, 1000, 1000),
        _product((), 19, 19, 19),
    ),
    "gemm1024": Entry(
        "1024 x 1024 matrices", _product((), 1024, 1024, 1024), _product((), 32, 32, 32)
    ),
    "gemm2048": Entry(
        "2048 x 2048 matrices", _product((), 2048, 2048, 2048), _product((), 48, 48, 48)
    ),
    "gemm1024i8": Entry(
        "1024 x 1024 matrices of int8, in int32", _int8_product(1024), _int8_product(24)
    ),
    "bmm": Entry(
        "96 products of small matrices", _product((96,), 128, 32, 128), _product((3,), 8, 4, 8)
    ),
    "gemv4096": Entry(
        "a 4096 x 4096 matrix and a vector", _product((), 4096, 4096, 1), _product((), 32, 32, 1)
    ),
    "muladd": Entry("a * b + c on 16M elements", _elementwise(_MILLION16), _elementwise(100)),
    "sum": Entry("of 16M elements", _sum(_MILLION16), _sum(1000)),
    "softmax": Entry("of 4096 rows of 4096", _softmax(4096, 4096), _softmax(8, 40)),
    "layernorm": Entry("of 4096 rows of 1024", _layernorm(4096, 1024), _layernorm(8, 40)),
    "conv3x3": Entry("8 images, 64 channels, 56 x 56", _convolution(8, 64, 56),
                     _convolution(2, 3, 6)),
    "transpose": Entry("a 4096 x 4096 matrix", _transpose(4096), _transpose(20)),
    "minilm": Entry("forward pass of MiniLM-L6 on 8 x 128 words", _transformer(_MINILM),
                    _transformer(_TINY)),
    "mlp": Entry("training step, 512 images of 28 x 28", _mlp(512, 28, 512), _mlp(8, 6, 16)),
    "cnn": Entry("training step, 512 images of 28 x 28", _cnn(512, 28, (32, 64)),
                 _cnn(3, 11, (4, 5))),
    "start": Entry("a whole process that multiplies two random matrices", _start(1024),
                   _start(64)),
    "dispatch": Entry("a + b on 32 x 32, computed at once", _dispatch(32), _dispatch(4)),
    "replay": Entry("a compiled function of 8 small layers", _replay(32, 8), _replay(4, 2)),
}  # fmt: skip
