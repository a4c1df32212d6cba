"""Tensors on cards that no kernel driver has, on the models of four chips: `DEV=PCI+NV`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

SCRIPT = """
import numpy as np
from gpu import Tensor
from gpu.runtime.device import Device
from gpu.sim.machine import machines

rng = np.random.default_rng({seed})
for number in range(4):
    name = f"NV:{{number}}" if number else "NV"
    rows, inner, columns = rng.integers(1, 40, 3)
    a = rng.normal(size=(rows, inner)).astype(np.float32)
    b = rng.normal(size=(inner, columns)).astype(np.float32)
    product = (Tensor(a, device=name) @ Tensor(b, device=name)).relu()
    np.testing.assert_allclose(product.numpy(), np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4)
    c = rng.integers(-100, 100, (rows, 3)).astype([np.int32, np.int16, np.int64][rng.integers(3)])
    sums = (Tensor(c, device=name) * 3 - 1).sum(0)
    np.testing.assert_array_equal(sums.numpy(), (c * 3 - 1).sum(0))
    moved = Tensor(a, device=name).to("CPU").numpy()
    np.testing.assert_array_equal(moved, a)
    print(Device[name].describe()["target"])
(machine,) = machines()
assert machine.debug.violations == [], machine.debug.violations
for name in ("NV", "NV:1", "NV:2", "NV:3"):
    Device[name].queues.close()
assert not any(card.chip.wpr2 or card.gpu.channels for card in machine.gpus)
assert machine.debug.violations == [], machine.debug.violations
"""


@pytest.mark.slow
def test_all_chips_compute(need: Callable[[str], None]) -> None:
    """In a process of its own, as a device is opened once in a process, on one machine."""
    need("nvrtc")
    seed = int(np.random.default_rng(16).integers(1 << 30))
    root = Path(__file__).resolve().parents[2]
    environment = {
        **os.environ,
        "SIM": "gh100,ga102,ad102,gb202",
        "DEV": "PCI+NV",
        "PYTHONPATH": str(root),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(seed=seed)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert [line.split(",")[0] for line in told] == ["sm_90", "sm_86", "sm_89", "sm_120"]
    assert all(line.endswith("driver 570.144") for line in told)
