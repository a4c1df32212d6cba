"""`gpu info`: versions, devices, settings and the disk cache, as text or JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from gpu import __version__
from gpu.core.config import ALIASES, SETTINGS, Setting, config
from gpu.core.errors import ConfigError, GpuError
from gpu.core.files import cache_dir
from gpu.runtime.default import default_choice
from gpu.runtime.device import BACKENDS, Device

SCHEMA: Final = 1
"""Version of the JSON form: a key is never renamed or removed without a new number."""

_PACKAGES: Final = ("numpy", "llvmlite")
_WIDTH: Final = 100


@dataclass(frozen=True)
class DeviceReport:
    """A kind of device.

    Attributes:
        name: as in `DEV=`.
        status: ``found``, ``missing`` (on this machine) or ``unsupported`` (by this version).
        problem: why it is not found and what to do; empty where it is found.
        renderer: what writes its kernels; this and all that follows is empty unless found.
        compiler: what compiles them, with its version and options.
        target: the architecture compiled for.
        features: instruction set features used.
        workers: how many run at once.
        vector_bytes: width of a vector register.
    """

    name: str
    status: str
    problem: str = ""
    renderer: str = ""
    compiler: str = ""
    target: str = ""
    features: tuple[str, ...] = ()
    workers: int = 0
    vector_bytes: int = 0


@dataclass(frozen=True)
class SettingReport:
    """A setting: its value, ``default`` or ``environment`` for where that is from, its meaning."""

    name: str
    value: Any
    source: str
    doc: str


@dataclass(frozen=True)
class CacheReport:
    """The disk cache: its folder, whether it is in use, and what it holds."""

    folder: str
    in_use: bool
    entries: int
    bytes: int


@dataclass(frozen=True)
class Report:
    """All that `gpu info` tells."""

    schema: int
    version: str
    python: str
    system: str
    packages: dict[str, str]
    default_device: str
    default_reason: str
    devices: tuple[DeviceReport, ...]
    settings: tuple[SettingReport, ...]
    cache: CacheReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu info`."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs to read")


def run(arguments: argparse.Namespace) -> int:
    """Prints the report. Raises ConfigError for a setting that is not understood."""
    report = collect()
    print(as_json(report) if arguments.json else as_text(report))
    return 0


def package_version(name: str) -> str:
    """The version of an installed package, or ``not installed``."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def collect() -> Report:
    """Looks at everything; opens each device this version supports.

    Raises ConfigError for settings that name no device.
    """
    default = default_choice()
    return Report(
        schema=SCHEMA,
        version=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages={name: package_version(name) for name in _PACKAGES},
        default_device=default.device,
        default_reason=default.reason,
        devices=tuple(_device(name) for name in Device.known()),
        settings=tuple(_settings()),
        cache=_cache(),
    )


def _device(name: str) -> DeviceReport:
    try:
        about = Device[name].describe()
    except GpuError as error:
        status = "missing" if name in BACKENDS else "unsupported"
        return DeviceReport(name, status, " ".join(error.message.split()))
    return DeviceReport(
        name,
        "found",
        renderer=about["renderer"],
        compiler=about["compiler"],
        target=about["target"],
        features=tuple(filter(None, about["features"].split(","))),
        workers=int(about["workers"]),
        vector_bytes=int(about["vector bytes"]),
    )


def _settings() -> Iterator[SettingReport]:
    """Every setting, then the older spellings that are in use."""
    for setting in SETTINGS.values():
        yield _setting(setting)
    for alias in ALIASES.values():
        if alias.from_environment():
            yield _setting(alias)


def _setting(setting: Setting[Any]) -> SettingReport:
    value = setting.from_environment()
    source = "default" if _is_default(setting, value) else "environment"
    return SettingReport(setting.name, _plain(value), source, setting.doc)


def _plain(value: object) -> bool | int | str:
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    return value if isinstance(value, bool | int) else str(value)


def _is_default(setting: Setting[Any], value: object) -> bool:
    try:
        return bool(value == setting.default())
    except ConfigError:  # no default here: a user without a home folder
        return False


def _cache() -> CacheReport:
    sizes = []
    for folder, _, names in os.walk(config.CACHE_DIR):
        for name in names:
            try:
                sizes.append(os.lstat(os.path.join(folder, name)).st_size)
            except FileNotFoundError:  # another process evicts entries meanwhile
                continue
    return CacheReport(str(config.CACHE_DIR), cache_dir() is not None, len(sizes), sum(sizes))


def as_json(report: Report) -> str:
    """The report as JSON, its keys those of the classes here."""
    return json.dumps(asdict(report), indent=2)


def as_text(report: Report) -> str:
    """The report for people."""
    packages = ", ".join(f"{name} {number}" for name, number in report.packages.items())
    lines = [
        f"gpu {report.version} on Python {report.python}, {report.system}",
        f"with {packages}",
        "",
        "Devices",
        *hanging("  default: ", f"{report.default_device}, as {report.default_reason}"),
        *_device_lines(report.devices),
        "",
        "Settings",
        *_setting_lines(report.settings),
        "",
        "Disk cache",
        f"  {report.cache.folder}" + ("" if report.cache.in_use else " (not in use)"),
        f"  {report.cache.entries:,} entries, {byte_size(report.cache.bytes)}",
    ]
    return "\n".join(lines)


def _device_lines(devices: Sequence[DeviceReport]) -> Iterator[str]:
    supported = [d for d in devices if d.status != "unsupported"]
    for device in supported:
        details = _found(device) if device.status == "found" else [("what to do", device.problem)]
        yield f"  {device.name:<8}{device.status}"
        for title, text in details:
            yield from hanging(f"{'':10}{title:<12}", text)
    others = ", ".join(d.name for d in devices if d.status == "unsupported")
    if others:
        yield f"  not supported by this version: {others}"


def _found(device: DeviceReport) -> list[tuple[str, str]]:
    # The key repeats the features, which have a row of their own.
    compiler = device.compiler.replace("|" + ",".join(device.features) + "|", "|")
    width = f", {device.vector_bytes}-byte vectors" if device.vector_bytes else ""
    rows = [
        ("renderer", device.renderer),
        ("compiler", compiler.replace("|", ", ")),
        ("target", device.target + width),
        ("features", " ".join(device.features)),
        ("workers", str(device.workers)),
    ]
    return [(title, text) for title, text in rows if text]


def hanging(head: str, text: str) -> list[str]:
    """`text` after `head`, wrapped between words and aligned under its beginning."""
    indent = " " * len(head)
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _setting_lines(settings: Sequence[SettingReport]) -> Iterator[str]:
    shown = [(s.name, _value_text(s.value), s.source, s.doc) for s in settings]
    widths = [max(len(row[column]) for row in shown) for column in range(3)]
    for name, value, source, doc in shown:
        yield f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {source:<{widths[2]}}  {doc}"


def _value_text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value) or "-"


def byte_size(nbytes: int) -> str:
    """A number of bytes with the unit that fits, as in ``1.5 MiB``."""
    amount, units = float(nbytes), ["bytes", "KiB", "MiB", "GiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} {units[0]}" if units[0] == "bytes" else f"{amount:.1f} {units[0]}"
