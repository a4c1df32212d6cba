"""``python -m am.cdna_products``: products of matrices and 8-bit floats on the default device.

It is a program, as a process opens its device once, on the chip that SIM names then.
"""

from __future__ import annotations

import numpy as np

from gpu import Tensor, dtypes
from gpu.core.dtype import DType

KINDS = (dtypes.float16, dtypes.bfloat16, dtypes.int8, dtypes.fp8e4m3, dtypes.fp8e5m2)


def products_agree_with_numpy(dtype: DType, rng: np.random.Generator) -> None:
    """Of small whole numbers, which each dtype and all sums of them hold exactly."""
    rows, depth, columns = (int(size) for size in rng.integers(33, 80, 3))
    a, b = rng.integers(-1, 2, (rows, depth)), rng.integers(-1, 2, (depth, columns))
    b *= rng.random(b.shape) < 0.1
    found = Tensor(a.astype(np.float32)).cast(dtype) @ Tensor(b.astype(np.float32)).cast(dtype)
    assert np.abs(a @ b).max() <= 8
    np.testing.assert_array_equal(found.cast(dtypes.float32).numpy(), a @ b, str(dtype))


def bytes_are_those_of_the_open_compute_project(dtype: DType, rng: np.random.Generator) -> None:
    """On CDNA3 too, whose own 8-bit floats are others: no kernel uses those."""
    every = np.arange(256, dtype=np.uint8)
    x = (rng.normal(size=300) * 2.0 ** rng.integers(-12, 9, 300)).astype(np.float32)
    results = []
    for device in (Tensor(x).device, "CPU"):
        wide = Tensor(every, device=device).bitcast(dtype).cast(dtypes.float32).numpy()
        narrow = Tensor(x, device=device).cast(dtype).bitcast(dtypes.uint8).numpy()
        results.append((wide, narrow))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs, str(dtype))


def main() -> None:
    rng = np.random.default_rng(21)
    for dtype in KINDS:
        products_agree_with_numpy(dtype, rng)
    for dtype in (dtypes.fp8e4m3, dtypes.fp8e5m2):
        bytes_are_those_of_the_open_compute_project(dtype, rng)
    print(Tensor([1.0]).device, "agrees")


if __name__ == "__main__":
    main()
