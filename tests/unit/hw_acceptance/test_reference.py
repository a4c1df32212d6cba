"""The vendor's reference against a stand-in for libcuda: arguments arrive as C expects them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpu
from tools.hw_acceptance import folder as prepared
from tools.hw_acceptance.model import Outcome
from tools.hw_acceptance.prepare import HERE, build_shared, compile_kernels, find_gcc
from tools.hw_acceptance.runner import ROOT
from tools.hw_acceptance.steplog import Told, read_step
from unit.hw_acceptance.fake_programs import FakeCompiler

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")

LIBCUDA = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef uint64_t u64; typedef unsigned u32;
static int context, modules;
int cuInit(u32 flags) { return flags; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxSetFlags_v2(int device, u32 flags) { return device || flags != 1; }
int cuDevicePrimaryCtxRetain(void **found, int device) { *found = &context; return device; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
int cuCtxSetCurrent(void *given) { return given != &context; }
int cuCtxSynchronize(void) { return 0; }
int cuStreamSynchronize(void *stream) { return stream != 0; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_STUB"; return code == 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
  return snprintf(name, size, "NVIDIA H200") != 11 || device;
}
int cuDeviceGetAttribute(int *value, int number, int device) {
  *value = number == 75 ? 9 : number == 76 ? 0 : 132;
  return device;
}
int cuModuleLoadData(void **module, const void *image) {
  *module = &modules;
  return memcmp(image, "\177ELF", 4) != 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = strdup(name);
  return module != &modules;
}
int cuMemAlloc_v2(u64 *address, size_t size) { *address = (u64)calloc(size, 1); return 0; }
int cuMemAllocHost_v2(void **address, size_t size) { *address = calloc(size, 1); return 0; }
static int copy(u64 to, u64 from, size_t size) { memcpy((void *)to, (void *)from, size); return 0; }
int cuMemcpyHtoD_v2(u64 to, u64 from, size_t size) { return copy(to, from, size); }
int cuMemcpyDtoD_v2(u64 to, u64 from, size_t size) { return copy(to, from, size); }
int cuMemcpyDtoH_v2(u64 to, u64 from, size_t size) { return copy(to, from, size); }
int cuLaunchKernel(void *function, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 shared,
                   void *stream, void **parameters, void **extra) {
  if (getenv("STUB_FAILS")) return 700;
  if (strcmp(function, "nothing"))
    printf("%s %u,%u,%u %u,%u,%u %u\n", (char *)function, gx, gy, gz, bx, by, bz, shared);
  if (!strcmp(function, "add"))
    for (u32 i = 0; i < *(u32 *)parameters[3] && !getenv("STUB_WRONG"); i++)
      (*(u32 **)parameters[0])[i] = (*(u32 **)parameters[1])[i] + (*(u32 **)parameters[2])[i];
  if (!strcmp(function, "store"))
    printf("store %x %llx %x\n", *(u32 *)parameters[1],
           (unsigned long long)*(u64 *)parameters[2], *(uint16_t *)parameters[3]);
  return stream || extra;
}
int cuTensorMapEncodeTiled(void *map, int type, u32 rank, void *address, const u64 *sizes,
                           const u64 *strides, const u32 *box, const u32 *steps, int interleave,
                           int swizzle, int promotion, int fill) {
  u64 words[16] = {type, rank, (u64)address, sizes[rank - 1], rank > 1 ? strides[rank - 2] : 0,
                   box[rank - 1], steps[rank - 1], interleave, swizzle, promotion, fill};
  memcpy(map, words, sizeof words);
  return (u64)map % 64 != 0 || swizzle > 5;
}
"""

TORCH = """
import os
__version__ = "0"
class Number:
    def __init__(self, value): self.value = value
    def __matmul__(self, other): return self
    def __mul__(self, other): return Number(self.value * other)
    def sum(self): return self
    def item(self): return self.value
def ones(rows, columns, device): return Number(float(rows * rows * columns))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder, the stand-ins for libcuda and torch beside it."""
    folder = tmp_path_factory.mktemp("vendor")
    gcc = find_gcc()
    (folder / "libcuda.c").write_text(LIBCUDA)
    build_shared(gcc, folder / "libcuda.c", folder / "libcuda.so.1")
    build_shared(gcc, HERE / "recorder.c", folder / prepared.RECORDER)
    build_shared(gcc, HERE / "launchloop.c", folder / prepared.LAUNCH_LOOP)
    compile_kernels(folder / prepared.KERNELS, FakeCompiler(), [90])
    prepared.write_manifest(folder, {"architectures": [90]})
    (folder / "site").mkdir()
    (folder / "site/torch.py").write_text(TORCH)
    return folder


def _child(place: Path, work: Path, run: str, **more: str) -> tuple[Told, str]:
    paths = (str(place / "site"), str(Path(gpu.__file__).parents[1]), str(ROOT))
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.pathsep.join(paths),
        "LD_LIBRARY_PATH": str(place),
        "LD_PRELOAD": str(place / prepared.RECORDER),
        "NV_RECORD": str(work / "ioctls.jsonl"),
        **more,
    }
    command = [sys.executable, "-m", "tools.hw_acceptance", "child", "--run", run]
    command += ["--work", str(work), "--folder", str(place)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return read_step(work), done.stdout


REFERENCE = "tools.hw_acceptance.vendor.reference:record"


def test_the_reference_launches_copies_and_encodes(place: Path, tmp_path: Path) -> None:
    told, output = _child(place, tmp_path, REFERENCE)
    assert told.outcome is Outcome.PASS, told.reason
    assert told.facts["recorder"] is True and told.facts["cuda device"]["sms"] == 132
    lines = output.splitlines()
    assert "store 11223344 5566778899aabbcc 5a5a" in lines
    assert "shape 3,2,2 8,4,2 0" in lines and "dynamic 2,1,1 64,1,1 4096" in lines
    names = [check["name"] for check in told.checks]
    assert names[-1] == "matrix product of torch" and "copies of 16777216 bytes" in names
    rows = json.loads((tmp_path / "tensormaps.json").read_text())
    plain = bytes.fromhex(rows[0]["bytes"])
    words = [int.from_bytes(plain[at : at + 8], "little") for at in range(0, 88, 8)]
    assert words == [7, 2, 0x10_0000_0000, 512, 4096, 16, 1, 0, 0, 0, 0]
    refused = [row for row in rows if row["result"]]
    assert refused and all(row["swizzle"] > 5 and not row["bytes"] for row in refused)
    calls = (tmp_path / "ioctls.txt").read_text()
    assert "== kernel shape" in calls and "== torch" in calls
    assert (tmp_path / "channels-shape.txt").exists()


def test_errors_of_libcuda_have_their_names(place: Path, tmp_path: Path) -> None:
    told, _ = _child(place, tmp_path, REFERENCE, STUB_FAILS="1")
    assert told.outcome is Outcome.FAIL
    assert "cuLaunchKernel: CUDA_ERROR_STUB" in told.reason


def test_the_vendors_latency_is_taken_in_c(place: Path, tmp_path: Path) -> None:
    told, _ = _child(place, tmp_path, "tools.hw_acceptance.bench.latency:vendors")
    assert told.outcome is Outcome.PASS, told.reason
    times = told.facts["cuLaunchKernel to completion, ns"]
    assert 0 <= times["least"] <= times["median"] <= times["p99"]


def test_a_cupy_that_does_not_work_costs_its_own_row_alone(place: Path, tmp_path: Path) -> None:
    brought = tmp_path / "brought"
    brought.mkdir()
    (brought / "cupy.py").write_text("raise ImportError('libcudart.so.13 is not here')")
    paths = (str(brought), str(Path(gpu.__file__).parents[1]), str(ROOT))
    told, _ = _child(
        *(place, tmp_path, "tools.hw_acceptance.bench.latency:vendors"),
        PYTHONPATH=os.pathsep.join(paths),
    )
    assert told.outcome is Outcome.PASS, told.reason
    assert told.facts["cupy"] == "ImportError: libcudart.so.13 is not here"
    assert "cupy to completion, ns" not in told.facts


HEALTH = "tools.hw_acceptance.vendor.health:check"


@pytest.mark.parametrize(
    ("stub", "outcome", "reason"),
    [
        ({}, Outcome.PASS, ""),
        ({"STUB_WRONG": "1"}, Outcome.FAIL, "sum of numbers: 8386560 of 16773120"),
        ({"STUB_FAILS": "1"}, Outcome.FAIL, "cuLaunchKernel: CUDA_ERROR_STUB"),
        ({"LD_LIBRARY_PATH": ""}, Outcome.UNAVAILABLE, "libcuda cannot be loaded"),
    ],
)
def test_health_is_a_sum_that_is_known(
    place: Path, tmp_path: Path, stub: dict[str, str], outcome: Outcome, reason: str
) -> None:
    told, _ = _child(place, tmp_path, HEALTH, **stub)
    assert told.outcome is outcome and reason in told.reason
    if outcome is Outcome.PASS:
        assert told.facts["device"] == "NVIDIA H200"
        assert told.checks == [
            {"name": "sum of numbers", "ok": True, "details": "16773120 of 16773120"}
        ]
