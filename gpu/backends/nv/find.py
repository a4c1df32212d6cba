"""Looking for GPUs of NVIDIA's, without opening any."""

from __future__ import annotations

from collections.abc import Collection

from gpu.compiler.toolchain.nvlibs import find_library
from gpu.core.errors import Unsupported
from gpu.runtime.default import Found, Look
from gpu.transport import nvidia as nodes
from gpu.transport.files import Looking, RealFiles


def look() -> Look:
    """Whether this machine has a GPU behind NVIDIA's kernel driver."""
    return look_at(RealFiles())


def look_at(system: Looking) -> Look:
    """The same of any machine: the control node, that of a GPU and the compiler must be there.

    A container with the driver's files but no GPU has the first alone. Raises AccessDenied.
    """
    if not system.exists(nodes.CONTROL):
        return Look(Found.NOTHING, f"{nodes.CONTROL} is not there")
    cards = nodes.list_cards(system)
    if not cards:
        return Look(Found.NOTHING, f"{nodes.CONTROL} is there, but no GPU's node")
    denied = system.why_denied(nodes.CONTROL) or system.why_denied(cards[0])
    if denied:
        return Look(Found.UNUSABLE, denied)
    try:
        find_library("nvrtc")
    except Unsupported as error:
        return Look(Found.UNUSABLE, error.message)
    return Look(Found.USABLE, f"{nodes.CONTROL} and {cards[0]} are there")


def models() -> Collection[str]:
    """The chips that `SIM` may name for it."""
    from gpu.sim.worlds import find_model

    return find_model("NV").chips
