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
from ..state_methods import Drops, Searches, Updates, meaning_of
from . import core

__all__ = ["plan_for"]

_HEAP_TYPE: Final = 1 << 9
_ABSTRACT: Final = 1 << 20
#: What a class must not have for its instances to be nothing but a dictionary and slots.
_PROTOCOL: Final = ("__deepcopy__", "__getnewargs__", "__getnewargs_ex__")
_INHERITED: Final = ("__reduce_ex__", "__reduce__", "__getattribute__", "__new__", "__class__")
_POINTER: Final = struct.calcsize("P")

#: A kind, whether instances have a dictionary, the members of the slots, what the class says about the state.
_Plain = tuple[int, int, tuple[Any, ...], Any]


def plan_for(cls: type, registry: Registry, kinds: Mapping[str, int], atomic: frozenset[type]) -> tuple[Any, ...]:
    """The plan for objects of a type.

    Args:
        cls: the type.
        registry: the rules in use.
        kinds: the core's numbers for the kinds of plans.
        atomic: types whose objects are their own copies.

    Returns:
        The kind; the kind to fall back to when every rule declines; the kind where no rule has anything to say; whether
        instances have a dictionary; whether the plan may be kept; the rules, each as ``(mode, rule, function)``; the
        attributes by which to see that a rule has; the member descriptors of the slots; what the class says about the
        state of its instances, or ``None``.
    """
    rules = registry.rules_for(cls, "copy")
    kept = registry._cache.get(cls) is not None  # or a library is being imported, and its rules may come
    kind, has_dict, members, state = _without_rules(cls, kinds, atomic)
    if not rules:
        return kind, 0, 0, has_dict, kept, (), (), members, state
    if isinstance(rules[0].copy, Share) and rules[0].copy.unless is None:
        return kinds["shared"], 0, 0, 0, kept, (), (), (), None
    fallback = kind if cls in _DEFINED or kind == kinds["atomic"] else kinds["protocol"]
    concerns: tuple[str, ...] = ()
    if has_dict and all(rule.concerns for rule in rules):
        concerns = tuple(dict.fromkeys([name for rule in rules for name in rule.concerns]))
    if cls is types.FunctionType and all(rule.holding for rule in rules):
        concerns = ("__closure__", "__dict__", "__defaults__", "__kwdefaults__")
    ruled = tuple([(_mode(rule), rule, rule.copy) for rule in rules])
    asked = "tensor" if type(rules[0].copy) is core.TensorCopier else "rules"
    otherwise = kinds["shared"] if kind == kinds["atomic"] else kind
    return kinds[asked], fallback, otherwise, has_dict, kept, ruled, concerns, members, state


def _mode(rule: Rule) -> int:
    """How the core applies a rule: SHARE, a function, a function in steps, a reducer."""
    if isinstance(rule.copy, Share):
        return 0
    if rule.copy is not None:
        return 2 if rule.in_steps else 1
    return 3


def _without_rules(cls: type, kinds: Mapping[str, int], atomic: frozenset[type]) -> _Plain:
    if not known_by_identity(cls):
        return kinds["protocol"], 0, (), None
    if cls in atomic:
        return kinds["atomic"], 0, (), None
    name = _BUILTIN.get(cls)
    if name is not None:
        registered = cls not in _DEFINED and foreign_entry(cls) is not None
        return kinds["protocol" if registered else name], 0, (), None
    if issubclass(cls, type):
        return kinds["shared"], 0, (), None
    if _is_plain_enum(cls):
        return kinds["enum"], 0, (), None
    slots = _slots_of_plain(cls)
    if slots is None:
        return kinds["protocol"], 0, (), None
    has_dict = int(cls.__dictoffset__ != 0)
    state = _state_of_plain(cls)
    if state is None:
        return kinds["plain"], has_dict, slots, None
    if slots and not state[0]:  # then the state is a pair, for which the class has a method
        return kinds["protocol"], 0, (), None
    return kinds["stateful"], has_dict, (), state


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
    hook = _found(cls, "__getattr__")
    if hook is not None and not isinstance(meaning_of(hook), Searches):
        return None
    if foreign_entry(cls) is not None or not _has_plain_dict(cls):
        return None
    names = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        return None
    if names and _found(cls, "__setattr__") is not vars(object)["__setattr__"]:
        return None
    members = tuple([_found(cls, name) for name in names])
    if not all(isinstance(member, types.MemberDescriptorType) for member in members):
        return None
    return members if cls.__itemsize__ == 0 and cls.__basicsize__ == _size(cls, len(members)) else None


def _state_of_plain(cls: type) -> tuple[bool, bool, tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None:
    """What a class says about the state of its instances; ``None`` where it says nothing.

    Returns:
        Whether its ``__getstate__`` must be called; whether its ``__setstate__`` must be; the names of attributes that
        are no part of the state; names that the state must have, or ``__setstate__`` is called after all; attributes
        that are dictionaries where ``__getattr__`` looks.
    """
    getstate, setstate = _found(cls, "__getstate__"), _found(cls, "__setstate__")
    hook = meaning_of(_found(cls, "__getattr__"))
    if getstate is vars(object).get("__getstate__"):
        getstate = None
    if getstate is None and setstate is None and hook is None:
        return None
    drops, updates = meaning_of(getstate), meaning_of(setstate)
    calls_getstate = getstate is not None and not isinstance(drops, Drops)
    calls_setstate = setstate is not None and not isinstance(updates, Updates)
    return (
        calls_getstate,
        calls_setstate,
        drops.names if isinstance(drops, Drops) else (),
        updates.names if isinstance(updates, Updates) else (),
        hook.attributes if isinstance(hook, Searches) else (),
    )


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
