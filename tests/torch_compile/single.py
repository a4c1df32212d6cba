"""Graphs of one operation, run by the backend and by torch."""

from __future__ import annotations

import operator
from typing import Any

from torch_compile.drawn import torch  # first: it skips where there is none

# isort: split
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from gpu.torch.aot import Graph, Options
from gpu.torch.table import overload

CORE = frozenset(
    str(which).removeprefix("aten.").removesuffix(".default")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("aten::")
    and torch.Tag.core in (which := overload(name.removeprefix("aten::"))).tags
)
# Numbers of the host's, which no program computes.
SIZES = {"sym_size.int", "sym_stride.int", "sym_numel", "sym_storage_offset", "sym_is_contiguous"}
# What draws runs in torch.
RANDOM = {"rand", "randn", "randperm", "native_dropout"}
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5, torch.float64: 1e-9,
             torch.complex64: 2e-5, torch.complex128: 1e-9}  # fmt: skip


def run(name: str, args: list[Any], kwargs: dict[str, Any], device: str | None = None) -> list[Any]:
    """What the backend gives for an overload, which has to have a row."""
    which, graph, inputs = overload(name), fx.Graph(), []
    mode = FakeTensorMode()

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"x{len(inputs)}")
        inputs.append(value)
        node.meta["val"] = mode.from_tensor(value)
        return node

    given, named = (fx.node.map_aggregate(each, placed) for each in (args, kwargs))
    node = graph.call_function(which, tuple(given), dict(named))
    with mode:
        fakes = [fx.map_arg(each, lambda n: n.meta["val"]) for each in (node.args, node.kwargs)]
        node.meta["val"] = which(*fakes[0], **fakes[1])
    results = [node]
    if isinstance(node.meta["val"], (tuple, list)):
        results = []
        for number, value in enumerate(node.meta["val"]):
            if value is not None:
                results.append(graph.call_function(operator.getitem, (node, number)))
                results[-1].meta["val"] = value
    graph.output(tuple(results))
    module = fx.GraphModule(torch.nn.Module(), graph)
    options = Options.of({"strict": True, "device": device})
    return Graph(module, inputs, options)(list(inputs))


def expected(name: str, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """What torch gives."""
    result = overload(name)(*args, **kwargs)
    if not isinstance(result, (tuple, list)):
        return [result]
    return [each for each in result if each is not None]


def same(got: torch.Tensor, want: torch.Tensor) -> str | None:
    """How a result differs from torch's; None where it does not."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} {list(got.shape)} for {want.dtype} {list(want.shape)}"
    limit = TOLERANCE.get(want.dtype, 0)
    if torch.allclose(got, want, rtol=limit, atol=limit, equal_nan=True):
        return None
    worst = (got.to(torch.complex128) - want.to(torch.complex128)).abs().max()
    return f"differs by {worst:.3g}"
