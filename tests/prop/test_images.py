"""Random programs of which some values lie in images: after every pass, and on OpenCL."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest

from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.images import plain
from gpu.compiler.ir.graph.rewrite import rewrite
from gpu.core.dtype import dtypes
from gpu.runtime.execute import realize, storage
from prop.graphs import computed, on
from prop.judge import check, expect
from prop.programs import random_graph
from prop.test_opencl_grid import KINDS
from prop.test_passes import STAGES, run_plan
from registered import registered
from unit.cl_kernels import cl_device

_NUMBERS = ("const", "iota", "index")
CHOSEN = ("built", "scheduled-grid", "linear-workers", "linear-wide", "linear-blocks")


def with_images(roots: list[Node], rng: np.random.Generator, halves: bool = True) -> list[Node]:
    """A graph like it, some of whose values are written to images and read from there."""

    def change(node: Node) -> Node | None:
        if node.size % 4 or not node.size or node.kind in _NUMBERS or rng.random() < 0.5:
            return None
        pixels = node.size // 4
        width = int(rng.choice([w for w in range(1, pixels + 1) if pixels % w == 0]))
        make = dtypes.imageh if rng.random() < 0.3 else dtypes.imagef
        return G.cast(plain(G.cast(node, make((pixels // width, width)))), node.dtype)

    return rewrite(roots, lambda node: node.kind == "buffer", change)


@pytest.mark.parametrize("stage", CHOSEN)
def test_stage_keeps_the_meaning_of_images(stage: str) -> None:
    for seed in range(5000, 5010):
        rng = np.random.default_rng(seed)
        roots, inputs = random_graph(rng, depth=int(rng.integers(3, 20)), max_size=400)
        wanted = computed(with_images(computed(roots), rng))
        if wanted:
            got = run_plan(wanted, inputs, STAGES[stage])
            check(got, expect(wanted, inputs, rng), wanted)


@pytest.mark.parametrize("kind", ["CL", *KINDS])
def test_devices_keep_the_meaning_of_images(kind: str, need: Callable[[str], None]) -> None:
    need("opencl")
    own = registered(kind, KINDS[kind]) if kind in KINDS else nullcontext()
    if "Oclgrind" in cl_device().context.info.name:
        pytest.skip("Oclgrind 21.10 computes vectors of bytes and halves of images wrong")
    with own:
        for seed in range(5100, 5104):
            rng = np.random.default_rng(seed)
            roots, inputs = random_graph(rng, depth=int(rng.integers(3, 16)), max_size=1000)
            if wanted := computed(with_images(computed(roots), rng)):
                done = realize(on(kind, wanted, inputs))
                got = [storage(node).copy_out().reshape(node.shape) for node in done]
                check(got, expect(wanted, inputs, rng), wanted)
