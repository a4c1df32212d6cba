"""`tools` is no part of an installed package: it is made importable by its path."""

from __future__ import annotations

import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

if "tools" not in sys.modules:
    package = types.ModuleType("tools")
    package.__path__ = [str(ROOT / "tools")]
    sys.modules["tools"] = package
