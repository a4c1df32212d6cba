"""The tests of tensor operations on the GPU: NV by each of its compilers, CUDA, CL and WEBGPU.

They are the tests of the tree, which pytest runs in several processes where it can: most of their
time goes into compiling.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from gpu.backends.cuda import find
from gpu.compiler.toolchain.llvm import llvmlite_version
from gpu.compiler.toolchain.mesalib import find_mesa
from gpu.compiler.toolchain.nvlibs import find_library
from gpu.core.errors import GpuError, Unsupported
from gpu.core.files import read_bytes
from gpu.drivers.questions import variants_text
from gpu.runtime.default import Found
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.ladders import LADDERS
from tools.hw_acceptance.runner import ROOT
from tools.hw_acceptance.steplog import StepFailed, Unavailable
from tools.hw_acceptance.suites.plan import TENSOR_SECONDS

VENDOR: Final = "NVIDIA"
TESTS: Final = ("tests/backend", "tests/tensor")
PLUGIN: Final = "tools.hw_acceptance.suites.plugin"
_SEED: Final = 20260101
_SHUTDOWN: Final = 25.0  # seconds from the last test's begin to the end of all processes
_MOST_WORKERS: Final = 8
_ABSENT: Final = re.compile(r"NVIDIA GPU \d+: this process can reach|AMD GPU \d+: there are \d+:")
_MOST_ROWS: Final = 60  # failures that are told one by one


def by_nvrtc(context: Context) -> None:
    """CUDA C. Raises Unavailable where this machine lacks a tool, StepFailed."""
    _need("nvrtc", "nvrtc")
    _run(context, "NV")


def by_ptx(context: Context) -> None:
    """Our own PTX, through LLVM. Raises Unavailable where this machine lacks a tool, StepFailed."""
    _need("nvJitLink", "nvJitLink")
    if importlib.util.find_spec("llvmlite") is None:
        raise Unavailable("llvmlite is not installed, which makes PTX")
    _run(context, "NV:PTX")


def by_nak(context: Context) -> None:
    """Mesa's NAK. Raises Unavailable where this machine lacks its library, StepFailed."""
    try:
        find_mesa()
    except Unsupported as missing:
        raise Unavailable(missing.message) from missing
    _run(context, "NV:NAK")


def by_llvm(context: Context) -> None:
    """Code of AMD's GPUs by LLVM. Raises Unavailable without llvmlite, StepFailed."""
    try:
        llvmlite_version()
    except Unsupported as missing:
        raise Unavailable(missing.message) from missing
    _run(context, "AMD")


def by_libcuda(context: Context) -> None:
    """CUDA C on the device CUDA. Raises Unavailable where this machine lacks a tool, StepFailed."""
    need_libcuda(context)
    _run(context, "CUDA")


def by_opencl(context: Context) -> None:
    """OpenCL C by NVIDIA's own compiler. Raises Unavailable where it is not, StepFailed."""
    _need_vendors("CL", CL_PLATFORM=VENDOR)
    _run(context, "CL", {"CL_PLATFORM": VENDOR})


def by_webgpu(context: Context) -> None:
    """WGSL through Dawn and NVIDIA's Vulkan. Raises Unavailable where they are not, StepFailed."""
    _need_vendors("WEBGPU")
    _run(context, "WEBGPU")


def need_libcuda(context: Context) -> None:
    """Raises Unavailable where DEV=CUDA or its compiler is not; a model has a libcuda."""
    _need("nvrtc", "nvrtc")
    look = find.look()
    if not context.chip and look.found is not Found.USABLE:
        raise Unavailable(f"DEV=CUDA has nothing to run on: {look}")


def run_tests(
    context: Context,
    options: Sequence[str],
    tests: Sequence[str],
    seconds: float,
    *,
    plugin: str = PLUGIN,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Runs tests of the tree for about so many seconds; returns the file that the plugin wrote.

    ``options`` are pytest's, ``settings`` those of the environment that are set besides. Raises
    StepFailed where pytest itself fails.
    """
    out, output = context.log.folder / "tests.jsonl", context.log.folder / "pytest.txt"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", plugin, "-p", "no:cacheprovider"),
        *options,
        *("--suite-out", str(out), "--suite-seconds", f"{seconds:.0f}"),
        "--continue-on-collection-errors",  # a package that one module lacks costs that module
        *("--suite-seed", str(_SEED), *_workers(context), *tests),
    ]
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
        "SIM": context.chip,
        LADDERS[context.ladder].setting: variants_text(context.force),
        **settings,
    }
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            code = process.wait(seconds + _SHUTDOWN)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
            context.log.fact("pytest was killed after", f"{seconds + _SHUTDOWN:.0f} s")
    if not out.exists() or code not in (0, 1, 5, -9):
        tail = output.read_text(encoding="utf-8", errors="replace").strip()[-600:]
        raise StepFailed(f"pytest ended with status {code}: {tail}")
    return out


def tell(context: Context, out: Path, bare: bool = True) -> None:
    """Tells what a file of the plugin says: how many of how many, and each failure.

    A device that is `bare` needs none of the vendor's run-time libraries.
    """
    *whole, _cut = read_bytes(out).split(b"\n")
    lines: list[dict[str, Any]] = [json.loads(line) for line in whole]
    tests = {line["test"]: line for line in lines if "test" in line}
    total = max((line["total"] for line in lines if "total" in line), default=0)
    for line in tests.values():
        if _ABSENT.search(line["error"]):
            line["outcome"] = "without a second GPU"
    counts = Counter(line["outcome"] for line in tests.values())
    context.log.fact("tests", {"all": total, "ran": len(tests), **counts})
    broken = {line["module"]: line["error"] for line in lines if "module" in line}
    if broken:
        context.log.fact("modules that could not be imported", broken)
    failed = [line for line in tests.values() if line["outcome"] == "failed"]
    for line in failed[:_MOST_ROWS]:
        context.log.check(line["test"], False, line["error"])
    ran = f"{len(tests)} of {total} ran, {counts['failed']} failed, {counts['skipped']} skipped"
    context.log.check("tests", bool(tests) and not failed, ran)
    for line in lines:
        if bare and line.get("mapped"):
            words = f"{', '.join(line['mapped'])} (torch imported: {line['torch']})"
            context.log.check("no run-time library of the vendor's", line["torch"], words)


def need_tests() -> None:
    """Raises Unavailable where pytest or the tests of the tree are not."""
    if importlib.util.find_spec("pytest") is None:
        raise Unavailable("pytest is not installed")
    if not (ROOT / TESTS[0]).exists():
        raise Unavailable(f"{TESTS[0]} is not beside this tool")


def seconds_for(context: Context, wanted: float) -> float:
    """How long tests may run in a step, which it tells."""
    seconds = max(min(context.limit, wanted) - _SHUTDOWN - 5.0, 5.0)
    context.log.fact("seconds", seconds)
    return seconds


def _run(context: Context, device: str, settings: Mapping[str, str] = MappingProxyType({})) -> None:
    need_tests()
    seconds = seconds_for(context, TENSOR_SECONDS[device])
    out = run_tests(context, ("--device", device), TESTS, seconds, settings=settings)
    tell(context, out, bare=device not in ("CUDA", "CL", "WEBGPU"))


def _need_vendors(device: str, **settings: str) -> None:
    """Raises Unavailable where a device cannot be opened, or what it tells is not the vendor's."""
    from gpu import Context as Settings
    from gpu import Device

    try:
        with Settings(**settings):
            told = Device[device].describe()
    except GpuError as error:
        raise Unavailable(f"DEV={device} cannot be opened: {error.message}") from error
    words = ", ".join(f"{name} {value}" for name, value in told.items())
    if VENDOR.lower() not in words.lower():
        raise Unavailable(f"DEV={device} is not of {VENDOR}: {words}")


def _need(library: str, name: str) -> None:
    try:
        find_library(library)
    except Unsupported as missing:
        raise Unavailable(f"{name} is not here: {missing.message}") from missing


def _workers(context: Context) -> list[str]:
    """Processes for xdist; models are slow enough for one."""
    count = min(_MOST_WORKERS, (os.cpu_count() or 1) // 2)
    if context.chip or count < 2 or importlib.util.find_spec("xdist") is None:
        return []
    return ["-n", str(count)]
