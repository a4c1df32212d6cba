"""HIP C++ through comgr: what it makes is right, and what is missing or refused is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gpu
from gpu import Tensor
from gpu.compiler.targets.amd import CHIPS
from gpu.compiler.toolchain import comgr
from gpu.compiler.toolchain.comgr import ComgrCompiler
from gpu.core.config import Context
from gpu.core.errors import CompileError, Unsupported
from gpu.drivers.am.code.object import read_code_object

CHIP = "gfx1030"  # that the oldest release in Debian knows
GOOD = 'extern "C" __attribute__((global)) void k(float *x) { *x += 1; }\n'
# Values of programs on the simulated GPU, compared with numpy's: roots and quotients are correctly
# rounded, small ones too; halves keep the sign of a zero; blocks share memory and exchange lanes.
COMPUTED = '''
import numpy as np

import gpu
from gpu import Tensor

rng = np.random.default_rng({seed})
for dtype in (np.float32, np.float64):
    bits = np.uint32 if dtype is np.float32 else np.uint64
    x = rng.integers(0, np.iinfo(bits).max, 3000, dtype=bits).view(dtype)
    info = np.finfo(dtype)
    x[:6] = 0.0, -0.0, np.inf, info.max, info.tiny, info.smallest_subnormal
    y = rng.permutation(x)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(Tensor(x, device="AMD").sqrt().numpy(), np.sqrt(x))
        quotient = Tensor(x, device="AMD") / Tensor(y, device="AMD")
        np.testing.assert_array_equal(quotient.numpy(), x / y)
small = np.float16([-1e-7, 1e-7, -3.0, 65504.0])
product = (Tensor(small, device="AMD") * Tensor(np.abs(small), device="AMD")).numpy()
with np.errstate(over="ignore"):
    wanted = small * np.abs(small)
np.testing.assert_array_equal(product.view(np.uint16), wanted.view(np.uint16))
rows, inner, columns = rng.integers(1, 70, 3)
a, b = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
product = (Tensor(a, device="AMD") @ Tensor(b, device="AMD")).numpy()
np.testing.assert_allclose(product, a @ b, rtol=1e-12, atol=1e-12)
x = rng.standard_normal((rows, 1000)).astype(np.float32)
np.testing.assert_array_equal(Tensor(x, device="AMD").max(1).numpy(), x.max(1))
np.testing.assert_allclose(Tensor(x, device="AMD").sum(1).numpy(), x.sum(1), rtol=1e-4, atol=1e-4)
np.testing.assert_array_equal(Tensor(x, device="AMD").sort(1)[0].numpy(), np.sort(x, 1))
n = rng.integers(-9, 9, 500)
np.testing.assert_array_equal((Tensor(n, device="AMD") // 4).numpy(), n // 4)
cubes = gpu.kernel(
    {{"hip": """
        __shared__ float near[64];
        near[thread_id] = global_id < x_size ? x[global_id] : 0;
        __syncthreads();
        const float other = near[63 - thread_id];
        if (global_id < out_size) out[global_id] = other * x_shape[0];
    """}},
    outputs=lambda x: (x.shape, x.dtype),
    grid=lambda x: -(-x.size // 64),
    block=64,
)
x = rng.standard_normal(128).astype(np.float32)
got = cubes(Tensor(x, device="AMD")).numpy()
np.testing.assert_array_equal(got, x.reshape(2, 64)[:, ::-1].ravel() * np.float32(128))
print("equal")
'''


@pytest.fixture
def compiler(need: Callable[[str], None]) -> ComgrCompiler:
    need("comgr")
    return ComgrCompiler(CHIP)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("seed", [1])
def test_computes_what_numpy_does(seed: int) -> None:
    program = COMPUTED.format(seed=seed)
    environment = {**os.environ, "SIM": CHIP, "DEV": "AMD:HIP"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "equal\n", done.stderr


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("chip", CHIPS)
def test_chips_that_the_library_knows_and_others(chip: str) -> None:
    """Each gets a kernel with its own launch, or the names of those that it could be made for."""
    x = Tensor.empty(33, 65)
    try:
        compiled = gpu.compile_for(f"AMD:HIP:{chip}", x.softmax(1))
    except Unsupported as error:
        assert f"does not compile for {chip}, but for" in error.message
        assert CHIP in error.message and chip != CHIP
        return
    for kernel in compiled:
        (made,) = read_code_object(kernel.lib).kernels.values()
        assert made.metadata.wavefront_size == CHIPS[chip].wave
        assert made.metadata.private_size == 0


def test_an_error_has_the_compilers_words_and_the_line(compiler: ComgrCompiler) -> None:
    with pytest.raises(CompileError, match=r"kernel\.hip:2:.*error: unknown type name 'nonsense'"):
        compiler.compile(GOOD + "nonsense x;\n")
    assert "k" in read_code_object(compiler.compile(GOOD)).kernels, "the next one compiles"


def test_an_end_of_the_process_is_an_error_that_names_the_kernel(compiler: ComgrCompiler) -> None:
    source = 'extern "C" __global__ void __attribute__((noinline)) ends(float *x, long n) {\n'
    words = "#define __global__ __attribute__((global))\n"
    if "so.2.4" not in os.path.realpath(comgr.find_comgr()):
        pytest.skip("newer releases than Debian 12's have code for it")
    body = "  x[n] = __builtin_elementwise_roundeven(x[0]);\n}\n"
    with pytest.raises(
        CompileError, match=r"comgr ended with SIG\w+ at ends for gfx1030:\n.*LLVM ERR"
    ):
        compiler.compile(words + source + body)
    assert "k" in read_code_object(compiler.compile(GOOD)).kernels, "the next one compiles"


def test_the_newest_release_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for release in ("6.4.1/lib/libamd_comgr.so.2", "10.0.2/lib/libamd_comgr.so.3"):
        path = tmp_path / f"rocm-{release}"
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.setattr(comgr, "_PLACES", (f"{tmp_path}/rocm*/lib",))
    with Context(COMGR_LIBRARY=""):
        assert comgr.find_comgr() == f"{tmp_path}/rocm-10.0.2/lib/libamd_comgr.so.3"


def test_nothing_is_included(compiler: ComgrCompiler) -> None:
    with pytest.raises(CompileError, match=r"stdint\.h' file not found"):
        compiler.compile(f"#include <stdint.h>\n{GOOD}")


def test_code_is_shown(compiler: ComgrCompiler, need: Callable[[str], None]) -> None:
    need("libllvm")
    assert "s_endpgm" in compiler.disassemble(compiler.compile(GOOD))


@pytest.mark.usefixtures("compiler")
def test_libraries_that_are_none(tmp_path: Path) -> None:
    with (
        Context(COMGR_LIBRARY=str(tmp_path / "none.so")),
        pytest.raises(Unsupported, match=r"none\.so cannot be loaded"),
    ):
        ComgrCompiler(CHIP).compile(GOOD)
    with (
        Context(COMGR_LIBRARY="libc.so.6"),
        pytest.raises(Unsupported, match=r"libc\.so\.6 has no amd_comgr.*COMGR_LIBRARY"),
    ):
        ComgrCompiler(CHIP).compile(GOOD)


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comgr, "_PLACES", ())
    with Context(COMGR_LIBRARY=""), pytest.raises(Unsupported, match="apt install libamd-comgr2"):
        ComgrCompiler(CHIP)
