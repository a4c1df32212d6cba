"""Linear IR as NIR for Adreno GPUs, which Mesa's compiler ir3 takes."""

from __future__ import annotations

from gpu.compiler.ir.linear import Program
from gpu.compiler.nir_text import print_nir
from gpu.compiler.render.launch.grid import MOST_GROUPS, Grid, plan_grid
from gpu.compiler.render.launch.locals import Places, place_locals
from gpu.compiler.render.nir.printer import render_nir
from gpu.compiler.targets.adreno import PRIVATE_BYTES, WAVE, adreno_target


class IR3Renderer:
    """Prints programs for one chip.

    Attributes:
        target: the chip; what it lacks is refused.
    """

    def __init__(self, chip: str):
        """`chip` as in `a630`. Raises Unsupported for an unknown one."""
        self.target = adreno_target(chip)

    def render(self, program: Program) -> str:
        """The text of the kernel `program.name`, as `gpu/compiler/nir_text.py` describes.

        Raises Unsupported for an operation or dtype the target does not have, for arithmetic of
        vectors, for too much shared memory and for grids that are too large, VerifyError for a
        program that is not well formed in a way that shows.
        """
        grid, places = self._launch(program)
        # mad.f32 rounds its product too.
        return print_nir(render_nir(self.target, program, grid, places, fuses=False))

    def launch_data(self, program: Program) -> dict[str, int]:
        """What a launch needs to know.

        `groups` of the launch, threads of a `block`, bytes of `workspace` of all of them (0 where
        the kernel takes none), how many of the parameters are `values`, and a bit for each buffer
        that is `written`.
        """
        grid, places = self._launch(program)
        return {
            "groups": grid.groups,
            "block": grid.block,
            "workspace": places.workspace * grid.groups * grid.block,
            "values": len(program.vals),
            "written": sum(param.written << i for i, param in enumerate(program.params)),
        }

    def _launch(self, program: Program) -> tuple[Grid, Places]:
        grid, most = plan_grid(program, WAVE, MOST_GROUPS), self.target.shared_bytes
        return grid, place_locals(program, grid, most_private=PRIVATE_BYTES, most_shared=most)
