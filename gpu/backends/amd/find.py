"""Looking for GPUs of AMD's, without opening any."""

from __future__ import annotations

from collections.abc import Collection

from gpu.runtime.default import Found, Look
from gpu.transport import amd as nodes
from gpu.transport.files import Looking, RealFiles


def look() -> Look:
    """Whether this machine has a GPU behind KFD. Raises as `look_at`."""
    return look_at(RealFiles())


def look_at(system: Looking) -> Look:
    """The same of any machine: KFD must list a GPU of which the render node is there.

    GPUs that this version has no code for are passed over, as the one in many a processor: that the
    machine has one does not make it a device. Raises FormatError, TransportError, AccessDenied
    where KFD's description of the machine cannot be read.
    """
    for path in (nodes.KFD, nodes.TOPOLOGY):
        if not system.exists(path):
            return Look(Found.NOTHING, f"{path} is not there")
    # Imported where there is KFD: it takes longer than all the rest.
    from gpu.backends.amd.chips import chip_name, is_supported
    from gpu.drivers.am.kfd.topology import read_gpus

    told = "KFD lists no GPU"
    for which, gpu in enumerate(read_gpus(system)):
        node = nodes.render_node(gpu.drm_render_minor)
        if not is_supported(gpu.version):
            told = f"{gpu} ({chip_name(gpu.version)}) is not supported by this version"
        elif not system.exists(node):
            told = f"{node} of {gpu} is not there"
        elif denied := system.why_denied(nodes.KFD) or system.why_denied(node):
            return Look(Found.UNUSABLE, denied)
        else:
            return Look(Found.USABLE, f"{nodes.KFD} and {node} of {gpu} are there", which)
    return Look(Found.NOTHING, told)


def models() -> Collection[str]:
    """The chips that `SIM` may name for it: of others no model runs kernels."""
    from gpu.sim.worlds import find_model

    return find_model("AMD").chips
