"""What tests compile for this machine's CPU is compiled, and not run, for other CPUs too.

Wider vectors than those of this machine take other ways through the passes. Of the graphs that
the device CPU computes, every `_ONE_IN`th goes through all passes, with the verifiers on, and LLVM
reads and verifies the text; for every `_CODE_OF`th of these it makes the code as well. Which ones
they are depends on nothing but what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from typing import Final, TypeAlias

import pytest

from gpu import Device
from gpu.compiler.ir.graph import Node
from gpu.compiler.targets import Target
from gpu.core.errors import CompileError, GpuError
from gpu.runtime import compile as compiling
from gpu.runtime.crosscompile import render
from gpu.runtime.device import Toolchain, toolchain_for
from gpu.runtime.recipe import Recipe, graph_key

_ONE_IN: Final = 6
_CODE_OF: Final = 8


IsLeaf: TypeAlias = Callable[[Node], bool]


def compile_elsewhere(cpu: str, roots: Sequence[Node], is_leaf: IsLeaf, with_code: bool) -> None:
    """Compiles a graph for another CPU, if its passes are not those of this machine's."""
    renderer, compiler = _toolchain(cpu)
    if _passes(renderer.target) == _passes(Device["CPU"].renderer.target):
        return
    try:
        for source in render(roots, is_leaf, renderer):
            compiler.compile(source) if with_code else verify_text(source)
    except GpuError as error:
        error.add(f"this was compiled for {cpu}, see {__name__}")
        raise


@contextmanager
def compiled_elsewhere(
    cpus: Sequence[str],
    compile_for: Callable[[str, Sequence[Node], IsLeaf, bool], None] = compile_elsewhere,
) -> Iterator[None]:
    """Within the block, graphs that are compiled for CPU are compiled for `cpus` as well."""
    compile_graph = compiling.compile_graph
    seen: set[int] = set()

    def compile_here_and_there(
        roots: Sequence[Node], leaves: Sequence[Node], is_leaf: IsLeaf
    ) -> Recipe:
        recipe = compile_graph(roots, leaves, is_leaf)
        number = _number(roots, is_leaf)
        is_picked = {node.device for node in roots} == {"CPU"} and not number % _ONE_IN
        if is_picked and number not in seen:
            seen.add(number)
            for cpu in cpus:
                compile_for(cpu, roots, is_leaf, not number // _ONE_IN % _CODE_OF)
        return recipe

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "compile_graph", compile_here_and_there)
        yield


def _number(roots: Sequence[Node], is_leaf: IsLeaf) -> int:
    """A number of what a graph computes, the same in every process."""
    digest = blake2b(repr(graph_key(roots, is_leaf)[0]).encode(), digest_size=6)
    return int.from_bytes(digest.digest(), "little")


@cache
def _toolchain(cpu: str) -> Toolchain:
    return toolchain_for(f"CPU:LLVM:{cpu}")


def _passes(target: Target) -> Target:
    """What the passes know of a target: all but the names of its instructions."""
    return replace(target, features="")


def verify_text(source: str) -> None:
    """Has LLVM read and verify the text of a module. Raises CompileError where it is wrong."""
    import llvmlite.binding as llvm

    try:
        with llvm.create_context() as context, llvm.parse_assembly(source, context) as module:
            module.verify()
    except RuntimeError as error:
        raise CompileError(str(error)) from error
