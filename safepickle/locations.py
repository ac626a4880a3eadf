"""Where do tensors go that a pickle holds, while a load says that they go somewhere else?

A load with a ``map_location`` enters it here for as long as it runs, in its own context (thread, task). What a pickle
calls for tensors looks here.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["current", "mapped", "running"]

#: The loads with a ``map_location`` that are running, in all threads: as long as there are none nobody needs to look,
#: and ``not locations.running`` says so at the price of no call.
running: Final[set[object]] = set()
_current: contextvars.ContextVar[Any] = contextvars.ContextVar("map_location", default=None)


@contextmanager
def mapped(map_location: Any) -> Iterator[None]:
    """Within this, tensors go where ``map_location`` says."""
    load = object()
    token = _current.set(map_location)
    running.add(load)  # in one step, where a number that threads count up and down would take three
    try:
        yield
    finally:
        running.discard(load)
        _current.reset(token)


def current() -> Any:
    """The ``map_location`` of the load that is running; ``None`` where each tensor goes to the device it was on."""
    return _current.get() if running else None
