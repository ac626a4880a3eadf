"""Rules for exceptions: whole, but for their tracebacks.

The standard library pickles an exception as a call of its class with ``args``. That fails for a class whose
``__init__`` takes other arguments, and it loses the cause, the context and some fields. Here an exception is made
bare and gets back what it had: arguments, fields, attributes, notes, slots, cause and context.

- one that the standard library's way brings back whole is left to that
- one whose class says itself how it is pickled is pickled so, and gets its cause and context back
- a context that cannot go along is left behind: nobody chose it, and the exception itself may be the only news of a
  failure
- ``AttributeError.obj`` is left out, as the standard library does: it is the object that lacked the attribute, of any
  kind and size
"""

from __future__ import annotations

import threading
import types
from typing import Any, Final

from .. import restore
from ..copier import deepcopy
from ..entries import foreign_entry
from ..registry import PICKLE_PROTOCOL, Registry
from .parts import ORIGIN, added

__all__ = ["add_rules"]

_HEAP_TYPE: Final = 1 << 9
_ATOMS: Final = (type(None), bool, int, float, complex, str, bytes)
_SKIPPED: Final = frozenset({"obj", "message", "exceptions"})


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    whole = ("whole; the traceback is dropped", "whole; the traceback is dropped")
    for kind in (BaseException, OSError, ImportError, AttributeError):  # some have protocol methods of their own
        registry.add(kind, reduce_exception, subclasses=True, with_pickler=True, origin=ORIGIN, summary=whole)
    registry.add_made_classes(BaseException, _reduces_itself, reduce_origin, with_pickler=True, origin=ORIGIN)


def reduce_exception(error: BaseException, pickler: Any) -> Any:
    """An exception made bare, and what it had."""
    cls = type(error)
    base = next(c for c in cls.__mro__ if not c.__flags__ & _HEAP_TYPE)
    origin = _origin(error, pickler)
    if not origin and _comes_back_whole(error, cls, base):
        return NotImplemented
    attributes, slots = added(error)
    parts = {"args": error.args, "fields": _fields(error, cls), "attributes": attributes, "slots": slots}
    state = {**{name: part for name, part in parts.items() if part != {}}, **origin}
    made_with: tuple[Any, ...] = ()
    if _is_group(base):
        made_with = (error.message, list(error.exceptions))  # type: ignore[attr-defined]
    return restore.make_exception, (cls, made_with), state, None, None, restore.fill_exception


# -- where an exception came from -------------------------------------------------------------------------------------


def _origin(error: BaseException, pickler: Any) -> dict[str, Any]:
    """The cause, the context if it can go along, and whether that is hidden."""
    found: dict[str, Any] = {}
    cause, context = error.__cause__, error.__context__
    if cause is not None:
        found["cause"] = cause
    if context is not None and (context is cause or _goes_along(context, pickler)):
        found["context"] = context
    if error.__suppress_context__:
        found["suppress"] = True
    return found


_trial = threading.local()


def _goes_along(context: BaseException, pickler: Any) -> bool:
    """Whether a context can be pickled or copied, its own context aside: that is asked for itself."""
    if getattr(_trial, "running", False):
        return False
    if all(type(part) in _ATOMS for part in (*context.args, *vars(context).values())) and context.__cause__ is None:
        return True
    _trial.running = True
    try:
        if pickler is None:
            deepcopy(context)
        else:
            from ..pickler import dumps

            dumps(context, pickler.protocol, registry=pickler.registry)
    except Exception:
        return False
    finally:
        _trial.running = False
    return True


def _reduces_itself(cls: type) -> bool:
    """Whether an exception class, and not one of the builtin ones, says how it is pickled; ours say so for a reason."""
    ours = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
    own = (base for base in cls.__mro__ if base.__flags__ & _HEAP_TYPE)
    return (
        not ours
        and foreign_entry(cls) is None
        and any(not PICKLE_PROTOCOL.isdisjoint(vars(base)) for base in own)
    )


def reduce_origin(error: BaseException, pickler: Any) -> Any:
    """An exception as it reduces itself, and where it came from."""
    origin = _origin(error, pickler)
    reduced = error.__reduce_ex__(4 if pickler is None else pickler.protocol) if origin else NotImplemented
    if not isinstance(reduced, tuple) or len(reduced) > 3:
        return NotImplemented
    function, arguments, *state = reduced
    return function, arguments, (state[0] if state else None, origin), None, None, restore.fill_exception_origin


# -- what an exception has --------------------------------------------------------------------------------------------


def _is_group(base: type) -> bool:
    return base.__name__ in ("BaseExceptionGroup", "ExceptionGroup")


def _comes_back_whole(error: BaseException, cls: Any, base: Any) -> bool:
    """Whether a call of the class with what the standard library pickles gives the same exception."""
    if _is_group(base):
        return cls is base
    if cls.__init__ is not base.__init__ or cls.__new__ is not base.__new__:
        return False
    if not all(type(argument) in _ATOMS for argument in error.args):
        return False  # an argument may lead back to the exception
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
            if (
                name in _SKIPPED
                or type(member) not in (types.MemberDescriptorType, types.GetSetDescriptorType)
                or name.startswith("__")
            ):
                continue
            try:
                value = member.__get__(error, cls)
            except (AttributeError, TypeError, ValueError):
                continue  # not set
            if value is not None:
                found[name] = value
    return found
