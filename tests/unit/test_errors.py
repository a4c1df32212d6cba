"""Every error is caught by the built-in names that one would use, and leaves its process whole."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

import pytest

import gpu
from gpu.core import errors
from gpu.core.errors import GpuError, HwTimeout, InvalidType, RmError
from gpu.transport.asm24.tlp import Kind, Request
from workers import fail

# What each is besides a GpuError and a RuntimeError.
BUILTINS: dict[str, type[Exception]] = {
    "InvalidValue": ValueError,
    "NumberOverflow": OverflowError,
    "DTypeError": TypeError,
    "InvalidType": TypeError,
    "InvalidIndex": IndexError,
    "Unsupported": NotImplementedError,
    "VerifyError": AssertionError,
    "OutOfMemory": MemoryError,
    "HwTimeout": TimeoutError,
}
EXAMPLES: dict[object, Any] = {
    str: "a text",
    int: 4711,
    int | None: 0x1234,
    float: 2.5,
    bytes: b"\x01\x02",
    object: "an argument",
    tuple[int, ...]: (3, 1),
    Request: Request(Kind.CONFIG_READ_0, 0x100),
}


# Tables; and what only processes that have torch import.
_NOT_IMPORTED = ("gpu.autogen", "gpu.torch")


def _below(kind: type[GpuError]) -> Iterator[type[GpuError]]:
    for found in kind.__subclasses__():
        yield found
        yield from _below(found)


@cache
def all_errors() -> list[type[GpuError]]:
    """Every kind of error that the package has."""
    for module in pkgutil.walk_packages(gpu.__path__, "gpu."):
        if not module.name.startswith(_NOT_IMPORTED) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = [kind for kind in _below(GpuError) if kind.__module__.startswith("gpu.")]
    return [GpuError, *dict.fromkeys(ours)]


def example(kind: type[GpuError]) -> GpuError:
    """An error of that kind, made as its own constructor wants it."""
    hints = typing.get_type_hints(kind.__init__)
    arguments = []
    for name in list(inspect.signature(kind).parameters):
        hint = hints[name]
        one_of = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
        arguments.append(one_of[0] if one_of else EXAMPLES[hint])
    return kind(*arguments)


def seen(error: BaseException) -> tuple[object, ...]:
    """All that a user sees of an error."""
    return type(error), str(error), repr(error), error.args, vars(error)


def test_there_are_as_many_as_we_think() -> None:
    found = {kind.__name__ for kind in all_errors()}
    assert {"WaveFault", "WarpFault", "JitError", "NotExportable", *BUILTINS} <= found
    assert len(found) > 30


def test_torchs_users_catch_all_of_them() -> None:
    assert all(issubclass(kind, RuntimeError) for kind in all_errors())
    for name, builtin in BUILTINS.items():
        assert issubclass(getattr(errors, name), builtin)
    with pytest.raises(RuntimeError):
        gpu.Tensor([1.0, 2.0]) @ gpu.Tensor([1.0, 2.0, 3.0])


COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy]
COPIES += [
    lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
]


@pytest.mark.parametrize("again", COPIES)
def test_copies_and_pickles_are_the_same(again: Callable[[Any], Any]) -> None:
    for kind in all_errors():
        error = example(kind)
        error.add_note("a note")
        error.add("added")
        assert seen(again(error)) == seen(error)


def test_errors_leave_a_worker_process() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        timeout = pool.submit(fail, 5).exception()
        answer = pool.submit(fail, 0).exception()
    assert isinstance(timeout, HwTimeout) and isinstance(answer, RmError)
    assert (timeout.what, timeout.last, timeout.seconds) == ("fence 7", 5, 1.5)
    assert "fence 7: the last value was 0x5" in str(timeout)
    assert (answer.status, answer.name) == (0x1F, "NV_ERR_INVALID_ARGUMENT")


@pytest.mark.parametrize(
    "forged", [(ValueError, ("text",)), ("GpuError", ()), (GpuError, "text"), (int, (3,))]
)
def test_forged_errors_are_refused(forged: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidType, match="a pickled error is a GpuError"):
        errors._restored(*forged)
