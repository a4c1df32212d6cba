"""A strict model of NVIDIA's libcuda, the driver API of CUDA, on simulated GPUs.

It is written from NVIDIA's "CUDA Driver API" reference, and from the numbers and structures of
cuda.h. `gpu/sim/cuda/library.py:functions` is what a client binds to.
"""

from __future__ import annotations

from gpu.sim.cuda.images import learn
from gpu.sim.cuda.library import RuleBroken, drivers, functions

__all__ = ["RuleBroken", "drivers", "functions", "learn"]
