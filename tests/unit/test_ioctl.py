"""Request numbers of ioctls against numbers that the kernel's headers make."""

from __future__ import annotations

import ctypes
import fcntl
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.core.errors import InvalidValue
from gpu.transport.ioctl import Direction, decode, describe, io, ioc, ior, iow, iowr


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


def test_numbers_of_the_kernel() -> None:
    assert ior("K", 0x01, _Version) == 0x80084B01  # AMDKFD_IOC_GET_VERSION, linux/kfd_ioctl.h
    assert io(";", 100) == 0x3B64  # VFIO_GET_API_VERSION, linux/vfio.h
    assert iow("T", 0x31, ctypes.c_int) == 0x40045431  # TIOCSPTLCK, asm-generic/ioctls.h
    assert ior("T", 0x30, 4) == 0x80045430  # TIOCGPTN
    assert iowr(9, 0x13, 16) == 0xC0100913
    assert fcntl.FD_CLOEXEC and termios.FIONREAD == 0x541B  # plain numbers exist, too


@given(st.integers(0, 3), st.integers(0, 255), st.integers(0, 255), st.integers(0, 16383))
def test_decode_takes_apart_what_ioc_made(
    direction: int, letter: int, number: int, size: int
) -> None:
    request = ioc(direction, letter, number, size)
    assert decode(request) == (Direction(direction), letter, number, size)


@pytest.mark.parametrize(
    ("request_number", "text"),
    [
        (0x80084B01, "0x80084b01 (IOR 'K' 0x01, 8 bytes)"),
        (0xC0184B02, "0xc0184b02 (IOWR 'K' 0x02, 24 bytes)"),
        (0xC0100913, "0xc0100913 (IOWR 0x09 0x13, 16 bytes)"),
        (0x3B64, "0x00003b64 (IO ';' 0x64, 0 bytes)"),
        (0x19, "0x19"),
    ],
)
def test_describe(request_number: int, text: str) -> None:
    assert describe(request_number) == text


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((4, "K", 1, 8), "direction 4"),
        ((1, "KK", 1, 8), "one letter"),
        ((1, 256, 1, 8), "type 256"),
        ((1, "K", 256, 8), "number 256"),
        ((1, "K", -1, 8), "number -1"),
        ((1, "K", 1, 16384), "size 16384"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: tuple[int, str, int, int], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        ioc(*parts)


@pytest.mark.parametrize("request_number", [-1, 1 << 32])
def test_a_request_has_32_bits(request_number: int) -> None:
    with pytest.raises(InvalidValue, match="0xffffffff"):
        decode(request_number)
