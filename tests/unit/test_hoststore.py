"""The native stores: what they do on this machine, and that a reader never sees half of one."""

from __future__ import annotations

import ctypes
import mmap
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from gpu.core import hostmem
from gpu.core.errors import InvalidIndex, InvalidValue
from gpu.core.hoststore import (
    PATCH_ROW,
    PatchRow,
    SpinOp,
    copy_wc,
    fence,
    kick,
    kick_block,
    patch,
    patch_table,
    spin,
)


def test_fence_returns() -> None:
    fence()


@pytest.mark.parametrize("seed", range(20))
def test_kick_copies_round_the_ring(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 40))
    put, count = int(rng.integers(0, 1000)), int(rng.integers(0, size + 1))
    ring = rng.integers(0, 1 << 32, size + 2, dtype=np.uint32)  # a guard on both sides
    template = rng.integers(0, 1 << 32, max(count, 1), dtype=np.uint32)
    expected = ring.copy()
    for i, dword in enumerate(template[:count]):
        expected[1 + (put + i) % size] = dword
    words = np.zeros(3, np.uint64)
    at = words.ctypes.data
    kick(
        *(ring.ctypes.data + 4, size, put, template.ctypes.data, count),
        *(at, 2**64 - 1, 8, at + 8, 0x123456789, 4, at + 16, 77),
    )
    np.testing.assert_array_equal(ring, expected)
    assert words.tolist() == [2**64 - 1, 0x23456789, 77]


def test_kick_leaves_out_what_has_no_address() -> None:
    ring = np.zeros(4, np.uint32)
    kick(ring.ctypes.data, 4, 0, 0, 0, 0, 1, 8, 0, 2, 8, 0, 3)
    assert not ring.any()


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_kick_stores_exactly_the_width(width: int) -> None:
    ring = np.zeros(1, np.uint32)
    words = np.full(4, 2**64 - 1, np.uint64)
    at = words.ctypes.data
    kick(ring.ctypes.data, 1, 0, 0, 0, at, 0, width, at + 16, 0, width, 0, 0)
    left = (2**64 - 1) << (8 * width) & (2**64 - 1)
    assert words.tolist() == [left, 2**64 - 1, left, 2**64 - 1]


def test_kick_block_takes_an_address() -> None:
    ring, template = np.zeros(4, np.uint32), np.arange(1, 4, dtype=np.uint32)
    block = np.zeros(13, np.uint64)
    block[:3] = 3, template.ctypes.data, 3
    block[7:9] = ring.ctypes.data, 4
    kick_block(block.ctypes.data)
    assert ring.tolist() == [2, 3, 0, 1]


def _random_rows(rng: np.random.Generator, sizes: list[int], symbols: int) -> list[PatchRow]:
    rows = []
    for _ in range(int(rng.integers(0, 30))):
        width = int(rng.choice([1, 2, 4, 8]))
        segment = int(rng.integers(0, len(sizes)))
        position = int(rng.integers(0, 8 * width)) if rng.random() < 0.5 else 0
        full = (1 << (8 * width - position)) - 1
        mask = None if rng.random() < 0.4 else int(rng.integers(1, full, endpoint=True, dtype="u8"))
        rows.append(
            PatchRow(
                segment,
                int(rng.integers(0, sizes[segment] // width)) * width,
                width,
                int(rng.integers(0, symbols)),
                addend=int(rng.integers(-(1 << 63), 1 << 63)),
                shift=int(rng.integers(0, 64)),
                mask=mask,
                position=position,
            )
        )
    return rows


@pytest.mark.parametrize("seed", range(30))
def test_patch_matches_the_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    segments = [rng.integers(0, 256, size, dtype=np.uint8) for size in (8, 24, 64)]
    expected = [bytearray(segment.tobytes()) for segment in segments]
    values = rng.integers(0, 2**64, 5, dtype=np.uint64)
    rows = _random_rows(rng, [len(segment) for segment in segments], len(values))
    for row in rows:
        word = slice(row.offset, row.offset + row.width)
        old = int.from_bytes(expected[row.segment][word], "little")
        mask = (1 << (8 * row.width - row.position)) - 1 if row.mask is None else row.mask
        field = (int(values[row.symbol]) + row.addend) % 2**64 >> row.shift & mask
        new = old & ~(mask << row.position) | field << row.position
        expected[row.segment][word] = new.to_bytes(row.width, "little")
    table = patch_table(rows, [len(segment) for segment in segments], len(values))
    addresses = np.array([segment.ctypes.data for segment in segments], np.uint64)
    patch(addresses.ctypes.data, table.ctypes.data, len(table), values.ctypes.data)
    assert [segment.tobytes() for segment in segments] == [bytes(e) for e in expected]


def test_patch_rows_have_the_documented_layout() -> None:
    assert PATCH_ROW.itemsize == 32
    row = PatchRow(3, 0x10, 4, 5, addend=-2, shift=6, mask=0x7F, position=8)
    packed = struct.pack("<IHBBIB3xQq", 0x10, 3, 4, 6, 5, 8, 0x7F, -2)
    assert patch_table([row], [64] * 4, 6).tobytes() == packed


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        (PatchRow(2, 0, 4, 0), InvalidIndex, "row 0 .*segment 2; there are 2"),
        (PatchRow(-1, 0, 4, 0), InvalidIndex, "segment -1"),
        (PatchRow(0, 0, 4, 3), InvalidIndex, "symbol 3; there are 3"),
        (PatchRow(0, 14, 4, 0), InvalidIndex, "0xe of segment 0, which has 16"),
        (PatchRow(0, 16, 4, 0), InvalidIndex, "0x10 of segment 0"),
        (PatchRow(0, -4, 4, 0), InvalidIndex, "segment 0"),
        (PatchRow(0, 0, 3, 0), InvalidValue, "3 bytes"),
        (PatchRow(0, 0, 4, 0, shift=64), InvalidValue, "shift 64"),
        (PatchRow(0, 0, 4, 0, position=32), InvalidValue, "position 32"),
        (PatchRow(0, 0, 4, 0, mask=1 << 32), InvalidValue, "mask 0x100000000"),
        (PatchRow(0, 0, 4, 0, mask=0x100, position=24), InvalidValue, "mask 0x100"),
        (PatchRow(0, 0, 4, 0, mask=0), InvalidValue, "mask 0x0"),
        (PatchRow(0, 0, 4, 0, addend=1 << 63), InvalidValue, "addend"),
    ],
)
def test_patch_table_refuses(row: PatchRow, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        patch_table([row], [16, 16], 3)


@pytest.mark.parametrize("seed", range(20))
def test_copy_wc_copies_any_range(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(0, 400)) if seed else (1 << 16) + 77  # the large form
    to, begin = (int(x) for x in rng.integers(0, 70, 2))
    source = rng.integers(0, 256, size + 70, dtype=np.uint8)
    target = rng.integers(0, 256, size + 140, dtype=np.uint8)
    expected = target.copy()
    expected[to : to + size] = source[begin : begin + size]
    copy_wc(target.ctypes.data + to, source.ctypes.data + begin, size)
    np.testing.assert_array_equal(target, expected)


def test_copy_wc_refuses_a_negative_size() -> None:
    with pytest.raises(InvalidValue, match="-1 bytes"):
        copy_wc(0, 0, -1)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_spin_compares_unsigned_words(width: int) -> None:
    top = (1 << 8 * width) - 1
    memory = np.full(2, 2**64 - 1, np.uint64)  # what lies behind the word must not count
    at = memory.ctypes.data
    ctypes.memmove(at, (top - 1).to_bytes(width, "little"), width)
    for wanted in (0, 1, top - 2, top - 1, top):
        assert spin(at, width, wanted, SpinOp.EQUAL, 0) == (wanted == top - 1)
        assert spin(at, width, wanted, SpinOp.DIFFERENT, 0) == (wanted != top - 1)
        assert spin(at, width, wanted, SpinOp.AT_LEAST, 0) == (wanted <= top - 1)


def test_spin_ends_at_its_limit() -> None:
    memory = np.zeros(1, np.uint64)
    started = time.monotonic_ns()
    assert not spin(memory.ctypes.data, 8, 1, SpinOp.EQUAL, 2_000_000)
    assert time.monotonic_ns() - started >= 2_000_000


def test_spin_lets_other_threads_run() -> None:
    memory = np.zeros(1, np.uint64)

    def set_later() -> None:
        time.sleep(0.01)
        memory[0] = 1

    thread = threading.Thread(target=set_later)
    thread.start()
    # With the GIL kept, nobody could store the value before the limit.
    seen = spin(memory.ctypes.data, 8, 1, SpinOp.EQUAL, 10_000_000_000)
    thread.join()
    assert seen


@pytest.mark.parametrize(("width", "shift", "limit"), [(3, 0, 0), (8, 4, 0), (8, 0, -1)])
def test_spin_refuses(width: int, shift: int, limit: int) -> None:
    memory = np.zeros(2, np.uint64)
    with pytest.raises(InvalidValue, match="spinning on"):
        spin(memory.ctypes.data + shift, width, 0, SpinOp.EQUAL, limit)


# Reads words as fast as it can, until told to stop; prints how often it saw each word change, and
# what it saw that was never stored.
_READER = """
import ctypes, mmap, sys
memory = mmap.mmap(int(sys.argv[1]), 4096)
words = [ctypes.c_uint64.from_buffer(memory, 64 * i) for i in range(5)]
stop, ready = words[3], words[4]
allowed = (0x1111111111111111, 0xeeeeeeeeeeeeeeee, 0x1eeeeeeeeeeeeee1)
changes, wrong, last = [0, 0, 0], [0, 0, 0], [0, 0, 0]
ready.value = 1
while not stop.value:
    for _ in range(1000):
        for i in range(3):
            value = words[i].value
            if value not in allowed:
                wrong[i] += 1
            changes[i] += value != last[i]
            last[i] = value
print(*changes, *wrong)
"""


def test_a_reader_never_sees_half_a_store() -> None:
    """The write pointer, the doorbell, and a patch of some bits of a word."""
    fd = hostmem.memfd("words", 4096)
    memory = mmap.mmap(fd, 4096)
    one, other = 0x1111111111111111, 0xEEEEEEEEEEEEEEEE
    words = [ctypes.c_uint64.from_buffer(memory, 64 * i) for i in range(5)]
    at = [ctypes.addressof(word) for word in words]
    for word in words[:3]:
        word.value = one
    # Bits 4 to 59 of the third word change, the others stay those of `one`.
    table = patch_table([PatchRow(0, 0, 8, 0, mask=2**56 - 1, position=4)], [8], 1)
    segments, symbols = np.array([at[2]], np.uint64), np.zeros(1, np.uint64)
    ring = np.zeros(1, np.uint32)
    reader = subprocess.Popen(
        [sys.executable, "-c", _READER, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE, text=True
    )
    try:
        while not words[4].value:
            assert reader.poll() is None
            time.sleep(0.001)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            for value in (one, other):
                kick(ring.ctypes.data, 1, 0, 0, 0, at[0], value, 8, at[1], value, 8, 0, 0)
                symbols[0] = value >> 4
                patch(segments.ctypes.data, table.ctypes.data, 1, symbols.ctypes.data)
        assert words[2].value == 0x1EEEEEEEEEEEEEE1
    finally:
        words[3].value = 1
        output, _ = reader.communicate(timeout=10)
    counts = [int(word) for word in output.split()]
    assert all(counts[:3]), f"the reader saw no change at all: {counts}"
    assert counts[3:] == [0, 0, 0]


def test_other_processors_are_refused() -> None:
    script = (
        "import platform; platform.machine = lambda: 'riscv64'\n"
        "from gpu.core import hoststore\n"
        "for call in (hoststore.fence, lambda: hoststore.copy_wc(0, 0, 0)):\n"
        "    try: call()\n"
        "    except NotImplementedError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("not known on riscv64") == 2
