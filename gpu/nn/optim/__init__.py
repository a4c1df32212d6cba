"""Optimisers: the public names of `gpu.tensor.nn.optim`."""

from gpu.nn.optim import lr_scheduler
from gpu.tensor.nn.optim import LAMB, LARS, SGD, Adam, AdamW, Muon, Optimizer, OptimizerGroup

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "Adam",
    "AdamW",
    "Muon",
    "Optimizer",
    "OptimizerGroup",
    "lr_scheduler",
]
