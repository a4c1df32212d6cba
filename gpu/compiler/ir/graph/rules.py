"""The shape and dtype rule of each kind of graph node.

A rule raises ShapeError or DTypeError where a node's fields do not follow from its operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from gpu.compiler.ir import optable
from gpu.compiler.ir.dims import dimension, has_symbols, is_many, reshape_groups
from gpu.compiler.ir.graph.fft import factor_count
from gpu.compiler.ir.graph.grid import Layout, axes_of, cut_shape, cuts_of
from gpu.compiler.ir.graph.hostcall import HostCall, in_pairs
from gpu.compiler.ir.graph.node import Node, Shape
from gpu.compiler.ir.graph.userkernel import UserKernel, results_of
from gpu.core.dtype import ImageDType, dtypes
from gpu.core.errors import DTypeError, ShapeError


def _misfit(node: Node, rule: str) -> ShapeError:
    sources = ", ".join(f"{s.dtype.name}{list(s.shape)}" for s in node.src)
    result = f"{node.dtype.name}{list(node.shape)}"
    return ShapeError(f"{node.kind}{node.attr or ''} of {sources} to {result}: {rule}")


def _require(condition: bool, node: Node, rule: str) -> None:
    if not condition:
        raise _misfit(node, rule)


def _same_dtype(node: Node) -> None:
    if node.dtype is not node.src[0].dtype:
        raise DTypeError(f"{node.kind} keeps the dtype {node.src[0].dtype}, not {node.dtype}")


# Elements are counted, and memory is addressed, in 64 bits.
MAX_ELEMENTS: Final = (1 << 63) - 1


def _check_leaf(node: Node) -> None:
    _check_size(node)
    for size in node.shape:
        if size < 0:
            raise _misfit(node, "sizes must not be negative")


def _check_size(node: Node) -> None:
    if node.size > MAX_ELEMENTS:
        raise _misfit(node, f"{node.size} elements are more than 2**63 - 1")


def _check_iota(node: Node) -> None:
    _require(len(node.shape) == 1, node, "iota has one dimension")


def _check_index_value(node: Node) -> None:
    fits = not node.shape and node.dtype.is_int and has_symbols(node.attr[0])
    _require(fits, node, "a symbolic size is one integer")


def _check_alu(node: Node) -> None:
    shape = node.shape
    for source in node.src:
        if source.shape != shape:
            raise _misfit(node, "operands must have the result's shape; broadcast them first")
    expected = optable.result_dtype(node.attr[0], tuple([s.dtype for s in node.src]))
    if expected is not node.dtype:
        raise DTypeError(f"{node.attr[0]} gives {expected}, not {node.dtype}")


def _check_cast(node: Node) -> None:
    _require(node.shape == node.src[0].shape, node, "the shape does not change")
    if node.src[0].dtype.is_complex and not node.dtype.is_complex:
        raise DTypeError(f"cast of {node.src[0].dtype} to {node.dtype} would lose a part")


def _check_bitcast(node: Node) -> None:
    _require(node.shape == node.src[0].shape, node, "the shape does not change")
    if node.dtype.is_complex or node.src[0].dtype.is_complex:
        raise DTypeError(f"bitcast of {node.src[0].dtype} to {node.dtype}: as_real shows parts")
    if node.dtype.bits != node.src[0].dtype.bits:
        raise DTypeError(f"bitcast keeps the width; {node.src[0].dtype} to {node.dtype} does not")


def _check_reduce(node: Node) -> None:
    monoid, axes = node.attr
    source = node.src[0]
    _same_dtype(node)
    if source.dtype.kind not in optable.MONOIDS[monoid].domain:
        raise DTypeError(f"reduce {monoid} is not defined for {source.dtype}")
    _require(list(axes) == sorted(set(axes)), node, "axes are sorted and distinct")
    if axes and (axes[0] < 0 or axes[-1] >= len(source.shape)):
        raise _misfit(node, "an axis is out of range")
    expected = tuple([1 if a in axes else d for a, d in enumerate(source.shape)])
    if node.shape != expected:
        raise _misfit(node, f"the result has shape {list(expected)}")


def _check_reshape(node: Node) -> None:
    _same_dtype(node)
    old, new = node.src[0].shape, node.shape
    if not has_symbols(old + new):
        same = math.prod(old) == math.prod(new)
        _require(same, node, "the number of elements must stay the same")
        return
    rule = "the elements must stay the same, and a symbolic axis cannot join one outside of it"
    _require(reshape_groups(old, new) is not None, node, rule)


def _check_expand(node: Node) -> None:
    _same_dtype(node)
    _check_size(node)
    source = node.src[0].shape
    _require(len(source) == len(node.shape), node, "the number of dimensions must stay the same")
    for old, new in zip(source, node.shape, strict=True):
        if old not in (1, new):
            raise _misfit(node, "only dimensions of size 1 can be repeated")


def _check_permute(node: Node) -> None:
    _same_dtype(node)
    (order,) = node.attr
    source = node.src[0].shape
    _require(sorted(order) == list(range(len(source))), node, "the order names each axis once")
    _require(node.shape == tuple([source[a] for a in order]), node, "sizes follow the order")


def _check_slice(node: Node) -> None:
    _same_dtype(node)
    source = node.src[0].shape
    _require(len(node.attr) == len(source) == len(node.shape), node, "one (start, step) per axis")
    for (start, step), size, available in zip(node.attr, node.shape, source, strict=True):
        last = start + (size - 1) * step
        low, high = (start, last) if step > 0 else (last, start)
        inside = size == 0 or (low >= 0 and high < available)
        if step == 0 or not inside:
            raise _misfit(node, f"elements {start}..{last} are not all in 0..{available - 1}")


def _check_pad(node: Node) -> None:
    _same_dtype(node)
    _check_size(node)
    source = node.src[0].shape
    _require(len(node.attr) == len(source) == len(node.shape), node, "one (lo, hi, gap) per axis")
    for (before, after, interior), size, result in zip(node.attr, source, node.shape, strict=True):
        positive = before >= 0 and after >= 0 and interior >= 0
        _require(positive, node, "padding must not be negative")
        inner = size + (max(size - 1, 0) * interior if interior else 0)
        expected = dimension(before + inner + after)
        if result != expected:
            raise _misfit(node, f"the size must be {expected}")


def _check_skew(node: Node) -> None:
    _same_dtype(node)
    axis, tap, stride, dilation = node.attr
    source = node.src[0].shape
    wide, narrow = (source, node.shape) if node.kind == "skew" else (node.shape, source)
    others = [a for a in range(len(source)) if a != axis]
    _require(len(wide) == len(narrow) and axis != tap, node, "two axes of one tensor")
    _require(min(stride, dilation) >= 1, node, "stride and dilation are at least 1")
    _require(all(wide[a] == narrow[a] for a in others), node, "only one axis changes its size")
    last = (narrow[axis] - 1) * stride + (narrow[tap] - 1) * dilation
    _require(last < wide[axis], node, "the last window must lie inside")


def _check_index(node: Node, index: Node, other: Shape) -> None:
    axis = node.attr[0]
    _require(index.dtype.is_int, node, "the index must be of an integer dtype")
    shape = index.shape
    _require(0 <= axis < len(shape) == len(other), node, "as many axes everywhere")
    same = all(a == axis or n == m for a, (n, m) in enumerate(zip(shape, other, strict=True)))
    _require(same, node, "all axes but the indexed one have the same size everywhere")


def _check_gather(node: Node) -> None:
    _same_dtype(node)
    _check_index(node, node.src[1], node.src[0].shape)
    _require(node.shape == node.src[1].shape, node, "the result has the shape of the index")


def _check_scatter(node: Node) -> None:
    _check_same(node)
    source, index, updates = node.src
    _check_index(node, index, source.shape)
    _require(updates.shape == index.shape, node, "updates and index have one shape")
    if updates.dtype is not source.dtype:
        raise DTypeError(f"scatter of {updates.dtype} into {source.dtype}; cast one of them")
    monoid = node.attr[1]
    if monoid != "set" and source.dtype.kind not in optable.MONOIDS[monoid].domain:
        raise DTypeError(f"scatter {monoid} is not defined for {source.dtype}")


def _check_scan(node: Node) -> None:
    _check_same(node)
    monoid, axis = node.attr
    _require(0 <= axis < len(node.shape), node, "the axis is out of range")
    if node.dtype.kind not in optable.MONOIDS[monoid].domain:
        raise DTypeError(f"scan {monoid} is not defined for {node.dtype}")


def _check_cumcount(node: Node) -> None:
    bins, axis = node.attr
    source = node.src[0]
    _require(node.shape == source.shape, node, "the shape does not change")
    _require(0 <= axis < len(node.shape), node, "the axis is out of range")
    _require(bins >= 1 and source.dtype.is_int, node, "indices are integers, bins at least 1")
    if node.dtype is not dtypes.int32:
        raise DTypeError(f"cumcount gives int32, not {node.dtype}")


def _check_reorder(node: Node) -> None:
    _check_same(node)
    index = node.src[1]
    _check_index(node, index, node.shape)
    _require(index.shape == node.shape, node, "each element has an index")


def _check_write(node: Node) -> None:
    _check_same(node)
    source, value = node.src
    if value.dtype is not source.dtype:
        raise DTypeError(f"write of {value.dtype} into {source.dtype}; cast the value")
    _require(len(node.attr) == len(value.shape) == len(source.shape), node, "one range per axis")
    for (start, step), size, available in zip(node.attr, value.shape, source.shape, strict=True):
        inside = size == 0 or (start >= 0 and start + (size - 1) * step < available)
        _require(step >= 1 and inside, node, "the region must lie inside, steps be positive")


def _check_random(node: Node) -> None:
    (state,) = node.src
    fits = state.shape == (4,) and state.dtype is dtypes.uint32 and node.dtype is dtypes.uint32
    _require(fits, node, "the state is uint32[4] and the result uint32")
    # Elements are numbered in row-major order, which only the first size plays no part in.
    inner = [d for d in node.shape if is_many(d)][1:]
    _require(not has_symbols(tuple(inner)), node, "only the first axis can be symbolic")


def _check_multi(node: Node) -> None:
    (layout,), axes = node.attr, axes_of(node.device)
    is_alone = not any(axis.ranks for axis in axes)
    _require(1 + is_alone <= len(node.device), node, "several devices, or several ranks")
    _require(tuple(part.device for part in node.src) == tuple(node.device), node, "each has a part")
    _check_layout(node, layout)
    shapes = {cut_shape(node.shape, cuts_of(layout), axes)}
    alike = {p.shape for p in node.src} == shapes and {p.dtype for p in node.src} == {node.dtype}
    _require(alike, node, "the parts have one dtype and equal shares of the shape")


def _check_layout(node: Node, layout: Layout) -> None:
    cuts, rank = cuts_of(layout), len(node.shape)
    _require(all(c is None or 0 <= c < rank for c in cuts), node, "the axis is out of range")


def _check_part(node: Node) -> None:
    _same_dtype(node)
    (number, layout), source = node.attr, node.src[0]
    _require(node.device == source.device[number], node, "a part is where its device is")
    fits = node.shape == cut_shape(source.shape, cuts_of(layout), axes_of(source.device))
    _require(fits, node, "the shape is an equal share")


def _check_copy(node: Node) -> None:
    _check_same(node)
    for layout in node.attr:
        _check_layout(node, layout)
        axes = axes_of(node.device)
        _require(len(cuts_of(layout)) == len(axes), node, "a cut for each axis of the devices")


def _check_same(node: Node) -> None:
    _same_dtype(node)
    _require(node.shape == node.src[0].shape, node, "the shape does not change")


def _check_loop(node: Node) -> None:
    body, length, _ = node.attr
    _require(len(node.src) == len(body.parameters), node, "an operand for each parameter")
    _require(length > 1, node, "it has two steps or more")
    _require(all(each.size for each in (*node.src, *body.results)), node, "nothing in it is empty")
    sliced = {*body.sliced}
    for source, parameter in zip(node.src, body.parameters, strict=True):
        shape = (length, *parameter.shape) if parameter in sliced else parameter.shape
        fits = source.shape == shape and source.dtype is parameter.dtype
        _require(fits, node, f"{parameter} is not what {source} gives")
    for carry, result in zip(body.carried, body.results, strict=False):
        fits = carry.shape == result.shape and carry.dtype is result.dtype
        _require(fits, node, f"the carry {carry} becomes {result}")


def _check_result(node: Node) -> None:
    value = results_of(node.src[0])[node.attr[0]]
    _require((node.shape, node.dtype) == value, node, f"the {node.src[0].kind} gives {value}")


def _check_kernel(node: Node) -> None:
    kernel: UserKernel = node.attr[0]
    _require(len(node.src) == len(kernel.inputs), node, "an operand for each input")
    for source, each in zip(node.src, kernel.inputs, strict=True):
        fits = source.shape == each.shape and source.dtype is each.dtype
        _require(fits, node, f"{each.name} is not what {source} gives")
    full = all(0 not in each.shape for each in (*kernel.inputs, *kernel.outputs))
    _require(full, node, "nothing in it is empty")


def _check_host(node: Node) -> None:
    call: HostCall = node.attr[0]
    given = [(source.shape, source.dtype) for source in node.src]
    _require(given == [*map(in_pairs, call.inputs)], node, f"{call.name} is of {call.inputs}")
    full = all(0 not in each.shape for each in (*call.inputs, *call.outputs))
    _require(full, node, "nothing in it is empty")


def check_image(node: Node) -> None:
    """The rule of nodes that are images, besides that of their kind."""
    if node.kind not in ("buffer", "cast", "reshape"):
        raise DTypeError(f"{node.kind} does not give an image; cast what it gives to {node.dtype}")
    assert isinstance(node.dtype, ImageDType)
    _require(node.size == node.dtype.size, node, f"an image has {node.dtype.size} elements")
    pixels = (node.dtype.height, node.dtype.width, 4)
    _require(node.kind != "cast" or node.shape == pixels, node, f"it is written as {pixels}")


def _check_parts(node: Node) -> None:
    (source,) = node.src
    pairs, numbers = (node, source) if node.kind == "as_real" else (source, node)
    if not numbers.dtype.is_complex or pairs.dtype is not numbers.dtype.real:
        raise DTypeError(f"{node.kind} of {source.dtype} does not give {node.dtype}")
    _require(pairs.shape == (*numbers.shape, 2), node, "the parts of a number are the last axis")


def _check_interleave(node: Node) -> None:
    _same_dtype(node)
    _, axes = node.attr
    first = node.src[0]
    alike = all(each.shape == first.shape and each.dtype is first.dtype for each in node.src)
    _require(alike, node, "operands have one shape and dtype")
    ordered = list(axes) == sorted(set(axes)) and len(first.shape) + len(axes) == len(node.shape)
    _require(ordered, node, "the new axes are sorted, distinct and all that is new")
    kept = tuple([size for axis, size in enumerate(node.shape) if axis not in axes])
    _require(kept == first.shape, node, "the other axes are those of the operands")
    count = math.prod([node.shape[axis] for axis in axes])
    _require(count == len(node.src), node, "there is an operand for each place of the new axes")


def _check_fft(node: Node) -> None:
    _check_same(node)
    axis, radices, _, _ = node.attr
    pairs, *factors = node.src
    _require(0 <= axis < len(node.shape) - 1, node, "the axis is one before that of the parts")
    _require(node.shape[-1] == 2, node, "the last axis has the parts")
    _require(node.shape[axis] == math.prod(radices), node, "the size is the product of the radices")
    if not node.dtype.is_float:
        raise DTypeError(f"fft of {node.dtype}")
    shapes = [(2, count)] if (count := factor_count(radices)) else []
    fits = [each.shape for each in factors] == shapes
    _require(fits, node, f"the factors have the shapes {shapes}")
    if any(each.dtype is not pairs.dtype for each in factors):
        raise DTypeError(f"fft of {pairs.dtype} with factors of {factors[0].dtype}")


# For each kind, how many operands it has (-1: its attribute decides) and its rule.
RULES: Final[dict[str, tuple[int, Callable[[Node], None]]]] = {
    "buffer": (0, _check_leaf),
    "const": (0, _check_leaf),
    "iota": (0, _check_iota),
    "index": (0, _check_index_value),
    "alu": (-1, _check_alu),
    "cast": (1, _check_cast),
    "bitcast": (1, _check_bitcast),
    "reduce": (1, _check_reduce),
    "reshape": (1, _check_reshape),
    "expand": (1, _check_expand),
    "permute": (1, _check_permute),
    "slice": (1, _check_slice),
    "pad": (1, _check_pad),
    "skew": (1, _check_skew),
    "unskew": (1, _check_skew),
    "gather": (2, _check_gather),
    "scatter": (3, _check_scatter),
    "scan": (1, _check_scan),
    "cumcount": (1, _check_cumcount),
    "reorder": (2, _check_reorder),
    "write": (2, _check_write),
    "random": (1, _check_random),
    "as_real": (1, _check_parts),
    "as_complex": (1, _check_parts),
    "interleave": (-1, _check_interleave),
    "fft": (-1, _check_fft),
    "contiguous": (1, _check_same),
    "detach": (1, _check_same),
    "barrier": (-1, _check_same),
    "custom_grad": (-1, _check_same),
    "copy": (1, _check_copy),
    "multi": (-1, _check_multi),
    "part": (1, _check_part),
    "loop": (-1, _check_loop),
    "kernel": (-1, _check_kernel),
    "host": (-1, _check_host),
    "result": (1, _check_result),
}
