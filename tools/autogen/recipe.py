"""What a recipe says, and what it may find wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field


class AutogenError(Exception):
    """A header is not as its recipe expects, or a tool is missing or fails."""


class UnreachableError(AutogenError):
    """The recorded version of a package is to be had nowhere; says where it was looked for."""


@dataclass(frozen=True)
class Package:
    """A Debian binary package that holds headers, or a source package.

    `sha256` is of the .deb file, which is thus the same wherever it comes from; of a source package
    it is that of the archive called `source`. `root` is where the headers are inside it. A kernel's
    sources are one more archive in there: then `inner` is that archive, and `root` is inside of it.
    `suite` is the release that has it, and `component` the part of that. `snapshot` is a day on
    which it was there, as 20261121: what a release no longer has is in Debian's snapshots.
    """

    name: str
    version: str
    sha256: str
    root: str
    inner: str = ""
    suite: str = "bookworm"
    component: str = "main"
    snapshot: str = "20261121"
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A module of autogen/ and where it comes from.

    `headers` are paths below the package's root; their digests and licences go to the module's
    head.
    """

    module: str
    about: str
    package: Package
    headers: tuple[str, ...]

    def wanted(self) -> tuple[str, ...]:
        """Paths and folders (with a slash at the end) to extract from the package."""
        return self.headers


@dataclass(frozen=True, kw_only=True)
class CTypes(Recipe):
    """Structures and constants, through ctypeslib2.

    `structs` and `constants` are patterns of the names to keep; what kept structures hold is kept
    too. `include` are folders below the package's root. A C++ header says so in `language`.
    `bits` matches ``REGISTER(FIELD, lowest bit, width)`` where a header lists bit fields so.
    """

    include: tuple[str, ...]
    structs: tuple[str, ...]
    constants: tuple[str, ...]
    defines: tuple[str, ...] = ()
    language: str = "c"
    bits: str = ""
    extract: tuple[str, ...] = ()

    def wanted(self) -> tuple[str, ...]:
        return (*self.headers, *self.extract)


@dataclass(frozen=True, kw_only=True)
class Constants(Recipe):
    """Macros that are integers, without any declarations; `names` are patterns."""

    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Registers(Recipe):
    """A table of registers from ``*_offset.h`` and ``*_sh_mask.h``; `names` are patterns.

    `incomplete` are the fields (REGISTER__FIELD) of which the header forgets shift or mask.
    """

    names: tuple[str, ...]
    incomplete: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pm4(Recipe):
    """PM4 packets from the first header, and the events of an enumeration in the second."""

    events: str = "VGT_EVENT_TYPE"


@dataclass(frozen=True, kw_only=True)
class Counters(Recipe):
    """What performance counters count: numbers by name, of the enumerations BLOCK_PERF_SEL."""

    blocks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Sdma(Recipe):
    """Packets of the copy engine; `packets` are patterns of their names."""

    packets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Adreno(Recipe):
    """Registers and packets of a generation of Adreno GPUs, from rules-ng-ng's XML.

    `domain` has the registers, of which `names` are patterns; `opcodes` is the enumeration of
    packets.
    """

    generation: int
    domain: str
    opcodes: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Headers:
    """The texts of a recipe's headers by their paths, and where their package was unpacked."""

    folder: str
    texts: dict[str, str] = field(default_factory=dict)


class Patterns:
    """Names that match one of some regular expressions as a whole, and those that never did."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._used: set[re.Pattern[str]] = set()

    def __contains__(self, name: str) -> bool:
        matching = [pattern for pattern in self._patterns if pattern.fullmatch(name)]
        self._used.update(matching)
        return bool(matching)

    def check(self, what: str) -> None:
        """Every pattern must have matched something, so that a renamed thing is noticed."""
        idle = [pattern.pattern for pattern in self._patterns if pattern not in self._used]
        if idle:
            raise AutogenError(f"{what}: no name matches {', '.join(idle)}")
