"""The ladder's steps and their variants.

A variant of the driver's opening is forced by the names of `gpu.drivers.nv.channel.probes`; an
option is read by the step itself. Alternatives are tried until one passes; questions are asked
afterwards.
"""

from __future__ import annotations

from typing import Final

from gpu.drivers.nv.channel import probes as variants
from gpu.drivers.questions import Question
from tools.hw_acceptance.model import Step, Trial

GROUP: Final = "ladder"
_HERE: Final = "tools.hw_acceptance.ladder"
_SECONDS: Final = 30.0  # the first open of a GPU takes some


def _forced(question: Question) -> tuple[Trial, ...]:
    """A trial for each variant of a question of the driver's."""
    return tuple(
        Trial(f"{question.name}: {each}", force={question.name: each}) for each in question.variants
    )


def _option(name: str, *values: str) -> tuple[Trial, ...]:
    """A trial for each value of an option."""
    return tuple(Trial(f"{name}: {each}", options={name: each}) for each in values)


def _engine(channel: str) -> Trial:
    """Copies by the copy engine of one kind of channel, also where a kernel was settled on."""
    return Trial(f"copy channel: {channel}", {"copy channel": channel}, {"copies": "engine"})


_DEFAULT: Final = (Trial(),)
_SINGLE: Final = {f"qmd GPC_CGA_{axis}": "1" for axis in ("WIDTH", "HEIGHT", "DEPTH")}
_QMD: Final = (
    *_option("action", "INVALIDATE_COPY_SCHEDULE", "PREFETCH_SCHEDULE"),
    *_option("qmd QMD_TYPE", "0"),
    *_option("qmd QMD_GROUP_ID", "0", "31"),
    Trial("type and group 0", options={"qmd QMD_TYPE": "0", "qmd QMD_GROUP_ID": "0"}),
    Trial("clusters of one block", options=_SINGLE),
)

LADDER: Final = (
    Step(
        "1 control",
        "the control node answers: version and cards",
        GROUP,
        f"{_HERE}.opening:control",
        _SECONDS,
    ),
    Step(
        "2 device",
        "device, subdevice and classes",
        GROUP,
        f"{_HERE}.opening:device",
        _SECONDS,
        needs=("1 control",),
    ),
    Step(
        "3 clock",
        "the doorbell page is mapped: its clock goes",
        GROUP,
        f"{_HERE}.opening:clock",
        _SECONDS,
        needs=("2 device",),
        trials=_DEFAULT + _forced(variants.DOORBELL)[1:],
        hardware=True,  # a model's clock stands still while nothing runs
    ),
    Step(
        "4 uvm",
        "UVM owns an address space of the GPU",
        GROUP,
        f"{_HERE}.opening:uvm",
        _SECONDS,
        needs=("2 device",),
    ),
    Step(
        "5 memory",
        "memory of each kind is mapped for host and GPU",
        GROUP,
        f"{_HERE}.opening:memory",
        _SECONDS,
        needs=("3 clock", "4 uvm"),
        questions=_option("memory", "pinned"),
    ),
    Step(
        "6 channels",
        "both queues are scheduled",
        GROUP,
        f"{_HERE}.opening:channels",
        _SECONDS,
        needs=("5 memory",),
        questions=(
            *_forced(variants.ALLOC_FORM)[1:],
            *_forced(variants.COPY_CHANNEL),
            *_forced(variants.CHANNEL_WINDOW)[1:],
        ),
    ),
    Step(
        "7 host semaphore",
        "doorbell, ring and host engine: a semaphore with a timestamp",
        GROUP,
        f"{_HERE}.queues:host_semaphore",
        _SECONDS,
        needs=("6 channels",),
        trials=(
            *_DEFAULT,
            *_forced(variants.DOORBELL)[1:],
            Trial("copy channel: none", force={"copy channel": "none"}),
            *_option("pushbuffers", "VISIBLE"),
        ),
        questions=(
            *_forced(variants.COHERENCY)[1:],
            *_option("acquire", "ACQUIRE", "ACQ_STRICT_GEQ", "ACQ_CIRC_GEQ", "ACQ_AND", "ACQ_NOR"),
        ),
    ),
    Step(
        "8 objects",
        "classes and windows are set, and the engine is reached",
        GROUP,
        f"{_HERE}.queues:objects",
        _SECONDS,
        needs=("7 host semaphore",),
    ),
    Step(
        "9 launch",
        "a launch descriptor of a kernel without work, and its release",
        GROUP,
        f"{_HERE}.launching:nothing",
        _SECONDS,
        needs=("8 objects",),
        trials=(*_DEFAULT, *_QMD),
        questions=_option("launch memory", "SYSTEM"),
    ),
    Step(
        "10 store",
        "a kernel reads its parameters and stores them",
        GROUP,
        f"{_HERE}.launching:store",
        _SECONDS,
        needs=("9 launch",),
    ),
    Step(
        "11 kernels",
        "block and grid, shared memory, barriers, local memory",
        GROUP,
        f"{_HERE}.launching:kernels",
        _SECONDS,
        needs=("10 store",),
        questions=_option("local units", "enabled"),
    ),
    Step(
        "12 copies",
        "linear copies between device and system memory",
        GROUP,
        f"{_HERE}.copying:copies",
        _SECONDS,
        needs=("7 host semaphore",),
        trials=(
            *_DEFAULT,
            _engine("shared group"),
            Trial("by a kernel", force={"copy channel": "none"}, options={"copies": "kernel"}),
        ),
        questions=(_engine("own group"),),
    ),
)
