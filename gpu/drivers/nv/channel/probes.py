"""What NVIDIA's documents leave open, as questions whose variants an opening tries."""

from __future__ import annotations

from functools import partial
from typing import Final

from gpu.drivers.questions import Question, parse_variants

ALLOC_FORM: Final = Question(
    "channel alloc", "the struct that RM_ALLOC of a channel takes", ("NVOS64", "NVOS21")
)
COPY_CHANNEL: Final = Question(
    "copy channel",
    "copy channels in groups of their own on the copy engines that do not belong to graphics, as"
    " UVM has them, one beside the compute channel on an engine that does, or none",
    ("own group", "shared group", "none"),
)
DOORBELL: Final = Question(
    "doorbell", "the bar through which the doorbell page is mapped", ("BAR0", "BAR1")
)
CHANNEL_WINDOW: Final = Question(
    "channel window",
    "how much address space a channel's own buffers need",
    ("256 MiB", "512 MiB", "1024 MiB"),
)
DEBUGGER: Final = Question(
    "debugger", "whether the errors of SMs can be read after a fault", ("attached", "none")
)
COHERENCY: Final = Question(
    "system memory", "coherency of system memory", ("cached", "write back", "uncached")
)
CHAINING: Final = Question(
    "chaining",
    "whether launches that follow each other in a submission start each other through their"
    " descriptors, copied as the first one is or as they are, or wait in the front end",
    ("copied", "scheduled", "none"),
)
COMPUTE_COPIES: Final = Question(
    "copies on compute queues",
    "whether compute queues copy too, on a graphics copy engine: their channels get the copy class."
    " Where there is no copy queue they must",
    ("none", "taken"),
)
QUESTIONS: Final = (
    *(ALLOC_FORM, COPY_CHANNEL, DOORBELL, CHANNEL_WINDOW, DEBUGGER, COHERENCY),
    *(CHAINING, COMPUTE_COPIES),
)
parse: Final = partial(parse_variants, "NV_VARIANTS", QUESTIONS)
