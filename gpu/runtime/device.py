"""Devices: what a backend provides, and the table through which they are found and opened."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

from gpu.compiler.ir.graph.grid import Grid
from gpu.compiler.ir.graph.node import Place
from gpu.core import config
from gpu.core.devspec import (
    DEVICES,
    DeviceKind,
    DeviceSpec,
    device_name,
    name_device,
    parse_device_name,
    parse_device_spec,
)
from gpu.core.errors import GpuError, InvalidType, InvalidValue, Unsupported
from gpu.core.unpicklable import Unpicklable
from gpu.runtime.allocator import Allocator
from gpu.runtime.default import advice_for, default_choice
from gpu.runtime.program import Program
from gpu.runtime.timeline import recording
from gpu.runtime.timer import HostTimer, Timer

if TYPE_CHECKING:
    from gpu.compiler.ir.linear import Program as LinearProgram
    from gpu.compiler.targets import Target
    from gpu.compiler.toolchain.base import Compiler


class Renderer(Protocol):
    """Prints linear IR for a compiler, and knows the machine it prints for."""

    target: Target

    def render(self, program: LinearProgram) -> str:
        """The program as the compiler's source text."""

    def launch_data(self, program: LinearProgram) -> LaunchData:
        """What the runtime needs to load the program besides its code; it is kept in caches."""


class Toolchain(NamedTuple):
    """What makes code for a machine: linear IR to source text, source text to code."""

    renderer: Renderer
    compiler: Compiler


LaunchData = Mapping[str, int]
# Makes a Program of a kernel's name, its compiled code and its launch data.
Runtime = Callable[[str, bytes, LaunchData], Program]
# Makes of (program, slots, values) triples, and the number of slots, a function of one allocation
# per slot and the values of symbolic sizes that runs them all in order.
GraphMaker = Callable[
    [Sequence[tuple[Any, tuple[int, ...], tuple[int, ...]]], int],
    Callable[[Sequence[Any], Sequence[int]], None],
]


class Compiled(Unpicklable):
    """A device that runs compiled kernels: an allocator, a renderer, a compiler and a runtime.

    Attributes:
        device: its name, as tensors print it: ``CPU`` or ``CPU:1``.
        allocator: its memory.
        renderer: linear IR to source text.
        compiler: source text to code.
        runtime: code to a launchable program.
        graph: makes one call of many launches, or None.
        may_alias: whether a program may be given the same memory twice, if it reads of it just the
            elements that it writes there, each before it writes that.
    """

    may_alias = False

    def __init__(
        self,
        device: str,
        allocator: Allocator[Any],
        renderer: Renderer,
        compiler: Compiler,
        runtime: Runtime,
        graph: GraphMaker | None = None,
    ):
        self.device = device
        self.allocator = allocator
        self.renderer = renderer
        self.compiler = compiler
        self.runtime = runtime
        self.graph = graph

    def synchronize(self) -> None:
        """Waits until everything launched so far is done."""

    def make_timer(self) -> Timer:
        """What times its launches, for profiles."""
        return HostTimer()

    def describe(self) -> dict[str, str]:
        """What `gpu info` prints about the device."""
        target = self.renderer.target
        return {
            "device": self.device,
            "renderer": type(self.renderer).__name__.removesuffix("Renderer"),
            "compiler": self.compiler.key,
            "target": target.name,
            "features": target.features,
            "workers": str(target.workers),
            "vector bytes": str(target.vector_bytes),
        }


# Opens a device, given its name and what `DEV=` says of how.
Opener = Callable[[str, DeviceSpec], Compiled]

# What opens each device type: an `Opener`, or a module with one called `open_device` that is
# imported on use.
BACKENDS: Final[dict[str, str | Opener]] = {
    "AMD": "gpu.backends.amd.device",
    "CL": "gpu.backends.cl.device",
    "CPU": "gpu.backends.cpu.device",
    "CUDA": "gpu.backends.cuda.device",
    "METAL": "gpu.backends.metal.device",
    "NV": "gpu.backends.nv.device",
    "PYTHON": "gpu.backends.python.device",
    "QCOM": "gpu.backends.qcom.device",
    "WEBGPU": "gpu.backends.webgpu.device",
}

# The modules with a `toolchain`, which makes of a `DeviceSpec` what compiles for a machine that
# need not be here. Others' compilers are part of their drivers.
_CROSS: Final = {
    **{name: str(BACKENDS[name]) for name in ("AMD", "CPU", "CUDA", "NV", "PYTHON")},
    "METAL": "gpu.backends.metal.toolchain",
    "QCOM": "gpu.backends.qcom.toolchain",
}


def register(name: str, backend: str | Opener, kind: DeviceKind | None = None) -> None:
    """Adds a device type that is no part of this package, to be used by its name like any other.

    Args:
        name: as in `DEV=` and `device=`, in upper case.
        backend: opens it, or the name of a module whose `open_device` does.
        kind: its renderers and interfaces, where there is a choice.

    Raises ConfigError for a name that is no upper-case word or that is taken.
    """
    name_device(name, kind or DeviceKind())
    BACKENDS[name] = backend


def toolchain_for(text: str) -> Toolchain:
    """What makes code for the machine that `text` names as `DEV=` does; it need not be here.

    A CPU may be named alone: ``znver5`` is ``CPU::znver5``. Without an architecture it is that of
    this machine. Raises ConfigError for what names no device, Unsupported where only the open
    device compiles, and for an architecture that is not known or whose toolchain is missing.
    """
    from gpu.compiler.targets.cpu_names import is_cpu  # only now: most programs need no table

    spec = parse_device_spec(f"CPU::{text}" if is_cpu(text) else text)
    if spec.device not in _CROSS:
        raise Unsupported(
            f"code for {spec.device} is compiled by the open device alone; without one there is"
            f" code for {', '.join(_CROSS)}"
        )
    made: Toolchain = importlib.import_module(_CROSS[spec.device]).toolchain(spec)
    return made


class DeviceTable:
    """Open devices by name: ``Device["CPU"]`` opens on first use; `Device.DEFAULT` names one."""

    _open: ClassVar[dict[str, Compiled]] = {}
    # Two threads that need a device first get one and the same, or neither could use the other's
    # memory. Reentrant: opening a device may open another.
    _opening: ClassVar[threading.RLock] = threading.RLock()
    # Whether several devices were ever asked for at once.
    has_groups: ClassVar[bool] = False

    def __reduce__(self) -> str:
        return "Device"  # there is one in a process

    def __getitem__(self, name: str) -> Compiled:
        """The device called `name`, in any case, as in ``cpu:1``.

        Raises ConfigError for a name that is not known, Unsupported for a device whose backend is
        not part of this version, DeviceError where it cannot be opened.
        """
        found = self._open.get(name) if isinstance(name, str) else None
        if found is None:
            canonical = self.canonicalize(name)
            if not isinstance(canonical, str):
                raise InvalidType(f"a device is opened by one name, got {canonical}")
            with self._opening:
                found = self._open.get(canonical)
                if found is None:
                    found = self._open[canonical] = self._open_device(canonical)
        return found

    def _open_device(self, name: str) -> Compiled:
        recording()  # begins here, where what was wrong with its path is told early
        kind, _ = parse_device_name(name)
        if kind not in BACKENDS:
            raise Unsupported(
                f"device {kind} is not supported by this version; supported: {', '.join(BACKENDS)}"
            )
        backend = BACKENDS[kind]
        if isinstance(backend, str):
            backend = importlib.import_module(backend).open_device
        try:
            opened: Compiled = backend(name, config.device_options(kind))
        except GpuError as error:
            if advice := advice_for(name):
                error.add(advice)
            raise
        return opened

    def canonicalize(self, name: Place | None) -> Place:
        """The printed form of a device name; None gives the default device.

        Of several names in a tuple or list, a tuple; of one in such the name. Raises ConfigError
        for a name that is not known, InvalidValue for several of which two are the same or none.
        """
        if name is None:
            return self.DEFAULT
        if isinstance(name, Grid):
            return name
        if isinstance(name, (tuple, list)):
            return self._group(name)
        if not isinstance(name, str):
            raise InvalidType(f"a device is named by a str, got {type(name).__name__} {name!r}")
        return device_name(*parse_device_name(name))

    def _group(self, names: Sequence[object]) -> Place:
        found = tuple(self.canonicalize(name) for name in names)
        if not found or len(set(found)) < len(found):
            raise InvalidValue(
                f"devices {tuple(names)!r}: expected one or more different names, as in "
                "('CPU', 'CPU:1')"
            )
        if len(found) == 1:
            return found[0]
        DeviceTable.has_groups = True
        return found

    @property
    def DEFAULT(self) -> str:
        """The device that is used where none is named; see `gpu.runtime.default`.

        Raises ConfigError for settings that name no device, DeviceError where what the machine has
        cannot be told.
        """
        return default_choice().device

    def opened(self) -> list[Compiled]:
        """The devices in use."""
        return list(self._open.values())

    def known(self) -> list[str]:
        """Every device type there is a name for, whether or not this version supports it."""
        return list(DEVICES)


Device = DeviceTable()
