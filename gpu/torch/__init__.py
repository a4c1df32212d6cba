"""`torch.compile(model, backend="gpu")`: models of torch's on this package's devices.

Torch finds `backend` by its entry point; nothing else of the package imports this or torch.
"""

from __future__ import annotations

from gpu.torch.aot import Options, backend
from gpu.torch.table import ROWS

__all__ = ["ROWS", "Options", "backend"]
