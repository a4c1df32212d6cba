"""`pytest -p oclgrind --device=CL,CLCPU`: tests on Oclgrind, which sees every access of a kernel.

A test during which Oclgrind has something to say, as of a read or write outside of a buffer, fails
with it. `CL` passes for a GPU there; `CLCPU` is the same implementation with the properties of a
CPU, so that kernels with workers, vectors and tiles are checked as well.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from gpu.core.devspec import DeviceSpec
    from gpu.runtime.device import Compiled

_LIBRARY: Final = "oclgrind/liboclgrind-rt.so"
# A queue of Oclgrind 21.10 is not to be used by two threads at once: it crashes. And it is one
# device only.
_BEYOND_IT: Final = ("threads", "fork", "interrupt", "ctrl_c", "test_sharding")


def find_oclgrind() -> Path | None:
    """Oclgrind's OpenCL library, beside the command `oclgrind` in PATH."""
    command = shutil.which("oclgrind")
    if command is None:
        return None
    folder = Path(command).resolve().parents[1] / "lib"
    return next((path for path in sorted(folder.glob(f"**/{_LIBRARY}"))), None)


def _log() -> Path:
    return Path(os.environ["OCLGRIND_LOG"])


def open_cpu(name: str, spec: DeviceSpec) -> Compiled:
    """The device that `CL` is, scheduled for as a CPU of two cores with vectors of 256 bits."""
    from gpu.backends.cl.device import CLDevice
    from gpu.backends.cl.target import device_target
    from gpu.runtime.device import Device

    context = Device["CL"].context  # type: ignore[attr-defined]
    target = device_target(context.info._replace(kind="CPU", vector_width=8, units=2))
    return CLDevice(name, context, replace(target, name=f"{target.name} as a CPU"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before anything opens a device."""
    library = find_oclgrind()
    if library is None:
        raise pytest.UsageError("-p oclgrind: there is no oclgrind in PATH; apt install oclgrind")
    os.environ["CL_LIBRARY"] = str(library)
    os.environ.setdefault("OCLGRIND_LOG", tempfile.mkstemp(prefix="oclgrind-")[1])
    from gpu.core.config import reread_environment
    from gpu.runtime.device import register

    reread_environment()
    register("CLCPU", open_cpu)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what Oclgrind cannot do."""
    for item in items:
        if any(word in item.nodeid for word in _BEYOND_IT):
            item.add_marker(pytest.mark.skip(reason="Oclgrind is one device for one thread"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test whose kernels Oclgrind complains of."""
    before = _log().stat().st_size
    try:
        return (yield)
    finally:
        if told := _told(before):
            pytest.fail(f"Oclgrind says:\n{told}")


def _told(start: int) -> str:
    from gpu.runtime.device import Device

    Device["CL"].synchronize()
    return _log().read_bytes()[start:].decode(errors="replace")
