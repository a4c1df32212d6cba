"""Logging: one standard logger per module, all under the logger named ``gpu``.

``DEBUG=1`` shows events (level INFO) on stderr, ``DEBUG=2`` and higher details (level DEBUG). With
``DEBUG=0`` nothing is installed: warnings reach whatever the program has set up, as with any
library. The root logger is never touched.
"""

from __future__ import annotations

import logging
from typing import Final

from gpu.core.config import config

ROOT: Final = "gpu"
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_installed: Final[list[logging.Handler]] = []


def get_logger(module: str) -> logging.Logger:
    """The logger of a module; pass ``__name__``. Raises ConfigError for a bad ``DEBUG=``."""
    follow_debug()
    inside = module == ROOT or module.startswith(ROOT + ".")
    return logging.getLogger(module if inside else f"{ROOT}.{module}")


def follow_debug() -> None:
    """Sets the level that `config.DEBUG` asks for here and now; the level is the whole process's.

    A level that the program itself gave the ``gpu`` logger stays while DEBUG has always been 0.
    """
    debug = config.DEBUG
    logger = logging.getLogger(ROOT)
    if debug > 0:
        if not _installed:
            _installed.append(_stderr_handler())
            logger.addHandler(_installed[0])
        logger.setLevel(logging.INFO if debug == 1 else logging.DEBUG)
    elif _installed:
        logger.setLevel(logging.NOTSET)


def _stderr_handler() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    return handler
