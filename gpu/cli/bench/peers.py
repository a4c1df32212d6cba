"""The libraries to compare with, as adapters; each is imported when its adapter is made.

That happens in a process of its own (`gpu/cli/bench/child.py`), where only numpy and the library
itself are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

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


class TorchAdapter(Adapter):
    """PyTorch, without `torch.compile`."""

    name = "torch"

    def __init__(self, threads: int):
        """`threads` is how many it may compute with."""
        import torch

        torch.set_num_threads(threads)
        self._torch: Any = torch
        self._functional: Any = torch.nn.functional

    def version(self) -> str:
        """The version and the number of threads."""
        return f"{self._torch.__version__}, {self._torch.get_num_threads()} threads"

    def put(self, array: Array) -> Value:
        """A copy."""
        return self._torch.from_numpy(array.copy())

    def get(self, value: Value) -> Array:
        """Its values."""
        values: Array = value.detach().float().numpy()
        return values

    def compiled(self, function: Function) -> Function:
        """In inference mode."""

        def run(*values: Value) -> Value:
            with self._torch.inference_mode():
                return function(*values)

        return run

    def eager(self, function: Function) -> Function:
        """The same: all of it is eager."""
        return self.compiled(function)

    def training(self, loss: Loss, parameters: Sequence[Array], rate: float) -> Function:
        """Autograd and the fused Adam."""
        torch = self._torch
        weights = [torch.nn.Parameter(torch.from_numpy(p.copy())) for p in parameters]
        optimizer = torch.optim.Adam(
            weights, lr=rate, betas=(BETA1, BETA2), eps=ADAM_EPSILON, fused=True
        )

        def step(x: Value, y: Value) -> Value:
            optimizer.zero_grad(set_to_none=True)
            result = loss(self, weights, x, y)
            result.backward()
            optimizer.step()
            return result.detach()

        return step

    def int8_product(self, a: Value, b: Value) -> Value:
        """`_int_mm`."""
        return self._torch._int_mm(a, b)

    def layernorm(self, x: Value, weight: Value, bias: Value) -> Value:
        """`layer_norm`."""
        return self._functional.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)

    def conv2d(self, x: Value, weight: Value, bias: Value | None, padding: int) -> Value:
        """`conv2d`."""
        return self._functional.conv2d(x, weight, bias, padding=padding)

    def gelu(self, x: Value) -> Value:
        """`gelu`."""
        return self._functional.gelu(x, approximate="tanh")

    def max_pool(self, x: Value) -> Value:
        """`max_pool2d`."""
        return self._functional.max_pool2d(x, 2)

    def cross_entropy(self, scores: Value, labels: Value) -> Value:
        """`cross_entropy`."""
        return self._functional.cross_entropy(scores, labels)


class JaxAdapter(Adapter):
    """JAX on its default device, by `jax.jit`. It chooses the number of threads itself."""

    name = "jax"

    def __init__(self, threads: int):
        """`threads` is not used."""
        import jax
        import jax.numpy

        self._jax: Any = jax
        self._np: Any = jax.numpy

    def version(self) -> str:
        """The version and the device."""
        return f"{self._jax.__version__}, {self._jax.devices()[0]}"

    def put(self, array: Array) -> Value:
        """A copy; labels as int32, which is its widest integer by default."""
        narrow = array.astype(np.int32) if array.dtype == np.int64 else array
        return self._jax.block_until_ready(self._np.asarray(narrow))

    def get(self, value: Value) -> Array:
        """Its values."""
        return np.asarray(value, np.float32)

    def wait(self, value: Value) -> None:
        """`block_until_ready`."""
        self._jax.block_until_ready(value)

    def compiled(self, function: Function) -> Function:
        """By `jax.jit`."""
        jitted: Function = self._jax.jit(function)
        return jitted

    def eager(self, function: Function) -> Function:
        """As it is."""
        return function

    def training(self, loss: Loss, parameters: Sequence[Array], rate: float) -> Function:
        """Adam written out, as JAX has none; all of a step is one jitted function."""
        zeros = [self._np.zeros_like(p) for p in parameters]
        state = ([self._np.asarray(p) for p in parameters], zeros, list(zeros), 0)
        update = self._jax.jit(self._adam(loss, rate))

        def step(x: Value, y: Value) -> Value:
            nonlocal state
            state, result = update(state, x, y)
            return result

        return step

    def _adam(self, loss: Loss, rate: float) -> Callable[..., Any]:
        def loss_of(weights: Sequence[Value], x: Value, y: Value) -> Value:
            return loss(self, weights, x, y)

        gradient = self._jax.value_and_grad(loss_of)

        def update(state: Any, x: Value, y: Value) -> Any:
            weights, means, squares, steps = state
            result, slopes = gradient(weights, x, y)
            steps = steps + 1
            means = [BETA1 * m + (1 - BETA1) * g for m, g in zip(means, slopes, strict=True)]
            squares = [
                BETA2 * s + (1 - BETA2) * g * g for s, g in zip(squares, slopes, strict=True)
            ]
            unbiased1, unbiased2 = 1 - BETA1**steps, 1 - BETA2**steps
            weights = [
                w - rate * (m / unbiased1) / (self._np.sqrt(s / unbiased2) + ADAM_EPSILON)
                for w, m, s in zip(weights, means, squares, strict=True)
            ]
            return (weights, means, squares, steps), result

        return update

    def int8_product(self, a: Value, b: Value) -> Value:
        """`matmul` with a dtype."""
        return self._np.matmul(a, b, preferred_element_type=self._np.int32)

    def softmax(self, x: Value) -> Value:
        """`jax.nn.softmax`."""
        return self._jax.nn.softmax(x, axis=-1)

    def layernorm(self, x: Value, weight: Value, bias: Value) -> Value:
        """Written out."""
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred * self._jax.lax.rsqrt(variance + EPSILON) * weight + bias

    def conv2d(self, x: Value, weight: Value, bias: Value | None, padding: int) -> Value:
        """`conv_general_dilated`."""
        y = self._jax.lax.conv_general_dilated(
            x, weight, (1, 1), [(padding, padding)] * 2, dimension_numbers=("NCHW", "OIHW", "NCHW")
        )
        return y if bias is None else y + bias[:, None, None]

    def relu(self, x: Value) -> Value:
        """`jax.nn.relu`."""
        return self._jax.nn.relu(x)

    def gelu(self, x: Value) -> Value:
        """`jax.nn.gelu`."""
        return self._jax.nn.gelu(x, approximate=True)

    def max_pool(self, x: Value) -> Value:
        """`reduce_window`."""
        lax, window = self._jax.lax, (1, 1, 2, 2)
        return lax.reduce_window(x, -np.inf, lax.max, window, window, "VALID")

    def permute(self, x: Value, axes: Sequence[int]) -> Value:
        """`Array.transpose`."""
        return x.transpose(tuple(axes))

    def contiguous(self, x: Value) -> Value:
        """Results of jitted functions are."""
        return x

    def cross_entropy(self, scores: Value, labels: Value) -> Value:
        """By `log_softmax`."""
        likelihoods = self._jax.nn.log_softmax(scores, axis=-1)
        return -self._np.take_along_axis(likelihoods, labels[:, None], axis=1).mean()


class TinygradAdapter(Adapter):
    """tinygrad on the device that its own environment variables choose, by `TinyJit`."""

    name = "tinygrad"

    def __init__(self, threads: int):
        """`threads` is not used."""
        import tinygrad

        self._tinygrad: Any = tinygrad

    def version(self) -> str:
        """The version, the device and the renderer."""
        from importlib.metadata import version

        device = self._tinygrad.Device.DEFAULT
        renderer = type(self._tinygrad.Device[device].renderer).__name__
        return f"{version('tinygrad')}, {device}, {renderer}"

    def put(self, array: Array) -> Value:
        """Realized; labels as int32."""
        narrow = array.astype(np.int32) if array.dtype == np.int64 else array
        return self._tinygrad.Tensor(narrow).realize()

    def get(self, value: Value) -> Array:
        """Its values."""
        values: Array = value.numpy()
        return values

    def wait(self, value: Value) -> None:
        """Until the device is idle."""
        self._tinygrad.Device[self._tinygrad.Device.DEFAULT].synchronize()

    def compiled(self, function: Function) -> Function:
        """By `TinyJit`."""
        jitted: Function = self._tinygrad.TinyJit(self.eager(function))
        return jitted

    def eager(self, function: Function) -> Function:
        """Realized at once."""
        return lambda *values: function(*values).realize()

    def training(self, loss: Loss, parameters: Sequence[Array], rate: float) -> Function:
        """One jitted function with its own Adam."""
        tinygrad = self._tinygrad
        weights = [tinygrad.Tensor(p.copy()).realize() for p in parameters]
        for weight in weights:
            weight.requires_grad = True
        optimizer = tinygrad.nn.optim.Adam(weights, lr=rate, b1=BETA1, b2=BETA2, eps=ADAM_EPSILON)

        def step(x: Value, y: Value) -> Value:
            with self._training_mode():
                optimizer.zero_grad()
                result = loss(self, weights, x, y).backward()
                return result.realize(*optimizer.schedule_step())

        jitted: Function = tinygrad.TinyJit(step)
        return jitted

    def _training_mode(self) -> Any:
        from tinygrad import helpers

        # Up to version 0.13 this is a method of Tensor.
        train = getattr(self._tinygrad.Tensor, "train", None)
        return train() if train else helpers.Context(TRAINING=1)

    def int8_product(self, a: Value, b: Value) -> Value:
        """`matmul` with a dtype."""
        return a.matmul(b, dtype=self._tinygrad.dtypes.int32)

    def cross_entropy(self, scores: Value, labels: Value) -> Value:
        """By its own name."""
        return scores.sparse_categorical_crossentropy(labels)


PEERS: Final[dict[str, Callable[[int], Adapter]]] = {
    adapter.name: adapter for adapter in (TorchAdapter, JaxAdapter, TinygradAdapter)
}
