"""Neural networks: layers, optimisers and state, by their public names.

>>> from gpu import Tensor, nn
>>> nn.Linear(3, 2)(Tensor.ones(5, 3)).shape
(5, 2)
>>> import gpu.nn.state
>>> callable(gpu.nn.state.safe_load)
True
"""

from __future__ import annotations

from typing import NoReturn

from gpu.nn import optim, state
from gpu.tensor.nn.layers import (
    Conv1d,
    Conv2d,
    ConvTranspose1d,
    ConvTranspose2d,
    Embedding,
    Linear,
)
from gpu.tensor.nn.normalization import (
    BatchNorm,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LayerNorm2d,
    RMSNorm,
)
from gpu.tensor.nn.recurrent import LSTMCell

__all__ = [
    "BatchNorm",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Embedding",
    "GroupNorm",
    "InstanceNorm",
    "LSTMCell",
    "LayerNorm",
    "LayerNorm2d",
    "Linear",
    "RMSNorm",
    "optim",
    "state",
]


def __getattr__(name: str) -> NoReturn:
    if name.startswith("_"):
        raise AttributeError(f"module 'gpu.nn' has no attribute {name!r}")
    from gpu.tensor.tensor import Tensor
    from gpu.tensor.torchnames import missing_from_nn

    raise AttributeError(missing_from_nn(name, dir(Tensor), __all__))
