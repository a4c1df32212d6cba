"""A browser for all tests of exported pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from export.chromium import Chromium
from export.pages import Site


@pytest.fixture(scope="session")
def site(need: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Pages in front of a browser, which is started once."""
    need("chromium")
    root = tmp_path_factory.mktemp("site")
    with Chromium(root, tmp_path_factory.mktemp("profile")) as browser:
        yield Site(root, browser)
