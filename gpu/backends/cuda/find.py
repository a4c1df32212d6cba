"""Looking for libcuda and GPUs by files alone: `cuInit` would break programs that fork later."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpu.compiler.toolchain.nvlibs import why_missing
from gpu.core.config import config
from gpu.runtime.default import Found, Look, first_of
from gpu.transport import nvidia as nodes
from gpu.transport.files import Looking, RealFiles
from gpu.transport.missing import no_card, no_libcuda, no_node


def look() -> Look:
    """Whether this machine has a GPU and NVIDIA's libraries for it."""
    return look_at(RealFiles())


def look_at(system: Looking) -> Look:
    """The same of any machine. Raises AccessDenied."""
    return first_of(looks(system))


def looks(system: Looking) -> Iterator[Look]:
    """What there is to say of a machine: one thing, as libcuda alone knows its numbers of GPUs.

    Raises AccessDenied.
    """
    library = config.CUDA_LIBRARY or nodes.libcuda(system)
    if not library:
        yield Look.lacking(Found.NOTHING, no_libcuda(system))
        return
    cards = [nodes.WSL] if system.exists(nodes.WSL) else nodes.list_cards(system)
    usable = [card for card in cards if not system.why_denied(card)]
    if not cards:
        there = system.exists(nodes.CONTROL)
        yield Look.lacking(
            Found.NOTHING, no_card(system) if there else no_node(system, nodes.CONTROL)
        )
    elif not usable:
        yield Look(Found.UNUSABLE, system.why_denied(cards[0]))
    elif lacking := why_missing("nvrtc"):
        yield Look(Found.UNUSABLE, lacking)
    else:
        yield Look(Found.USABLE, f"{library} and {usable[0]} are there")


def models() -> Collection[str]:
    """The chips that `SIM` may name for it: those of NV, which stands before it."""
    from gpu.sim.worlds import find_model

    return find_model("NV").chips
