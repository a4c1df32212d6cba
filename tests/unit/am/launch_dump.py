"""One launch as PM4 packets, in text: what docs/drivers/am.md shows.

Run from the root, `PYTHONPATH=.:tests python tests/unit/am/launch_dump.py` prints it anew.
"""

from __future__ import annotations

from gpu.drivers.am.decode.pm4 import decode_pm4
from gpu.drivers.am.encode.dispatch import AmProgram, LoadedKernel
from gpu.drivers.am.encode.pm4_encoder import Pm4Encoder
from gpu.drivers.am.encode.sdma import SdmaEncoder
from gpu.drivers.am.target import Target, Wake
from gpu.hcq.commands import Launch, Signal
from gpu.hcq.nulldevice import open_null
from gpu.hcq.signal import OWN_TIMELINE
from gpu.hcq.symbol import TIMELINE_ADDRESS, TIMELINE_VALUE, GpuVA, Symbol, segment_address
from tools.bench.submission import kernel

CODE = 0x7F40_0000_0000
KERNARG = 0x7F80_0000_1000
TIMELINE = 0x7F80_0001_0000


def launch_dump() -> str:
    """`prog(out, a, b, vals=(7,), grid=(16, 1, 1), block=(64, 1, 1))` on gfx1100."""
    target = Target((11, 0, 0), (6, 0, 0), shader_engines=6, compute_units=96)
    encoder = Pm4Encoder(target, Wake(GpuVA(0x7F80_0002_0008), 5))
    device = open_null({"compute": encoder, "copy": SdmaEncoder(target)})
    program = AmProgram(device, LoadedKernel(kernel(), CODE))
    args = program.arguments(*map(Symbol, ("out", "a", "b")), vals=(7,))
    launch = Launch(program, args, (16, 1, 1), (64, 1, 1))
    encoded = encoder.encode([launch, Signal(OWN_TIMELINE, TIMELINE_VALUE)])
    values = {segment_address(1): KERNARG, TIMELINE_ADDRESS: TIMELINE, TIMELINE_VALUE: 3}
    values |= {patch.symbol: 0 for patch in args.patches}
    ring = encoded.resolve(values)[0]
    return "\n".join(map(str, decode_pm4(ring, target.generation)))


if __name__ == "__main__":
    print(launch_dump())
