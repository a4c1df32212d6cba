from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu.compiler.render.llvm.cpu import LLVMRenderer
from gpu.compiler.targets.cpu import host_target, missing_here
from gpu.compiler.targets.cpu_names import ARM_CPUS, X86_CPUS
from gpu.compiler.toolchain.llvm import LLVMCompiler
from gpu.core.dtype import dtypes
from gpu.core.errors import CompileError, Unsupported
from unit.linear_kernels import HOST, scratch_kernel


def test_features_choose_the_target() -> None:
    assert host_target("x86_64").vector_bytes == 16
    wide = host_target("x86_64,avx512f", workers=3)
    assert (wide.vector_bytes, wide.registers, wide.workers) == (64, 32, 3)
    less = host_target("x86_64,avx512bw,avx2,-avx512f,-fma")
    assert (less.vector_bytes, less.registers) == (32, 16)
    assert "fma" not in less.native.ops and dtypes.float16 in less.native.compute_as_float32
    assert host_target("x86_64,avx2").features == "+avx,+avx2,+sse3,+sse4.1,+sse4.2,+ssse3"
    with pytest.raises(Unsupported, match="did you mean avx2"):
        host_target("x86_64,avx22")
    with pytest.raises(Unsupported, match="no feature"):
        host_target("riscv64,v")


def test_named_cpus_stand_for_their_features() -> None:
    assert host_target("x86-64") == host_target("x86_64")
    assert host_target("znver2") == host_target("x86_64,avx2,bmi,bmi2,f16c,fma,lzcnt,movbe,popcnt")
    assert host_target("znver4,-avx512f").vector_bytes == 32
    assert host_target("sapphirerapids").registers == 32
    assert host_target("apple-m1").name == "aarch64"
    with pytest.raises(Unsupported, match="did you mean znver5"):
        host_target("znver55")
    for name in (*X86_CPUS, *ARM_CPUS):
        target = host_target(name)
        LLVMCompiler(target.name, target.features).compile("define void @f() { ret void }")


def test_code_for_features_this_machine_lacks_is_known_not_to_run() -> None:
    assert missing_here(HOST) == []
    other = "aarch64" if HOST.name == "x86_64" else "x86_64"
    assert missing_here(host_target(other)) == [other]
    rich = host_target("sapphirerapids" if HOST.name == "x86_64" else "neoverse-v1")
    lacking = set(rich.features.split(",")) - set(HOST.features.split(","))
    assert missing_here(rich) == sorted(lacking)


def test_threads_compile_at_once() -> None:
    text = LLVMRenderer(HOST).render(scratch_kernel(5).program())
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: LLVMCompiler(HOST.name).compile(text), range(12)))
    assert len(set(made)) == 1


def test_errors_of_llvm_name_the_line() -> None:
    with pytest.raises(CompileError, match=r"line 2: %x = add i32 1, %y"):
        LLVMCompiler(HOST.name).compile("define void @f() {\n%x = add i32 1, %y\nret void\n}\n")
    with pytest.raises(Unsupported, match="riscv64"):
        LLVMCompiler("riscv64")


def test_cached_objects_and_disassembly(monkeypatch: pytest.MonkeyPatch) -> None:
    made = LLVMCompiler(HOST.name, HOST.features)
    text = LLVMRenderer(HOST).render(scratch_kernel(3).program())
    lib = made.compile_cached(text)
    monkeypatch.setattr(made, "compile", lambda source: pytest.fail("compiled again"))
    assert made.compile_cached(text) is lib
    try:
        assert "kernel" in made.disassemble(lib)
    except Unsupported as error:
        pytest.skip(str(error))
