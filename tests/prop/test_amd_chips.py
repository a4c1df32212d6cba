"""Random programs, and every operation on every dtype, compiled for each of AMD's chips.

All that is made is read as the driver reads it. What has no model is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pytest

from gpu.backends.amd.chips import chip_name
from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.optable import DOTS, OPS
from gpu.compiler.targets.amd import CHIPS
from gpu.core.dtype import ALL
from gpu.drivers.am.code.object import read_code_object
from gpu.runtime.crosscompile import render
from gpu.runtime.device import toolchain_for
from prop import test_kinds, test_structures
from prop.graphs import computed
from prop.programs import random_graph
from prop.test_structures import Case
from unit.linear_kernels import (
    COMPUTED,
    Kernel,
    edge_pairs,
    edge_values,
    matrix_kernel,
    operations,
    printed,
)

SEEDS = 33


@cache
def programs() -> list[list[Node]]:
    """What is to be computed: random programs, and one of each structure and kind of node."""
    made = []
    for seed in range(SEEDS):
        rng = np.random.default_rng([5016, seed])
        made.append(computed(random_graph(rng, depth=int(rng.integers(3, 31)), max_size=2000)[0]))
    tables = (*test_structures.PROGRAMS.values(), *test_kinds.PROGRAMS.values())
    for seed, program in enumerate(tables):
        case = Case(np.random.default_rng([6000, seed]))
        made.append(computed([program(case)]))
    return [roots for roots in made if roots]


def is_leaf(node: Node) -> bool:
    return node.kind == "buffer"


def sources(chip: str) -> Iterator[str]:
    """The text of all kernels for a chip."""
    renderer = toolchain_for(f"AMD::{chip}")[0]
    # Of the programs each chip has its third, since those of a generation are compiled alike.
    for roots in programs()[[*CHIPS].index(chip) % 3 :: 3]:
        yield from render(roots, is_leaf, renderer)
    for kernel in operation_kernels():
        yield printed(renderer, kernel)


def operation_kernels() -> Iterator[Kernel]:
    """Each operation on each dtype that is computed in, and each cast."""
    for dtype in COMPUTED:
        yield matrix_kernel(dtype, 1, len(edge_pairs(dtype)[0]), operations(dtype))
        count = len(edge_values(dtype))
        k = Kernel(a=(dtype, count), **{f"to_{d.name}": (d, count) for d in COMPUTED})
        i = k.loop(count)
        a = k.load(k.a, i)
        for target in COMPUTED:
            k.store(getattr(k, f"to_{target.name}"), i, k("cast", target, a))
        k.end(i)
        yield k


def test_the_sample_has_every_operation_and_dtype() -> None:
    nodes = [node for roots in programs() for node in toposort(roots)]
    assert {node.dtype for node in nodes} >= {*ALL}
    assert {node.attr[0] for node in nodes if node.kind == "alu"} >= OPS.keys() - DOTS.keys()


@pytest.mark.parametrize("chip", CHIPS)
def test_all_is_code_for_each_chip(chip: str, need: Callable[[str], None]) -> None:
    need("llvmlite")
    _, compiler = toolchain_for(f"AMD::{chip}")
    made: Sequence[bytes] = compiler.compile_many_cached([*sources(chip)])
    assert made
    for lib in made:
        code = read_code_object(lib)
        (kernel,) = code.kernels.values()
        assert chip_name(kernel.descriptor.version) == chip
        assert kernel.descriptor.wave32 == (CHIPS[chip].wave == 32)
        assert kernel.descriptor.group_size <= CHIPS[chip].shared
