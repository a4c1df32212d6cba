"""The versions of installed packages, cheaply and without importing them."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.util import find_spec


@cache
def installed_version(package: str) -> str | None:
    """The version of a package whose name is also its module's; None where it is not installed.

    It stands in the names of `.dist-info` folders beside the package, one where all is well:
    "Recording installed projects" (packaging.python.org). `importlib.metadata` knows other kinds
    of installation too, but takes 30 ms to import.
    """
    found = _dist_info_versions(package)
    if len(found) == 1:
        return found[0]
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _dist_info_versions(package: str) -> list[str]:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return []
    dist_info = re.compile(re.escape(package) + r"-([^-]+)\.dist-info")
    names = os.listdir(os.path.dirname(os.path.dirname(spec.origin)))
    return [match[1] for name in names if (match := dist_info.fullmatch(name))]
