"""Tables of patches for native code, over the two places of a submission: ring words and image."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from gpu.core.hoststore import PATCH_BLOCK, PatchRow, patch_block, patch_table
from gpu.hcq.encoder import Patch
from gpu.hcq.link import Linked
from gpu.hcq.symbol import Symbol

_RING: Final = 0
_IMAGE: Final = 1


class Places:
    """Where the ring words and the image of a submission are now, as host addresses."""

    def __init__(self, ring: int, image: int = 0):
        self.addresses = (ctypes.c_uint64 * 2)(ring, image)
        self.address = ctypes.addressof(self.addresses)


class PatchCall:
    """Applies patches of some symbols at once, by `apply`.

    ``slots`` numbers the symbols; their values are 8-byte words at host address ``values``, which
    must live as long as it.
    """

    def __init__(
        self,
        linked: Linked,
        places: Places,
        slots: Mapping[Symbol, int],
        values: int,
        only: Iterable[Symbol],
    ):
        wanted = set(only)

        def rows(patches: Iterable[Patch], segment: int) -> Iterable[PatchRow]:
            for p in patches:
                if p.symbol in wanted:
                    yield PatchRow(
                        segment=segment,
                        offset=p.offset,
                        width=p.width,
                        symbol=slots[p.symbol],
                        addend=p.addend,
                        shift=p.shift,
                        mask=p.mask,
                        position=p.position,
                    )

        every = [*rows(linked.ring_patches, _RING), *rows(linked.image_patches, _IMAGE)]
        table = patch_table(every, [len(linked.ring), len(linked.image)], len(slots))
        # In memory of its own: passing an address costs less than passing four.
        packed = PATCH_BLOCK.pack(places.address, table.ctypes.data, len(every), values)
        block = ctypes.create_string_buffer(packed, len(packed))
        self._memory = places, table, block
        self.apply: Callable[[], None] = partial(patch_block, ctypes.addressof(block))
        """Does it. Only for as long as the object that it is of."""
