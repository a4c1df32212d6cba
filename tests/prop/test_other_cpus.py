"""Random programs compiled for CPUs of all widths, and run where this machine can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from gpu.backends.cpu.device import open_device
from gpu.compiler.ir.graph import Node, interpret
from gpu.compiler.targets.cpu import host_target, missing_here
from gpu.core.devspec import DeviceSpec
from gpu.runtime.crosscompile import render
from gpu.runtime.device import toolchain_for
from gpu.runtime.execute import realize, storage
from prop import test_kinds, test_structures
from prop.graphs import computed, on
from prop.judge import check, expect
from prop.programs import random_graph
from prop.symbolic_programs import Array, cut, input_of, random_values, symbolic_graph
from prop.test_structures import Case
from prop.test_symbolic import on as on_symbolic
from prop.test_symbolic import wanted_of
from registered import registered

X86 = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "sapphirerapids")
ARM = ("neoverse-v2", "apple-m1")
# A program is roots, and values for the buffers they read.
Program = Callable[[int], tuple[list[Node], dict[Any, Array]]]


def mixed(seed: int) -> tuple[list[Node], dict[Any, Array]]:
    rng = np.random.default_rng([3000, seed])
    roots, inputs = random_graph(rng, depth=int(rng.integers(3, 31)), max_size=2000)
    return computed(roots), inputs


def from_table(
    table: dict[str, Callable[[Case], Node]], seed: int
) -> tuple[list[Node], dict[Any, Array]]:
    """The program after the other, so that a few seeds have all."""
    case = Case(np.random.default_rng([4000, seed]))
    return computed([list(table.values())[seed % len(table)](case)]), case.inputs


PROGRAMS: dict[str, tuple[Program, int]] = {
    "mixed": (mixed, 8),
    "structures": (partial(from_table, test_structures.PROGRAMS), 14),
    "kinds": (partial(from_table, test_kinds.PROGRAMS), 9),
}


def is_leaf(node: Node) -> bool:
    return node.kind == "buffer"


def compile_for(cpu: str, roots: list[Node]) -> None:
    renderer, compiler = toolchain_for(f"CPU:LLVM:{cpu}")
    for source in render(roots, is_leaf, renderer):
        compiler.compile(source)


@contextmanager
def device_like(cpu: str) -> Iterator[str | None]:
    """A device that is this machine as the CPU named; None where it lacks what that has."""
    if missing_here(host_target(cpu)):
        yield None
        return
    spec = DeviceSpec("CPU", renderer="LLVM", arch=cpu)
    with registered("OTHER", lambda name, _: open_device(name, spec)):
        yield "OTHER"


@pytest.mark.parametrize("cpu", X86)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs_are_right_on_other_cpus(kind: str, cpu: str, need: Callable[[str], None]) -> None:
    need("llvmlite")
    make, count = PROGRAMS[kind]
    with device_like(cpu) as device:
        for seed in range(count):
            roots, inputs = make(seed)
            if not roots:
                continue
            if device is None:
                compile_for(cpu, roots)
                continue
            done = realize(on(device, roots, inputs))
            got = [storage(node).copy_out().reshape(node.shape) for node in done]
            check(got, expect(roots, inputs, np.random.default_rng(seed)), roots)


@pytest.mark.parametrize("cpu", X86)
def test_symbolic_programs_are_right_on_other_cpus(cpu: str, need: Callable[[str], None]) -> None:
    need("llvmlite")
    with device_like(cpu) as device:
        for seed in range(200, 210):
            rng = np.random.default_rng(seed)
            for _ in range(3 if device else 1):
                roots = wanted_of(symbolic_graph(seed, random_values(rng, seed)))
                if device is None:
                    compile_for(cpu, roots)
                    continue
                done = realize(on_symbolic(device, roots))
                got = [cut(storage(node).copy_out(), node.shape) for node in done]
                for have, want in zip(got, interpret(roots, input_of), strict=True):
                    np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("cpu", ARM)
def test_programs_compile_for_arm(cpu: str, need: Callable[[str], None]) -> None:
    need("llvmlite")
    for make, count in PROGRAMS.values():
        for seed in range(count // 2):
            roots, _ = make(seed)
            compile_for(cpu, roots)
    for seed in range(200, 204):
        values = random_values(np.random.default_rng(seed), seed)
        compile_for(cpu, wanted_of(symbolic_graph(seed, values)))
