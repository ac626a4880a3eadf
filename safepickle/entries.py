"""Which entries of ``copyreg``'s table are ours?

:func:`safepickle.install` publishes the registry there, for pickles and copies that the standard library makes. Our own
picklers and copiers ask the registry itself, so to them an :class:`Entry` is as if it were not there.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any

__all__ = ["Entry", "foreign", "foreign_entry"]


class Entry:
    """Reduces objects of one type by the rules of the registry; what ``copyreg.dispatch_table`` holds for the type.

    Args:
        cls: the type.
        before: what the table held before.
        rules: says what the rules make of an object; ``NotImplemented`` where they decline.
    """

    __slots__ = ("_rules", "before", "cls")

    def __init__(self, cls: type, before: Callable[[Any], Any] | None, rules: Callable[[Any], Any]) -> None:
        self.cls = cls
        self.before: Callable[[Any], Any] | None = foreign(before)
        self._rules: Callable[[Any], Any] | None = rules

    def __call__(self, obj: Any) -> Any:
        """What pickle asks for: a string, or a tuple of two to six items."""
        if self._rules is not None:
            reduced = self._rules(obj)
            if reduced is not NotImplemented:
                return reduced
        return self.otherwise(obj)

    def otherwise(self, obj: Any, protocol: int = 4) -> Any:
        """What would be asked if nothing were installed.

        Nobody tells an entry which protocol is being written; what objects say at protocol 4 can be written in any.
        """
        if self.before is not None:
            return self.before(obj)
        return obj.__qualname__ if isinstance(obj, type) else obj.__reduce_ex__(protocol)

    def close(self) -> None:
        """Nothing is installed any more: whoever has kept this entry gets what would be there without it."""
        self._rules = None

    def __repr__(self) -> str:
        return f"<safepickle's entry for {self.cls.__module__}.{self.cls.__qualname__}>"


def foreign(reducer: Any) -> Any:
    """A value of a dispatch table, or what was there before, if it is ours; ``None`` for nothing."""
    return reducer.before if type(reducer) is Entry else reducer


def foreign_entry(cls: type) -> Callable[[Any], Any] | None:
    """What somebody else has told ``copyreg`` about a type."""
    try:
        found: Callable[[Any], Any] | None = foreign(copyreg.dispatch_table.get(cls))
    except TypeError:  # its metaclass makes it unhashable
        return None
    return found
