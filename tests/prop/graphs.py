"""Random graphs made ready to run on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.graph.text import handles_of, parse_graph, print_graph
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device

Array = np.ndarray[Any, Any]


def computed(roots: list[Node]) -> list[Node]:
    """Roots that take a kernel: those with elements that are not in memory already."""
    return [root for root in roots if root.size and root.kind != "buffer"]


def lacks_a_dtype(device: str, roots: list[Node]) -> bool:
    """Whether the device refuses this program for a dtype in it."""
    lacking = Device[device].renderer.target.native.lacking
    return any(node.dtype.real in lacking for node in toposort(roots))


def on(device: str, roots: list[Node], inputs: dict[Any, Array]) -> list[Node]:
    """The same graph over buffers of `device`."""
    handles = []
    buffers = {node.attr[0]: node for node in toposort(roots) if node.kind == "buffer"}
    for handle in handles_of(roots):
        array = np.ascontiguousarray(inputs[handle])
        handles.append(Buffer(device, array.size, buffers[handle].dtype).copy_in(array))
    text = print_graph(roots)
    assert text.startswith(f"device {roots[0].device}\n")
    return parse_graph(text.replace(roots[0].device, device, 1), handles)
