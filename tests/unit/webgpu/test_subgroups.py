"""Values exchanged within subgroups, where it is known which invocations those have."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.backends.webgpu.device import SUBGROUPS_IN_ORDER, WebGPU
from gpu.compiler.ir.linear import Program
from gpu.compiler.lower.int64.pairs import split64
from gpu.compiler.render.wgsl.renderer import WGSLLimits, WGSLRenderer
from gpu.core.errors import Unsupported
from unit.linear_kernels import exchanged_arrays, exchanging


def exchange(sizes: tuple[int, ...]) -> Program:
    """Exchanges in blocks of these sizes, without 64-bit integers."""
    distances = [n for n in (1, 2, 4) if np.prod(sizes) % (2 * n) == 0]
    native = WGSLRenderer(WGSLLimits(), has_f16=False).target.native
    return split64(exchanging(sizes, 8, distances).program(), native)


def test_only_known_subgroups_are_used(webgpu: WebGPU) -> None:
    connection = webgpu.link.connection
    known = any(name in connection.name for name in SUBGROUPS_IN_ORDER)
    found = connection.subgroup
    assert found >= 0 and found & (found - 1) == 0
    assert bool(webgpu.renderer.target.shuffle) == (known and found > 0)
    with pytest.raises(Unsupported, match="exchanges no float32 among 8 threads"):
        WGSLRenderer(WGSLLimits(), has_f16=False).render(exchange((8,)))


@pytest.mark.parametrize("sizes", [(8,), (64,), (3, 8), (16, 4), (2, 2, 8)])
def test_invocations_exchange_values(webgpu: WebGPU, sizes: tuple[int, ...]) -> None:
    """However the threads are arranged: a workgroup is then one row of invocations."""
    if not webgpu.renderer.target.shuffle:
        pytest.skip("nobody knows which invocations are a subgroup of this adapter")
    program, renderer = exchange(sizes), webgpu.renderer
    source = renderer.render(program)
    assert f"@workgroup_size({np.prod(sizes)}, 1, 1)" in source and "enable subgroups;" in source
    lib = webgpu.compiler.compile(source)
    loaded = webgpu.runtime(program.name, lib, renderer.launch_data(program))
    arrays, wanted = exchanged_arrays(program)
    memories = [webgpu.allocator.alloc(array.nbytes) for array in arrays]
    for array, memory in zip(arrays, memories, strict=True):
        webgpu.allocator.copy_in(memory, memoryview(array.view(np.uint8)))
    loaded(*memories)
    for memory, want in zip(memories[len(wanted) :], wanted, strict=True):
        found = np.zeros_like(want)
        webgpu.allocator.copy_out(memoryview(found.view(np.uint8)), memory)
        assert found.tobytes() == want.tobytes()
