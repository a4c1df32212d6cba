"""How much a simulated machine has done: numbers for people, tests and comparisons."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(slots=True)
class Counts:
    """What has happened since a machine was made, all processes and GPUs together.

    Attributes:
        ioctls: requests made of device files, refused ones included.
        doorbells: values that the model found in doorbells. It looks when someone waits or makes
            a call: several rings of one doorbell in between are one.
        packets: what engines were given in rings and has been carried out: packets on AMD's
            machines, those of indirect buffers included; entries of rings and methods on NVIDIA's.
            One that has to wait counts once.
        kernels: grids that were begun.
        instructions: machine instructions that waves have executed, each once for all lanes of its
            wave, waits and hints included. They are added when a grid ends; one that faults or is
            given up adds nothing. On NVIDIA's machines they are PTX instructions.
    """

    ioctls: int = 0
    doorbells: int = 0
    packets: int = 0
    kernels: int = 0
    instructions: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Counts) -> Counts:
        """What has happened since `other`."""
        return Counts(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))
