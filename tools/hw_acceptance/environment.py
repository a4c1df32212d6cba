"""What machine this is: kernel, driver, nodes, sandbox, GPUs. Reads files and opens nothing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from tools.hw_acceptance.child import Context
from tools.hw_acceptance.steplog import StepLog

_PACKAGES: Final = ("numpy", "torch", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc")
_FILES: Final = (
    "/proc/driver/nvidia/version",
    "/proc/driver/nvidia/params",
    "/proc/version",
    "/proc/cmdline",
    "/sys/module/nvidia/version",
    "/sys/module/nvidia/srcversion",
)
_MAX_TEXT: Final = 16384  # characters of a file that are kept


def describe(context: Context) -> None:
    """Tells all of it; what cannot be read is told as that."""
    log = context.log
    describe_machine(log, _PACKAGES)
    log.fact("nodes", nodes(Path("/dev"), ("nvidia*", "nvidia*/*")))
    log.fact("files", {name: read(name) for name in _FILES})
    log.fact("module parameters", parameters(Path("/sys/module"), ("nvidia", "nvidia_uvm")))
    log.fact("gpus", _gpus(Path("/proc/driver/nvidia/gpus")))


def describe_machine(log: StepLog, packages: Iterable[str]) -> None:
    """What any machine is: system, processors, memory, versions of Python and packages."""
    log.fact("system", " ".join(platform.uname()[i] for i in (0, 2, 3, 4)))
    log.fact("sandbox", sandbox(platform.uname().release, read("/proc/version")))
    log.fact("user", os.geteuid())
    log.fact("processors", os.cpu_count())
    log.fact("memory", read("/proc/meminfo").partition("\n")[0])
    log.fact("python", sys.version)
    log.fact("packages", {name: installed(name) for name in packages})


def sandbox(release: str, banner: str) -> str:
    """What kind of machine a kernel's release and its banner tell of.

    gVisor calls itself Linux 4.4.0 and says so in its banner; Firecracker's kernels here have
    ``-fc-`` in their release.
    """
    if "gvisor" in banner.lower() or release == "4.4.0":
        return "gVisor"
    if "-fc-" in release or "firecracker" in release.lower():
        return "Firecracker"
    return "unknown"


def nodes(folder: Path, patterns: Iterable[str]) -> dict[str, str]:
    """The nodes of a driver: type, numbers and permissions, by path."""
    found = {}
    for path in sorted(each for pattern in patterns for each in folder.glob(pattern)):
        if not path.is_dir():
            status = path.stat()
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            found[str(path)] = f"{number} mode {status.st_mode:o} owner {status.st_uid}"
    return found


def parameters(root: Path, modules: Iterable[str]) -> dict[str, str]:
    """What kernel modules were loaded with, as far as this user may read it."""
    found = {}
    for module in modules:
        for path in sorted((root / module / "parameters").glob("*")):
            found[f"{module}.{path.name}"] = read(str(path)).strip()
    return found


def _gpus(root: Path) -> dict[str, Any]:
    return {path.parent.name: read(str(path)) for path in sorted(root.glob("*/information"))}


def read(path: str) -> str:
    """A file's text, or why it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")[:_MAX_TEXT]
    except OSError as error:
        return f"({error.strerror})"


def installed(package: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
