"""Rules for :mod:`logging`.

- loggers: by name, with the handlers that they have where they are loaded; a logger that its manager does not know
  goes with its own
- handlers: rebuilt, with a fresh lock; one that writes to a file opens it to append, at the first message; one that
  writes to ``sys.stderr`` writes to that of the reader
"""

from __future__ import annotations

import sys
from typing import Any, Final

from ..registry import Registry
from .parts import ORIGIN, initialized

__all__ = ["add_rules"]


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    registry.add("logging:Logger", reduce_logger, subclasses=True, origin=ORIGIN,
                 summary=("by name; one without, rebuilt", "shared; one without a name, rebuilt"))  # fmt: skip
    rebuilt = "rebuilt with a fresh lock; files are appended to"
    registry.add("logging:Handler", reduce_handler, subclasses=True, origin=ORIGIN,
                 summary=(rebuilt, rebuilt))  # fmt: skip


_LOGGER: Final = frozenset({"name", "level", "manager", "_cache"})
_HANDLER: Final = frozenset({"lock", "level"})


def reduce_logger(logger: Any) -> Any:
    """A logger by its name, as it reduces itself; else its level, handlers and filters."""
    logging = sys.modules["logging"]
    if logging.Logger.manager.loggerDict.get(logger.name) is logger or logger is logging.root:
        return NotImplemented
    return initialized(logger, "logging:Logger", (logger.name, logger.level), own=_LOGGER)


def reduce_handler(handler: Any) -> tuple[Any, ...]:
    """A handler without its lock, and without what it has open."""
    logging = sys.modules["logging"]
    reset: dict[str, Any] = {}
    if isinstance(handler, logging.FileHandler):
        reset = {"stream": None, "mode": handler.mode.replace("w", "a").replace("x", "a")}
    elif "sock" in vars(handler):  # SocketHandler and DatagramHandler connect at the next message
        reset = {"sock": None}
    return initialized(handler, "logging:Handler", (handler.level,), own=_HANDLER, attributes=reset)
