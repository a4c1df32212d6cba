"""What makes code for Adreno GPUs, here or for elsewhere: NIR, which Mesa's ir3 compiles."""

from __future__ import annotations

from gpu.compiler.render.nir.ir3 import IR3Renderer
from gpu.compiler.targets.adreno import CHIPS
from gpu.compiler.toolchain.ir3 import Ir3Compiler
from gpu.core.devspec import DeviceSpec
from gpu.core.errors import Unsupported
from gpu.runtime.device import Toolchain


def toolchain(spec: DeviceSpec) -> Toolchain:
    """What makes code for the chip that `spec` names, as in QCOM::a630.

    Raises Unsupported where no chip is named, for one that is not known, for Qualcomm's own
    compiler and where libtinymesa is missing.
    """
    check_renderer(spec)
    if spec.arch is None:
        raise Unsupported(
            f"{spec} names no chip to compile for; write QCOM::a630 ({', '.join(CHIPS)})"
        )
    return toolchain_of(spec.arch)


def toolchain_of(chip: str) -> Toolchain:
    """What makes code for a chip. Raises Unsupported."""
    return Toolchain(IR3Renderer(chip), Ir3Compiler(chip))


def check_renderer(spec: DeviceSpec) -> None:
    """Raises Unsupported for Qualcomm's own compiler."""
    if spec.renderer not in (None, "IR3"):
        raise Unsupported(
            f"{spec}: Qualcomm's own compiler is in its OpenCL driver, which DEV=CL uses; write"
            " QCOM:IR3 for Mesa's"
        )
