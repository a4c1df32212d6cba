"""What is written is for strangers: names, paths and serial numbers of this machine are taken out.

A word is replaced where it stands alone. Names of steps and outcomes stay as they are, so that a
report can be resumed.
"""

from __future__ import annotations

import getpass
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tools.hw_acceptance.model import Result

ROOT: Final = Path(__file__).resolve().parents[2]
_KNOWN_TO_ALL: Final = frozenset({"root", "localhost", "", "0"})
_PLAIN_FOLDERS: Final = frozenset({"/", "/usr", "/usr/local", "/tmp", "/root", "/home"})
_SERIALS: Final = (  # unique_id and serial_number: amdgpu's files of a board
    *("/sys/class/drm/card*/device/unique_id", "/sys/class/drm/card*/device/serial_number"),
    *("/sys/class/dmi/id/*_serial", "/sys/class/dmi/id/product_uuid", "/etc/machine-id"),
)
_PATTERNS: Final = (
    (re.compile(r"(?<![\w.])/(?:home|Users)/[^/\s\"':,;)]+"), "<home>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"\b[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}\b"), "<mac>"),
    (re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])"), "<address>"),
)
_NUMBER: Final = re.compile(rb"(?m)^(unique_id )(\d+)$")
_HEX: Final = re.compile(rb"[0-9a-zA-Z]")


class Scrubber:
    """Takes words out of texts; by default those of this machine.

    Attributes:
        words: what each is replaced by.
    """

    def __init__(self, words: Mapping[str, str] | None = None):
        given = dict(machine_words()) if words is None else words
        self.words = {word: given[word] for word in sorted(given, key=len, reverse=True)}
        either = "|".join(map(re.escape, self.words))
        # A dash or a word character beside it makes it another word.
        self._words = re.compile(rf"(?<![\w-])(?:{either})(?![\w-])") if either else None

    def __call__(self, text: str) -> str:
        """The text without them."""
        if self._words is not None:
            text = self._words.sub(lambda found: self.words[found[0]], text)
        for pattern, name in _PATTERNS:
            text = pattern.sub(name, text)
        return text

    def value(self, value: Any) -> Any:
        """The same of all texts in what JSON can hold."""
        match value:
            case str():
                return self(value)
            case dict():
                return {self.value(key): self.value(each) for key, each in value.items()}
            case list() | tuple():
                return [self.value(each) for each in value]
            case _:
                return value

    def result(self, result: Result) -> Result:
        """A result without them; what a report is resumed by stays."""
        return replace(
            result,
            reason=self(result.reason),
            facts=self.value(result.facts),
            checks=self.value(result.checks),
            kernel_log=self.value(result.kernel_log),
            stop=self(result.stop),
        )


def machine_words() -> Iterator[tuple[str, str]]:
    """Paths of this tool, this user and Python, names of host and user, numbers of boards."""
    places = [(str(ROOT), "<tree>"), (str(Path.cwd()), "<here>"), (tempfile.gettempdir(), "<tmp>")]
    with suppress(RuntimeError):  # there is no home
        places.append((str(Path.home()), "<home>"))
    places += [(each, "<python>") for each in (sys.prefix, sys.base_prefix, sys.executable)]
    places += [(each, "<path>") for each in sys.path]
    known: dict[str, str] = {}
    for place, name in places:
        known.setdefault(place, name)
    yield from ((place, known[place]) for place in known if place not in _PLAIN_FOLDERS and place)
    node = platform.node()
    names = [(node, "<host>"), (node.partition(".")[0], "<host>")]
    with suppress(OSError, KeyError):  # a user without a name
        names.append((getpass.getuser(), "<user>"))
    yield from ((word, name) for word, name in names if word.lower() not in _KNOWN_TO_ALL)
    for number in _serial_numbers():
        yield number, "<serial>"
        with suppress(ValueError):  # KFD has in decimal what amdgpu has in hexadecimal
            yield str(int(number, 16)), "<serial>"


def without_serials(path: str, data: bytes) -> bytes:
    """What a file of sysfs holds, with zeros for the serial numbers of boards."""
    if path.endswith(("/unique_id", "/serial_number")):
        return _HEX.sub(b"0", data)
    if path.endswith("/properties"):
        return _NUMBER.sub(rb"\g<1>0", data)
    return data


def _serial_numbers() -> Iterator[str]:
    for pattern in _SERIALS:
        for path in Path("/").glob(pattern.lstrip("/")):
            with suppress(OSError):
                number = path.read_text(encoding="utf-8", errors="replace").strip()
                if number.strip("0") and len(number) > 3:
                    yield number
