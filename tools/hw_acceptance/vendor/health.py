"""Whether the vendor's stack computes: a few sums through torch, else cupy."""

from __future__ import annotations

import importlib
import importlib.util

from tools.hw_acceptance.child import Context
from tools.hw_acceptance.steplog import StepFailed, Unavailable

_COUNT = 4096
_EXPECTED = _COUNT * (_COUNT - 1)  # twice the sum of 0 .. _COUNT - 1


def check(context: Context) -> None:
    """Doubles and adds numbers on GPU 0, and compares with what is known.

    Raises Unavailable without torch and cupy, StepFailed where they give no GPU or a wrong sum.
    """
    if importlib.util.find_spec("torch") is not None:
        found = _by_torch(context)
    elif importlib.util.find_spec("cupy") is not None:
        found = _by_cupy(context)
    else:
        raise Unavailable("neither torch nor cupy is installed: the vendor's stack was not asked")
    context.log.check("sum of doubled numbers", found == _EXPECTED, f"{found} of {_EXPECTED}")


def _by_torch(context: Context) -> int:
    import torch

    context.log.fact("torch", torch.__version__)
    if not torch.cuda.is_available():
        raise StepFailed("torch sees no CUDA device")
    context.log.fact("device", torch.cuda.get_device_name(0))
    try:
        numbers = torch.arange(_COUNT, device="cuda") * 2
        return int(numbers.sum().item())
    except RuntimeError as error:
        raise StepFailed(f"torch: {error}") from error


def _by_cupy(context: Context) -> int:
    cupy = importlib.import_module("cupy")

    context.log.fact("cupy", cupy.__version__)
    try:
        return int((cupy.arange(_COUNT) * 2).sum())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise StepFailed(f"cupy: {error}") from error
