"""What KFD's documents and the chips' headers leave open, as questions with named variants.

Nothing the kernel answers tells which variant is right, so that the first is taken unless another
is forced. `tools/hw_acceptance` tries each on a card.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gpu.drivers.questions import Question, parse_variants

RUNTIME: Final = Question(
    "runtime",
    "whether a process tells KFD of a runtime (RUNTIME_ENABLE) before its first queue, as debuggers"
    " want it; under one the call waits for it",
    ("untold", "told"),
)
HDP_FLUSH: Final = Question(
    "hdp flush",
    "when the bridge is emptied of what the host wrote through the BAR: before doorbells while the"
    " host has data of the device mapped, and after code was stored; before each doorbell; never",
    ("when needed", "always", "never"),
)
PAGES: Final = Question(
    "large pages",
    "whether buffers from 2 MiB on are aligned to as much, so that the GPU's page table may have"
    " large pages for them",
    ("aligned", "unaligned"),
)
PRIV: Final = Question(
    "priv",
    "whether PM4 launches on GFX11 set RSRC1.PRIV, as tinygrad does; no header tells why",
    ("set", "unset"),
)
QUESTIONS: Final = (RUNTIME, HDP_FLUSH, PAGES, PRIV)
parse: Final = partial(parse_variants, "AM_VARIANTS", QUESTIONS)
