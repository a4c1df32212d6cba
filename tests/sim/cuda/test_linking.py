"""What cuLinkCreate and the functions with it make of PTX."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from sim.cuda.kernels import module
from sim.cuda.raw_cuda import RawCuda

INVALID_VALUE, INVALID_PTX, FILE_NOT_FOUND, NOT_SUPPORTED = 1, 218, 301, 801
CUBIN, PTX = 0, 1
ERROR_LOG, ERROR_SIZE, TARGET = 5, 6, 9


def begun(raw: RawCuda, **target: int) -> int:
    options = (ctypes.c_int * 1)(TARGET)
    values = (ctypes.c_size_t * 1)(target.get("target", 0))
    state = ctypes.c_void_p()
    raw.call("cuLinkCreate_v2", len(target), options, values, ctypes.byref(state))
    return state.value or 0


def add(raw: RawCuda, state: int, text: bytes, kind: int = PTX) -> int:
    return raw.result("cuLinkAddData_v2", state, kind, text, len(text), b"text", 0, None, None)


def complete(raw: RawCuda, state: int) -> bytes:
    cubin, size = ctypes.c_void_p(), ctypes.c_size_t()
    raw.call("cuLinkComplete", state, ctypes.byref(cubin), ctypes.byref(size))
    return ctypes.string_at(cubin.value or 0, size.value)


def test_what_is_linked_can_be_loaded(raw: RawCuda, seed: int, tmp_path: Path) -> None:
    raw.start()
    values = np.random.default_rng(seed).integers(0, 1 << 20, 64, dtype=np.uint32)
    path = tmp_path / "kernels.ptx"
    path.write_bytes(module())
    for by_file in (False, True):
        state = begun(raw)
        if by_file:
            raw.call("cuLinkAddFile_v2", state, PTX, bytes(path), 0, None, None)
        else:
            raw.call("cuLinkAddData_v2", state, PTX, module(), len(module()), b"", 0, None, None)
        cubin = complete(raw, state)
        raw.call("cuLinkDestroy", state)
        loaded = raw.module(cubin)
        address = raw.upload(values)
        pointer = ctypes.c_uint64(address)
        assert raw.launch(raw.function(loaded, "twice"), (1,), (64,), pointer) == 0
        assert np.array_equal(raw.download(address, values), 2 * values)


def test_what_cannot_be_linked(raw: RawCuda, tmp_path: Path) -> None:
    raw.start()
    state, place = begun(raw), ctypes.byref(ctypes.c_size_t())
    assert raw.result("cuLinkComplete", state, place, place) == INVALID_VALUE
    assert add(raw, state, b"\x7fELF", CUBIN) == NOT_SUPPORTED
    assert add(raw, state, module(), 17) == INVALID_VALUE
    lacking = bytes(tmp_path / "none.ptx")
    assert raw.result("cuLinkAddFile_v2", state, PTX, lacking, 0, None, None) == FILE_NOT_FOUND
    assert add(raw, state, module(target="sm_100")) == INVALID_PTX
    assert add(raw, begun(raw, target=100), module(target="sm_100")) == 0
    assert add(raw, state, module()) == 0
    assert add(raw, state, module()) == NOT_SUPPORTED
    complete(raw, state)
    assert add(raw, state, module()) == INVALID_VALUE
    assert raw.result("cuLinkComplete", state, place, place) == INVALID_VALUE


def test_the_log_of_the_state_names_the_line(raw: RawCuda) -> None:
    raw.start()
    text = module().replace(b"shl.b32", b"shoal.b32")
    line = 1 + text[: text.index(b"shoal")].count(b"\n")
    log, state = ctypes.create_string_buffer(4096), ctypes.c_void_p()
    options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_SIZE)
    values = (ctypes.c_size_t * 2)(ctypes.addressof(log), len(log))
    raw.call("cuLinkCreate_v2", 2, options, values, ctypes.byref(state))
    assert add(raw, state.value or 0, text) == INVALID_PTX
    assert f"line {line};" in log.value.decode()
