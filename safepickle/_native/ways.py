"""How does the compiled pickler reduce objects of a type?

It asks here once a type and keeps the answer until the type or a rule changes.
"""

from __future__ import annotations

import collections
import copyreg
import types
from collections.abc import Mapping
from typing import Any, Final

from ..registry import Registry, Rule, known_by_identity
from .plans import _found, _has_plain_dict, _size

__all__ = ["way_for"]

_HEAP_TYPE: Final = 1 << 9
#: What a class must not have, and what it must have from ``object``, for ``object.__reduce_ex__`` to ask nobody else.
_ABSENT: Final = ("__getnewargs__", "__getnewargs_ex__", "__getattr__")
_INHERITED: Final = ("__reduce_ex__", "__reduce__", "__getattribute__", "__class__")


def way_for(
    cls: type, registry: Registry, ways: Mapping[str, int], rules: tuple[Rule, ...] | None, *, plain: bool, alone: bool
) -> tuple[int, bool, tuple[Any, ...], bool, tuple[str, ...], tuple[Any, ...]]:
    """The way for objects of a type.

    Args:
        cls: the type.
        registry: where the rules come from.
        ways: the compiled module's numbers for the ways.
        rules: the rules to ask; ``None`` where the standard library goes on by itself.
        alone: whether the standard library goes on by itself where the rules decline.
        plain: whether there is nothing in a dispatch table about the type, so that its instances may be plain.

    Returns:
        The way; whether the answer may be kept; the rules; for plain instances whether they have a dictionary, and the
        names of the slots with their member descriptors. In the place of the names, the attributes by which to see that
        a rule has something to say.
    """
    kept = registry._cache.get(cls) is not None  # or a library is being imported, and its rules may come
    if rules is not None:
        concerns = _concerns(cls, rules) if alone else ()
        way = "concerned" if concerns else "named" if rules and rules[0].named else "rules"
        return ways[way], kept, rules, False, concerns, ()
    if cls is collections.OrderedDict and plain:
        return ways["ordered"], kept, (), False, (), ()
    slots = _slots_of_plain(cls) if plain else None
    if slots is None:
        return ways["standard"], kept, (), False, (), ()
    return ways["plain"], kept, (), cls.__dictoffset__ != 0, *slots


def _concerns(cls: type, rules: tuple[Rule, ...]) -> tuple[str, ...]:
    """The attributes that all the rules wait for; none where a rule has more to look at."""
    if not rules or not all(rule.concerns for rule in rules) or not known_by_identity(cls) or not _has_plain_dict(cls):
        return ()
    if cls.__dictoffset__ == 0:
        return ()
    return tuple(dict.fromkeys([name for rule in rules for name in rule.concerns]))


def _slots_of_plain(cls: type) -> tuple[tuple[str, ...], tuple[Any, ...]] | None:
    """The names and descriptors of the slots of a class whose instances are to ``object.__reduce_ex__`` a dictionary
    and slots; ``None`` where anything has a say in it: a protocol method, an attribute hook, a base made in C.
    """
    if not known_by_identity(cls) or issubclass(cls, type) or not _is_read_plainly(type(cls)):
        return None
    if not all(base.__flags__ & _HEAP_TYPE for base in cls.__mro__[:-1]):
        return None
    if any(_found(cls, name) is not None for name in _ABSENT):
        return None
    if any(_found(cls, name) is not vars(object)[name] for name in _INHERITED):
        return None
    if _found(cls, "__getstate__") is not vars(object).get("__getstate__") or not _has_plain_dict(cls):
        return None
    names = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    if type(names) is not list or not all(type(name) is str for name in names) or len(set(names)) < len(names):
        return None
    members = tuple([_found(cls, name) for name in names])
    if not all(isinstance(member, types.MemberDescriptorType) for member in members):
        return None
    if cls.__itemsize__ or cls.__basicsize__ != _size(cls, len(members)):
        return None
    return tuple(names), members


def _is_read_plainly(metaclass: type) -> bool:
    """Whether reading an attribute of its classes asks nobody else, ``__reduce__`` least of all."""
    return (
        _found(metaclass, "__getattribute__") is vars(type)["__getattribute__"]
        and _found(metaclass, "__reduce__") is vars(object)["__reduce__"]
        and _found(metaclass, "__slotnames__") is None
    )
