"""The backend of `torch.compile`: graphs of AOTAutograd's, in core ATen operations, run here."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from gpu.core.errors import InvalidType, InvalidValue, Unsupported
from gpu.runtime.device import Device
from gpu.torch import rows as _rows
from gpu.torch.program import Program, Refused
from gpu.torch.stages import ATTENTION_BACKWARD, Stage, draw_masks, stages_of, why_torch

assert _rows  # importing it notes the rows
_OPTIONS: Final = ("device", "strict")
# Decompositions of torch's into more than the table needs.
_KEPT: Final = ("_scaled_dot_product_flash_attention_for_cpu",)
_lock: Final = threading.RLock()


class Options(NamedTuple):
    """What `torch.compile(..., options=)` may say.

    Attributes:
        device: that programs run on; the default one without it.
        strict: an operation that has to run in torch for want of a row is an error.
    """

    device: str
    strict: bool

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """Raises InvalidValue for an option that is none, InvalidType for what it cannot be."""
        given = {} if given is None else dict(given)
        if unknown := sorted(set(given) - set(_OPTIONS)):
            raise InvalidValue(
                f"options of the backend gpu are {', '.join(_OPTIONS)}; got {', '.join(unknown)}"
            )
        strict, device = given.get("strict", False), given.get("device")
        if not isinstance(strict, bool):
            raise InvalidType(f"the option strict is True or False, got {strict!r}")
        if device is not None and not isinstance(device, str):
            raise InvalidType(f"the option device is a name as 'CPU:1', got {device!r}")
        return cls(Device.canonicalize(device), strict)


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """How operations become those that the table has: torch's core decompositions, less some."""
    table = dict(core_aten_decompositions())
    for name in _KEPT:
        table.pop(getattr(torch.ops.aten, name).default, None)
    return table


def backend(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """What `torch.compile(model, backend="gpu")` calls with each graph.

    Args:
        graph: of torch's operations.
        inputs: what it is compiled for.
        mode: of torch's own compiler; not looked at.
        options: see `Options`.

    Raises:
        InvalidValue, InvalidType: what `Options.of` raises.
        Unsupported: with ``strict``, an operation that has to run in torch; tensors that are not
            on torch's CPU.
    """
    settings = Options.of(options)
    compiler = functools.partial(_compiled, options=settings)
    made: Callable[..., Any] = aot_autograd(
        fw_compiler=compiler,
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )(graph, inputs)
    return made


def _compiled(module: fx.GraphModule, inputs: Sequence[Any], options: Options) -> Any:
    with _lock:
        return Graph(module, inputs, options)


class Graph:
    """A graph that runs in stages, some here and some in torch.

    Attributes:
        stages: what runs, in order.
        in_torch: operations that run in torch for want of a row, and why.
    """

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Any], options: Options):
        # AOTAutograd looks for it: arguments come in a list, which is emptied to free them early.
        self._boxed_call = True
        draw_masks(module.graph)
        module.graph.eliminate_dead_code()
        self._module, self._options = module, options
        self._placeholders = module.graph.find_nodes(op="placeholder")
        self._constants = {
            node: _constant(module, str(node.target))
            for node in module.graph.find_nodes(op="get_attr")
        }
        (self._output,) = module.graph.find_nodes(op="output")
        self._plan()

    def _plan(self) -> None:
        """Finds stages all of whose programs can be made: what a row refuses runs in torch."""
        refused: dict[fx.Node, str] = {}
        while True:
            why = functools.partial(why_torch, refused=refused)
            stages, reasons = stages_of(self._module.graph, why)
            self.in_torch = {str(node.target): reason for node, reason in reasons.items()}
            if self._options.strict and self.in_torch:
                raise Unsupported(
                    "; ".join(f"{name} would run in torch: {why}" for name, why in self._told())
                    + " (options={'strict': False} has them run there)"
                )
            try:
                self.stages = [self._made(stage, n) for n, stage in enumerate(stages)]
            except Refused as refusal:
                if refusal.node.target is ATTENTION_BACKWARD:
                    raise Unsupported(
                        f"the gradient of attention: {refusal.reason}; torch's would need what "
                        "its own attention keeps (torch.nn.attention.sdpa_kernel(MATH) has "
                        "attention in single operations)"
                    ) from refusal
                refused[refusal.node] = refusal.reason
                continue
            break
        for name, reason in self._told():
            _warn(name, reason)

    def _told(self) -> list[tuple[str, str]]:
        return sorted(self.in_torch.items())

    def _made(self, stage: Stage, number: int) -> Callable[[dict[fx.Node, Any]], None]:
        if stage.is_torchs:
            return functools.partial(_run_in_torch, stage)
        program = Program(stage, self._options.device, f"stage {number} of a graph of torch's")
        program.prepare()
        return program

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Runs the graph."""
        values = dict(zip(self._placeholders, arguments, strict=True))
        arguments.clear()
        values.update(self._constants)
        with torch.no_grad(), _lock:
            for run in self.stages:
                run(values)
        return [_value(each, values) for each in self._output.args[0]]


def _constant(module: fx.GraphModule, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _run_in_torch(stage: Stage, values: dict[fx.Node, Any]) -> None:
    for node in stage.nodes:
        values[node] = _called(node, values)


def _called(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    args = fx.map_arg(node.args, lambda each: _value(each, values))
    kwargs = fx.map_arg(node.kwargs, lambda each: _value(each, values))
    return node.target(*args, **kwargs)


def _value(node: Any, values: dict[fx.Node, Any]) -> Any:
    """What a node stands for; sizes are computed where they are needed."""
    if not isinstance(node, fx.Node):
        return node
    if node not in values:
        values[node] = _called(node, values)
    return values[node]


_warned: Final[set[tuple[str, str]]] = set()


def _warn(name: str, reason: str) -> None:
    """Says once in a process that an operation runs in torch."""
    if (name, reason) in _warned:
        return
    _warned.add((name, reason))
    warnings.warn(
        f"{name} runs in torch, since {reason}; options={{'strict': True}} makes that an error",
        RuntimeWarning,
        stacklevel=2,
    )
