"""What tests of lanes share: a CPU's target, a GPU's, and kernels lowered for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpu.backends.python.device import BLOCKS
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear import Program
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.targets import Target

LANES = Target("lanes", BLOCKS.native, "worker", 1, 32, 16)
GPU = replace(BLOCKS, name="gpu", threads=256, shared_bytes=65536, warp=32, shuffle=32)
TRANSPOSE = """kernel transpose(out: f32[{size}] global, x: f32[{size}] global)
  loop i serial {m}
    loop j serial {n}
      out[{n}*i + j] = x[{m}*j + i]
"""


def random(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def result(
    kernel: K.Kernel, target: Target, *inputs: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """What the kernel computes, lowered for the target."""
    out = np.zeros(kernel.params[0].shape, np.float32)
    interpret_linear(linearize(kernel, target), [out, *(x.reshape(-1) for x in inputs)])
    return out


def lowered(kernel: K.Kernel, target: Target = GPU) -> Program:
    """The kernel as the policy makes it for the target; every form on the way is verified."""
    done, _ = schedule(kernel, target)
    verify_kernel(done)
    program = linearize(done, target)
    verify_linear(program)
    return program
