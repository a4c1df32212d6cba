"""From open to QMD with the numbers of one launch on a simulated H200, for docs/drivers/nv.md.

Run from the root, `PYTHONPATH=.:tests python tests/nv/walk.py` puts them into the document anew. In
a process where another GPU is open addresses would be others.
"""

from __future__ import annotations

import io
import json
import re
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from gpu.autogen.nv import rm, uvm
from gpu.core.trace import Recorder, parse_trace
from gpu.core.traceevent import Ioctl
from gpu.drivers.nv.channel.channel import ENTRY_SIZE
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.encode.cbank0 import bank_layout
from gpu.drivers.nv.encode.methods.compute import SEND_PCAS_A
from gpu.drivers.nv.encode.pushbuf import GpEntry
from gpu.drivers.nv.encode.qmd import decode_qmd
from gpu.drivers.nv.encode.qmd_layout import qmd_layout
from gpu.drivers.nv.fault.inflight import launches_of
from gpu.drivers.nv.fault.pushbuf_text import (
    bound_classes,
    decode_gp_entries,
    decode_pushbuffer,
    written_methods,
)
from gpu.hcq.conformance.kit import WORDS, numbers, upload
from gpu.sim.nv.world import NvSimWorld
from gpu.transport import nvidia as nodes
from gpu.transport.ioctl import describe
from gpu.transport.traced import TracedOs
from gpu.transport.world import World
from nv.kernels import LAYOUTS, WRITTEN, PythonKernels, cubin

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs/drivers/nv.md"
BLOCK: Final = re.compile(r"<!-- dump: (?P<name>[\w ]+) -->\n```text\n(?P<text>.*?)```", re.DOTALL)
GRID: Final = (2, 1, 1)
BLOCK_SIZE: Final = (32, 1, 1)


def dumps() -> dict[str, str]:
    """All blocks of the document, by name."""
    trace = io.StringIO()
    machine = NvSimWorld(seed=1, chip="gh100", executor=PythonKernels())
    with RmDevice.open(World(TracedOs(machine.os, Recorder(trace)), machine.waiter)) as device:
        opening = _steps(device)
        calls = _calls(trace.getvalue())
        add = device.load(cubin(90, "add"), "add", LAYOUTS["add"], written=WRITTEN)
        out, a, b = (upload(device, numbers(n)) for n in range(3))
        for _ in range(2):  # the second has nothing to wait for
            add(out, a, b, vals=(WORDS,), grid=GRID, block=BLOCK_SIZE)
        device.synchronize()
        return {"open": opening, "calls": calls, **_launch(device)}


def _steps(device: RmDevice) -> str:
    """Each step of the opening with its calls; the same call several times is counted."""
    lines = []
    for number, step in enumerate(device.port.gpu.report.steps, 1):
        lines.append(f"{number:2} {step.step.name}: {step.step.about}")
        calls = Counter(f"{call.operation} of {call.subject}" for call in step.calls)
        for call, times in calls.items():
            text = re.sub(r"client/(device/)?| \[\w+ \(0x\w+\), handle 0x\w+\]", "", call)
            lines.append(f"     {text}" + (f", {times} times" if times > 1 else ""))
    return "\n".join(lines)


def _calls(trace: str) -> str:
    """Which ioctls opening took, and how often."""
    events = parse_trace("opening", trace.encode())
    found = Counter((e.path, e.request) for e in events if isinstance(e, Ioctl))
    return "\n".join(
        f"{times:3} x {path:17} {describe(request):42} {_name(path, request)}"
        for (path, request), times in found.items()
    )


def _name(path: str, request: int) -> str:
    if path == nodes.UVM:
        return uvm.uvm_name(request)
    number = request & 0xFF
    return next(n for n, value in vars(rm).items() if n.startswith("NV_ESC_") and value == number)


def _launch(device: RmDevice) -> dict[str, str]:
    """The last entry of the ring, and what it leads to."""
    gpu, read = device.port.gpu, device.port.gpu.memory.extents.read
    channel, classes = gpu.compute_queue, gpu.classes
    at = (channel.put() - 1) % channel.entries * ENTRY_SIZE
    entry = channel.ring.load(at, ENTRY_SIZE)
    fields = GpEntry.parse(int.from_bytes(entry, "little"))
    push = read(fields.GET << 2, fields.LENGTH << 2)
    assert push is not None
    sent = [word for _, address, word in written_methods(push) if address == SEND_PCAS_A.address]
    qmd = read(sent[0] << 8, qmd_layout(classes.qmd_major).size)
    assert qmd is not None
    (launch,) = launches_of(written_methods(push), qmd_layout(classes.qmd_major), read)
    span = qmd_layout(classes.qmd_major).span("CONSTANT_BUFFER_SIZE", 0)
    bank = read(launch.arguments, span.extract(int.from_bytes(qmd, "little")) << span.shift)
    assert bank is not None
    known = bound_classes(classes.compute, classes.dma)
    first = decode_gp_entries(entry)[0]
    return {
        "ring": f"GP_PUT {channel.put()}, token {channel.token:#x}\n{at:6x}  {first.word:016x}"
        f"  {first.text}",
        "pushbuffer": "\n".join(map(str, decode_pushbuffer(push, known))),
        "qmd": "\n".join(decode_qmd(qmd).lines()),
        "bank": _bank(bank),
    }


def _bank(data: bytes) -> str:
    """The words of constant bank 0 that are not zero, with what the layout calls them."""
    layout = bank_layout(90)
    names = {
        layout.block: "blockDim",
        layout.grid: "gridDim",
        layout.shared_window: "window of shared memory",
        layout.local_window: "window of local memory",
        layout.stack_top: "top of the stack",
        layout.dynamic_shared: "dynamic shared memory",
        layout.total_shared: "shared memory",
        layout.parameters: "out",
        layout.parameters + 8: "a",
        layout.parameters + 16: "b",
        layout.parameters + 24: "n",
    }
    if layout.clusters is not None:
        names[layout.clusters.size] = "size of a cluster"
        names[layout.clusters.inverse] = "one by it"
        names[layout.clusters.count] = "clusters of the grid"
        names[layout.clusters.blocks] = "blocks of a cluster"
    lines = []
    for at, (word,) in zip(range(0, len(data), 4), struct.iter_unpack("<I", data), strict=True):
        if word or at in names:
            lines.append(f"{at:5x}  {word:08x}  {names.get(at, '')}".rstrip())
    return "\n".join(lines)


def refreshed(text: str, made: dict[str, str]) -> str:
    """A document with every marked block made anew."""
    return BLOCK.sub(lambda m: f"<!-- dump: {m['name']} -->\n```text\n{made[m['name']]}\n```", text)


if __name__ == "__main__":
    if sys.argv[1:] == ["--json"]:
        print(json.dumps(dumps()))
    else:
        DOCUMENT.write_text(refreshed(DOCUMENT.read_text(), dumps()))
