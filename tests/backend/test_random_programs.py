"""Random graphs on a device, against what they mean; each is planned, compiled and launched."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import Device
from gpu.runtime.execute import realize, storage
from prop.graphs import computed, lacks_a_dtype, on
from prop.judge import check, expect
from prop.programs import random_graph

pytestmark = pytest.mark.seeds


# Complex numbers are floats before a device sees them: two batches of them are few.
@pytest.mark.parametrize("batch", range(8))
def test_device_keeps_the_meaning(device: str, batch: int) -> None:
    has_complex, flushes = batch > 5, Device[device].renderer.target.native.flushes
    for seed in range(1000 + batch * 5, 1000 + batch * 5 + 5):
        rng = np.random.default_rng(seed)
        size = {"max_size": 300 if has_complex else 2000, "has_complex": has_complex}
        roots, inputs = random_graph(rng, depth=int(rng.integers(3, 31)), **size)
        wanted = computed(roots)
        if not wanted or lacks_a_dtype(device, wanted):
            continue
        done = realize(on(device, wanted, inputs))
        got = [storage(node).copy_out().reshape(node.shape) for node in done]
        check(got, expect(wanted, inputs, rng, device != "WEBGPU", flushes), wanted)
