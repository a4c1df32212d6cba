"""Settings: the one reader of the environment in this package.

``config.DEBUG`` is the value in force here: that of the innermost `Context` of this thread or
asynchronous task that sets it, else the environment's, else the default. The environment is read
once per variable, on first use; `reread_environment` forgets what was read.

Every variable has two spellings, ``DEBUG`` and the unambiguous ``GPU_DEBUG``; an empty value counts
as not set, and two different values are an error.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from functools import cache
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

from gpu.core.devchoice import Request, choose, combine, fill
from gpu.core.devspec import (
    DEVICES,
    DeviceSpec,
    device_name,
    did_you_mean,
    parse_device_name,
    parse_device_spec,
)
from gpu.core.errors import ConfigError
from gpu.core.settingkinds import (
    BOOL,
    BYTES,
    DEVICE,
    EVENTS,
    EXACTLY_1,
    NAME,
    OPTIONAL_PATH,
    PATH,
    PROFILE,
    TABLE,
    TEXT,
    Kind,
    comma_list,
    one_of,
    whole_number,
)

__all__ = [
    "ALIASES",
    "SETTINGS",
    "TABLE",
    "Config",
    "Context",
    "DeviceSpec",
    "Setting",
    "config",
    "device_name",
    "device_options",
    "device_spec",
    "for_settings",
    "lent_variable",
    "parse_device_name",
    "parse_device_spec",
    "preset_variable",
    "process_settings",
    "reread_environment",
    "use_device",
    "variables_of_others",
]

T = TypeVar("T")
_PREFIX: Final = "GPU_"
_UNREAD: Final[Any] = object()
_NO_OVERRIDES: Final[Mapping[str, Any]] = MappingProxyType({})
_overrides: ContextVar[Mapping[str, Any]] = ContextVar("gpu_settings", default=_NO_OVERRIDES)


class _Environment:
    """Stands for what all settings are where no `Context` sets them: another one for others."""

    state = object()


def for_settings(make: Callable[[], T]) -> Callable[[], T]:
    """`make`, which depends on settings alone, called again only where some are others.

    Reading several of them in one step is for what every operation asks for.
    """
    known: tuple[object, object, T] = (_UNREAD, _UNREAD, _UNREAD)

    @functools.wraps(make)
    def given() -> T:
        nonlocal known
        overrides, environment = _overrides.get(), _Environment.state
        if known[0] is not overrides or known[1] is not environment:
            known = overrides, environment, make()
        return known[2]

    return given


class Setting(Generic[T]):
    """One setting: a descriptor of `Config`, and a row of the `SETTINGS` table.

    Attributes:
        name: the variable's name, without the optional ``GPU_``.
        kind: what values it takes.
        default_doc: the default in words, for tables.
        doc: one line on what it does.
    """

    def __init__(self, kind: Kind[T], doc: str, default: Callable[[], T], default_doc: str):
        self.name = ""
        self.kind, self.doc, self.default_doc = kind, doc, default_doc
        self._default = default
        self._value: T = _UNREAD

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Config, owner: type) -> T: ...
    def __get__(self, instance: Config | None, owner: type) -> Self | T:
        if instance is None:
            return self
        overrides = _overrides.get()
        if self.name in overrides:
            value: T = overrides[self.name]
            return value
        return self._value if self._value is not _UNREAD else self.from_environment()

    def __set__(self, instance: Config, value: T) -> None:
        raise ConfigError(
            f"{self.name} cannot be assigned; write `with Context({self.name}={value!r}):` or set"
            " the environment variable"
        )

    @property
    def spellings(self) -> tuple[str, ...]:
        """The environment variables that set it."""
        prefixed = self.name.startswith(_PREFIX)
        return (self.name,) if prefixed else (self.name, _PREFIX + self.name)

    def default(self) -> T:
        """The value where nothing sets it."""
        return self._default()

    def from_environment(self) -> T:
        """The environment's value or the default, kept. Raises ConfigError for a bad value."""
        if self._value is _UNREAD:
            self._value = self._read()
        return self._value

    def forget(self) -> None:
        """Makes the next use read the environment again."""
        self._value = _UNREAD
        _Environment.state = object()

    def exchange(self, value: T) -> T:
        """Takes a value as if it were the environment's; returns the one before, for later."""
        before, self._value = self._value, value
        _Environment.state = object()
        return before

    def convert(self, value: object, source: str) -> T:
        """Checks a value, or reads its text; `source` names where it stands. Raises ConfigError."""
        try:
            if not isinstance(value, str | int | Path):
                raise ValueError(value)
            return self.kind.parse(str(value))
        except ConfigError as error:
            raise ConfigError(f"{source}={value}: {error.message}") from error
        except ValueError as error:
            raise ConfigError(
                f"{source}={value!r} is not understood; {self.name} takes {self.kind.accepts}"
            ) from error

    def _read(self) -> T:
        found = [(name, os.environ[name]) for name in self.spellings if os.environ.get(name)]
        if not found:
            return self.default()
        values = [self.convert(text, name) for name, text in found]
        if any(value != values[0] for value in values):
            both = " and ".join(f"{name}={text}" for name, text in found)
            raise ConfigError(f"{both} contradict each other; unset one of them")
        return values[0]


def _default_cache_dir() -> Path:
    # XDG Base Directory Specification: a relative XDG_CACHE_HOME is to be ignored.
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = xdg if os.path.isabs(xdg) else os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        raise ConfigError("this user has no home folder; set CACHE_DIR to a folder, or CACHE=0")
    return Path(base) / "gpu"


def _usable_cpus() -> int:
    if sys.platform == "linux":  # elsewhere a process cannot be bound to some CPUs
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _flag(doc: str, default: bool = False) -> Setting[bool]:
    return Setting(BOOL, doc, lambda: default, str(int(default)))


def _text(kind: Kind[str], doc: str) -> Setting[str]:
    return Setting(kind, doc, str, "unset")


class Config:
    """The settings. Read them from the one instance, `config`."""

    DEBUG = Setting(whole_number(0, 7), "logging: 1 events, 2 and up details", lambda: 0, "0")
    DEV = _text(DEVICE, "the device to use and how, as in CPU or PCI+AMD:LLVM")
    SIM = _text(
        TEXT, "chip to simulate under the drivers, and its faults, as in gfx1100,fault=hang"
    )
    SIM_SEED = Setting(
        whole_number(0, 2**32 - 1),
        "seed of what simulated hardware leaves to chance: mostly the order of work",
        lambda: 0,
        "0",
    )
    PCI_ACCESS = Setting(
        one_of(("VFIO", "SYSFS")),
        "how PCI functions are reached; SYSFS lets a card write to all memory",
        lambda: "VFIO",
        "VFIO",
    )
    FIRMWARE_DIR = Setting(
        TEXT, "folder that firmware is looked for in before the system's", str, "unset"
    )
    TRACE = _text(TEXT, "file to record the drivers' calls to the system in; see `gpu trace`")
    CACHE = _flag("keep compiled kernels on disk", default=True)
    CACHE_DIR = Setting(
        PATH, "folder of the disk cache", _default_cache_dir, "$XDG_CACHE_HOME/gpu or ~/.cache/gpu"
    )
    OBJECT_CACHE_DIR: Setting[Path | None] = Setting(
        OPTIONAL_PATH,
        "folder of compiled objects, for processes that share those and nothing else",
        lambda: None,
        "CACHE_DIR",
    )
    MEMORY_LIMIT: Setting[int | None] = Setting(
        BYTES, "memory that tensors may take on each device, as in 512MiB", lambda: None, "unset"
    )
    CPU_THREADS = Setting(
        whole_number(1, 4096), "threads of the CPU device", _usable_cpus, "CPUs it may run on"
    )
    CLANG = Setting(NAME, "the clang of DEV=CPU:CLANG, by name or path", str, "the first in PATH")
    CL_PLATFORM = _text(TEXT, "the platform of DEV=CL: its number, or a part of its name or vendor")
    CL_LIBRARY = Setting(TEXT, "the OpenCL library, by path", str, "the system's loader")
    CL_REORDER = _flag("let DEV=CL run kernels that do not need each other at once, where it can")
    OCL_ICD_VENDORS = Setting(
        TEXT,
        "folder of OpenCL's drivers, as its loader reads it; to explain errors",
        lambda: "/etc/OpenCL/vendors",
        "/etc/OpenCL/vendors",
    )
    CUDA_LIBRARY = Setting(TEXT, "libcuda, by path", str, "the system's")
    WEBGPU_LIBRARY = Setting(
        TEXT, "path of Dawn's library for DEV=WEBGPU", str, "that of the package dawn-python"
    )
    WEBGPU_ADAPTER = Setting(
        one_of(("HIGH-PERFORMANCE", "LOW-POWER", "FALLBACK")),
        "which adapter DEV=WEBGPU asks for; FALLBACK is one in software",
        lambda: "HIGH-PERFORMANCE",
        "HIGH-PERFORMANCE",
    )
    LLVM_IN_PROCESS = _flag("run LLVM in this process, which its fatal errors then end")
    NVRTC_LIBRARY = Setting(
        TEXT, "NVIDIA's run-time compiler, by path", str, "that of its package, or CUDA's"
    )
    NVJITLINK_LIBRARY = Setting(
        TEXT, "NVIDIA's linker, which assembles PTX, by path", str, "that of its package, or CUDA's"
    )
    NVPTXCOMPILER_LIBRARY = Setting(
        TEXT, "NVIDIA's PTX compiler as a shared library, by path", str, "CUDA's"
    )
    TINYMESA_LIBRARY = Setting(
        TEXT, "Mesa's compilers for DEV=NV:NAK, by path", str, "that of the package tinymesa"
    )
    COMGR_LIBRARY = Setting(
        TEXT, "AMD's compilers for DEV=AMD:HIP, by path", str, "that of the system or of ROCm"
    )
    AM_VARIANTS = _text(TEXT, "answers for DEV=AMD where KFD leaves a choice, as in runtime=told")
    NV_VARIANTS = _text(
        TEXT, "answers for DEV=NV where hardware leaves a choice, as in doorbell=BAR1,debugger=none"
    )
    HANG_TIMEOUT = Setting(
        whole_number(1, 10**6), "seconds without progress after which a GPU hangs", lambda: 30, "30"
    )
    CRASH_DIR: Setting[Path | None] = Setting(
        OPTIONAL_PATH,
        "folder of reports about GPUs that failed; see `gpu crash`",
        lambda: None,
        "CACHE_DIR/crashes",
    )
    CRASH_FILES = Setting(
        whole_number(0, 10**6), "how many such reports are kept; 0 writes none", lambda: 16, "16"
    )
    MPI_TIMEOUT = Setting(
        whole_number(1, 10**6),
        "seconds that a rank of a program over MPI waits for others",
        lambda: 300,
        "300",
    )
    VERIFY = _flag("check the intermediate representation between compiler passes")
    CHECK = Setting(
        comma_list({"1": "index", "index": "index", "nan": "nan"}),
        "what is looked for while computing: 1 or index, positions and labels out of range; nan,"
        " the operation that made a NaN or infinity",
        frozenset,
        "0",
    )
    GPU_VERIFY_JIT = _flag("run jitted functions eagerly too, and compare the results")
    GPU_PROFILE = Setting(
        PROFILE,
        "time kernels; at exit, tell what each computed for which line, how fast; or, as"
        " trace.json, write a file for Perfetto",
        str,
        "0",
    )
    GPU_COUNTERS: Setting[tuple[str, ...]] = Setting(
        EVENTS,
        "performance counters that profiles of AMD's GPUs tell too, as in SQ_WAVES,SQ_INSTS_VALU",
        tuple,
        "0",
    )
    IMAGE = _flag(
        "read operands of matrix products and convolutions as images, where there are any"
    )
    NOOPT = _flag("compile kernels without loop optimisations")
    BEAM = Setting(
        whole_number(0, 1024),
        "measure so many schedules of each kernel, and keep the best; 1 uses what is kept",
        lambda: 0,
        "0",
    )
    BEAM_SECONDS = Setting(
        whole_number(1, 10**6), "seconds that a process measures schedules", lambda: 600, "600"
    )
    TUNED: Setting[Path | None] = Setting(
        OPTIONAL_PATH, "file of the best schedules known", lambda: None, "CACHE_DIR/tuned.json"
    )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise _unknown_setting(name)


class _Aliases:
    """The older spellings of what `DEV=` says."""

    CPU = _flag("DEV=CPU")
    AMD = _flag("DEV=AMD")
    NV = _flag("DEV=NV")
    QCOM = _flag("DEV=QCOM")
    METAL = _flag("DEV=METAL")
    CUDA = _flag("DEV=CUDA")
    CL = _flag("DEV=CL")
    WEBGPU = _flag("DEV=WEBGPU")
    AMD_IFACE = _text(one_of(DEVICES["AMD"].interfaces), "DEV=<value>+AMD")
    NV_IFACE = _text(one_of(DEVICES["NV"].interfaces), "DEV=<value>+NV")
    NV_PTX = _flag("DEV=NV:PTX")
    CUDA_PTX = _flag("DEV=CUDA:PTX")
    AMD_LLVM = _flag("DEV=AMD:LLVM")
    AMD_HIP = _flag("DEV=AMD:HIP")
    CPU_LLVM = _flag("DEV=CPU:LLVM")
    CPU_CLANG = _flag("DEV=CPU:CLANG")
    # The oldest ones: they select a device, as its name does.
    GPU = Setting(EXACTLY_1, "DEV=CL", bool, "0")
    LLVM = Setting(EXACTLY_1, "DEV=CPU:LLVM", bool, "0")
    CLANG = Setting(EXACTLY_1, "DEV=CPU:CLANG", bool, "0")


def _table(owner: type) -> dict[str, Setting[Any]]:
    return {name: s for name, s in vars(owner).items() if isinstance(s, Setting)}


SETTINGS: Final[dict[str, Setting[Any]]] = _table(Config)
"""Every setting by name, in the order they are documented."""
ALIASES: Final[dict[str, Setting[Any]]] = _table(_Aliases)
"""The older device variables by name; each one's `doc` is the `DEV=` spelling it stands for."""
_SELECTING: Final = frozenset({*DEVICES, "GPU", "LLVM", "CLANG"})
config: Final = Config()


class Context:
    """Settings for the duration of a `with` block, in this thread or asynchronous task alone.

    ``with Context(DEBUG=2, NOOPT=1): ...``. Raises ConfigError at once for an unknown name or a
    value that the setting does not take.
    """

    def __init__(self, **settings: str | int | Path):
        unknown = [name for name in settings if name not in SETTINGS]
        if unknown:
            raise _unknown_setting(unknown[0])
        self._settings = {
            name: SETTINGS[name].convert(value, name) for name, value in settings.items()
        }
        self._tokens: list[Token[Mapping[str, Any]]] = []

    def __enter__(self) -> Self:
        self._tokens.append(_overrides.set({**_overrides.get(), **self._settings}))
        self._tell_loggers()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _overrides.reset(self._tokens.pop())
        self._tell_loggers()

    def _tell_loggers(self) -> None:
        if "DEBUG" in self._settings:
            from gpu.core import log  # which reads config

            log.follow_debug()


@contextmanager
def process_settings(**settings: str | int | Path) -> Iterator[None]:
    """As `Context`, but for all threads, as far as no `Context` says otherwise. For programs."""
    values = {name: SETTINGS[name].convert(value, name) for name, value in settings.items()}
    before = {name: SETTINGS[name].exchange(value) for name, value in values.items()}
    try:
        yield
    finally:
        for name, value in before.items():
            SETTINGS[name].exchange(value)


def device_spec() -> DeviceSpec | None:
    """The device that is asked for: by a `Context`'s DEV, else by DEV= and its older spellings.

    None where nothing asks for one. An older spelling may add to DEV=, and to another one. Under a
    `Context` that sets DEV, the environment still says what that leaves open about the same device.
    Raises ConfigError where two variables contradict each other.
    """
    override: str | None = _overrides.get().get("DEV")
    return _environment_spec() if override is None else _context_spec(override)


def device_options(device: str) -> DeviceSpec:
    """How to open devices of one kind: the interface, renderer and architecture asked for.

    Unlike `device_spec` it also tells of a device that is not the selected one; its index is 0.
    """
    selected = device_spec()
    if selected is not None and selected.device == device:
        return DeviceSpec(
            device, selected.interface, renderer=selected.renderer, arch=selected.arch
        )
    return combine(device, _alias_requests())


def reread_environment() -> None:
    """Forgets what was read of the environment, for tests and programs that change it."""
    for setting in (*SETTINGS.values(), *ALIASES.values()):
        setting.forget()
    for cached in (_environment_spec, _context_spec, _alias_requests):
        cached.cache_clear()


def use_device(spec: DeviceSpec) -> None:
    """Has a device be used from now on as if the environment's DEV= asked for it."""
    SETTINGS["DEV"].exchange(str(spec))
    _environment_spec.cache_clear()


def variables_of_others(names: Iterable[str]) -> dict[str, str]:
    """Those of `names`, variables that belong to other programs, that are set and not empty."""
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def preset_variable(name: str, value: str) -> None:
    """Sets a variable for a library that reads it in this process, unless it is set already."""
    os.environ.setdefault(name, value)


@contextmanager
def lent_variable(name: str, value: str) -> Iterator[None]:
    """Sets a variable, if it is unset, for a library that reads it within the `with` block."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


@cache
def _environment_spec() -> DeviceSpec | None:
    text = SETTINGS["DEV"].from_environment()
    named = [Request(f"DEV={text}", parse_device_spec(text), selects=True)] if text else []
    return choose([*named, *_alias_requests()])


@cache
def _context_spec(text: str) -> DeviceSpec | None:
    if not text:
        return None
    spec = parse_device_spec(text)
    return fill(spec, combine(spec.device, _alias_requests()))


@cache
def _alias_requests() -> tuple[Request, ...]:
    """What the older variables that are set ask for."""
    requests = []
    for name, alias in ALIASES.items():
        value = alias.from_environment()
        if value:
            text = alias.doc.removeprefix("DEV=").replace("<value>", str(value))
            source = f"{name}={1 if value is True else value}"
            requests.append(Request(source, parse_device_spec(text), selects=name in _SELECTING))
    return tuple(requests)


def _unknown_setting(name: str) -> ConfigError:
    if name in ALIASES:
        return ConfigError(f"{name} is an environment variable only; use {ALIASES[name].doc}")
    return ConfigError(f"there is no setting {name}{did_you_mean(name, SETTINGS)}")
