"""Operations of one graph as programs of ours: captured once for each form, then replayed."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import fx

from gpu.compiler.ir.dims import Symbol, bound, find_symbols, is_symbolic, rebound, upper_shape
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType
from gpu.core.errors import GpuError
from gpu.runtime.buffer import Buffer
from gpu.runtime.recent import Recent
from gpu.runtime.recipe import compile_settings
from gpu.tensor.callforms import stand_in
from gpu.tensor.capture import Capture
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import Trace, tracing
from gpu.torch import sizes
from gpu.torch.memory import Inputs, Layout, check_place, empty, layout_of, packed, tensor_over
from gpu.torch.sizes import Bound
from gpu.torch.stages import Stage, dropped, is_size
from gpu.torch.table import ROWS, Row
from gpu.torch.types import ours

# Programs for different sizes that are kept, twice that at most.
_KEPT: Final = 32
_PLACES: Final = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})
_DROPPED: Final = Row(dropped, None, False)
# What gives memory of its own in torch though its elements are those of what it takes.
_VIEWS: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "unsqueeze"),
        *("squeeze", "slice", "select", "alias", "detach", "split_with_sizes", "split", "unbind"),
        *("diagonal", "as_strided", "unfold", "_reshape_alias"),
    )
)


class Refused(Exception):
    """A row does not take what it is given: the node, and why."""

    def __init__(self, node: fx.Node, reason: str):
        super().__init__(reason)
        self.node, self.reason = node, reason


class Result(NamedTuple):
    """What torch says of the result of an operation, in our words."""

    dtype: DType
    device: str


class _Form(NamedTuple):
    """A program for inputs of one form.

    Attributes:
        capture: the operations, compiled.
        layouts: of each input, as torch has it; None for row-major.
        shapes: of each input as it lies in memory, of ours.
        gives: the results.
    """

    capture: Capture
    layouts: list[Layout | None]
    shapes: list[tuple[Any, ...]]
    gives: list[_Given]


class _Given(NamedTuple):
    """A result.

    Attributes:
        shape, dtype: as it lies in memory, of ours.
        back: what undoes the order of its axes in memory; None for row-major.
        base: what it is a view of.
    """

    shape: tuple[Any, ...]
    dtype: DType
    back: tuple[int, ...] | None
    base: fx.Node


class _Example(NamedTuple):
    """What a program is compiled for: all of a tensor but its elements."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    def stride(self) -> tuple[Any, ...]:
        """As a tensor's."""
        return self.strides


_Lying: TypeAlias = torch.Tensor | _Example


def _example(node: fx.Node) -> _Example:
    value = node.meta["val"]
    shape, strides = (tuple(map(_hint, each)) for each in (value.shape, value.stride()))
    return _Example(shape, strides, value.dtype, value.device)


def _hint(size: Any) -> Any:
    """What a size is for the inputs that torch compiles for; None where it depends on values."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


class Program:
    """A stage that runs here."""

    def __init__(self, stage: Stage, device: str, name: str):
        self.stage, self.device, self.name = stage, device, name
        self._inputs = Inputs(device)
        self._tensors = [node for node in stage.takes if not is_size(node)]
        self._expressions = [
            tuple(sizes.expression(s) for s in node.meta["val"].shape) for node in self._tensors
        ]
        self._variables = sorted(sizes.variables_in(self._expressions), key=str)
        self._forms: Recent[Any, _Form] = Recent(_KEPT)
        self._by_strides: Recent[Any, _Form] = Recent(_KEPT)  # where no size varies
        self._fixed = False
        self._given_numbers = [n for n in stage.takes if is_size(n)]
        self._results = [
            [sizes.expression(s) for s in node.meta["val"].shape] for node in stage.gives
        ]

    def prepare(self) -> None:
        """Compiles it for what torch compiles it for, where that is known. Raises Refused."""
        examples = [_example(node) for node in self._tensors]
        numbers = {node: _hint(node.meta["val"]) for node in self._given_numbers}
        if None in numbers.values() or any(None in each.shape for each in examples):
            return
        self._form_for(examples, numbers)

    def __call__(self, values: dict[fx.Node, Any]) -> None:
        """Runs it on the values of what it takes, and adds those of what it gives."""
        tensors = [_resolved(values[node]) for node in self._tensors]
        numbers = {node: values[node] for node in self._given_numbers}
        form, known = self._form_for(tensors, numbers)
        lying = [
            tensor if layout is None else packed(tensor, layout)
            for tensor, layout in zip(tensors, form.layouts, strict=True)
        ]
        symbols: dict[str, Symbol] = {}
        for each in known.values():
            if is_symbolic(each):
                find_symbols(each, symbols)
        if symbols:
            lying = [_padded(t, upper_shape(s)) for t, s in zip(lying, form.shapes, strict=True)]
        buffers = self._inputs.buffers(lying)
        found = form.capture.replay_over(buffers, symbols)
        self._give(form, found, buffers, symbols, values)

    def _give(
        self,
        form: _Form,
        found: Sequence[Buffer | None],
        buffers: list[Buffer],
        symbols: dict[str, Symbol],
        values: dict[fx.Node, Any],
    ) -> None:
        lent = set(map(id, buffers))
        owners: dict[int, fx.Node] = {}
        for node, given, buffer in zip(self.stage.gives, form.gives, found, strict=True):
            shape = most = given.shape
            if symbols:
                shape, most = bound(rebound(shape, symbols)), upper_shape(shape)
            if buffer is None:
                tensor = empty(shape, given.dtype)
            else:
                tensor = tensor_over(buffer, shape, most, given.dtype)
                is_shared = owners.setdefault(id(buffer), given.base) is not given.base
                if is_shared or (id(buffer) in lent and given.base in self.stage.nodes):
                    tensor = tensor.clone()
            values[node] = tensor if given.back is None else tensor.permute(given.back)

    # Forms.

    def _form_for(
        self, tensors: Sequence[_Lying], numbers: dict[fx.Node, Any]
    ) -> tuple[_Form, dict[Any, Any]]:
        """The program for these inputs, and torch's variables as ours has them."""
        if not self._variables and not numbers:
            key = compile_settings(), *[tensor.stride() for tensor in tensors]
            known = self._by_strides.get(key)
            if known is None:
                known, _ = self._find(tensors, _layouts(tensors), {}, numbers)
                self._by_strides.keep(key, known)
            return known, {}
        layouts = _layouts(tensors)
        found: dict[Any, int] = {}
        for node, number in numbers.items():
            if _is_variable(symbol := _expression_of(node)):
                found[symbol] = number
        for tensor, shape in zip(tensors, self._expressions, strict=True):
            for size, value in zip(shape, tensor.shape, strict=True):
                if _is_variable(size):
                    found[size] = value
        limits = sizes.bounds(found, self._fixed)
        if not self._fixed:
            try:
                return self._find(tensors, layouts, limits, numbers)
            except (GpuError, Refused) as error:
                reason = error
            self._fixed = True
            form = self._find(tensors, layouts, sizes.bounds(found, True), numbers)
            _note_fixed(self.name, reason)
            return form
        return self._find(tensors, layouts, sizes.bounds(found, True), numbers)

    def _find(
        self,
        tensors: Sequence[_Lying],
        layouts: list[Layout],
        limits: dict[Any, Bound],
        numbers: dict[fx.Node, Any],
    ) -> tuple[_Form, dict[Any, Any]]:
        known = {symbol: sizes.bind(symbol, limit) for symbol, limit in limits.items()}
        loose = tuple(
            number for node, number in numbers.items() if not _is_variable(_expression_of(node))
        )
        bounds = tuple((str(s), limit.key) for s, limit in limits.items())
        key = (tuple(layouts), bounds, loose, compile_settings())
        form = self._forms.get(key)
        if form is None:
            form = self._capture(tensors, layouts, known, numbers)
            self._forms.keep(key, form)
        elif self._variables:
            form = form._replace(shapes=self._shapes(tensors, layouts, known))
        return form, known

    def _shapes(
        self, tensors: Sequence[_Lying], layouts: list[Layout], known: dict[Any, Any]
    ) -> list[tuple[Any, ...]]:
        """The shapes of inputs as they lie."""
        shapes = []
        for tensor, layout, sizes_of in zip(tensors, layouts, self._expressions, strict=True):
            whole = [
                size if isinstance(size, int) else _size(size, known, now)
                for size, now in zip(sizes_of, tensor.shape, strict=True)
            ]
            for axis in layout.repeated:
                whole[axis] = 1
            order = layout.order if layout.is_dense else range(len(whole))
            shapes.append(tuple(whole[axis] for axis in order))
        return shapes

    def _capture(
        self,
        tensors: Sequence[_Lying],
        layouts: list[Layout],
        known: dict[Any, Any],
        numbers: dict[fx.Node, Any],
    ) -> _Form:
        for tensor in tensors:
            check_place(tensor)
        shapes = self._shapes(tensors, layouts, known)
        arguments = [
            Tensor._wrap(G.const(0, shape, ours(tensor.dtype), self.device))
            for tensor, shape in zip(tensors, shapes, strict=True)
        ]
        trace = Trace(self.name)
        stand_ins = [stand_in(tensor, self.name) for tensor in arguments]
        values: dict[fx.Node, Any] = {}
        with tracing(trace):
            for tensor, node, each, layout, whole in zip(
                tensors, self._tensors, stand_ins, layouts, self._expressions, strict=True
            ):
                value = Tensor._wrap(each)
                if not layout.is_plain and layout.is_dense:
                    value = value.permute(_inverse(layout.order))
                    if layout.repeated:
                        value = value.expand(
                            tuple(
                                s if isinstance(s, int) else _size(s, known, now)
                                for s, now in zip(whole, tensor.shape, strict=True)
                            )
                        )
                values[node] = value
            for node, number in numbers.items():
                expression = _expression_of(node)
                values[node] = known.get(expression, number)
            run = _Run(self.device, values)
            for node in self.stage.nodes:
                run.step(node)
            gives, results = [], []
            for node, shape in zip(self.stage.gives, self._results, strict=True):
                value, order = run.tensor(node), _order_of(node, shape)
                value = value if order is None else value.permute(order)
                back = None if order is None else _inverse(order)
                results.append(value)
                gives.append(_Given(value.shape, value.dtype, back, _base(node)))
            capture = Capture(trace, stand_ins, arguments, results)
        unlike = [None if layout.is_plain else layout for layout in layouts]
        return _Form(capture, unlike, shapes, gives)


class _Run:
    """One run of a stage's operations with our tensors."""

    def __init__(self, device: str, values: dict[fx.Node, Any]):
        self.device, self.values = device, values

    def step(self, node: fx.Node) -> None:
        """Computes what a node gives. Raises Refused."""
        if node.target is operator.getitem:
            self.values[node] = self.value(node.args[0])[node.args[1]]
            return
        row = _DROPPED if node.target is dropped else ROWS[node.target]
        args = fx.map_arg(node.args, self.value)
        kwargs = {k: v for k, v in node.kwargs.items() if k not in _PLACES}
        kwargs = {k: fx.map_arg(v, self.value) for k, v in kwargs.items()}
        meta = node.meta["val"]
        single = None if isinstance(meta, (tuple, list)) else meta
        try:
            found = self._called(node, row, args, kwargs, single)
        except GpuError as error:
            raise Refused(node, error.message) from error
        except (TypeError, NotImplementedError) as error:
            raise Refused(node, str(error)) from error
        self.values[node] = _as_torch_says(found, meta)

    def _called(self, node: fx.Node, row: Row, args: Any, kwargs: Any, single: Any) -> Any:
        args, kwargs = (fx.node.map_aggregate(a, _our_dtype) for a in (args, kwargs))
        if row.operands is not None and single is not None:
            wanted = ours(single.dtype) if row.operands == "result" else _common(node)

            def cast(value: Any) -> Any:
                is_other = isinstance(value, Tensor) and value.dtype is not wanted
                return value.cast(wanted) if is_other else value

            args, kwargs = (fx.node.map_aggregate(a, cast) for a in (args, kwargs))
            if _is_number_for_tensor(node):
                first = Tensor.full((), args[0], dtype=wanted, device=self.device, buffer=False)
                args = (first, *args[1:])
        if row.takes_result:
            first = single if single is not None else node.meta["val"][0]
            kwargs = {**kwargs, "result": Result(ours(first.dtype), self.device)}
        return row.function(*args, **kwargs)

    def value(self, node: Any) -> Any:
        """What a node stands for; sizes are computed of those of tensors."""
        if node in self.values:
            return self.values[node]
        if not is_size(node):
            raise AssertionError(f"{node} is of no stage that ran")
        args = fx.map_arg(node.args, self.value)
        if node.target is torch.ops.aten.sym_size.int:
            found = args[0].shape[args[1]]
        elif node.target is torch.ops.aten.sym_numel.default:
            found = math.prod(args[0].shape)
        else:
            found = _number(node, args)
        self.values[node] = found
        return found

    def tensor(self, node: fx.Node) -> Tensor:
        """What a node gives, as a tensor."""
        value = self.values[node]
        assert isinstance(value, Tensor), f"{node} gives {value!r}"
        return value


def _number(node: fx.Node, args: Sequence[Any]) -> Any:
    """A number computed of sizes."""
    meta = node.meta["val"]
    if isinstance(meta, (int, float, bool)):
        return meta
    return node.target(*args)


def _is_number_for_tensor(node: fx.Node) -> bool:
    """Whether the first operand is a number where the overload has a tensor, as in 1 - x."""
    operand = node.args[0] if node.args else None
    schema = getattr(node.target, "_schema", None)
    if isinstance(operand, fx.Node) or not isinstance(operand, (int, float, complex)):
        return False
    return schema is not None and str(schema.arguments[0].type) == "Tensor"


def _our_dtype(value: Any) -> Any:
    return ours(value) if isinstance(value, torch.dtype) else value


def _common(node: fx.Node) -> DType:
    """What torch promotes the operands of a node to."""
    operands = [each.meta["val"] if isinstance(each, fx.Node) else each for each in node.args[:2]]
    return ours(torch.result_type(*operands))


def _as_torch_says(found: Any, meta: Any) -> Any:
    """The results in the dtypes that torch says they have."""
    if isinstance(meta, (tuple, list)):
        pairs = zip(found, meta, strict=False)
        return tuple(each if m is None else _as_torch_says(each, m) for each, m in pairs)
    if isinstance(found, Tensor) and isinstance(meta, torch.Tensor):
        wanted = ours(meta.dtype)
        return found if found.dtype is wanted else found.cast(wanted)
    return found


def _layouts(tensors: Sequence[_Lying]) -> list[Layout]:
    return [layout_of(tensor.shape, tensor.stride()) for tensor in tensors]


def _expression_of(node: fx.Node) -> Any:
    value = node.meta["val"]
    return value.node.expr if isinstance(value, torch.SymInt) else None


def _is_variable(size: Any) -> bool:
    """Whether a size is one of torch's variables, and not a number or computed of them."""
    return bool(getattr(size, "is_Symbol", False))


def _size(expression: Any, known: dict[Any, Any], now: int) -> Any:
    """A size of what is known, or as it is now where that does not tell."""
    if all(symbol in known for symbol in expression.free_symbols):
        return sizes.evaluate(expression, known)
    return now


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    inverse = [0] * len(order)
    for place, axis in enumerate(order):
        inverse[axis] = place
    return tuple(inverse)


def _order_of(node: fx.Node, shape: Sequence[Any]) -> tuple[int, ...] | None:
    """The order of axes in which torch would have a result lie; None for row-major."""
    if not all(isinstance(size, int) for size in shape):
        return None
    strides = node.meta["val"].stride()
    layout = layout_of(shape, strides)
    if layout.is_plain or not layout.is_dense or layout.repeated:
        return None
    return layout.order


def _base(node: fx.Node) -> fx.Node:
    """What a node is a view of, at the end."""
    while node.op == "call_function":
        name = getattr(node.target, "name", lambda: "")().partition(".")[0]
        if node.target is not operator.getitem and name not in _VIEWS:
            return node
        if node.target is operator.getitem and not _is_view(node.args[0]):
            return node
        node = node.args[0]
    return node


def _is_view(node: Any) -> bool:
    return getattr(node.target, "name", lambda: "")().partition(".")[0] in _VIEWS


def _padded(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A row-major tensor in memory for larger sizes, with zeros where there is nothing."""
    if tuple(tensor.shape) == tuple(shape):
        return tensor
    whole = torch.zeros(tuple(shape), dtype=tensor.dtype)
    whole[tuple(slice(size) for size in tensor.shape)] = tensor
    return whole


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose memory has its elements: torch may still have to conjugate or negate."""
    if tensor.is_neg() or tensor.is_conj():
        return tensor.resolve_conj().resolve_neg()
    return tensor


def _note_fixed(name: str, error: Exception) -> None:
    from gpu.core.log import get_logger

    get_logger(__name__).warning(
        "%s is compiled for each size by itself, as torch's symbolic sizes do not fit: %s",
        name, error,
    )  # fmt: skip
