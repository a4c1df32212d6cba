"""One launch as packets of an Adreno 630, in text: what docs/drivers/kgsl.md shows.

Run from the root, `PYTHONPATH=.:tests python tests/unit/kgsl/launch_dump.py` prints it anew.
"""

from __future__ import annotations

from gpu.drivers.kgsl.chips import CHIPS
from gpu.drivers.kgsl.copy_code import copy_code
from gpu.drivers.kgsl.decode import decode_a6xx
from gpu.drivers.kgsl.encoder import KgslEncoder
from gpu.drivers.kgsl.program import LoadedKernel
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.commands import Launch, Signal
from gpu.hcq.nulldevice import open_null
from gpu.hcq.program import HCQProgram
from gpu.hcq.signal import OWN_TIMELINE
from gpu.hcq.symbol import TIMELINE_ADDRESS, TIMELINE_VALUE, GpuVA, Symbol, segment_address

CODE = 0x5_0001_0000
KERNARG = 0x5_0002_1000
TIMELINE = 0x5_0003_0000


def launch_dump() -> str:
    """`prog(out, a, b, vals=(7,), grid=(16, 1, 1), block=(64, 1, 1))` on a630."""
    copier = copy_code("a630")
    encoder = KgslEncoder(CHIPS["a630"], LoadedKernel(copier, GpuVA(0x5_0000_0000)), 0)
    device = open_null({"compute": encoder})
    kernel = copier._replace(
        name="k", block=64, full=3, branches=0, double=0, constants=8, parameters=32, immediates=b""
    )
    layout = ArgumentLayout(3, "q")
    loaded = LoadedKernel(kernel, GpuVA(CODE))
    program = HCQProgram(device, "k", None, layout, info=loaded)
    args = program.arguments(*map(Symbol, ("out", "a", "b")), vals=(7,))
    launch = Launch(program, args, (16, 1, 1), (64, 1, 1))
    encoded = encoder.encode([launch, Signal(OWN_TIMELINE, TIMELINE_VALUE)])
    values = {segment_address(1): KERNARG, TIMELINE_ADDRESS: TIMELINE, TIMELINE_VALUE: 3}
    values |= {patch.symbol: 0 for patch in args.patches}
    return "\n".join(map(str, decode_a6xx(encoded.resolve(values)[0])))


if __name__ == "__main__":
    print(launch_dump())
