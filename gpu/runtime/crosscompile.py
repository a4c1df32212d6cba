"""Compiling for a machine that need not be here: code that is looked at, and not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpu.compiler.ir.graph import Node
from gpu.compiler.toolchain.base import Compiler
from gpu.runtime.compile import Job, Kernels, compile_jobs
from gpu.runtime.device import Renderer, Toolchain
from gpu.runtime.execute import is_computed, is_spread, on_devices, without_reshapes
from gpu.runtime.iteration import is_parameter, step_of
from gpu.runtime.pipeline import plan_graph


class CompiledKernel(NamedTuple):
    """A kernel compiled for a machine.

    Attributes:
        source: what the compiler was given.
        lib: the object or binary that it made.
        compiler: made it.
    """

    source: str
    lib: bytes
    compiler: Compiler

    def disassembly(self) -> str:
        """The machine code as text. Raises Unsupported where the tool for it is missing."""
        return self.compiler.disassemble(self.lib)


def cross_compile(roots: Sequence[Node], toolchain: Toolchain) -> list[CompiledKernel]:
    """The kernels that compute `roots`, each once: all passes of the runtime, none of its launches.

    All devices of the graph are taken to be like the one that `toolchain` compiles for. What is in
    memory already is read, whatever memory that is. Raises what compiling for the device raises.
    """
    if is_spread(roots):
        roots = [part for each in on_devices(roots) for part in each.parts]
    bases = dict.fromkeys(map(without_reshapes, roots))
    wanted = [base for base in bases if base.size and not is_computed(base)]
    renderer, compiler = toolchain
    jobs = {job.source: job for job in _jobs(wanted, is_computed, renderer)}
    codes = compile_jobs(list(jobs.values()), lambda name: compiler)
    return [
        CompiledKernel(source, code.lib, compiler) for source, code in zip(jobs, codes, strict=True)
    ]


def render(roots: Sequence[Node], is_leaf: Callable[[Node], bool], renderer: Renderer) -> list[str]:
    """The source of each kernel that computes `roots`, none of which is a leaf, each once."""
    return list(dict.fromkeys(job.source for job in _jobs(roots, is_leaf, renderer)))


def _jobs(roots: Sequence[Node], is_leaf: Callable[[Node], bool], renderer: Renderer) -> list[Job]:
    plan = plan_graph(roots, is_leaf, lambda name: renderer.target).plan
    kernels = Kernels(plan, lambda name: renderer)
    steps: list[Job] = []
    for number, made in enumerate(plan.kernels):
        if made[0].kind == "loop":
            steps += _jobs(step_of(made).roots, is_parameter, renderer)
        elif made[0].kind not in ("copy", "host"):
            kernels.job(number)
    return [*kernels.jobs, *steps]
