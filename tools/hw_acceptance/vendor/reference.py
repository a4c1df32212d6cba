"""The vendor's stack at work under the recorder: what ours is compared with.

After each piece of work the channels' rings are read from memory: pushbuffers, launch descriptors
and constant banks of known kernels with known arguments.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
from pathlib import Path
from typing import Final

from tools.hw_acceptance.child import Context
from tools.hw_acceptance.folder import read_kernel, read_manifest
from tools.hw_acceptance.steplog import StepFailed
from tools.hw_acceptance.vendor.libcuda import Cuda
from tools.hw_acceptance.vendor.memory import ChannelDumper
from tools.hw_acceptance.vendor.recording import LiveRecording, read_lines, write_calls
from tools.hw_acceptance.vendor.tensormaps import encode_all

_SIZES: Final = (4, 4096, 1 << 20, 16 << 20)  # bytes of copies
_ATTRIBUTES: Final = {"major": 75, "minor": 76, "sms": 16, "async engines": 40}


class _Recorder:
    """The recorder that is loaded into this process, if it is."""

    def __init__(self, context: Context):
        self._path = Path(os.environ.get("NV_RECORD", ""))
        self._context = context
        self._live = LiveRecording(self._path)
        self._dumper = ChannelDumper()
        self._mark = getattr(ctypes.CDLL(None), "nv_record_mark", None)
        context.log.fact("recorder", self._mark is not None)

    def mark(self, text: str) -> None:
        """Says what comes next."""
        if self._mark is not None:
            self._mark(text.encode())

    def dump(self, stage: str) -> None:
        """Writes what channels were given since the last dump."""
        recording = self._live.update()
        lines = list(self._dumper.describe(recording))
        self._context.log.dump(f"channels-{stage}.txt", "\n".join(lines) + "\n")
        self._context.log.fact(f"channels after {stage}", len(recording.channels))

    def finish(self) -> None:
        """Writes all calls in words, and how they were answered."""
        write_calls(read_lines(self._path), self._context.log.folder / "ioctls.txt")
        recording = self._live.update()
        self._context.log.fact("statuses", recording.statuses)
        engines = {hex(handle): classes for handle, classes in recording.engines.items()}
        self._context.log.fact("engines of channels", engines)


def record(context: Context) -> None:
    """Opens, launches, copies and encodes tensor maps, all through libcuda, then a torch kernel.

    Raises Unavailable without libcuda, StepFailed for its errors and wrong results.
    """
    recorder = _Recorder(context)
    recorder.mark("open")
    with Cuda() as cuda:
        recorder.dump("open")
        sm = _describe_device(context, cuda)
        recorder.mark("launches")
        _launch(context, cuda, recorder, sm)
        recorder.mark("copies")
        _copy(context, cuda, recorder)
        recorder.mark("tensor maps")
        maps = encode_all(cuda)
        context.log.fact(
            "tensor maps", {"all": len(maps), "made": sum(not m["result"] for m in maps)}
        )
        context.log.dump("tensormaps.json", json.dumps(maps))
        recorder.finish()  # importing torch may outlast this step
        if importlib.util.find_spec("torch") is not None:
            recorder.mark("torch")
            _run_torch(context)
            recorder.dump("torch")
        recorder.mark("close")
    recorder.finish()


def _describe_device(context: Context, cuda: Cuda) -> int:
    found = {name: cuda.attribute(number) for name, number in _ATTRIBUTES.items()}
    version = ctypes.c_int()
    cuda.call("cuDriverGetVersion", ctypes.byref(version))
    context.log.fact("cuda device", found | {"driver api": version.value})
    return 10 * found["major"] + found["minor"]


def _launch(context: Context, cuda: Cuda, recorder: _Recorder, sm: int) -> None:
    """The ladder's kernels, with arguments that can be found again in their constant banks."""
    if sm not in read_manifest(context.folder)["architectures"]:
        context.log.fact("launches", f"the folder has no kernels for sm_{sm}")
        return
    data = cuda.alloc(1 << 20)
    pointer = ctypes.c_uint64(data)
    marked = (ctypes.c_uint32(0x11223344), ctypes.c_uint64(0x5566778899AABBCC))
    # name, grid, block, arguments, dynamic shared memory
    work = (
        ("nothing", (1, 1, 1), (1, 1, 1), (), 0),
        ("store", (1, 1, 1), (1, 1, 1), (pointer, *marked, ctypes.c_uint16(0x5A5A)), 0),
        ("shape", (3, 2, 2), (8, 4, 2), (pointer,), 0),
        ("shared", (2, 1, 1), (256, 1, 1), (pointer, pointer, pointer), 0),
        ("dynamic", (2, 1, 1), (64, 1, 1), (pointer, pointer, ctypes.c_uint32(1024)), 4096),
        ("local", (2, 1, 1), (64, 1, 1), (pointer, pointer, ctypes.c_uint32(5)), 0),
    )
    for name, grid, block, arguments, shared in work:
        recorder.mark(f"kernel {name}")
        function = cuda.load(read_kernel(context.folder, sm, name), name)
        recorder.dump(f"loading-{name}")
        cuda.launch(function, grid, block, arguments, shared)
        recorder.dump(name)
    context.log.fact("argument of kernels", hex(data))


def _copy(context: Context, cuda: Cuda, recorder: _Recorder) -> None:
    size = max(_SIZES)
    near, other = cuda.alloc(size), cuda.alloc(size)
    pinned, back = cuda.alloc_pinned(size), cuda.alloc_pinned(size)
    pattern = os.urandom(size)
    ctypes.memmove(pinned, pattern, size)
    for count in _SIZES:
        recorder.mark(f"copies of {count}")
        cuda.copy("cuMemcpyHtoD_v2", near, pinned, count)
        cuda.copy("cuMemcpyDtoD_v2", other, near, count)
        cuda.copy("cuMemcpyDtoH_v2", back, other, count)
        cuda.synchronize()
        right = ctypes.string_at(back, count) == pattern[:count]
        context.log.check(f"copies of {count} bytes", right)
        recorder.dump(f"copies-{count}")


def _run_torch(context: Context) -> None:
    import torch

    try:
        left = torch.ones(256, 256, device="cuda")
        total = float((left @ left).sum().item())
    except RuntimeError as error:
        raise StepFailed(f"torch: {error}") from error
    context.log.check("matrix product of torch", total == 256.0**3, str(total))
