"""Looking for a GPU of Qualcomm's behind KGSL, without opening it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from gpu.compiler.targets.adreno import CHIPS
from gpu.compiler.toolchain.mesalib import find_mesa
from gpu.core.errors import Unsupported
from gpu.runtime.default import Found, Look, first_of
from gpu.transport import qualcomm as nodes
from gpu.transport.files import Looking, RealFiles
from gpu.transport.machine import text_in
from gpu.transport.missing import no_kgsl


def look() -> Look:
    """Whether this machine has a GPU behind KGSL."""
    return look_at(RealFiles())


def look_at(system: Looking) -> Look:
    """The same of any machine: its node, a chip that there is code for, and the compiler."""
    return first_of(looks(system))


def looks(system: Looking) -> Iterator[Look]:
    """What there is to say of the GPU of a machine, or of why there is none."""
    if not system.exists(nodes.NODE):
        yield Look.lacking(Found.NOTHING, no_kgsl(system))
        return
    model = text_in(system, f"{nodes.FOLDER}/gpu_model") or ""
    told = f"{nodes.NODE} is there" + (f", of {model}" if model else "")
    number = re.search(r"(?<!\d)\d{3}(?!\d)", model)
    if number and f"a{number[0]}" not in CHIPS:
        yield Look(Found.NOTHING, f"{told}, which is not supported by this version")
    elif denied := system.why_denied(nodes.NODE):
        yield Look(Found.UNUSABLE, denied)
    elif lacking := _why_no_compiler():
        yield Look(Found.UNUSABLE, lacking)
    else:
        yield Look(Found.USABLE, told)


def _why_no_compiler() -> str:
    try:
        find_mesa()
    except Unsupported as error:
        return error.message
    return ""


def models() -> Collection[str]:
    """The chips that `SIM` may name for it."""
    from gpu.sim.worlds import MODELS

    return [chip for model in MODELS if model.device == "QCOM" for chip in model.chips]
