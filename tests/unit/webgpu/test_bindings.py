"""The hand-written interface of Dawn against the one that was generated from its header."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from gpu.autogen import webgpu as api

# What is written out in ours, and named otherwise.
NAMES = {
    "CallbackInfo": "BufferMapCallbackInfo2",
    "UncapturedErrorCallbackInfo": "UncapturedErrorCallbackInfo2",
}
STRUCTURES = {
    name: kind
    for name, kind in vars(api).items()
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure)
}


@pytest.fixture(scope="module")
def theirs(need: Callable[[str], None]) -> ModuleType:
    """The module of dawn-python."""
    need("dawn-python")
    return importlib.import_module("pydawn.webgpu")


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_are_laid_out_alike(name: str, theirs: ModuleType) -> None:
    ours: Any = STRUCTURES[name]
    other: Any = getattr(theirs, f"struct_WGPU{NAMES.get(name, name)}")
    assert ctypes.sizeof(ours) == ctypes.sizeof(other)
    for field, _ in ours._fields_:
        if hasattr(other, field):
            assert getattr(ours, field).offset == getattr(other, field).offset, field


def test_all_callback_infos_of_the_second_kind_are_one_layout(theirs: ModuleType) -> None:
    for name in ("RequestAdapter", "RequestDevice", "BufferMap", "QueueWorkDone", "PopErrorScope",
                 "CompilationInfo", "DeviceLost"):  # fmt: skip
        other: Any = getattr(theirs, f"struct_WGPU{name}CallbackInfo2")
        for field in ("mode", "callback", "userdata1"):
            assert getattr(api.CallbackInfo, field).offset == getattr(other, field).offset


def test_constants_are_those_of_the_header(theirs: ModuleType) -> None:
    numbers = {n: v for n, v in vars(api).items() if isinstance(v, int) and "_" in n}
    known = {n: v for n, v in numbers.items() if not n.startswith("_") and n != "Status_Success"}
    assert len(known) > 25
    for name, value in known.items():
        found = getattr(theirs, f"WGPU{name}")
        assert getattr(found, "value", found) == value, name


def test_every_status_of_success_is_one(theirs: ModuleType) -> None:
    for name in ("Wait", "MapAsync", "RequestAdapter", "RequestDevice", "PopErrorScope", ""):
        assert getattr(theirs, f"WGPU{name}Status_Success") == api.Status_Success


def test_functions_take_as_many_arguments(theirs: ModuleType) -> None:
    for name, (result, arguments) in api.FUNCTIONS.items():
        other = getattr(theirs, f"wgpu{name}")
        assert len(other.argtypes) == len(arguments), name
        for ours, their in zip(arguments, other.argtypes, strict=True):
            assert ctypes.sizeof(ours) == ctypes.sizeof(their), name
        assert (result is None) == (other.restype is None), name
