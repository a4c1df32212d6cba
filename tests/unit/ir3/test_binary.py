"""Kernels of ir3 as bytes: what was packed is read back, anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.core.errors import FormatError
from gpu.core.ir3binary import Ir3Binary

SMALL = Ir3Binary(
    630, 12, 0, 2, 8, 4, 256, 2048, 512, 192, 0, 0, 0, 0, 1, 1, 0, 1, 24,
    "kernel", bytes(range(128)), bytes(range(12)),
)  # fmt: skip
PACKED = SMALL.pack()
HEADER = 8 + 22 * 4


def test_a_binary_is_read_back() -> None:
    assert Ir3Binary.unpack(PACKED) == SMALL
    assert len(PACKED) == HEADER + 6 + 128 + 12


@settings(max_examples=40)
@given(st.integers(0, len(PACKED) - 1), st.binary(min_size=1, max_size=3))
def test_a_cut_or_longer_binary_is_refused(at: int, more: bytes) -> None:
    with pytest.raises(FormatError):
        Ir3Binary.unpack(PACKED[:at])
    with pytest.raises(FormatError):
        Ir3Binary.unpack(PACKED + more)


@settings(max_examples=40)
@given(st.binary(max_size=300))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        Ir3Binary.unpack(data)


@settings(max_examples=40)
@given(st.integers(0, HEADER - 1), st.integers(0, 255))
def test_a_changed_head_is_refused_or_is_a_kernel(at: int, value: int) -> None:
    changed = bytearray(PACKED)
    changed[at] = value
    try:
        made = Ir3Binary.unpack(bytes(changed))
    except FormatError:
        return
    assert made.pack() == changed
    assert made.full <= 48 and made.constants <= 256 and 0 < made.block <= 1024
    assert 16 * made.immediates_at + len(made.immediates) <= 16 * made.constants


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"full": 49}, "full 49: 48 are the most"),
        ({"branches": 33}, "branches 33"),
        ({"block": 0}, "no threads"),
        ({"block": 1025}, "block 1025"),
        ({"constants": 257}, "constants 257"),
        ({"shared": 40_000}, "shared 40000"),
        ({"private": 1 << 30}, "private 1073741824"),
        ({"merged": 2}, "merged 2"),
        ({"code": b""}, "0 bytes of code"),
        ({"code": bytes(64)}, "64 bytes of code"),
        ({"immediates": bytes(11)}, "11 bytes of immediates"),
        ({"immediates": bytes(68)}, "no room"),
        ({"parameters": 5000}, "parameters 5000"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_no_gpu_could_run_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Ir3Binary.unpack(SMALL._replace(**change).pack())
