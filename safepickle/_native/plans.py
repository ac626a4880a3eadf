"""How does the C core copy objects of a type? It asks here once a type and keeps the answer until the type or a rule changes."""

from __future__ import annotations

import collections
import copyreg
import enum
import types
from collections.abc import Mapping
from typing import Any, Final

from ..registry import Registry, Rule, Share

__all__ = ["plan_for"]

_HEAP_TYPE: Final = 1 << 9
_ABSTRACT: Final = 1 << 20
#: What a class must not have for its instances to be nothing but a dictionary and slots.
_PROTOCOL: Final = ("__deepcopy__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__getattr__", "__getinitargs__")
_INHERITED: Final = ("__reduce_ex__", "__reduce__", "__getattribute__", "__setattr__", "__new__", "__class__")
_POINTER: Final = 8 if (1 << 32) < __import__("sys").maxsize else 4


def plan_for(cls: type, registry: Registry, kinds: Mapping[str, int], atomic: frozenset[type]) -> tuple[Any, ...]:
    """The plan for objects of a type.

    Args:
        cls: the type.
        registry: the rules in use.
        kinds: the core's numbers for the kinds of plans.
        atomic: types whose objects are their own copies.

    Returns:
        The kind; the kind to fall back to when every rule declines; whether instances have a dictionary; the rules, each as
        ``(mode, function, rule)``; the member descriptors of the slots.
    """
    kind, has_dict, members = _without_rules(cls, kinds, atomic)
    rules = registry.rules_for(cls, "copy")
    if not rules:
        return kind, 0, has_dict, (), members
    if isinstance(rules[0].copy, Share):
        return kinds["atomic"], 0, 0, (), ()
    fallback = kinds["protocol"] if kind == kinds["plain"] else kind
    return kinds["rules"], fallback, 0, tuple(_rule_plan(rule) for rule in rules if rule.copy or rule.reduce), ()


def _rule_plan(rule: Rule) -> tuple[int, Any, Rule]:
    if isinstance(rule.copy, Share):
        return 0, None, rule
    if rule.copy is not None:
        return (2 if rule.in_steps else 1), rule.copy, rule
    return (4 if rule.with_pickler else 3), rule.reduce, rule


def _without_rules(cls: type, kinds: Mapping[str, int], atomic: frozenset[type]) -> tuple[int, int, tuple[Any, ...]]:
    if cls in atomic:
        return kinds["atomic"], 0, ()
    name = _BUILTIN.get(cls)
    if name is not None:
        return kinds[name], 0, ()
    if issubclass(cls, enum.Enum) and getattr(cls, "__deepcopy__", None) is getattr(enum.Enum, "__deepcopy__", 0):
        return kinds["atomic"], 0, ()
    slots = _slots_of_plain(cls)
    if slots is None:
        return kinds["protocol"], 0, ()
    return kinds["plain"], int(cls.__dictoffset__ != 0), slots


_BUILTIN: Final[dict[type, str]] = {
    list: "list", dict: "dict", tuple: "tuple", set: "set", frozenset: "frozenset", bytearray: "bytearray",
    collections.OrderedDict: "ordered_dict",
}  # fmt: skip


def _slots_of_plain(cls: type) -> tuple[Any, ...] | None:
    """The member descriptors of a class whose instances ``object.__reduce_ex__`` would take apart into dictionary and slots.

    ``None`` where anything has a say in it: a protocol method, an attribute hook, a base made in C, an odd metaclass.
    """
    if type(cls).__getattribute__ is not type.__getattribute__ or "__getattr__" in dir(type(cls)):  # type: ignore[comparison-overlap]
        return None
    if cls.__flags__ & _ABSTRACT or not all(base.__flags__ & _HEAP_TYPE for base in cls.__mro__[:-1]):
        return None
    if any(_found(cls, name) is not None for name in _PROTOCOL):
        return None
    if any(_found(cls, name) is not vars(object)[name] for name in _INHERITED):
        return None
    if "__getstate__" in vars(object):
        if _found(cls, "__getstate__") is not vars(object)["__getstate__"]:
            return None
    elif _found(cls, "__getstate__") is not None:
        return None
    if cls in copyreg.dispatch_table or not _has_plain_dict(cls):
        return None
    names = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    members = tuple(_found(cls, name) for name in names)
    if not all(isinstance(member, types.MemberDescriptorType) for member in members):
        return None
    return members if cls.__basicsize__ <= _expected_size(cls, len(members)) else None


def _found(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


def _has_plain_dict(cls: type) -> bool:
    if cls.__dictoffset__ == 0:
        return _found(cls, "__dict__") is None
    return isinstance(_found(cls, "__dict__"), types.GetSetDescriptorType)


def _expected_size(cls: type, slots: int) -> int:
    """How large an instance is that has a dictionary, a list of weak references and slots, and nothing of a base made in C."""
    return object.__basicsize__ + (slots + 2) * _POINTER
