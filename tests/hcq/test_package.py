"""The package stands on the standard library and numpy, and its document's example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from gpu.core.wait import Waiter
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.conformance import Target
from gpu.hcq.encoder import Encoder
from gpu.hcq.hostcode import HostEncoder
from gpu.hcq.hostdevice import HostMemory, HostPort, HostQueue
from gpu.hcq.nulldevice import NullPort, NullQueue, open_null
from gpu.hcq.ports import DevicePort, MemoryPort, QueuePort
from gpu.hcq.program import HCQProgram
from hcq.host_target import HostTarget
from hcq.toy_pm4 import ToyEncoder

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import sys

for name in ("cffi", "usb", "tqdm", "llvmlite", "ml_dtypes"):
    sys.modules[name] = None
import gpu.hcq
from gpu.hcq import conformance, device, graph, hostdevice, nulldevice, profile, program

loaded = {name.partition(".")[2].partition(".")[0] for name in sys.modules if name[:4] == "gpu."}
assert loaded == {"core", "hcq"}, loaded
"""


def test_imports_little() -> None:
    subprocess.run([sys.executable, "-c", CHILD], check=True, cwd=ROOT)


def test_document() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/hcq.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    for block in blocks:
        exec(compile(block, "docs/hcq.md", "exec"), {})


def test_protocols() -> None:
    """mypy compares each with its protocol."""
    encoders: tuple[type[Encoder], ...] = (HostEncoder, ToyEncoder)
    devices: tuple[type[DevicePort], ...] = (HostPort, NullPort)
    queues: tuple[type[QueuePort], ...] = (HostQueue, NullQueue)
    memory: type[MemoryPort] = HostMemory
    waiters: tuple[type[Waiter], ...] = (HostPort, NullPort)
    target: type[Target] = HostTarget
    assert encoders and devices and queues and memory and waiters and target


def test_null_device_takes_any_encoder() -> None:
    """A launch is encoded once; all further ones publish its 88 dwords with other arguments."""
    encoder = ToyEncoder()
    device = open_null({"compute": encoder, "copy": encoder}, ring_size=1 << 14)
    program = HCQProgram(device, "toy", None, ArgumentLayout(2, ["I"]))
    a, b = (device.allocator.alloc(4096) for _ in range(2))
    for number in range(500):
        program(a, b, vals=(number,), grid=(16, 1, 1), block=(256, 1, 1))
    assert device.channel("compute").timeline.submitted == 500
    device.allocator.copy(a, b)
    device.synchronize()
    device.close()
