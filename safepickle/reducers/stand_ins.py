"""Rules for objects that take a function's place: what a decorator leaves where a function was defined.

- any object that can be called and holds the function whose name leads to the object: by that name, where pickling it
  by value would have to copy code that has a name already; copied as any object
"""

from __future__ import annotations

from typing import Any, Final

from .. import restore
from ..references import find_stand_in
from ..registry import Registry

__all__ = ["add_rules", "is_callable_class", "reduce_stand_in"]

#: A class with one of these says itself how its objects are restored.
_OWN_WAY: Final = frozenset(
    {"__setstate__", "__getstate__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__"}
)

_HEAP_TYPE: Final = 1 << 9
_NEVER: Final = (type, dict, list, tuple, set, frozenset, str, bytes, bytearray)


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    registry.add(
        object, reduce_stand_in, subclasses=True, only=is_callable_class, pickles_only=True, origin=__name__,
        summary=("by the name of the function whose place it took, if it did", "as any object"),
    )  # fmt: skip


def is_callable_class(cls: type) -> bool:
    """Whether objects of a class can stand in for functions: they can be called, or launched with ``[grid]``."""
    if not cls.__flags__ & _HEAP_TYPE or issubclass(cls, _NEVER):
        return False
    bases = [vars(base) for base in cls.__mro__[:-1]]
    can_be_called = any("__call__" in names or "__getitem__" in names for names in bases)
    return can_be_called and not any(_OWN_WAY & names.keys() for names in bases)


def reduce_stand_in(obj: Any) -> Any:
    """The object by the name of the function that it holds, if that name leads to the object."""
    reference = find_stand_in(obj)
    return NotImplemented if reference is None else (restore.stand_in, tuple(reference))
