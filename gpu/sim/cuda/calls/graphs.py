"""Graphs by their nodes: section 6.24."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from gpu.sim.cuda import copies
from gpu.sim.cuda.calls.copying import fill_of
from gpu.sim.cuda.calls.launches import prepare
from gpu.sim.cuda.calls.streaming import host_function
from gpu.sim.cuda.codes import INVALID_VALUE, NOT_SUPPORTED, CudaError
from gpu.sim.cuda.copies import End, Fill, described_end
from gpu.sim.cuda.driver import Call
from gpu.sim.cuda.entry import export, get64, put32, put64, put_text
from gpu.sim.cuda.graphs import (
    EMPTY,
    HOST,
    KERNEL,
    MEMCPY,
    MEMSET,
    ExecGraph,
    Graph,
    Node,
    Task,
)
from gpu.sim.cuda.kernels import Configuration, Running
from gpu.sim.cuda.work import Op, Run
from gpu.sim.races import Access

_Z: Final = ctypes.c_size_t
_U: Final = ctypes.c_uint


def _nothing(_: Op) -> bool:
    return True


class _Kernel(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS; version 2 has two fields more, for kernels of libraries."""

    _fields_ = [
        ("function", _Z),
        *((name, _U) for name in ("gx", "gy", "gz", "bx", "by", "bz", "dynamic")),
        ("pointers", _Z),
        ("extra", _Z),
    ]


class _Copy(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = [
        field
        for side in ("src", "dst")
        for field in (
            *((f"{side}_{name}", _Z) for name in ("x", "y", "z", "lod")),
            (f"{side}_type", _U),
            *((f"{side}_{name}", _Z) for name in ("host", "device", "array", "reserved")),
            *((f"{side}_{name}", _Z) for name in ("pitch", "rows")),
        )
    ] + [("width", _Z), ("height", _Z), ("depth", _Z)]


class _Fill(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = [
        *(("target", _Z), ("pitch", _Z), ("value", _U), ("size", _U), ("width", _Z)),
        ("height", _Z),
    ]


def _read(kind: Any, pointer: int) -> Any:
    if not pointer:
        raise CudaError(INVALID_VALUE, "the parameters of the node are NULL")
    return kind.from_address(pointer)


def _kernel_task(call: Call, pointer: int) -> Task:
    given = _read(_Kernel, pointer)
    configuration = Configuration(
        (given.gx, given.gy, given.gz), (given.bx, given.by, given.bz), given.dynamic
    )
    launch = prepare(call, given.function, configuration, given.pointers, given.extra)
    driver, context = call.driver, launch.function.module.context

    def make() -> tuple[Run, list[Access]]:
        return Running(driver, launch), []

    return Task(KERNEL, launch.name, context, make)


def _side(call: Call, given: _Copy, side: str) -> End:
    """One side of a copy. Raises CudaError."""
    pitch, rows = getattr(given, f"{side}_pitch"), getattr(given, f"{side}_rows")
    x, y, z = (getattr(given, f"{side}_{axis}") for axis in "xyz")
    offset = x + pitch * (y + rows * z)
    return described_end(call.driver, given, side, offset, given.width, side)


def _operand(end: End) -> object:
    """What an update must keep of one side: whose memory it is, and of what kind."""
    found = end.allocation
    return (end.is_host, None if found is None or end.is_host else found.context)


def _copy_task(call: Call, pointer: int, context: int) -> Task:
    given, driver = _read(_Copy, pointer), call.driver
    if not given.width or not given.height or not given.depth:
        raise CudaError(INVALID_VALUE, "a copy of no bytes")
    if given.height > 1 or given.depth > 1:
        raise CudaError(NOT_SUPPORTED, "copies of several rows in graphs are not modelled")
    ends = _side(call, given, "dst"), _side(call, given, "src")
    size = given.width
    what = copies.copying(driver, *ends, size)[0]

    def make() -> tuple[Run, list[Access]]:
        return copies.copying(driver, *ends, size)[1:]

    return Task(MEMCPY, what, driver.context(context), make, tuple(map(_operand, ends)))


def _fill_task(call: Call, pointer: int, context: int) -> Task:
    given, driver = _read(_Fill, pointer), call.driver
    if given.size not in (1, 2, 4):
        raise CudaError(INVALID_VALUE, f"elements of {given.size} bytes; they have 1, 2 or 4")
    value = given.value & ((1 << 8 * given.size) - 1)
    found = fill_of(
        *(call, given.target, given.pitch if given.height > 1 else 0, given.size, value),
        *(given.width, given.height),
    )
    if found is None:
        raise CudaError(INVALID_VALUE, "a fill of no bytes")
    end, shape = found

    def make() -> tuple[Run, list[Access]]:
        return copies.filling(driver, end, shape)[1:]

    what = copies.filling(driver, end, shape)[0]
    flat = _is_flat(shape)
    return Task(MEMSET, what, driver.context(context), make, (_operand(end),), flat)


def _is_flat(shape: Fill) -> bool:
    return shape.height == 1


def _host_task(call: Call, pointer: int) -> Task:
    function, data = get64(pointer, "the parameters of the node"), get64(pointer + 8)
    if not function:
        raise CudaError(INVALID_VALUE, "the function is NULL")
    run = host_function(call.driver, function, data)
    return Task(HOST, "host function", None, lambda: (run, []))


def _nodes(call: Call, pointer: int, count: int) -> list[Node]:
    return [
        call.driver.handles.get(get64(pointer + 8 * n, "the nodes"), Node, INVALID_VALUE)
        for n in range(count)
    ]


def _graph(call: Call, handle: int) -> Graph:
    return call.driver.handles.get(handle, Graph, INVALID_VALUE)


def _exec(call: Call, handle: int) -> ExecGraph:
    return call.driver.handles.get(handle, ExecGraph, INVALID_VALUE)


def _add(call: Call, result: int, graph: int, waits: int, count: int, task: Task) -> None:
    if not result:
        raise CudaError(INVALID_VALUE, "where the node goes is NULL")
    node = _graph(call, graph).add(task, _nodes(call, waits, count))
    node.handle = call.driver.handles.new(node)
    put64(result, node.handle)


@export("cuGraphCreate", "pu", needs="driver", since=10000)
def _create(call: Call, result: int, flags: int) -> None:
    if flags or not result:
        raise CudaError(INVALID_VALUE, f"flags {flags:#x} of a graph, or no place for it")
    put64(result, call.driver.handles.new(Graph()))


@export("cuGraphDestroy", "p", needs="driver", since=10000)
def _destroy(call: Call, handle: int) -> None:
    for node in _graph(call, handle).nodes:
        call.driver.handles.drop(node.handle)
    call.driver.handles.drop(handle)


@export("cuGraphAddKernelNode", "pppzp", since=10000)
@export("cuGraphAddKernelNode_v2", "pppzp", since=12000)
def _add_kernel(
    call: Call, result: int, graph: int, waits: int, count: int, parameters: int
) -> None:
    _add(call, result, graph, waits, count, _kernel_task(call, parameters))


@export("cuGraphAddMemcpyNode", "pppzpp", since=10000)
def _add_copy(
    call: Call, result: int, graph: int, waits: int, count: int, parameters: int, context: int
) -> None:
    _add(call, result, graph, waits, count, _copy_task(call, parameters, context))


@export("cuGraphAddMemsetNode", "pppzpp", since=10000)
def _add_fill(
    call: Call, result: int, graph: int, waits: int, count: int, parameters: int, context: int
) -> None:
    _add(call, result, graph, waits, count, _fill_task(call, parameters, context))


@export("cuGraphAddHostNode", "pppzp", since=10000)
def _add_host(call: Call, result: int, graph: int, waits: int, count: int, parameters: int) -> None:
    _add(call, result, graph, waits, count, _host_task(call, parameters))


@export("cuGraphAddEmptyNode", "pppz", needs="driver", since=10000)
def _add_empty(call: Call, result: int, graph: int, waits: int, count: int) -> None:
    task = Task(EMPTY, "empty node", None, lambda: (_nothing, []))
    _add(call, result, graph, waits, count, task)


@export("cuGraphAddDependencies", "pppz", needs="driver", since=10000)
def _connect(call: Call, handle: int, sources: int, targets: int, count: int) -> None:
    graph = _graph(call, handle)
    pairs = zip(_nodes(call, sources, count), _nodes(call, targets, count), strict=True)
    for before, after in pairs:
        graph.connect(before, after)


@export("cuGraphNodeGetType", "pp", needs="driver", since=10000)
def _type(call: Call, handle: int, result: int) -> None:
    put32(result, call.driver.handles.get(handle, Node, INVALID_VALUE).task.kind)


@export("cuGraphGetNodes", "ppp", needs="driver", since=10000)
def _all_nodes(call: Call, handle: int, nodes: int, count: int) -> None:
    found = _graph(call, handle).nodes
    if nodes:
        room = get64(count)
        for number in range(room):
            put64(nodes + 8 * number, found[number].handle if number < len(found) else 0)
        put64(count, min(room, len(found)))
    else:
        put64(count, len(found))


@export("cuGraphInstantiateWithFlags", "ppQ", since=11040)
def _instantiate(call: Call, result: int, graph: int, flags: int) -> None:
    if flags or not result:
        raise CudaError(NOT_SUPPORTED if flags else INVALID_VALUE, f"flags {flags:#x}")
    made = ExecGraph(_graph(call, graph), call.context)
    made.handle = call.driver.handles.new(made)
    put64(result, made.handle)


@export("cuGraphInstantiate", "ppppz", since=10000)
@export("cuGraphInstantiate_v2", "ppppz", since=11000)
def _instantiate_with_log(
    call: Call, result: int, graph: int, node: int, log: int, size: int
) -> None:
    """Before CUDA 12, whose drivers have it still."""
    _instantiate(call, result, graph, 0)
    if node:
        put64(node, 0)
    if log and size:
        put_text(log, size, "")


@export("cuGraphInstantiateWithParams", "ppp", twin="ptsz", since=12000)
def _instantiate_with(call: Call, result: int, graph: int, parameters: int) -> None:
    _instantiate(call, result, graph, get64(parameters, "the parameters"))
    put64(parameters + 16, 0)  # hErrNode_out
    put32(parameters + 24, 0)  # result_out: CUDA_GRAPH_INSTANTIATE_SUCCESS


@export("cuGraphExecDestroy", "p", needs="driver", since=10000)
def _destroy_exec(call: Call, handle: int) -> None:
    _exec(call, handle).end()
    call.driver.handles.drop(handle)


@export("cuGraphUpload", "pp", twin="ptsz", since=11010)
def _upload(call: Call, handle: int, stream: int) -> None:
    _exec(call, handle)
    call.stream(stream)


@export("cuGraphLaunch", "pp", twin="ptsz", since=10000)
def _launch(call: Call, handle: int, stream: int) -> None:
    _exec(call, handle).launch(call.driver.work, call.stream(stream))


def _node(call: Call, handle: int) -> Node:
    return call.driver.handles.get(handle, Node, INVALID_VALUE)


@export("cuGraphExecKernelNodeSetParams", "ppp", since=10010)
@export("cuGraphExecKernelNodeSetParams_v2", "ppp", since=12000)
def _update_kernel(call: Call, handle: int, node: int, parameters: int) -> None:
    _exec(call, handle).update(_node(call, node), _kernel_task(call, parameters))


@export("cuGraphExecMemcpyNodeSetParams", "pppp", since=10020)
def _update_copy(call: Call, handle: int, node: int, parameters: int, context: int) -> None:
    _exec(call, handle).update(_node(call, node), _copy_task(call, parameters, context))


@export("cuGraphExecMemsetNodeSetParams", "pppp", since=10020)
def _update_fill(call: Call, handle: int, node: int, parameters: int, context: int) -> None:
    _exec(call, handle).update(_node(call, node), _fill_task(call, parameters, context))


@export("cuGraphExecHostNodeSetParams", "ppp", since=10020)
def _update_host(call: Call, handle: int, node: int, parameters: int) -> None:
    _exec(call, handle).update(_node(call, node), _host_task(call, parameters))
