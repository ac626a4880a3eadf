"""What does an object of the standard library hold beyond what its class makes of itself?

The rules for locks, queues, weak dictionaries and handlers are of one kind: make a bare object, run the ``__init__``
of the standard library's class on it, and set what the program or a subclass has added. This module finds the
addition.
"""

from __future__ import annotations

import copyreg
from collections.abc import Collection
from typing import Any, Final

from .. import restore

__all__ = ["ORIGIN", "added", "bare", "initialized", "state_of"]

#: What the rules for the standard library say of where they come from, whichever module they are in.
ORIGIN: Final = "safepickle.reducers.stdlib"


def added(obj: Any, own: Collection[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes and the slots of an object, without those that its class makes.

    Args:
        obj: the object.
        own: names of attributes and slots that are not wanted.
    """
    attributes = {name: value for name, value in getattr(obj, "__dict__", {}).items() if name not in own}
    slots: dict[str, Any] = {}
    for name in copyreg._slotnames(type(obj)):  # type: ignore[attr-defined]
        if name in own:
            continue
        try:
            slots[name] = getattr(obj, name)
        except AttributeError:
            continue
    return attributes, slots


def state_of(obj: Any, own: Collection[str] = ()) -> Any:
    """What :func:`added` finds, in the form in which the standard library pickles state; ``None`` for nothing."""
    attributes, slots = added(obj, own)
    return (attributes or None, slots) if slots else attributes or None


def bare(cls: type, state: Any, setter: Any) -> tuple[Any, ...]:
    """The reduce value of an object that is made bare and filled afterwards, so that it may hold itself."""
    return copyreg.__newobj__, (cls,), state, None, None, setter  # type: ignore[attr-defined]


def initialized(
    obj: Any,
    kind: str,
    arguments: tuple[Any, ...] = (),
    *,
    own: Collection[str],
    attributes: dict[str, Any] | None = None,
) -> tuple[Any, ...]:
    """The reduce value of an object on which the ``__init__`` of a class of the standard library is to run.

    Args:
        obj: the object.
        kind: ``"module:qualname"`` of that class; :func:`safepickle.restore.initialize` knows it.
        arguments: what the ``__init__`` is called with.
        own: attributes that it makes.
        attributes: those among them that are to have another value than it gives them.
    """
    found, slots = added(obj, own)
    return bare(type(obj), (kind, arguments, {**found, **(attributes or {})}, slots), restore.initialize)
