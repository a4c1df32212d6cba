"""Placing memory: what is mapped where, shared how, and refused when."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

import pytest

from gpu.core import hostmem
from gpu.core.errors import InvalidValue, OutOfMemory, TransportError

PAGE = hostmem.page_size
SHARED = hostmem.PROT_READ | hostmem.PROT_WRITE, hostmem.MAP_SHARED


def _maps(address: int) -> str:
    """The line of /proc/self/maps that holds an address; empty where nothing is mapped."""
    with open("/proc/self/maps") as file:
        for line in file:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return line
    return ""


@pytest.mark.parametrize("align", [0, PAGE, 1 << 16, 1 << 21, 1 << 24])
def test_reserve_aligns_and_cannot_be_touched(align: int) -> None:
    size = 5 * PAGE + 1
    address = hostmem.reserve(size, align)
    assert address % max(align, PAGE) == 0
    assert " ---p " in _maps(address) and " ---p " in _maps(address + size - 1)
    hostmem.release(address, size)
    assert not _maps(address)


def test_reserve_leaves_no_slack_behind() -> None:
    def address_space() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0])

    before = address_space()
    address = hostmem.reserve(PAGE, 1 << 30)
    assert address_space() - before == 1
    hostmem.release(address, PAGE)


def test_map_anonymous_is_zeroed_memory() -> None:
    address = hostmem.map_anonymous(3 * PAGE, populate=True)
    assert ctypes.string_at(address, 3 * PAGE) == bytes(3 * PAGE)
    ctypes.memset(address, 7, 3 * PAGE)
    hostmem.unmap(address, 3 * PAGE)


def test_sparse_memory_is_none_that_the_process_may_need() -> None:
    start = hostmem.reserve(6 * PAGE)  # so that no neighbour is joined with it
    for sparse in (False, True):
        address = hostmem.map_anonymous(4 * PAGE, start + PAGE, fixed=True, sparse=sparse)
        with open("/proc/self/smaps") as file:
            text = file.read()
        flags = text[text.index(f"{address:x}-") :].split("VmFlags:", 1)[1].split("\n", 1)[0]
        assert ("ac" in flags.split()) is not sparse  # VM_ACCOUNT: counted when memory is promised
        ctypes.memset(address, 7, 4 * PAGE)
    hostmem.release(start, 6 * PAGE)


def test_fixed_mappings_take_the_place_of_a_reservation() -> None:
    address = hostmem.reserve(4 * PAGE)
    fd = hostmem.memfd("test", 2 * PAGE)
    assert hostmem.map_fixed(fd, PAGE, PAGE, address + PAGE, *SHARED) == address + PAGE
    assert hostmem.map_fixed(fd, PAGE, PAGE, address + 3 * PAGE, *SHARED) == address + 3 * PAGE
    ctypes.memmove(address + PAGE, b"seen twice", 10)
    assert ctypes.string_at(address + 3 * PAGE, 10) == b"seen twice"
    assert os.pread(fd, 10, PAGE) == b"seen twice"
    assert hostmem.map_anonymous(PAGE, address, fixed=True) == address
    assert " ---p " in _maps(address + 2 * PAGE)
    os.close(fd)
    hostmem.release(address, 4 * PAGE)


def test_no_mapping_is_replaced_unless_it_is_meant() -> None:
    address = hostmem.map_anonymous(PAGE)
    assert hostmem.map_anonymous(PAGE, address) != address
    flags = hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS | hostmem.MAP_FIXED_NOREPLACE
    with pytest.raises(TransportError, match="File exists"):
        hostmem.map_file(-1, 0, PAGE, hostmem.PROT_READ, flags, address)


def test_the_numbers_are_those_of_this_system() -> None:
    for name in ("PROT_READ", "PROT_WRITE", "PROT_EXEC", "MAP_SHARED", "MAP_PRIVATE"):
        assert getattr(hostmem, name) == getattr(mmap, name)
    assert hostmem.MAP_ANONYMOUS == mmap.MAP_ANONYMOUS
    assert hostmem.MAP_POPULATE == mmap.MAP_POPULATE


def test_memfd_is_zeroed_and_closed_by_exec() -> None:
    fd = hostmem.memfd("test", 5)
    assert os.read(fd, 10) == bytes(5)
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_dontfork_keeps_pages_from_children() -> None:
    address = hostmem.map_anonymous(2 * PAGE)
    hostmem.dontfork(address, PAGE)
    with open("/proc/self/smaps") as file:
        text = file.read()
    flags = text[text.index(f"{address:x}-") :].split("VmFlags:", 1)[1].split("\n", 1)[0]
    assert " dc" in flags  # MADV_DONTFORK: "do not copy area on fork"
    hostmem.unmap(address, 2 * PAGE)


def test_huge_pages_say_whether_there_are_any() -> None:
    address = hostmem.reserve(1 << 22, 1 << 21)
    assert hostmem.huge_pages(address, 1 << 22) == os.path.exists(
        "/sys/kernel/mm/transparent_hugepage"
    )
    hostmem.release(address, 1 << 22)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: hostmem.reserve(0), "0 bytes"),
        (lambda: hostmem.reserve(PAGE, 3 * PAGE), "power of two"),
        (lambda: hostmem.map_anonymous(PAGE, 5), "address 0x5"),
        (lambda: hostmem.map_anonymous(PAGE, 1 << 63), "address"),
        (lambda: hostmem.map_fixed(-1, 0, PAGE, 0, *SHARED), "reserve one first"),
        (lambda: hostmem.map_file(-1, 7, PAGE, *SHARED), "offset 0x7"),
        (lambda: hostmem.map_file(-1, 1 << 64, PAGE, *SHARED), "offset 0x1"),
        (lambda: hostmem.unmap(-PAGE, PAGE), "address"),
        (lambda: hostmem.memfd("x", 0), "0 bytes"),
    ],
)
def test_what_cannot_be_is_refused(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(InvalidValue, match=words):
        call()


@pytest.mark.parametrize("offset", [1 << 63, 2 << 62, 3 << 62, (1 << 64) - PAGE])
def test_offsets_of_64_bits_reach_the_kernel(offset: int) -> None:
    """Device files use the highest bits; a memory file is too short for them, says the kernel."""
    fd = hostmem.memfd("short", PAGE)
    try:
        with pytest.raises(TransportError, match=f"offset {offset:#x}") as caught:
            hostmem.map_file(fd, offset, PAGE, *SHARED)
        assert caught.value.errno in (errno.EOVERFLOW, errno.EINVAL)
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [1 << 62, (1 << 63) - 1, 1 << 70])
def test_too_much_is_out_of_memory(size: int) -> None:
    with pytest.raises(OutOfMemory):
        hostmem.reserve(size)


def test_too_large_a_memfd_is_typed() -> None:
    with pytest.raises((OutOfMemory, TransportError), match="sizing"):
        hostmem.memfd("x", 1 << 70)


def test_a_bad_descriptor_is_named() -> None:
    with pytest.raises(TransportError, match="fd 9999") as caught:
        hostmem.map_file(9999, 0, PAGE, *SHARED)
    assert caught.value.errno == 9  # EBADF
