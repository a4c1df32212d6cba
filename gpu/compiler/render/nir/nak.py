"""Linear IR as NIR for NVIDIA GPUs, which Mesa's compiler NAK takes instead of NVIDIA's own."""

from __future__ import annotations

from gpu.compiler.ir.linear import Program
from gpu.compiler.ir.optable import OPS
from gpu.compiler.nir_text import print_nir
from gpu.compiler.render.launch.grid import MOST_GROUPS
from gpu.compiler.render.launch.nv import launch_data, nv_grid, nv_places
from gpu.compiler.render.nir.printer import render_nir
from gpu.compiler.targets import DERIVED, Native, Target
from gpu.compiler.targets.edges import NIR
from gpu.compiler.targets.nvidia import AMPERE, STATIC_SHARED_BYTES, number_of, nv_target
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported


def nak_target(arch: str) -> Target:
    """The target for an architecture: `sm_90`. Raises Unsupported for one that is not known.

    Its blocks are those of `nv_target`, with the shared memory that a kernel may declare.
    """
    machine = nv_target(arch)
    if number_of(arch) < AMPERE:
        raise Unsupported(f"NAK knows no {arch} here, but sm_{AMPERE} and newer ones")
    return Target(
        name=machine.name,
        native=Native(
            ops=frozenset(OPS) - DERIVED,
            storage_only=frozenset({dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2}),
            compute_as_float32=frozenset({dtypes.float16}),
            edges=NIR,
        ),
        parallel=machine.parallel,
        workers=machine.workers,
        registers=machine.registers,
        threads=machine.threads,
        shared_bytes=STATIC_SHARED_BYTES,
        warp=machine.warp,
        shuffle=machine.shuffle,
        access_bytes=machine.access_bytes,
        max_blocks=MOST_GROUPS,
    )


class NAKRenderer:
    """Prints programs for one architecture.

    Attributes:
        target: the architecture; what it lacks is refused.
    """

    def __init__(self, arch: str):
        """`arch` as NVIDIA's compilers call it: `sm_90`. Raises Unsupported for an unknown one."""
        self.target = nak_target(arch)

    def render(self, program: Program) -> str:
        """The text of the kernel `program.name`, as `gpu/compiler/nir_text.py` describes.

        Raises Unsupported for an operation the target does not have, for arithmetic of vectors, for
        too much shared memory and for grids that are too large, VerifyError for a program that is
        not well formed in a way that shows.
        """
        grid = nv_grid(program, MOST_GROUPS)
        places = nv_places(program, grid, self.target)
        return print_nir(render_nir(self.target, program, grid, places, fuses=True))

    def launch_data(self, program: Program) -> dict[str, int]:
        """As `gpu/compiler/render/launch/nv.py:launch_data` says."""
        return launch_data(program, self.target)
