"""The steps of AMD's ladder.

A forced variant is one of `gpu.drivers.am.kfd.questions`; an option is read by the step itself.
"""

from __future__ import annotations

from typing import Final

from gpu.drivers.am.kfd import questions
from gpu.drivers.questions import Question
from tools.hw_acceptance.model import Step, Trial

_HERE: Final = "tools.hw_acceptance.amd"
_TOOL: Final = "tools.hw_acceptance"
_SECONDS: Final = 30.0
_WORKS: Final = ("9 kernels", "4 sdma")


def _forced(question: Question) -> tuple[Trial, ...]:
    """A trial for each variant of a question of the driver's but the one that is taken."""
    return tuple(
        Trial(f"{question.name}: {each}", force={question.name: each})
        for each in question.variants[1:]
    )


_AQL: Final = (Trial("compute: aql", options={"compute": "aql"}),)

LADDER: Final = (
    Step(
        "0 doctor",
        "what `gpu doctor` says of this machine",
        "machine",
        f"{_HERE}.environment:doctor",
        _SECONDS,
    ),
    Step(
        "1 kfd",
        "KFD answers, and gives the first GPU's address space",
        "ladder",
        f"{_HERE}.opening:kfd",
        _SECONDS,
        needs=("0 doctor",),
    ),
    Step(
        "2 memory",
        "memory of each kind is mapped for host and GPU",
        "ladder",
        f"{_HERE}.opening:memory",
        _SECONDS,
        needs=("1 kfd",),
        questions=_forced(questions.PAGES),
    ),
    Step(
        "3 queues",
        "the kernel makes queues of each kind",
        "ladder",
        f"{_HERE}.opening:queues",
        _SECONDS,
        needs=("2 memory",),
        questions=(*_AQL, *_forced(questions.RUNTIME)),
    ),
    Step(
        "4 sdma",
        "the copy engine: fences, timestamps, copies",
        "ladder",
        f"{_HERE}.submitting:sdma",
        _SECONDS,
        needs=("3 queues",),
        questions=_forced(questions.PAGES),
    ),
    Step(
        "5 pm4",
        "a compute queue takes packets: signals, waits, a called buffer",
        "ladder",
        f"{_HERE}.submitting:pm4",
        _SECONDS,
        needs=("3 queues",),
        questions=_AQL,
    ),
    Step(
        "6 events",
        "a process that sleeps in the kernel is woken by interrupts",
        "ladder",
        f"{_HERE}.submitting:events",
        120.0,
        needs=("4 sdma", "5 pm4"),
    ),
    Step(
        "7 launch",
        "kernels without work, by PM4",
        "ladder",
        f"{_HERE}.launching:launch",
        _SECONDS,
        needs=("5 pm4",),
        trials=(Trial(), *_forced(questions.PRIV)),
    ),
    Step(
        "8 store",
        "a kernel reads its arguments and stores them",
        "ladder",
        f"{_HERE}.launching:store",
        _SECONDS,
        needs=("7 launch", "4 sdma"),
    ),
    Step(
        "9 kernels",
        "ids, LDS, barriers, scratch memory",
        "ladder",
        f"{_HERE}.launching:kernels",
        _SECONDS,
        needs=("8 store",),
    ),
    Step(
        "10 aql",
        "the same by AQL packets",
        "ladder",
        f"{_HERE}.launching:aql",
        60.0,
        needs=("4 sdma", "5 pm4"),
    ),
    Step(
        "11 bar",
        "what the host writes through the BAR is read by kernels and copies",
        "ladder",
        f"{_HERE}.launching:bar",
        _SECONDS,
        needs=_WORKS,
        questions=_forced(questions.HDP_FLUSH),
    ),
)
SUITES: Final = (
    Step(
        "instruction vectors",
        "each instruction that the lane engine knows gives what the engine says",
        "suites",
        f"{_HERE}.vectors.compare:instructions",
        120.0,
        needs=_WORKS,
    ),
    Step(
        "conformance",
        "command queues, memory, graphs, threads: as on every device with queues",
        "suites",
        f"{_TOOL}.suites.conformance:conformance",
        120.0,
        needs=_WORKS,
        questions=_AQL,
    ),
    Step(
        "op suite by LLVM",
        "tensor operations, their kernels compiled by llvmlite",
        "suites",
        f"{_TOOL}.suites.tensors:by_llvm",
        230.0,
        needs=_WORKS,
    ),
)
BENCHMARKS: Final = (
    Step(
        "queues",
        "launches, graphs and copies by command queues",
        "benchmarks",
        f"{_TOOL}.bench.queues:ours",
        60.0,
        needs=_WORKS,
    ),
    Step(
        "soak",
        "launches and allocations from threads, while Ctrl-C comes: nothing piles up or is lost",
        "benchmarks",
        f"{_TOOL}.bench.stamina:stamina",
        180.0,
        needs=_WORKS,
    ),
    Step(
        "tensors",
        "softmax, layernorm, matrix products, negation; none of ROCm's libraries",
        "benchmarks",
        f"{_TOOL}.bench.tensors:ours",
        120.0,
        needs=_WORKS,
    ),
    Step(
        "vendor's side",
        "the same rows by torch, where it is built for ROCm",
        "benchmarks",
        f"{_TOOL}.bench.theirs:by_torch",
        180.0,
        hardware=True,
    ),
)
FAULTS: Final = (
    Step(
        "killed",
        "a process that is killed at any moment leaves a GPU that the next one opens",
        "faults",
        f"{_TOOL}.faults.killing:kill",
        60.0,
        needs=_WORKS,
        late=True,
        hardware=True,  # a model dies with its process
    ),
    Step(
        "faults",
        "a fault or a hang is told as what it is, and the same process goes on",
        "faults",
        f"{_HERE}.faults:provoke",
        150.0,
        needs=_WORKS,
        late=True,
    ),
    Step(
        "conformance of faults",
        "a bad address is a fault of one device, and others go on",
        "faults",
        f"{_HERE}.faults:conformance",
        60.0,
        needs=_WORKS,
        late=True,
    ),
)
STEPS: Final = (
    Step(
        "environment",
        "what machine this is",
        "machine",
        f"{_HERE}.environment:describe",
        30.0,
        always=True,
    ),
    *LADDER,
    *SUITES,
    *BENCHMARKS,
    *FAULTS,
)
LAST: Final = (
    Step(
        "health after",
        "a process that comes last opens the GPU, and it computes",
        "machine",
        f"{_HERE}.launching:health",
        60.0,
        needs=_WORKS,
        always=True,
        guards=True,
    ),
)
