"""The rows of the table, by what they do; importing this package notes them all."""

from gpu.torch.rows import (
    attention,
    layers,
    lookups,
    pointwise,
    pools,
    products,
    reductions,
    resampling,
    shapes,
)

__all__ = [
    "attention",
    "layers",
    "lookups",
    "pointwise",
    "pools",
    "products",
    "reductions",
    "resampling",
    "shapes",
]
