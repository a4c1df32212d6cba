"""Looking for GPUs of NVIDIA's, without opening any."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpu.compiler.toolchain.nvlibs import why_missing
from gpu.runtime.default import Found, Look, first_of
from gpu.transport import nvidia as nodes
from gpu.transport.files import Looking, RealFiles
from gpu.transport.missing import no_card, no_node


def look() -> Look:
    """Whether this machine has a GPU behind NVIDIA's kernel driver."""
    return look_at(RealFiles())


def look_at(system: Looking) -> Look:
    """The same of any machine: its nodes, those of a GPU and of UVM among them, and the compiler.

    A container with the driver's files but no GPU has the control node alone. Raises AccessDenied.
    """
    return first_of(looks(system))


def looks(system: Looking) -> Iterator[Look]:
    """What there is to say of each GPU of a machine, or of why there is none.

    Raises AccessDenied.
    """
    if not system.exists(nodes.CONTROL):
        yield Look.lacking(Found.NOTHING, no_node(system, nodes.CONTROL))
        return
    cards = nodes.list_cards(system)
    if not cards:
        yield Look.lacking(Found.NOTHING, no_card(system))
    for which, card in enumerate(cards):
        if denied := system.why_denied(nodes.CONTROL) or system.why_denied(card):
            yield Look(Found.UNUSABLE, denied)
        elif not system.exists(nodes.UVM):
            yield Look.lacking(Found.UNUSABLE, no_node(system, nodes.UVM))
        elif lacking := why_missing("nvrtc"):
            yield Look(Found.UNUSABLE, lacking)
        else:
            yield Look(Found.USABLE, f"{nodes.CONTROL} and {card} are there", which)


def models() -> Collection[str]:
    """The chips that `SIM` may name for it."""
    from gpu.sim.worlds import find_model

    return find_model("NV").chips
