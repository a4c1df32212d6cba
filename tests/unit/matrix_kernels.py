"""Products of matrices with narrow operands as kernels, their operands, and what they should be."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpu.compiler.ir.kernel import Kernel
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.core.dtype import DType, dtypes

Array = np.ndarray[Any, Any]

_TEXT = """kernel product({out}: {result}[{mn}] global, a: {code}[{mk}] global, {rest})
  loop z serial {batch}
    loop i serial {m}
      loop j serial {n}
        alloc t: {sums}[] private
        block
          t[] = {zero}:{sums}
          loop r serial {k}
            t[] add= mul(cast.{sums}(a[{at_a}]), cast.{sums}(b[{at_b}]))
        {out}[{size}*z + {n}*i + j] = {value}
"""


def _drawn(rng: np.random.Generator, size: int, dtype: DType) -> Array:
    """Random numbers: of any size where they are integers, else of about one."""
    if not dtype.is_float:
        kind = dtype.np
        return rng.integers(max(dtype.min, -(1 << 20)), min(dtype.max, 1 << 20), size, kind, True)
    return np.asarray(rng.standard_normal(size).astype(np.float32).astype(dtype.np))


class Product(NamedTuple):
    """`batch` products of m x k and k x n, each operand perhaps transposed; with `fused` a bias
    is added and what is below zero left out. The second one is of `other`, where that is given;
    results of operands of 8 bits are the sums themselves."""

    m: int
    n: int
    k: int
    dtype: DType = dtypes.float16
    batch: int = 1
    left: bool = False
    right: bool = False
    fused: bool = False
    other: DType | None = None

    @property
    def sums(self) -> DType:
        """What is summed in."""
        return dtypes.float32 if self.dtype.is_float else dtypes.int32

    @property
    def result(self) -> DType:
        """Of the output, and of the bias."""
        return self.dtype if self.dtype.itemsize > 1 else self.sums

    def kernel(self) -> Kernel:
        """Before any transformation."""
        m, n, k, code = self.m, self.n, self.k, self.dtype.code
        result = self.result.code
        zero = "0.0" if self.result.is_float else "0"
        plain = "t[]" if self.result is self.sums else f"cast.{result}(t[])"
        biased = f"max(add({plain}, c[j]), {zero}:{result})"
        bias = f", c: {result}[{n}] global" if self.fused else ""
        return parse_kernel(
            _TEXT.format(
                out="out",
                code=code,
                result=result,
                sums=self.sums.code,
                zero=zero,
                batch=self.batch,
                m=m,
                n=n,
                k=k,
                mn=self.batch * m * n,
                mk=self.batch * m * k,
                size=m * n,
                rest=f"b: {(self.other or self.dtype).code}[{self.batch * k * n}] global{bias}",
                at_a=f"{m * k}*z + " + (f"{m}*r + i" if self.left else f"{k}*i + r"),
                at_b=f"{k * n}*z + " + (f"{k}*j + r" if self.right else f"{n}*r + j"),
                value=biased if self.fused else plain,
            )
        )

    def arrays(self, seed: int) -> list[Array]:
        """A poisoned output and random operands, flat."""
        rng = np.random.default_rng(seed)
        sizes = [(self.batch * self.m * self.k, self.dtype)]
        sizes.append((self.batch * self.k * self.n, self.other or self.dtype))
        sizes += [(self.n, self.result)] if self.fused else []
        poison = np.nan if self.result.is_float else dtypes.int32.min
        out = np.full(self.batch * self.m * self.n, poison).astype(self.result.np)
        return [out, *(_drawn(rng, size, dtype) for size, dtype in sizes)]

    def check(self, arrays: list[Array]) -> None:
        """Asserts that the output is the product of the operands, rounded once or twice.

        That of integers, which float64 holds, is exact.
        """
        out, a, b = (array.astype(np.float64) for array in arrays[:3])
        left = a.reshape(self.batch, *((self.k, self.m) if self.left else (self.m, self.k)))
        right = b.reshape(self.batch, *((self.n, self.k) if self.right else (self.k, self.n)))
        left = left.transpose(0, 2, 1) if self.left else left
        right = right.transpose(0, 2, 1) if self.right else right
        exact = left @ right
        if self.fused:
            exact = np.maximum(exact + arrays[3].astype(np.float64), 0)
        if not self.result.is_float:
            assert (out.reshape(exact.shape) == exact).all()
            return
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
