"""Arrays of numba and tensors of DEV=CUDA in one process, on one libcuda; run by `gpu.sim.cuda`."""

from __future__ import annotations

import gc

import numpy as np
from numba import cuda

from gpu import Context, Device, Tensor


def drawn(rng: np.random.Generator) -> np.ndarray:
    shape = tuple(int(n) for n in rng.integers(1, 9, rng.integers(1, 4)))
    kind = rng.choice(["bool", "uint8", "int16", "int64", "float16", "float32", "float64"])
    return rng.integers(0, 2, shape).astype(kind)


def exchange(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = drawn(rng)

    theirs = cuda.to_device(values)
    x = Tensor.from_dlpack(theirs, copy=False)
    assert x.device == "CUDA" and x.dtype.np == values.dtype
    np.testing.assert_array_equal((x + x).numpy(), values + values)

    stream = cuda.stream()
    late = cuda.to_device(values, stream=stream)  # whose stream the interface names
    np.testing.assert_array_equal((Tensor.from_dlpack(late) + x).numpy(), values + values)
    np.testing.assert_array_equal(Tensor(late).numpy(), values)

    ours = (Tensor(values) + Tensor(values)).realize()
    array = cuda.as_cuda_array(ours)
    np.testing.assert_array_equal(array.copy_to_host(), values + values)
    place = ours.__cuda_array_interface__["data"][0]
    assert array.__cuda_array_interface__["data"][0] == place
    ours.assign(ours * 0).realize()  # which is not what was lent
    np.testing.assert_array_equal(array.copy_to_host(), values + values)

    np.testing.assert_array_equal(Tensor.from_dlpack(theirs[::2]).numpy(), values[::2])  # strides
    part = Tensor.from_dlpack(theirs[:1])
    np.testing.assert_array_equal(part.numpy(), values[:1])


with Context(DEV="CUDA:PTX"):
    for seed in range(6):
        exchange(seed)
    gc.collect()
    Device["CUDA"].synchronize()
    print("exchanged")
