"""What a benchmark asks of a library, and how this package answers.

Workloads are written once, in terms of an `Adapter`; each library to measure is one. Values are the
library's own tensors, on which ``+``, ``*`` and ``@`` mean the same everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gpu.tensor.tensor import Tensor

Array: TypeAlias = npt.NDArray[Any]
Value: TypeAlias = Any  # a tensor of the library that is measured
Function: TypeAlias = Callable[..., Value]
Loss: TypeAlias = Callable[["Adapter", Sequence[Value], Value, Value], Value]

EPSILON: Final = 1e-5  # of layer normalisation
# Of Adam: decays of the two moments, and what keeps the division finite.
BETA1: Final = 0.9
BETA2: Final = 0.999
ADAM_EPSILON: Final = 1e-8


class Adapter(ABC):
    """A library that is measured.

    Attributes:
        name: as it is written in ``--against``.
    """

    name: str

    @abstractmethod
    def version(self) -> str:
        """The library's version and what it computes on."""

    @abstractmethod
    def put(self, array: Array) -> Value:
        """A tensor with a copy of `array`, of float32, int8 or int64 labels, in its memory."""

    @abstractmethod
    def get(self, value: Value) -> Array:
        """A computed tensor as float32."""

    def wait(self, value: Value) -> None:  # noqa: B027  (most libraries have nothing to wait for)
        """Returns when `value` has been computed."""

    @abstractmethod
    def compiled(self, function: Function) -> Function:
        """`function` as users of the library make it fast where it is called again and again."""

    @abstractmethod
    def eager(self, function: Function) -> Function:
        """`function` computed call by call, without being captured first."""

    @abstractmethod
    def training(self, loss: Loss, parameters: Sequence[Array], rate: float) -> Function:
        """A step of Adam on `parameters`: takes a batch (x, y), gives the loss before the step."""

    # What follows is written as most libraries have it; the others override it.

    def sum(self, x: Value) -> Value:
        """Of all elements."""
        return x.sum()

    @abstractmethod
    def int8_product(self, a: Value, b: Value) -> Value:
        """The product of matrices of int8, in int32."""

    def softmax(self, x: Value) -> Value:
        """Along the last axis."""
        return x.softmax(-1)

    def layernorm(self, x: Value, weight: Value, bias: Value) -> Value:
        """Along the last axis, with `EPSILON`."""
        return x.layernorm(eps=EPSILON) * weight + bias

    def conv2d(self, x: Value, weight: Value, bias: Value | None, padding: int) -> Value:
        """Of images (n, c, h, w) with filters (o, c, kh, kw), stride 1."""
        return x.conv2d(weight, bias, padding=padding)

    def relu(self, x: Value) -> Value:
        """The larger of x and 0."""
        return x.relu()

    def gelu(self, x: Value) -> Value:
        """By the formula with tanh."""
        return x.gelu()

    def max_pool(self, x: Value) -> Value:
        """The largest of each 2 x 2 elements of images; an odd last row or column is dropped."""
        return x.max_pool2d((2, 2))

    def permute(self, x: Value, axes: Sequence[int]) -> Value:
        """The axes in another order."""
        return x.permute(tuple(axes))

    def contiguous(self, x: Value) -> Value:
        """The same elements, moved in memory to the order of the axes."""
        return x.contiguous()

    def cross_entropy(self, scores: Value, labels: Value) -> Value:
        """The mean of the negative log-likelihoods of integer labels."""
        return scores.cross_entropy(labels)


class GpuAdapter(Adapter):
    """This package, on its default device."""

    name = "gpu"

    def version(self) -> str:
        """The version and the device."""
        from gpu import Device, __version__

        about = Device[Device.DEFAULT].describe()
        return f"{__version__}, {about['device']}, {about['renderer']}, {about['workers']} workers"

    def put(self, array: Array) -> Tensor:
        """On the default device."""
        from gpu import Tensor

        return Tensor(array).realize()

    def get(self, value: Tensor) -> Array:
        """Its values."""
        return np.asarray(value.numpy(), np.float32)

    def wait(self, value: Tensor) -> None:
        """Until the device is idle."""
        from gpu import Device

        Device[value.device].synchronize()

    def compiled(self, function: Function) -> Function:
        """By `gpu.jit`."""
        from gpu import jit

        return jit(self.eager(function))

    def eager(self, function: Function) -> Function:
        """Realized at once."""

        def run(*values: Tensor) -> Tensor:
            result: Tensor = function(*values)
            return result.realize()

        return run

    def training(self, loss: Loss, parameters: Sequence[Array], rate: float) -> Function:
        """One jitted function: the forward pass, the backward pass and `gpu.nn.optim.Adam`."""
        from gpu import Tensor, jit
        from gpu.nn.optim import Adam

        weights = [Tensor(p.copy(), requires_grad=True) for p in parameters]
        optimizer = Adam(weights, lr=rate, b1=BETA1, b2=BETA2, eps=ADAM_EPSILON)

        def step(x: Tensor, y: Tensor) -> Tensor:
            with Tensor.train():
                optimizer.zero_grad()
                result: Tensor = loss(self, weights, x, y)
                result.backward()
                optimizer.step()
                return result.realize()

        return jit(step)

    def int8_product(self, a: Tensor, b: Tensor) -> Tensor:
        """`dot` with a dtype."""
        from gpu import dtypes

        return a.dot(b, dtype=dtypes.int32)
