"""Looking for GPUs of AMD's, without opening any."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpu.runtime.default import Found, Look, first_of
from gpu.transport import amd as nodes
from gpu.transport.files import Looking, RealFiles
from gpu.transport.missing import NO_KFD_GPU, no_node


def look() -> Look:
    """Whether this machine has a GPU behind KFD. Raises as `look_at`."""
    return look_at(RealFiles())


def look_at(system: Looking) -> Look:
    """The same of any machine: KFD must list a GPU of which the render node is there.

    GPUs that this version has no code for are passed over, as the one in many a processor: that the
    machine has one does not make it a device. Raises FormatError, TransportError, AccessDenied
    where KFD's description of the machine cannot be read.
    """
    return first_of(looks(system))


def looks(system: Looking) -> Iterator[Look]:
    """What there is to say of each GPU of a machine, or of why there is none.

    Raises as `look_at`.
    """
    for path in (nodes.KFD, nodes.TOPOLOGY):
        if not system.exists(path):
            yield Look.lacking(Found.NOTHING, no_node(system, path))
            return
    # Imported where there is KFD: it takes longer than all the rest.
    from gpu.backends.amd.chips import chip_name, is_supported
    from gpu.drivers.am.kfd.topology import read_gpus

    gpus = read_gpus(system)
    if not gpus:
        yield Look.lacking(Found.NOTHING, NO_KFD_GPU)
    for which, gpu in enumerate(gpus):
        node = nodes.render_node(gpu.drm_render_minor)
        if not is_supported(gpu.version):
            told = f"{gpu} ({chip_name(gpu.version)}) is not supported by this version"
            yield Look(Found.NOTHING, told)
        elif not system.exists(node):
            fix = no_node(system, node).fix
            yield Look(Found.NOTHING, f"{node} of {gpu} is not there", fix=fix)
        elif denied := system.why_denied(nodes.KFD) or system.why_denied(node):
            yield Look(Found.UNUSABLE, denied)
        else:
            told = f"{nodes.KFD} and {node} of {gpu} are there"
            yield Look(Found.USABLE, told, which)


def models() -> Collection[str]:
    """The chips that `SIM` may name for it: of others no model runs kernels."""
    from gpu.sim.worlds import find_model

    return find_model("AMD").chips
