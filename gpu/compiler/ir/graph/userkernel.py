"""Kernels that users write, as plain data: what a `kernel` node of a graph runs.

A kernel is given in the kernel IR, which runs on every device, in languages of devices, or in both.
It is for operands of certain shapes and dtypes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.compiler.ir.graph.body import Value
from gpu.compiler.ir.graph.hostcall import in_pairs
from gpu.compiler.ir.graph.node import Node, Shape
from gpu.core.dtype import DType

LANGUAGES: Final = ("c", "cuda", "hip", "metal", "opencl", "wgsl")
"""What sources may be in, and `Target.language` says."""


class Array(NamedTuple):
    """An operand or a result."""

    name: str
    shape: Shape
    dtype: DType


class Source(NamedTuple):
    """A kernel in a language of devices.

    Attributes:
        language: as `Target.language` has it.
        body: what one thread does: statements, over the names of operands and results.
        header: what stands before the function that is made of them.
    """

    language: str
    body: str
    header: str


class UserKernel(NamedTuple):
    """A kernel; equal ones compute the same.

    Attributes:
        name: what people call it.
        outputs: its results, which are the first parameters.
        inputs: its operands.
        ir: text of the kernel IR; "" where there is none.
        sources: the same in languages, at most one of each.
        grid: how many blocks a launch of a source has.
        block: how many threads a block of a source has.
    """

    name: str
    outputs: tuple[Array, ...]
    inputs: tuple[Array, ...]
    ir: str
    sources: tuple[Source, ...] = ()
    grid: int = 1
    block: int = 1

    def __str__(self) -> str:
        return self.name

    @property
    def languages(self) -> str:
        """The languages it is given in, for people."""
        return ", ".join(source.language for source in self.sources)


def results_of(node: Node) -> list[Value]:
    """The forms of the results of a `loop`, `kernel` or `host` node."""
    if node.kind == "kernel":
        kernel: UserKernel = node.attr[0]
        return [Value(shape, dtype) for _, shape, dtype in kernel.outputs]
    if node.kind == "host":
        return [*map(in_pairs, node.attr[0].outputs)]
    body, length, _ = node.attr
    values: list[Value] = body.values(length)
    return values
