"""Products of matrices with 16-bit operands as kernels, their operands, and what they should be."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpu.compiler.ir.kernel import Kernel
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.core.dtype import DType, dtypes

Array = np.ndarray[Any, Any]

_TEXT = """kernel product({out}: {code}[{mn}] global, a: {code}[{mk}] global, {rest})
  loop z serial {batch}
    loop i serial {m}
      loop j serial {n}
        alloc t: f32[] private
        block
          t[] = 0.0:f32
          loop r serial {k}
            t[] add= mul(cast.f32(a[{at_a}]), cast.f32(b[{at_b}]))
        {out}[{size}*z + {n}*i + j] = {value}
"""


class Product(NamedTuple):
    """`batch` products of m x k and k x n, each operand perhaps transposed; with `fused` a bias
    is added and what is below zero left out."""

    m: int
    n: int
    k: int
    dtype: DType = dtypes.float16
    batch: int = 1
    left: bool = False
    right: bool = False
    fused: bool = False

    def kernel(self) -> Kernel:
        """Before any transformation."""
        m, n, k, code = self.m, self.n, self.k, self.dtype.code
        zero = f"0.0:{code}"
        plain = f"cast.{code}(t[])"
        biased = f"max(add({plain}, c[j]), {zero})"
        bias = f", c: {code}[{n}] global" if self.fused else ""
        return parse_kernel(
            _TEXT.format(
                out="out",
                code=code,
                batch=self.batch,
                m=m,
                n=n,
                k=k,
                mn=self.batch * m * n,
                mk=self.batch * m * k,
                size=m * n,
                rest=f"b: {code}[{self.batch * k * n}] global{bias}",
                at_a=f"{m * k}*z + " + (f"{m}*r + i" if self.left else f"{k}*i + r"),
                at_b=f"{k * n}*z + " + (f"{k}*j + r" if self.right else f"{n}*r + j"),
                value=biased if self.fused else plain,
            )
        )

    def arrays(self, seed: int) -> list[Array]:
        """A poisoned output and random operands, flat."""
        rng, kind = np.random.default_rng(seed), self.dtype.np
        sizes = [self.batch * self.m * self.k, self.batch * self.k * self.n]
        sizes += [self.n] if self.fused else []
        given = [rng.standard_normal(size).astype(np.float32).astype(kind) for size in sizes]
        return [np.full(self.batch * self.m * self.n, np.nan).astype(kind), *given]

    def check(self, arrays: list[Array]) -> None:
        """Asserts that the output is the product of the operands, rounded once or twice."""
        out, a, b = (array.astype(np.float64) for array in arrays[:3])
        left = a.reshape(self.batch, *((self.k, self.m) if self.left else (self.m, self.k)))
        right = b.reshape(self.batch, *((self.n, self.k) if self.right else (self.k, self.n)))
        left = left.transpose(0, 2, 1) if self.left else left
        right = right.transpose(0, 2, 1) if self.right else right
        exact = left @ right
        if self.fused:
            exact = np.maximum(exact + arrays[3].astype(np.float64), 0)
        one = 2.0**-7 if self.dtype is dtypes.bfloat16 else 2.0**-10
        scale = np.abs(left) @ np.abs(right) + 4
        error = np.abs(out.reshape(exact.shape) - exact)
        assert (error <= 1.5 * one * np.abs(exact) + 2.0**-20 * scale + one * self.fused * 8).all()


PRODUCTS = (
    Product(64, 64, 64),
    Product(64, 96, 96, dtypes.bfloat16, left=True, fused=True),
    Product(40, 72, 48, right=True, batch=2),
    Product(33, 35, 37, dtypes.bfloat16, fused=True),
    Product(36, 100, 52, left=True, right=True),
    Product(128, 32, 16),
)
"""Sizes that tiles divide and sizes that they do not, copies of 16 bytes, of 8, and single
elements, and every way that operands can lie."""
