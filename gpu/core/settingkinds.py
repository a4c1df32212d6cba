"""The kinds of values a setting can have, and how each is read from text."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from gpu.core.devspec import GRAMMAR, parse_device_spec

T = TypeVar("T")

_BOOL_WORDS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of value.

    Attributes:
        name: ``int``, ``bool``, ``str`` or ``path``, for tables.
        accepts: what may be written, for error messages.
        parse: reads a text; raises ValueError for what it does not accept.
    """

    name: str
    accepts: str
    parse: Callable[[str], T]


def whole_number(low: int, high: int) -> Kind[int]:
    """Integers from `low` to `high`, both included."""

    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return Kind("int", f"a whole number from {low} to {high}", parse)


def one_of(names: tuple[str, ...]) -> Kind[str]:
    """One of some upper-case names, read in any case."""

    def parse(text: str) -> str:
        if text.upper() not in names:
            raise ValueError(text)
        return text.upper()

    return Kind("str", " or ".join(names), parse)


def comma_list(words: Mapping[str, str]) -> Kind[frozenset[str]]:
    """Words separated by commas, each of which stands for a name; 0 for none of them."""

    def parse(text: str) -> frozenset[str]:
        found = [word.strip().lower() for word in text.split(",")]
        if found == ["0"]:
            return frozenset()
        if not words.keys() >= set(found):
            raise ValueError(text)
        return frozenset(words[word] for word in found)

    return Kind("list", f"0 or a comma list of {', '.join(words)}", parse)


def _parse_events(text: str) -> tuple[str, ...]:
    names = tuple(word.strip().upper() for word in text.split(","))
    if names in (("",), ("0",)):
        return ()
    if not all(name.isidentifier() for name in names):
        raise ValueError(text)
    return names


def _parse_bool(text: str) -> bool:
    if text.lower() not in _BOOL_WORDS:
        raise ValueError(text)
    return _BOOL_WORDS[text.lower()]


def _parse_profile(text: str) -> str:
    if text.lower() in _BOOL_WORDS or not text:
        return TABLE if _BOOL_WORDS.get(text.lower()) else ""
    if not text.endswith(".json"):
        raise ValueError(text)
    return str(_parse_path(text))


def _parse_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError(text)
    return Path(os.path.abspath(os.path.expanduser(text)))


def _parse_optional(text: str) -> Path | None:
    return _parse_path(text) if text else None


def _parse_bytes(text: str) -> int | None:
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([KMGT])(i?))?B?", text, re.IGNORECASE)
    if found is None:
        raise ValueError(text)
    from fractions import Fraction  # which takes as long to import as all of this

    number, prefix, binary = found.groups()
    power = " KMGT".index(prefix.upper()) if prefix else 0
    return int(Fraction(number) * (1024 if binary else 1000) ** power)


def _parse_device(text: str) -> str:
    return str(parse_device_spec(text)) if text else ""


TABLE: Final = "1"
"""What `PROFILE` gives where a table is asked for, and no file."""
BOOL: Final = Kind("bool", "0 or 1", _parse_bool)
EXACTLY_1: Final = Kind("bool", "1; all else is somebody else's", lambda text: text == "1")
"""Of variables whose names other programs use too."""
TEXT: Final = Kind("str", "any text", str)
NAME: Final = Kind("str", "any text but 0 and 1", lambda text: "" if text in ("0", "1") else text)
PATH: Final = Kind("path", "the path of a folder", _parse_path)
OPTIONAL_PATH: Final[Kind[Path | None]] = Kind(
    "path", "the path of a folder, or nothing", _parse_optional
)
EVENTS: Final = Kind("list", "0, or names of events separated by commas", _parse_events)
PROFILE: Final = Kind("str", "0, 1, or a file that ends in .json", _parse_profile)
BYTES: Final[Kind[int | None]] = Kind(
    "bytes", "a number of bytes, as 4096, 512MiB or 2GB, or nothing", _parse_bytes
)
DEVICE: Final = Kind("str", GRAMMAR, _parse_device)
