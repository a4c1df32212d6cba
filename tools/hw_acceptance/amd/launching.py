"""Steps 7 to 11: kernels, by PM4 and by AQL, and what the host writes through the BAR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np

from gpu.core.errors import Unsupported
from gpu.drivers.am.device import AmDevice
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.conformance.kit import WORDS, numbers, upload
from gpu.hcq.ports import MemoryKind
from gpu.hcq.program import HCQProgram
from tools.hw_acceptance.amd.target import COMPUTE, AmTarget
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.ladder import expected
from tools.hw_acceptance.ladder.expected import LOCAL_WORDS, SHARED_WORDS, Dims, Words
from tools.hw_acceptance.steplog import Unavailable

_ROUNDS: Final = 100
_SHAPES: Final[tuple[tuple[Dims, Dims], ...]] = (
    ((1, 1, 1), (1, 1, 1)),
    ((3, 2, 2), (5, 3, 2)),
    ((2, 1, 1), (1024, 1, 1)),
    ((1, 5, 1), (1, 7, 9)),
)
_BLOCKS: Final = 12


class Kernels:
    """An open device, its kernels, and buffers to see what they did."""

    def __init__(self, context: Context, target: AmTarget, device: AmDevice):
        self.log = context.log
        self.device = device
        self._target = target

    def load(self, name: str) -> HCQProgram:
        """One of `amd.kernels`. Raises Unavailable where nothing compiles it."""
        return self._target.program(self.device, name)

    def words(self, buffer: HCQBuffer) -> Words:
        """What a buffer holds once all before is done."""
        return np.frombuffer(self.device.allocator.copy_out(buffer), np.uint32)

    def empty(self, count: int, kind: MemoryKind = MemoryKind.VRAM) -> HCQBuffer:
        """So many words that no kernel writes."""
        return upload(self.device, np.full(count, -1, np.int32), kind)

    def check(self, name: str, buffer: HCQBuffer, wanted: Words) -> None:
        """Tells whether a buffer holds some words."""
        found = self.words(buffer)
        wrong = np.flatnonzero(found != wanted)
        details = f"{len(wrong)} of {len(wanted)}, the first at {wrong[0]}" if len(wrong) else ""
        self.log.check(name, not len(wrong), details)


def launch(context: Context) -> None:
    """Step 7: a kernel that ends at once, again and again."""
    with _kernels(context) as kernels:
        nothing = kernels.load("nothing")
        nothing()
        kernels.device.synchronize()
        nothing(grid=(1000, 3, 2), block=(128, 2, 1))
        for _ in range(_ROUNDS):
            nothing()
        kernels.device.synchronize()
        kernels.log.check(f"{_ROUNDS} launches more", True)


def store(context: Context) -> None:
    """Step 8: arguments of all sizes, stored to system and to device memory."""
    value, wide, small = 0x1122_3344, 0x5566_7788_99AA_BBCC, 0xDDEE
    wanted = np.array([value, wide & 0xFFFF_FFFF, wide >> 32, small, 0xFFFF_FFFF], np.uint32)
    with _kernels(context) as kernels:
        program = kernels.load("store")
        for kind in (MemoryKind.SYSTEM, MemoryKind.VRAM):
            out = kernels.empty(5, kind)
            program(out, vals=(value, wide, small))
            kernels.check(f"arguments in {kind.value}", out, wanted)


def kernels(context: Context) -> None:
    """Step 9: ids and sizes, LDS and barriers, scratch memory, a copy of many groups."""
    with _kernels(context) as made:
        _shape(made)
        _shared(made)
        _local(made)
        source = upload(made.device, numbers(5, 10_000))
        target = made.empty(10_000)
        made.load("copy")(source, target, vals=(10_000,), grid=(6, 1, 1), block=(64, 1, 1))
        made.check("10000 words by many groups", target, numbers(5, 10_000).view(np.uint32))


def aql(context: Context) -> None:
    """Step 10: the steps before by packets of 64 bytes. Each opens queues of its own."""
    options = {**context.options, COMPUTE: "aql"}
    for step in (launch, store, kernels):
        step(replace(context, options=options))


def bar(context: Context) -> None:
    """Step 11: what the host writes to device memory, kernels and copies read, each time anew.

    Raises Unavailable where the host sees only a part of it.
    """
    with _kernels(context) as kernels:
        device = kernels.device
        try:
            seen = upload(device, numbers(0), MemoryKind.VISIBLE)
        except Unsupported as missing:
            raise Unavailable(missing.message) from missing
        add, out = kernels.load("add"), kernels.empty(WORDS)
        assert seen.window is not None
        wrong = {"kernel": 0, "copy engine": 0}
        for turn in range(_ROUNDS):
            wanted = numbers(turn)
            seen.window.store(0, wanted.tobytes())
            add(out, seen, seen, vals=(WORDS,))
            wrong["kernel"] += bool((kernels.words(out).view(np.int32) != 2 * wanted).any())
            seen.window.store(0, (wanted + 1).tobytes())
            device.wait(device.queue("copy").copy(out, seen, out.size).submit(device))
            wrong["copy engine"] += bool((kernels.words(out).view(np.int32) != wanted + 1).any())
        for who, count in wrong.items():
            kernels.log.check(f"read by the {who}", not count, f"{count} of {_ROUNDS} were old")


def health(context: Context) -> None:
    """A process that comes last opens the GPU, and it computes."""
    with _kernels(context) as kernels:
        add, a, out = kernels.load("add"), upload(kernels.device, numbers(1)), kernels.empty(WORDS)
        add(out, a, a, vals=(WORDS,))
        kernels.check("sums", out, (2 * numbers(1)).view(np.uint32))


@contextmanager
def _kernels(context: Context) -> Iterator[Kernels]:
    target = AmTarget(context)
    device = target.open()
    with device:
        yield Kernels(context, target, device)
        device.synchronize()


def _shape(made: Kernels) -> None:
    program = made.load("shape")
    for grid, block in _SHAPES:
        wanted = expected.shape(grid, block)
        out = made.empty(len(wanted))
        program(out, grid=grid, block=block)
        made.check(f"ids of {grid} groups of {block}", out, wanted)


def _shared(made: Kernels) -> None:
    words = numbers(3, _BLOCKS * SHARED_WORDS)
    given, turned, sums = upload(made.device, words), made.empty(len(words)), made.empty(_BLOCKS)
    program = made.load("shared")
    program(given, turned, sums, grid=(_BLOCKS, 1, 1), block=(SHARED_WORDS, 1, 1))
    wanted = expected.shared(words.view(np.uint32))
    made.check("LDS, reversed", turned, wanted[0])
    made.check("LDS, added up", sums, wanted[1])


def _local(made: Kernels) -> None:
    words, width, rounds = numbers(4, LOCAL_WORDS), 96, 200
    out = made.empty(_BLOCKS * width)
    program = made.load("local")
    given = upload(made.device, words)
    program(given, out, vals=(rounds, width), grid=(_BLOCKS, 1, 1), block=(width, 1, 1))
    made.log.fact("scratch memory of a lane", program.private_size)
    made.check(
        "scratch memory", out, expected.local(words.view(np.uint32), _BLOCKS * width, rounds)
    )
