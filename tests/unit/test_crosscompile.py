"""`gpu.compile_for`: code for machines that are not here, by the passes of those that are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpu
from gpu import Context, Device, Tensor, Var
from gpu.compiler.ir.graph import Node
from gpu.compiler.render.llvm.cpu import LLVMRenderer
from gpu.compiler.targets import ImageLimits
from gpu.compiler.targets.cpu import host_target
from gpu.compiler.toolchain.base import disassemble_elf
from gpu.core.errors import CompileError, ConfigError, Unsupported
from gpu.runtime.compile import compile_graph
from gpu.runtime.crosscompile import cross_compile
from gpu.runtime.device import Toolchain, toolchain_for
from gpu.runtime.execute import is_computed
from gpu.runtime.explain import explain
from gpu.runtime.recipe import graph_key


def numbers(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).normal(size=shape).astype(np.float32)).realize()


def written_in_place() -> list[Tensor]:
    x = numbers(40, 30)
    x[3:9] = numbers(6, 30) * 2
    return [x]


def two_layers_of_one_form() -> list[Tensor]:
    x, w, v = numbers(8, 32), numbers(32, 32), numbers(32, 32)
    return [((x @ w).relu().contiguous() @ v).relu()]


def symbolic() -> list[Tensor]:
    x = numbers(20, 24)[: Var("n", 1, 20).bind(7)]
    return [x.softmax(0), x.sum(0)]


def partly_computed() -> list[Tensor]:
    x = numbers(5, 7)
    y = (x + 1).realize()
    return [y, (y * 2).reshape(35), Tensor.ones(0, 3)]


GRAPHS = [written_in_place, two_layers_of_one_form, symbolic, partly_computed]
MACHINES = {
    "CPU:LLVM:x86-64": r"\bxmm\d",
    "CPU:LLVM:x86-64-v3": r"\bymm\d",
    "znver5": r"\bzmm\d",
    "CPU:LLVM:neoverse-v2": r"\bfmla\b",
    "CPU:LLVM:apple-m1": r"\bfmla\b",
    "CPU:LLVM:aarch64": r"\bfmla\b",
    "AMD::gfx1201": r"v_\w*fma",
    "METAL::apple7": "gpu_kernel",
    "QCOM::a630": r"\bmad\.f32",
    "PYTHON::blocks": "thread",
}
TOOLS = {"METAL::apple7": "clang", "QCOM::a630": "tinymesa"}


def leaf_nodes(made: list[Tensor]) -> list[Node]:
    return [t._node for t in made if t.size and not is_computed(t._node)]


@pytest.mark.parametrize("noopt", [0, 1])
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_kernels_are_those_that_would_run(
    graph: Callable[[], list[Tensor]], noopt: int
) -> None:
    with Context(NOOPT=noopt):
        roots = leaf_nodes(graph())
        cpu = Device["CPU"]
        kernels = cross_compile(roots, Toolchain(cpu.renderer, cpu.compiler))
        recipe = compile_graph(roots, graph_key(roots, is_computed)[1], is_computed)
        assert {kernel.lib for kernel in kernels} == {code.lib for code in recipe.codes}
        assert len({kernel.source for kernel in kernels}) == len(kernels) > 0
        stages = explain(roots, is_computed, cpu.renderer)
        shown = [re.sub(r"\bk\d+\b", "kernel", s.text) for s in stages if s.name == "source"]
        assert set(shown) == {kernel.source for kernel in kernels}


@pytest.mark.parametrize("target", MACHINES)
def test_code_is_that_of_the_machine(target: str, need: Callable[[str], None]) -> None:
    need(TOOLS.get(target, "llvmlite"))
    product = numbers(48, 48) @ numbers(48, 48)
    (kernel,) = gpu.compile_for(target, product)
    assert kernel.source and kernel.lib
    try:
        listing = kernel.disassembly()
    except Unsupported as error:
        pytest.skip(error.message)
    assert re.search(MACHINES[target], listing), listing[:4000]


def test_equal_code_is_given_once_and_what_is_there_not_at_all() -> None:
    x = numbers(64, 64)
    assert len(gpu.compile_for("x86-64-v3", x + 1, x + 1, x)) == 1
    assert gpu.compile_for("x86-64-v3", x, x.reshape(4096)) == []


def test_images_are_read_as_they_are_where_it_runs() -> None:
    target = replace(host_target(), images=ImageLimits(1024, 1024))
    product = numbers(64, 64) @ numbers(64, 64)
    with Context(IMAGE=1):
        stages = explain([product._node], is_computed, LLVMRenderer(target))
    kernels = [text for name, text in stages if name == "kernel"]
    assert "image" in kernels[-1].splitlines()[0], kernels[-1]


@pytest.mark.parametrize("spec", ["CL", "WEBGPU"])
def test_drivers_that_compile_themselves_are_named(spec: str) -> None:
    with pytest.raises(Unsupported, match="by the open device alone"):
        gpu.compile_for(spec, numbers(3) + 1)


def test_what_is_no_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no device 'znver55'"):
        toolchain_for("znver55")
    with pytest.raises(Unsupported, match="did you mean znver5"):
        toolchain_for("CPU:LLVM:znver55")
    with pytest.raises(Unsupported, match="names no architecture"):
        toolchain_for("NV:CUDA")
    for device in ("AMD", "QCOM"):
        with pytest.raises(Unsupported, match="names no chip"):
            toolchain_for(device)
    with pytest.raises(Unsupported, match="OpenCL driver"):
        toolchain_for("QCOM:CL:a630")


def test_an_objdump_that_lacks_the_machine_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "can't disassemble for architecture UNKNOWN!"
    for text, raised in ((said, Unsupported), ("no memory is left", CompileError)):
        tool = tmp_path / "objdump"
        tool.write_text(f'#!/bin/sh\necho "objdump: {text}" >&2\nexit 1\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(raised, match="objdump"):
            disassemble_elf(b"")
