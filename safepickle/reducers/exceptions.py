"""Rules for exceptions: whole, but for their tracebacks.

The standard library pickles an exception as a call of its class with ``args``. That fails for a class whose ``__init__`` takes other
arguments, and it loses the cause, the context and some fields. Here an exception is made bare and gets back what it had: arguments,
fields, attributes, notes, slots, cause and context. One that the standard library's way brings back whole is left to that.

``AttributeError.obj`` is left out, as the standard library does: it is the object that lacked the attribute, of any kind and size.
"""

from __future__ import annotations

import types
from typing import Any, Final

from .. import restore
from ..registry import Registry
from .parts import ORIGIN, added

__all__ = ["add_rules"]

_HEAP_TYPE: Final = 1 << 9
_SKIPPED: Final = frozenset({"obj", "message", "exceptions"})


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    whole = ("whole; the traceback is dropped", "whole; the traceback is dropped")
    registry.add(BaseException, reduce_exception, subclasses=True, origin=ORIGIN, summary=whole)
    for kind in (OSError, ImportError, AttributeError):  # they have protocol methods of their own
        registry.add(kind, reduce_exception, subclasses=True, origin=ORIGIN, summary=whole)


def reduce_exception(error: BaseException) -> Any:
    """An exception made bare, and what it had."""
    cls = type(error)
    base = next(c for c in cls.__mro__ if not c.__flags__ & _HEAP_TYPE)
    if _comes_back_whole(error, cls, base):
        return NotImplemented
    attributes, slots = added(error)
    state: dict[str, Any] = {"args": error.args, "fields": _fields(error, cls), "attributes": attributes, "slots": slots}
    if error.__cause__ is not None:
        state["cause"] = error.__cause__
    if error.__context__ is not None:
        state["context"] = error.__context__
    if error.__suppress_context__:
        state["suppress"] = True
    made_with: tuple[Any, ...] = ()
    if _is_group(base):
        made_with = (error.message, list(error.exceptions))  # type: ignore[attr-defined]
    return restore.make_exception, (cls, made_with), {k: v for k, v in state.items() if v != {}}, None, None, restore.fill_exception


def _is_group(base: type) -> bool:
    return base.__name__ in ("BaseExceptionGroup", "ExceptionGroup")


def _comes_back_whole(error: BaseException, cls: Any, base: Any) -> bool:
    """Whether a call of the class with what the standard library pickles gives the same exception."""
    if error.__cause__ is not None or error.__context__ is not None or error.__suppress_context__:
        return False
    if _is_group(base):
        return cls is base
    if cls.__init__ is not base.__init__ or cls.__new__ is not base.__new__:
        return False
    fields = _fields(error, cls)
    if not fields:
        return True
    try:
        twin = base(*base.__reduce__(error)[1])
        return all(_same(value, getattr(twin, name)) for name, value in fields.items())
    except Exception:
        return False


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in (str, int, bytes) and one == other)


def _fields(error: BaseException, cls: type) -> dict[str, Any]:
    """What the builtin classes of an exception keep outside of its ``__dict__``: ``errno``, ``lineno``, ``name``."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__flags__ & _HEAP_TYPE or base in (BaseException, object):
            continue
        for name, member in vars(base).items():
            if name in _SKIPPED or type(member) not in (types.MemberDescriptorType, types.GetSetDescriptorType) or name.startswith("__"):
                continue
            try:
                value = member.__get__(error, cls)
            except (AttributeError, TypeError, ValueError):
                continue  # not set
            if value is not None:
                found[name] = value
    return found
