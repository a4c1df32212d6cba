"""Tensors that go from one simulated GPU to another: `SIM=gfx1100,gfx1100`, four of NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpu import Context, Device, Tensor
from gpu.backends.hcq.memory import QueueAllocator
from gpu.core.errors import Unsupported
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.device import HCQDevice
from gpu.runtime.execute import parts_of, storage
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
            patch.setattr(Device["AMD:1"].allocator, "_strangers", set())
            z, _ = (x + 2).to("AMD:1").realize(), (x + 3).to("AMD:1").realize()
            assert through_host == [a.nbytes, a.nbytes]
            assert caplog.text.count("through the host: there is no link") == 1
        np.testing.assert_allclose((y * z).numpy(), (a * 2 + 1) * (a * 2 + 2), rtol=1e-6)


@pytest.mark.parametrize(("kind", "compiler"), [("AMD", "llvmlite"), ("NV", "nvrtc")])
def test_sums_over_gpus_do_not_wait_on_the_host(
    kind: str, compiler: str, need: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two exchange all they have; four send a large value in pieces around their ring.

    Meanwhile each computes what needs nothing of the others.
    """
    need(compiler)
    devices = (kind, f"{kind}:1") if kind == "AMD" else (kind, *(f"{kind}:{n}" for n in (7, 8, 9)))
    random, waits, through_host = np.random.default_rng(4), [], []
    monkeypatch.setattr(HCQDevice, "_wait", noting(HCQDevice._wait, waits))
    monkeypatch.setattr(QueueAllocator, "copy_out", noting(QueueAllocator.copy_out, through_host))
    with Context(SIM=SIMULATED[kind], DEV=kind):
        for _ in range(2):  # the first time opens copy queues and loads kernels
            a = random.integers(-9, 9, (len(devices), 1 << 16)).astype(np.float32)
            x = Tensor(a).shard(devices, 0).realize()
            for name in devices:
                Device[name].synchronize()
            waits.clear()
            total = (x * 2).sum(0)
            Tensor.realize(total, x * 3, total + 1)
            waited = len(waits), len(through_host)
            through_host.clear()
            assert all(
                (storage(part).copy_out() == a.sum(0) * 2).all() for part in parts_of(total._node)
            )
            np.testing.assert_array_equal((total + 1).numpy(), a.sum(0) * 2 + 1)
            through_host.clear()
    assert waited == (0, 0)


def noting(call: Callable[..., None], into: list[object]) -> Callable[..., None]:
    """A method that notes what it is called for."""

    def noted(self: object, *args: object) -> None:
        into.append(args[-1])
        call(self, *args)

    return noted
