"""Compiled graphs with what they read, and running them on memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, NamedTuple

import numpy as np

from gpu.compiler.ir.dims import Symbol
from gpu.compiler.ir.graph import Node
from gpu.runtime.buffer import Buffer, memories_of
from gpu.runtime.collectives import plan_digest, shared_plan
from gpu.runtime.profile import PROFILE
from gpu.runtime.recent import Recent
from gpu.runtime.recipe import (
    About,
    Call,
    Key,
    Launch,
    Part,
    Repeat,
    Run,
    Schedule,
    Start,
    Wait,
)
from gpu.runtime.timeline import span
from gpu.runtime.users import note_thread

_NOTHING: Final = nullcontext()
_KEPT_DIGESTS: Final = 4096
_digests: Recent[Key, bytes] = Recent(_KEPT_DIGESTS)


class Counters:
    """What has been run since the process started; tests and `gpu demo` read it.

    Attributes:
        launches: kernels launched.
        compiled: graphs compiled.
        kernels: kernels compiled for them.
    """

    launches = 0
    compiled = 0
    kernels = 0


class Prepared(NamedTuple):
    """A compiled graph with its leaves, to be run on whatever memory stands for them.

    Attributes:
        key: the graph's form and numbers.
        leaves: nodes whose memory the first slots are, in order.
        schedule: what to run, and the slot of each root.
        values: what launches take: symbolic sizes, bound to values, and numbers that vary.
        lines: the lines that its steps are for, or () where they are not known; None where its
            kernels are not profiled.
    """

    key: Key
    leaves: list[Node]
    schedule: Schedule
    values: tuple[Symbol | int, ...] = ()
    lines: tuple[str, ...] | None = None

    def numbers(self, symbols: Mapping[str, Symbol]) -> list[int]:
        """Each of `values` as a number, with sizes as in `symbols` where that has them."""
        return [
            value if isinstance(value, int) else symbols.get(value.base, value).number
            for value in self.values
        ]

    def make_slots(self) -> list[Buffer]:
        """Fresh buffers for the slots after the leaves."""
        return [Buffer(s.device, s.size, s.dtype) for s in self.schedule.slots]

    def run_in_place(
        self,
        slots: list[Buffer],
        reused: Mapping[int, int],
        vals: Sequence[int] | None = None,
        before_changes: Callable[[], None] | None = None,
    ) -> None:
        """As `run`, of which the leaves that it changes lose their memory.

        `reused` has slots that lie in the memory of leaves, with those. `before_changes` is called
        once all memory is there, before any of a leaf changes. What leaves had is then in `slots`.
        """
        for slot, leaf in reused.items():
            slots[slot] = slots[leaf]
        changes = bool(reused or self.schedule.writes)
        self.run(slots, vals, before_changes if changes else None)
        for slot in (*self.schedule.writes, *reused):
            slots[slot] = slots[slot].moved()

    def run(
        self,
        slots: list[Buffer],
        vals: Sequence[int] | None = None,
        before_changes: Callable[[], None] | None = None,
    ) -> None:
        """Runs the graph on a buffer for each slot.

        `vals` has a number for each of `values`; without it sizes have those they are bound to.
        `before_changes` is called as in `run_in_place`.
        """
        if vals is None:
            vals = self.numbers({}) if self.values else ()
        note_thread()
        memories, schedule = memories_of(slots), self.schedule
        run = run_part if self.lines is None else self._run_timed
        with shared_plan(_digest(self.key), slots) if schedule.is_shared else _NOTHING:
            run(schedule.filling, slots, memories, vals)
            if schedule.changing.steps:
                if before_changes is not None:
                    before_changes()
                run(schedule.changing, slots, memories, vals)

    def _run_timed(
        self,
        part: Part,
        slots: Sequence[Buffer],
        memories: list[Any],
        vals: Sequence[int],
        one_device: str = "",
    ) -> None:
        """As `run_part`, a step after the other, each of which is timed.

        The step of a loop, which is all on `one_device`, has no slots but their memory.
        """
        first = 0 if part is self.schedule.filling else len(self.schedule.filling.steps)
        with span(f"run {len(part.steps)} steps"):
            for number, step in enumerate(part.steps, first):
                if isinstance(step, Repeat):
                    _repeat(step, memories, is_timed=True)
                elif isinstance(step, Call):
                    self._call_timed(number, step, memories)
                elif isinstance(step, (Start, Wait)):
                    self._exchange_timed(number, step, memories)
                elif isinstance(step, Launch):
                    device = one_device or slots[step.slots[0]].device
                    self._launch_timed(number, step, device, memories, vals)
                else:
                    self._copy_timed(number, slots[step.source], slots[step.target])

    def _named(self, number: int) -> tuple[About, str]:
        """What a step does, by its number, and its line."""
        return self.schedule.abouts[number], self.lines[number] if self.lines else ""

    def _launch_timed(
        self, number: int, step: Launch, device: str, memories: list[Any], vals: Sequence[int]
    ) -> None:
        used, taken = [memories[i] for i in step.slots], [vals[i] for i in step.vals]
        PROFILE.launch(device, step.program, used, taken, *self._named(number))
        Counters.launches += 1

    def _call_timed(self, number: int, step: Call, memories: list[Any]) -> None:
        about, line = self._named(number)
        with PROFILE.on_host(step.host.form.device, "python", about, line, bytes=about.nbytes):
            step.host([memories[i] for i in step.slots])

    def _exchange_timed(self, number: int, step: Start | Wait, memories: list[Any]) -> None:
        about, line = self._named(number)
        form = step.exchange.form
        label = about._replace(label=f"{type(step).__name__.lower()}_{form.calls[0].name}")
        with PROFILE.on_host(form.device, "python", label, line, bytes=about.nbytes):
            _exchange(step, memories)

    def _copy_timed(self, number: int, source: Buffer, target: Buffer) -> None:
        about, line = self._named(number)
        facts = {"from": source.device, "to": target.device, "bytes": about.nbytes // 2}
        with PROFILE.on_host(target.device, "copy", about, line, **facts):
            transfer(source, target)


def _repeat(step: Repeat, memories: list[Any], is_timed: bool = False) -> None:
    """Runs a loop; what it is made of is timed."""
    prepared = step.iteration.prepared
    schedule = prepared.schedule
    if is_timed:
        prepared = prepared._replace(lines=())

    def launch(own: list[Any], vals: Sequence[int]) -> None:
        for part in (schedule.filling, schedule.changing):
            if is_timed:
                prepared._run_timed(part, (), own, vals, step.iteration.device)
            else:
                run_part(part, (), own, vals)

    step.iteration.run([memories[i] for i in step.slots], launch)


def run_part(part: Part, slots: Sequence[Buffer], memories: list[Any], vals: Sequence[int]) -> None:
    """Runs steps on the memory that `slots` have."""
    for step in part.runs:
        if isinstance(step, Launch):
            taken = [vals[i] for i in step.vals] if step.vals else ()
            step.program(*[memories[i] for i in step.slots], vals=taken)
            Counters.launches += 1
        elif isinstance(step, Run):
            own = memories if step.slots is None else [memories[i] for i in step.slots]
            step.graph(own, vals)
            Counters.launches += step.launches
        elif isinstance(step, Repeat):
            _repeat(step, memories)
        elif isinstance(step, Call):
            step.host([memories[i] for i in step.slots])
        elif isinstance(step, (Start, Wait)):
            _exchange(step, memories)
        else:
            transfer(slots[step.source], slots[step.target])


def _exchange(step: Start | Wait, memories: Sequence[Any]) -> None:
    own = [memories[slot] for slot in step.slots]
    if isinstance(step, Start):
        step.exchange.start(own)
    else:
        step.exchange.wait(own)


def _digest(key: Key) -> bytes:
    found = _digests.get(key)
    if found is None:
        found = plan_digest(key)
        _digests.keep(key, found)
    return found


def transfer(source: Buffer, target: Buffer) -> None:
    """Copies a value from one buffer to another, through the host if the devices have no other way.

    Memory that is shared among intermediate values may be larger than the value.
    """
    if target.take_over(source):
        return
    lent = source.host_view()
    data = source.copy_out() if lent is None else lent
    target.copy_in(data.view(np.uint8)[: min(source.nbytes, target.nbytes)])
