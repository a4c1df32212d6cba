"""How large a GPU is."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.drivers.nv.rm.classes import Generation


@dataclass(frozen=True, slots=True)
class GraphicsInfo:
    """Sizes of the compute engine.

    Attributes:
        sm_version: as the device tells it, 0x900 on Hopper.
        max_warps_per_sm: resident at once.
        max_gpcs: of the chip as designed; what is fused off counts too, as do the next two.
        max_tpcs_per_gpc: likewise; scratch memory is sized by the product.
        sms_per_tpc: likewise.
        tpcs: those that this piece of silicon has enabled, by GPC.
    """

    sm_version: int
    max_warps_per_sm: int
    max_gpcs: int
    max_tpcs_per_gpc: int
    sms_per_tpc: int
    tpcs: tuple[int, ...]

    @property
    def sms(self) -> int:
        """How many SMs are enabled."""
        return sum(self.tpcs) * self.sms_per_tpc

    def sm(self, generation: Generation) -> int:
        """The architecture number that compilers take, 90 for sm_90."""
        if not generation.sm_from_device:
            return generation.sm
        major, minor = self.sm_version >> 8, self.sm_version & 0xFF
        return 10 * major + (minor >> 4 if minor > 0xF else minor)
