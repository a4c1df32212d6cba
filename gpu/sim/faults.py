"""Faults that a simulated machine shows on purpose: their names, when they come, and what is left.

A fault is a text, ``NAME[:DETAIL][@WHEN]``, as in ``hang``, ``page-fault:write@3`` or
``ioctl:CREATE_QUEUE:ENOMEM@2+``. Times are counted from when the machine is told of it;
WHEN is ``N``, the Nth time (1 if it is not given), ``N+``, that and all after it, or ``P%``, each
time with that chance, drawn from the machine's seed. `FAULTS` has the names.
"""

from __future__ import annotations

import errno
import random
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from gpu.core.errors import ConfigError


class Kind(NamedTuple):
    """A name's row.

    Attributes:
        counted: what WHEN counts.
        what: what happens, and where a real kernel driver shows it.
        details: those there are, each with what it means; a word in capitals stands for any.
        required: whether one must be given.
        vendor: whose machines have it; empty for all.
    """

    counted: str
    what: str
    details: Mapping[str, str] = {}
    required: bool = False
    vendor: str = ""


FAULTS: Final[dict[str, Kind]] = {
    "lost-interrupt": Kind("interrupts of queues", "data arrives, the interrupt does not"),
    "stuck-fence": Kind(
        "writes that tell of an end", "it does not arrive, nor does its interrupt: the wait hangs"
    ),
    "lost-doorbell": Kind("doorbells", "the ring is not noticed"),
    "late-doorbell": Kind(
        "doorbells", "it is noticed after 5 ms", {"NANOSECONDS": "after that time"}
    ),
    "hang": Kind(
        "kernels",
        "it never ends",
        {"hard": "and cannot be taken off: then the kernel driver resets the GPU"},
    ),
    "page-fault": Kind(
        "kernels",
        "it accesses what its page tables do not have (kfd_events.c; Xid 31 of nverror.h)",
        {"read": "a load", "write": "a store", "exec": "the code itself"},
        required=True,
    ),
    "reset": Kind(
        "kernels",
        "the kernel driver resets the GPU for reasons of its own (kfd_signal_reset_event); on"
        " NVIDIA its firmware stops answering (Xid 119) and calls are refused until then",
    ),
    "ecc": Kind(
        "kernels",
        "it reads memory that lost its contents (kfd_signal_poison_consumed_event; Xid 94)",
    ),
    "xid": Kind(
        "kernels",
        "its channel group is torn down with a number of nverror.h",
        {"NUMBER": "the number, as in xid:109"},
        required=True,
        vendor="NV",
    ),
    "short-read": Kind(
        "reads of files whose path has that part",
        "half of it is read",
        {"PART": "of a path; without it all count"},
    ),
    "remove": Kind("calls of device files", "the GPUs are gone from that call on"),
    "no-memory": Kind(
        "allocations of that memory",
        "there is none (ENOMEM; NV_ERR_NO_MEMORY)",
        {"vram": "the GPU's", "gtt": "the machine's that the GPU sees"},
        required=True,
    ),
    "ioctl": Kind(
        "calls of that name",
        "it is not done, and answers with an errno, or a status of NVIDIA's driver",
        {"CALL:ANSWER": "as in CREATE_QUEUE:ENOMEM or RM_ALLOC:INSUFFICIENT_RESOURCES"},
        required=True,
    ),
}
"""All there are."""

_LATE_NS: Final = 5_000_000
ERRNOS: Final = frozenset(errno.errorcode.values())
_FORMS: Final = {"NANOSECONDS": "[0-9]+", "NUMBER": "[0-9]+", "PART": ".+", "CALL:ANSWER": ".+:.+"}
_FORM: Final = re.compile(r"(?P<name>[^:@]*)(:(?P<detail>[^@]*))?(@(?P<when>.*))?")
_WHEN: Final = re.compile(r"(?P<number>[1-9][0-9]*)(?P<mark>[+%]?)")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: the ``first`` to the ``last`` time, or each with a chance.

    Attributes:
        name, detail: as of `FAULTS`.
        first, last: which times, from 1 on; no last is for ever.
        chance: from 0 to 1.
    """

    name: str
    detail: str = ""
    first: int = 1
    last: int | None = 1
    chance: float = 1.0

    @staticmethod
    def parse(text: str) -> Fault:
        """Reads ``NAME[:DETAIL][@WHEN]``. Raises ConfigError for what that is not, or no name."""
        form = _FORM.fullmatch(text.strip())
        name = form["name"] if form else text
        kind = FAULTS.get(name)
        if form is None or kind is None:
            raise ConfigError(f"fault={text}: there is no fault {name!r}; there are {_names()}")
        detail = form["detail"] or ""
        if (kind.required or form[2]) and not _is_known(kind, detail):
            known = ", ".join(f"{name}:{each}" for each in kind.details) or f"{name} alone"
            raise ConfigError(f"fault={text}: {detail!r} is no detail of it; there are {known}")
        return Fault(name, detail, *_times(text, form["when"]))

    @property
    def late_ns(self) -> int:
        """How long a doorbell takes, in nanoseconds."""
        return int(self.detail or _LATE_NS)


Given: TypeAlias = Iterable[Fault | str]


def _names() -> str:
    return ", ".join(sorted(FAULTS))


def _is_known(kind: Kind, detail: str) -> bool:
    if detail in kind.details:
        return True
    return any(re.fullmatch(_FORMS[word], detail) for word in kind.details if word in _FORMS)


def _times(text: str, when: str | None) -> tuple[int, int | None, float]:
    """First, last and chance."""
    found = _WHEN.fullmatch("1" if when is None else when)
    number = int(found["number"]) if found else 0
    if found is None or (found["mark"] == "%" and number > 100):
        raise ConfigError(
            f"fault={text}: {when!r} is no time; give N for the Nth, N+ for all from that on, or"
            " P% for a chance, as in @3, @3+ and @30%"
        )
    if found["mark"] == "%":
        return 1, None, number / 100
    return number, None if found["mark"] else number, 1.0


class Faults:
    """The faults of one machine: those that are still to come."""

    def __init__(
        self,
        rng: random.Random,
        given: Given = (),
        *,
        vendor: str = "",
        calls: Collection[str] = (),
        answers: Collection[str] = ERRNOS,
        lacks: Collection[str] = (),
    ):
        """``calls`` and ``answers`` are what the machine's device files know.

        ``lacks`` are names that it does not show. Raises as `add`.
        """
        self._lacks = lacks
        self._rng = rng
        self._vendor, self._calls, self._answers = vendor, calls, answers
        self._waiting: list[_Waiting] = []
        for fault in given:
            self.add(fault)

    def add(self, fault: Fault | str) -> None:
        """Has a fault come; what is counted for it counts from now on.

        Raises ConfigError for a text that is none, and for what this machine cannot show.
        """
        if isinstance(fault, str):
            fault = Fault.parse(fault)
        vendor = FAULTS[fault.name].vendor
        if self._vendor and vendor not in ("", self._vendor):
            raise ConfigError(f"fault={fault.name}: only {vendor} has it, this is {self._vendor}")
        if fault.name in self._lacks:
            raise ConfigError(
                f"fault={fault.name}: there is none such on {self._vendor}'s machines"
            )
        if fault.name == "ioctl":
            self._check_call(*fault.detail.split(":", 1))
        self._waiting.append(_Waiting(fault))

    def clear(self) -> None:
        """Has none of those that were added come any more."""
        self._waiting.clear()

    def _check_call(self, call: str, answer: str) -> None:
        for what, given, known in (("call", call, self._calls), ("answer", answer, self._answers)):
            if given not in known:
                there = ", ".join(sorted(known))
                raise ConfigError(f"fault=ioctl: {given!r} is no {what} here; there are {there}")

    def due(self, *names: str, about: str = "") -> Fault | None:
        """Counts one more time for faults of these names; the one that comes now, if one does.

        ``about`` is what it is counted for: the detail of ``no-memory``, the path that the detail
        of ``short-read`` is a part of, the call of ``ioctl``.
        """
        if not self._waiting:
            return None
        found = None
        for waiting in list(self._waiting):
            if waiting.fault.name not in names or not _concerns(waiting.fault, about):
                continue
            waiting.seen += 1
            if found is None and waiting.comes(self._rng):
                found = waiting.fault
            if waiting.is_over:
                self._waiting.remove(waiting)
        return found


def _concerns(fault: Fault, about: str) -> bool:
    match fault.name:
        case "no-memory":
            return fault.detail == about
        case "short-read":
            return fault.detail in about
        case "ioctl":
            return fault.detail.partition(":")[0] == about
    return True


@dataclass(eq=False)
class _Waiting:
    """A fault, and how often it could have come."""

    fault: Fault
    seen: int = 0

    def comes(self, rng: random.Random) -> bool:
        """Whether it comes this time."""
        fault = self.fault
        if self.seen < fault.first or (fault.last is not None and self.seen > fault.last):
            return False
        return fault.chance == 1 or rng.random() < fault.chance

    @property
    def is_over(self) -> bool:
        """Whether it will not come any more."""
        return self.fault.last is not None and self.seen >= self.fault.last
