"""Tensors that go from one simulated AMD GPU to another: `SIM=gfx1100,gfx1100`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpu import Context, Tensor
from gpu.backends.hcq.memory import QueueAllocator
from gpu.core.errors import Unsupported
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.device import HCQDevice
from simulated import SIMULATED


def test_tensors_go_to_peers_directly(
    need: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Through the host only where the GPUs do not reach each other, which the log tells once."""
    need("llvmlite")
    a = np.random.default_rng(3).normal(size=(24, 20)).astype(np.float32)
    through_host: list[int] = []
    copy_out = QueueAllocator.copy_out

    def counted(self: QueueAllocator, data: memoryview, memory: HCQBuffer) -> None:
        through_host.append(data.nbytes)
        copy_out(self, data, memory)

    def refuse(self: HCQBuffer, device: HCQDevice) -> None:
        raise Unsupported("there is no link")

    with Context(SIM=SIMULATED["AMD"], DEV="AMD"), caplog.at_level("INFO"):
        x = (Tensor(a) * 2).realize()
        with monkeypatch.context() as patch:
            patch.setattr(QueueAllocator, "copy_out", counted)
            y = (x + 1).to("AMD:1").realize()
            assert through_host == [] and "through the host" not in caplog.text
            patch.setattr(HCQBuffer, "map_to", refuse)
            z, _ = (x + 2).to("AMD:1").realize(), (x + 3).to("AMD:1").realize()
            assert through_host == [a.nbytes, a.nbytes]
            assert caplog.text.count("through the host: there is no link") == 1
        np.testing.assert_allclose((y * z).numpy(), (a * 2 + 1) * (a * 2 + 2), rtol=1e-6)
