"""How does the C core copy objects of a type?

It asks here once a type and keeps the answer until the type or a rule changes.
"""

from __future__ import annotations

import collections
import copyreg
import enum
import struct
import types
from collections.abc import Mapping
from typing import Any, Final

from ..entries import foreign_entry
from ..registry import Registry, Rule, Share, known_by_identity

__all__ = ["plan_for"]

_HEAP_TYPE: Final = 1 << 9
_ABSTRACT: Final = 1 << 20
#: What a class must not have for its instances to be nothing but a dictionary and slots.
_PROTOCOL: Final = ("__deepcopy__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__getattr__")
_INHERITED: Final = ("__reduce_ex__", "__reduce__", "__getattribute__", "__setattr__", "__new__", "__class__")
_POINTER: Final = struct.calcsize("P")


def plan_for(cls: type, registry: Registry, kinds: Mapping[str, int], atomic: frozenset[type]) -> tuple[Any, ...]:
    """The plan for objects of a type.

    Args:
        cls: the type.
        registry: the rules in use.
        kinds: the core's numbers for the kinds of plans.
        atomic: types whose objects are their own copies.

    Returns:
        The kind; the kind to fall back to when every rule declines; whether instances have a dictionary; whether the
        plan may be kept; the rules, each as ``(mode, rule)``; the member descriptors of the slots.
    """
    rules = registry.rules_for(cls, "copy")
    kept = registry._cache.get(cls) is not None  # or a library is being imported, and its rules may come
    kind, has_dict, members = _without_rules(cls, kinds, atomic)
    if not rules:
        return kind, 0, has_dict, kept, (), members
    if isinstance(rules[0].copy, Share) and rules[0].copy.unless is None:
        return kinds["shared"], 0, 0, kept, (), ()
    fallback = kind if cls in _DEFINED or kind == kinds["atomic"] else kinds["protocol"]
    return kinds["rules"], fallback, 0, kept, tuple([(_mode(rule), rule) for rule in rules]), ()


def _mode(rule: Rule) -> int:
    """How the core applies a rule: SHARE, a function, a function in steps, a reducer."""
    if isinstance(rule.copy, Share):
        return 0
    if rule.copy is not None:
        return 2 if rule.in_steps else 1
    return 3


def _without_rules(cls: type, kinds: Mapping[str, int], atomic: frozenset[type]) -> tuple[int, int, tuple[Any, ...]]:
    if not known_by_identity(cls):
        return kinds["protocol"], 0, ()
    if cls in atomic:
        return kinds["atomic"], 0, ()
    name = _BUILTIN.get(cls)
    if name is not None:
        return kinds[name], 0, ()
    if issubclass(cls, type):
        return kinds["shared"], 0, ()
    if _is_plain_enum(cls):
        return kinds["enum"], 0, ()
    slots = _slots_of_plain(cls)
    if slots is None:
        return kinds["protocol"], 0, ()
    return kinds["plain"], int(cls.__dictoffset__ != 0), slots


#: Those that the definition handles before the standard library's protocols.
_DEFINED: Final = (list, dict, tuple)
_BUILTIN: Final[dict[type, str]] = {
    list: "list", dict: "dict", tuple: "tuple", set: "set", frozenset: "frozenset", bytearray: "bytearray",
    collections.OrderedDict: "ordered_dict", collections.defaultdict: "default_dict",
}  # fmt: skip


def _is_plain_enum(cls: type) -> bool:
    """Whether the members of a class say with ``Enum.__deepcopy__`` that they are their own copies."""
    own = vars(enum.Enum).get("__deepcopy__")
    if own is None or not issubclass(cls, enum.Enum) or _found(cls, "__deepcopy__") is not own:
        return False
    return own.__module__ == "enum" and _found(cls, "__getattribute__") is vars(object)["__getattribute__"]


def _slots_of_plain(cls: type) -> tuple[Any, ...] | None:
    """The member descriptors of a class whose instances are to ``object.__reduce_ex__`` a dictionary and slots.

    ``None`` where anything has a say in it: a protocol method, an attribute hook, a base made in C, an odd metaclass.
    """
    metaclass = type(cls)
    if _found(metaclass, "__getattribute__") is not vars(type)["__getattribute__"]:
        return None
    if _found(metaclass, "__getattr__") is not None:
        return None
    if cls.__flags__ & _ABSTRACT or not all(base.__flags__ & _HEAP_TYPE for base in cls.__mro__[:-1]):
        return None
    if any(_found(cls, name) is not None for name in _PROTOCOL):
        return None
    if any(_found(cls, name) is not vars(object)[name] for name in _INHERITED):
        return None
    if _found(cls, "__getstate__") is not vars(object).get("__getstate__"):
        return None
    if foreign_entry(cls) is not None or not _has_plain_dict(cls):
        return None
    names = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        return None
    members = tuple([_found(cls, name) for name in names])
    if not all(isinstance(member, types.MemberDescriptorType) for member in members):
        return None
    return members if cls.__itemsize__ == 0 and cls.__basicsize__ == _size(cls, len(members)) else None


def _found(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


def _has_plain_dict(cls: type) -> bool:
    found = _found(cls, "__dict__")
    if cls.__dictoffset__ == 0:
        return found is None
    return isinstance(found, types.GetSetDescriptorType) and found.__name__ == "__dict__"


def _size(cls: type, slots: int) -> int:
    """How large an instance of slots is, perhaps a dictionary and weak references, nothing of a base made in C.

    An offset below zero stands for what the interpreter keeps in front of the object.
    """
    pointers = slots + (cls.__dictoffset__ > 0) + (cls.__weakrefoffset__ > 0)
    return object.__basicsize__ + pointers * _POINTER
