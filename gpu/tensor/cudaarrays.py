"""Why arrays are not shared with CUDA in place, and what serves instead.

`__cuda_array_interface__` names an address that libcuda of the same process knows. The device NV is
driven without libcuda, by page tables of our own: its addresses mean nothing in them, nor ours to
it (docs/drivers/nv.md). The device CUDA is driven by libcuda, and shares memory by DLPack.
"""

from __future__ import annotations

from typing import Final

INTERFACE: Final = "__cuda_array_interface__"
"""The attribute by which libraries on CUDA share an array."""
_WHY: Final = (
    "its address means nothing outside of CUDA's own driver, and DEV=CUDA shares by DLPack alone"
)
NOT_OFFERED: Final = (
    f"a Tensor has no {INTERFACE}: on NV its GPU has page tables of its own, in which CUDA finds"
    " nothing, and on CUDA memory is shared by DLPack, as in cupy.from_dlpack(x); else go through"
    " the host, as in cupy.asarray(x.numpy()) or torch.from_dlpack(x.to('CPU'))"
)
"""Why a tensor has none."""


def not_taken(x: object) -> str | None:
    """Why an array of CUDA's cannot become a tensor, or None where `x` is no such array."""
    if not hasattr(x, INTERFACE):
        return None
    kind = f"{type(x).__module__}.{type(x).__qualname__}"
    return (
        f"a tensor cannot be made of the memory of a {kind}: {_WHY}; copy it through the host, as"
        " in Tensor(array.get()) of cupy's or Tensor.from_dlpack(tensor.cpu()) of torch's"
    )
