"""What makes code for Apple's GPUs where there is none: MSL, which clang checks."""

from __future__ import annotations

from gpu.compiler.render.cstyle.metal import MetalRenderer
from gpu.compiler.targets.apple import FAMILIES
from gpu.compiler.targets.cpu import host_target
from gpu.compiler.toolchain.clang import ClangCompiler
from gpu.core.devspec import DeviceSpec
from gpu.core.errors import Unsupported
from gpu.runtime.device import Toolchain


def toolchain(spec: DeviceSpec) -> Toolchain:
    """A printer of MSL for the family of GPUs that `spec` names, as in METAL::apple7.

    The objects are code for this machine's CPU, which shows that a source is sound: Apple's
    compiler is on Macs alone. Raises Unsupported where no family is named, for one that is not
    known, and where clang is missing.
    """
    if spec.arch is None:
        known = ", ".join(FAMILIES)
        raise Unsupported(f"{spec} names no family to compile for; write METAL::apple7 ({known})")
    renderer, host = MetalRenderer(spec.arch), host_target()
    return Toolchain(renderer, ClangCompiler(host.name, host.features, "msl"))
