"""The vendor's side of all rows: libcuda, torch and cupy, in a process of its own."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from tools.hw_acceptance.bench import rows
from tools.hw_acceptance.bench.latency import time_cupy, time_libcuda
from tools.hw_acceptance.bench.tensors import DTYPES
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.folder import read_kernel
from tools.hw_acceptance.steplog import StepFailed, Unavailable
from tools.hw_acceptance.vendor.libcuda import Cuda

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_MOST = 200


def theirs(context: Context) -> None:
    """All rows that this machine's packages serve.

    Raises Unavailable without libcuda, StepFailed for errors.
    """
    began = time.perf_counter()
    with Cuda() as cuda:
        major, minor = (cuda.attribute(number) for number in (75, 76))
        sm = 10 * major + minor
        cuda.launch(cuda.load(read_kernel(context.folder, sm, "nothing"), "nothing"), *_ONE, ())
        seconds = {rows.OPEN: time.perf_counter() - began}
        seconds[rows.LAUNCH] = median(time_libcuda(context, cuda)) / 1e9
        seconds[rows.GRAPH] = _time_graph(context, cuda, sm)
        context.log.fact(rows.THEIRS, seconds)
        if times := time_cupy(context):
            seconds[rows.LAUNCH_PYTHON] = median(times) / 1e9
            context.log.fact(rows.THEIRS, seconds)
    if importlib.util.find_spec("torch") is None:
        context.log.fact("torch", "not installed")
        return
    _torch_rows(context, seconds)


def by_torch(context: Context) -> None:
    """The rows of torch alone, where it is built for ROCm, whose GPUs it calls cuda too.

    Raises Unavailable where it is not, or sees no GPU; StepFailed for its errors.
    """
    if importlib.util.find_spec("torch") is None:
        raise Unavailable("torch is not installed")
    import torch

    hip = getattr(torch.version, "hip", None)
    if hip is None or not torch.cuda.is_available():
        raise Unavailable(f"torch {torch.__version__} is not built for ROCm, or sees no GPU")
    context.log.fact("torch", f"{torch.__version__}, HIP {hip}")
    _torch_rows(context, {})


_ONE = ((1, 1, 1), (1, 1, 1))


def _time_graph(context: Context, cuda: Cuda, sm: int) -> float:
    """As many launches as our graph has, captured from a stream."""
    fill = cuda.load(read_kernel(context.folder, sm, "fill"), "fill")
    out, stream = ctypes.c_uint64(cuda.alloc(1 << 12)), ctypes.c_void_p()
    graph, made = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
    cuda.call("cuStreamBeginCapture_v2", stream, _RELAXED)
    for number in range(rows.GRAPH_LENGTH):
        values = (out, ctypes.c_int32(number), ctypes.c_uint32(1))
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(each), ctypes.c_void_p) for each in values)
        )
        cuda.call("cuLaunchKernel", fill, *_ONE[0], *_ONE[1], 0, stream, pointers, None)
    cuda.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    cuda.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_uint64(0))

    def once() -> None:
        cuda.call("cuGraphLaunch", made, stream)
        cuda.call("cuStreamSynchronize", stream)

    return rows.time_calls(once, lambda: None, _MOST)


def _torch_rows(context: Context, seconds: dict[str, float]) -> None:
    import torch

    sizes = rows.Sizes()

    def row(name: str, call: Callable[[], Any]) -> None:
        try:
            seconds[name] = rows.time_calls(call, torch.cuda.synchronize, _MOST)
        except RuntimeError as error:
            raise StepFailed(f"{name}: torch: {error}") from error
        context.log.fact(rows.THEIRS, seconds)

    for shape in sizes.shapes:
        for short, name in DTYPES.items():
            dtype = getattr(torch, name)
            x = torch.randn(shape, device="cuda", dtype=dtype)
            weight, bias = (torch.randn(shape[1], device="cuda", dtype=dtype) for _ in range(2))
            normalize = torch.nn.functional.layer_norm
            row(rows.row("softmax", short, shape), partial(torch.softmax, x, -1))
            row(
                rows.row("layernorm", short, shape),
                partial(normalize, x, weight.shape, weight, bias),
            )
    n = sizes.matrix
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    row(rows.GEMM, lambda: a @ b)
    near, other = (torch.ones(sizes.copied // 4, device="cuda") for _ in range(2))
    row(rows.COPY, lambda: other.copy_(near))
    row(rows.NEGATE, partial(torch.neg, near))
    pinned = torch.ones(sizes.pinned // 4).pin_memory()
    small = near[: sizes.pinned // 4]
    row(rows.TO_DEVICE, lambda: small.copy_(pinned, non_blocking=True))
    row(rows.TO_HOST, lambda: pinned.copy_(small, non_blocking=True))
