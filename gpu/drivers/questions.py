"""Open questions of the hardware and its kernel driver, and which of their answers works.

What documents leave open is not guessed at in code: each question has named variants, tried in a
fixed order until the kernel takes one. Every outcome is recorded. A variant that opens may still
fail when the GPU runs: then force another one and compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from gpu.core.devspec import did_you_mean
from gpu.core.errors import ConfigError, InvalidValue, RmError, Unsupported
from gpu.core.log import get_logger

_log = get_logger(__name__)
T = TypeVar("T")


class Question(NamedTuple):
    """A question, what hangs on it, and its variants in the order they are tried."""

    name: str
    about: str
    variants: tuple[str, ...]


def parse_variants(setting: str, questions: Sequence[Question], text: str) -> dict[str, str]:
    """What a setting says: variants by question, as in ``doorbell=BAR1,debugger=none``.

    Raises ConfigError for a name or variant that is not known, and for a question twice.
    """
    known = {question.name: question.variants for question in questions}
    found: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        name, equals, variant = (each.strip() for each in part.partition("="))
        where = f"{setting}={text}:"
        if not equals:
            raise ConfigError(f"{where} {part.strip()!r} is no question=variant")
        if name not in known:
            raise ConfigError(f"{where} there is no question {name!r}{did_you_mean(name, known)}")
        if variant not in known[name]:
            near = did_you_mean(variant, known[name])
            raise ConfigError(f"{where} {name} has no variant {variant!r}{near}")
        if name in found:
            raise ConfigError(f"{where} {name} has two answers; leave one out")
        found[name] = variant
    return found


def variants_text(force: Mapping[str, str]) -> str:
    """What `parse_variants` reads."""
    return ",".join(f"{name}={variant}" for name, variant in force.items())


class Outcome(NamedTuple):
    """What became of a variant; ``error`` is None for one that the kernel took."""

    question: str
    variant: str
    error: str | None

    def __str__(self) -> str:
        return f"{self.question}: {self.variant} " + (
            "was taken" if self.error is None else f"failed: {self.error}"
        )


class Variants:
    """The questions of one device. A question that has its answer is not asked again.

    ``force`` names the only variant to try, by question. Raises InvalidValue for unknown names.
    """

    def __init__(self, questions: Sequence[Question], force: Mapping[str, str] | None = None):
        self.outcomes: list[Outcome] = []
        self._settled = dict(force or {})
        known = {question.name: question.variants for question in questions}
        for name, variant in self._settled.items():
            if variant not in known.get(name, ()):
                choices = "; ".join(f"{key!r}: {', '.join(known[key])}" for key in known)
                raise InvalidValue(f"no variant {variant!r} of {name!r}; there are {choices}")

    def answer(self, question: Question) -> str | None:
        """The variant that was taken or forced, None while the question is open."""
        return self._settled.get(question.name)

    def choose(self, question: Question) -> str:
        """The forced variant or else the first, of a question that no kernel answers."""
        return self._settled.setdefault(question.name, question.variants[0])

    def attempt(self, question: Question, run: Callable[[str], T], only: Sequence[str] = ()) -> T:
        """The result of the first variant that the kernel takes.

        ``run`` raises RmError, or Unsupported where the device lacks what the variant needs, having
        undone what it did; other errors end the attempt. ``only`` narrows the variants for a device
        that does not have all. Raises the first variant's error where none is taken, with notes of
        the others; InvalidValue where the forced variant is not among ``only``.
        """
        settled = self._settled.get(question.name)
        order = question.variants if settled is None else (settled,)
        order = tuple(each for each in order if not only or each in only)
        if not order:
            raise InvalidValue(
                f"{question.name}: this device has {', '.join(only)}, not the forced {settled!r}"
            )
        first: RmError | Unsupported | None = None
        for variant in order:
            try:
                result = run(variant)
            except (RmError, Unsupported) as error:
                self._record(question, variant, error.message)
                if first is None:
                    first = error
                else:
                    first.add_note(f"{question.name} as {variant!r}: {error.message}")
                continue
            if settled is None:
                self._record(question, variant, None)
                self._settled[question.name] = variant
            return result
        assert first is not None, "at least one variant was tried"
        raise first

    def _record(self, question: Question, variant: str, error: str | None) -> None:
        outcome = Outcome(question.name, variant, error)
        self.outcomes.append(outcome)
        _log.info("%s", outcome)
