"""Runs of pytest that tests start."""

from __future__ import annotations

import os


def environment() -> dict[str, str]:
    """The environment without what tells pytest how the run around it was asked for."""
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
