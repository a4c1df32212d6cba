"""`libcuda.so.1` as a file, for programs that know nothing of this package."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.compiler.toolchain.clang import find_clang
from gpu.core.elf import parse_object
from gpu.core.errors import Unsupported
from gpu.sim.cuda import sharedfile
from gpu.sim.cuda.sharedfile import SONAME, shared_object

PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
number, address = ctypes.c_int(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGetCount(ctypes.byref(number)) == 0
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64)) == 0
print(number.value, sys.argv[1:], __name__)
if "broken" in sys.argv:
    stream = ctypes.c_void_p()
    cuda.cuStreamCreate(ctypes.byref(stream), 1)
    cuda.cuStreamDestroy_v2(stream)
    print(cuda.cuStreamSynchronize(stream))
sys.exit(int(sys.argv[1]))
"""


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "gpu.sim.cuda", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def printed(code: str) -> str:
    """What Python prints when it runs this in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("status", [0, 3])
def test_a_program_finds_it_by_its_name(tmp_path: Path, status: int) -> None:
    program = str(tmp_path / "program.py")
    ran = run(tmp_path, "--chips", "gh100,gh100", program, str(status), "--leaks")
    assert ran.stdout == f"2 ['{status}', '--leaks'] __main__\n"
    assert (ran.returncode, ran.stderr) == (status, "")


def test_what_it_did_wrong_is_told(tmp_path: Path) -> None:
    ran = run(tmp_path, str(tmp_path / "program.py"), "0", "broken")
    assert ran.returncode == 1 and "400" in ran.stdout
    assert "libcuda: " in ran.stderr and "a stream that was destroyed" in ran.stderr


def test_what_it_left_is_told_where_that_is_asked_for(tmp_path: Path) -> None:
    ran = run(tmp_path, "--leaks", str(tmp_path / "program.py"), "0")
    assert ran.returncode == 1 and "64 bytes of device memory" in ran.stderr


def test_modules_are_run_as_well(tmp_path: Path) -> None:
    path = tmp_path / SONAME
    ran = run(tmp_path, "--library", str(path), "-m", "platform", "terse")
    assert ran.stdout.strip() == platform.platform(terse=True) and path.exists()


@pytest.mark.parametrize(
    ("arguments", "says"), [(["--chips", "gx7", "x.py"], "gx7"), ([], "name a program")]
)
def test_what_cannot_be_run(tmp_path: Path, arguments: list[str], says: str) -> None:
    ran = run(tmp_path, *arguments)
    assert ran.returncode == 2 and says in ran.stderr and "Traceback" not in ran.stderr


def test_in_another_process_nothing_is_initialised(tmp_path: Path) -> None:
    path = tmp_path / SONAME
    path.write_bytes(shared_object(["cuInit", "cuMemFree_v2"], platform.machine()))
    code = f"import ctypes; x = ctypes.CDLL({str(path)!r}); print(x.cuInit(0), x.cuMemFree_v2(0))"
    assert printed(code) == "3 3\n"


def test_functions_have_the_addresses_of_the_model(tmp_path: Path) -> None:
    """All of them."""
    path = tmp_path / "libcuda.so.1"
    code = (
        "import ctypes\nfrom gpu.sim.cuda.library import load\n"
        "from gpu.sim.cuda.sharedfile import TABLE, load_file\n"
        f"model = load('gh100'); file = load_file(model.functions, {str(path)!r})\n"
        "table = (ctypes.c_uint64 * len(model.functions)).in_dll(file, TABLE)\n"
        "assert list(table) == [model.functions[name] for name in sorted(model.functions)]\n"
        "assert all(getattr(file, name) for name in model.functions)\n"
        "assert len(table) > 100\n"
        "print(ctypes.CDLL('libcuda.so.1').cuInit(7))\n"
    )
    assert printed(code) == "1\n"


def test_functions_are_there_when_python_has_let_go_of_all_modules() -> None:
    """As those of a real one, for finalizers that call them when the process ends."""
    code = (
        "import ctypes, gc\nfrom gpu.sim.cuda import library\n"
        "address = library.functions('gh100')['cuDriverGetVersion']\n"
        "version = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)\n"
        "library._loaded.clear()\n"
        "gc.collect()\n"
        "held = [bytes(1 << 12) for _ in range(1000)]  # in what may have been freed\n"
        "number = ctypes.c_int()\n"
        "print(version(ctypes.addressof(number)), number.value)\n"
    )
    assert printed(code) == "0 13000\n"


@pytest.mark.parametrize("distance", [24, 4096, 64 << 10])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_functions_are_what_an_assembler_makes_of_them(
    tmp_path: Path, need: Callable[[str], None], machine: str, distance: int
) -> None:
    """Of both machines, as only one is at hand."""
    need("clang")
    text = {
        "x86_64": f"mov {distance - 7}(%rip), %rax; test %rax, %rax; je 1f; jmp *%rax; 1:"
        " movl $3, %eax; ret",
        "aarch64": f"ldr x16, #{distance}; cbz x16, 1f; br x16; 1: mov w0, #3; ret",
    }[machine]
    made = tmp_path / "made.o"
    command = [find_clang(), f"--target={machine}-linux-gnu", "-c", "-x", "assembler", "-"]
    subprocess.run([*command, "-o", made], input=f"{text}\n", text=True, check=True)
    sections = parse_object(made.read_bytes()).sections
    (code,) = (each.content for each in sections if each.name == ".text")
    assert sharedfile._MACHINES[machine][1](distance) == code


def test_machines_that_are_not_known() -> None:
    with pytest.raises(Unsupported, match="for riscv64"):
        shared_object(["cuInit"], "riscv64")


def test_nvrtc_compiles_beside_it(tmp_path: Path, need: Callable[[str], None]) -> None:
    """It asks whatever libcuda the process has for a table, and calls NULL where that is not."""
    need("nvrtc")
    path = tmp_path / "compiles.py"
    path.write_text(
        "from gpu.compiler.toolchain.nvrtc import NvrtcCompiler\n"
        "assert NvrtcCompiler('sm_80').compile('__global__ void k(int *a) { a[0] = 1; }')\n"
    )
    ran = run(tmp_path, str(path))
    assert ran.returncode == 0, ran.stderr
