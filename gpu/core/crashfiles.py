"""Where reports of failed GPUs are kept: a folder of a few files, of which the oldest go."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpu.core.config import config
from gpu.core.files import atomic_write

_SUFFIXES: Final = (".json", ".txt")
_PREFIX: Final = "crash-"


class CrashFolder:
    """Keeps the youngest ``most`` reports, each as text and as JSON, only for this user to read."""

    def __init__(self, path: str | os.PathLike[str], most: int):
        """Makes nothing yet; with 0 nothing is ever kept."""
        self.path = Path(path)
        self.most = most

    def write(
        self, name: str, text: str, data: str, evidence: Mapping[str, bytes] | None = None
    ) -> Path:
        """Keeps a report; where its text is. Raises OSError.

        Each file is whole or not there. ``name`` sorts by age, and is not there already; each of
        ``evidence`` is a file of bytes beside the report, with its own name in that of the file.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part, raw in (evidence or {}).items():
            atomic_write(self.path / f"{_PREFIX}{name}.{part}.bin", raw)
        for suffix, content in zip(_SUFFIXES, (data, text), strict=True):
            atomic_write(self.path / f"{_PREFIX}{name}{suffix}", content.encode())
        for old in self.reports()[: -self.most]:
            for file in self.path.glob(f"{old.stem}.*"):
                file.unlink(missing_ok=True)
        return self.path / f"{_PREFIX}{name}.txt"

    def reports(self) -> list[Path]:
        """The JSON of those that are kept, oldest first."""
        return sorted(self.path.glob(f"{_PREFIX}*.json"))


def crash_folder() -> CrashFolder | None:
    """That of the settings CRASH_DIR and CRASH_FILES; None where nothing is to be kept."""
    path = config.CRASH_DIR or config.CACHE_DIR / "crashes"
    return CrashFolder(path, config.CRASH_FILES) if config.CRASH_FILES else None
